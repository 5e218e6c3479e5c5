package service

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/operate/service/bodies"
)

// desk is a store in memory, for tests of the API alone.
type desk struct {
	mu       sync.Mutex
	policies map[[2]string][]Policy
	tasks    map[string]Task
	attempts map[string][]Attempt
	broken   error
}

func newDesk() *desk {
	return &desk{policies: map[[2]string][]Policy{}, tasks: map[string]Task{}, attempts: map[string][]Attempt{}}
}

func (d *desk) PutPolicy(_ context.Context, p Policy) (Policy, error) {
	id := [2]string{p.Tenant, p.ID}
	p.Version = len(d.policies[id]) + 1
	d.policies[id] = append(d.policies[id], p)
	return p, d.broken
}

func (d *desk) Policy(_ context.Context, tenant, id string, _ int) (Policy, error) {
	versions := d.policies[[2]string{tenant, id}]
	if len(versions) == 0 {
		return Policy{}, errors.Join(ErrNotFound, d.broken)
	}
	return versions[len(versions)-1], d.broken
}

func (d *desk) Create(_ context.Context, t Task) (Task, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, other := range d.tasks {
		if other.Tenant == t.Tenant && other.IdempotencyKey == t.IdempotencyKey {
			if other.TargetURL != t.TargetURL || !bytes.Equal(other.Body, t.Body) || other.BodyRef != t.BodyRef {
				return Task{}, false, ErrKeyReused
			}
			return other, false, nil
		}
	}
	t.Row = int64(len(d.tasks) + 1)
	d.tasks[t.ID] = t
	return t, true, d.broken
}

func (d *desk) Task(_ context.Context, tenant, id string) (Task, error) {
	if t, ok := d.tasks[id]; ok && t.Tenant == tenant {
		return t, d.broken
	}
	return Task{}, errors.Join(ErrNotFound, d.broken)
}

func (d *desk) Cancel(ctx context.Context, tenant, id string) (Task, error) {
	t, err := d.Task(ctx, tenant, id)
	if err != nil {
		return t, err
	}
	if t.Status != Pending {
		return t, &StateError{TaskID: id, Status: t.Status}
	}
	t.Status = Cancelled
	d.tasks[id] = t
	return t, nil
}

func (d *desk) Attempts(_ context.Context, tenant, id string, after, limit int) ([]Attempt, error) {
	if _, err := d.Task(context.Background(), tenant, id); err != nil {
		return nil, err
	}
	list := d.attempts[id][min(after, len(d.attempts[id])):]
	return list[:min(limit, len(list))], d.broken
}

// office is an API and what it works with.
type office struct {
	*testing.T
	api       *API
	store     *desk
	bodies    string
	handler   http.Handler
	described *description
	scheduled []Due
}

func newOffice(t *testing.T, tokens ...Token) *office {
	o := &office{T: t, store: newDesk(), bodies: filepath.Join(t.TempDir(), "bodies"), described: readDescription(t)}
	o.api = &API{
		Store: o.store, Bodies: bodies.Dir(o.bodies), Tokens: tokens, Logger: slog.New(slog.DiscardHandler),
		Scheduled: func(_ context.Context, due ...Due) error {
			o.store.mu.Lock()
			defer o.store.mu.Unlock()
			o.scheduled = append(o.scheduled, due...)
			return nil
		},
		Allowed: func(u *url.URL) error {
			if u.Hostname() == "forbidden.example" {
				return errors.New("it is on no list")
			}
			return nil
		},
	}
	o.handler = o.api.Handler()
	return o
}

// exchange is a request, and what is wanted.
type exchange struct {
	method, path string
	header       http.Header
	body         string
	status       int
	problem      kind   // if it is one
	detail       string // a part of it
}

// do makes a request, and holds the answer against the description of the API.
func (o *office) do(e exchange) (doc map[string]any, header http.Header) {
	o.Helper()
	r := httptest.NewRequest(e.method, e.path, strings.NewReader(e.body))
	r.Host = "127.0.0.1:7430"
	r.Header.Set("Content-Type", "application/json")
	for name, values := range e.header {
		r.Header[name] = values
		if name == "Host" {
			r.Host = values[0]
		}
	}
	w := httptest.NewRecorder()
	o.handler.ServeHTTP(w, r)
	o.described.check(o.T, r, e.body, w)
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		o.Fatalf("the answer is no JSON: %v: %s", err, w.Body)
	}
	if w.Code != max(e.status, e.problem.status) {
		o.Errorf("%s %s: status %d, %s; want %d", e.method, e.path, w.Code, w.Body, max(e.status, e.problem.status))
	}
	if e.problem.name != "" && (doc["type"] != problems+e.problem.name || !strings.Contains(doc["detail"].(string), e.detail)) {
		o.Errorf("%s %s: %s; want %s, %q", e.method, e.path, w.Body, e.problem.name, e.detail)
	}
	return doc, w.Header()
}

const policyBody = `{"policyId": "quick", "backoff": "EXPONENTIAL", "maxAttempts": 4, "initialDelayMs": 10, "multiplier": 2, "maxDelayMs": 100, "totalBudgetMs": 60000, "jitterType": "NONE", "retryableStatusCodes": [503], "visibilityTimeoutMs": 5000}`

// taskBody is a task with some fields more, or replaced.
func taskBody(change string) string {
	fields := map[string]json.RawMessage{"idempotencyKey": []byte(`"key-1"`), "targetUrl": []byte(`"https://api.example.com/pay?x=1&y=2"`), "policyId": []byte(`"quick"`)}
	var more map[string]json.RawMessage
	if err := json.Unmarshal([]byte("{"+change+"}"), &more); err != nil {
		panic(err)
	}
	for name, value := range more {
		if fields[name] = value; string(value) == "null" {
			delete(fields, name)
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func (o *office) policy() {
	o.do(exchange{method: "POST", path: "/retry-policies", body: policyBody, status: http.StatusOK})
}

// stored is how much is stored.
func (o *office) stored() (n int) {
	for _, versions := range o.store.policies {
		n += len(versions)
	}
	_ = filepath.WalkDir(o.bodies, func(_ string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return nil
	})
	return n + len(o.store.tasks) + len(o.scheduled)
}

// TestAPI makes requests of all kinds, and then demands that each operation, answer
// and field of the description was among them.
func TestAPI(t *testing.T) {
	o := newOffice(t)
	good(o)
	hostile(o)
	outages(o)
	withTokens(o)
	o.described.complete(t)
}

// good goes through what a task can come to.
func good(o *office) {
	o.policy()
	body := strings.Repeat("€", 30_000)
	doc, header := o.do(exchange{method: "POST", path: "/retry-tasks", status: http.StatusAccepted,
		body: taskBody(`"method": "PUT", "headers": {"content-type": "text/plain", "X-A": "1"}, "delayMs": 1000, "body": "` + body + `"`)})
	id := doc["taskId"].(string)
	task := o.store.tasks[id]
	if header.Get("Location") != "/retry-tasks/"+id || task.Headers["Content-Type"] != "text/plain" || task.Body != nil || task.NextAttemptAt.Sub(task.CreatedAt) != time.Second {
		o.Errorf("task %+v at %s", task, header.Get("Location"))
	}
	if kept, err := o.api.Bodies.Open(o.Context(), task.BodyRef); err != nil {
		o.Errorf("its body: %v", err)
	} else if text, err := io.ReadAll(kept); string(text) != body || errors.Join(err, kept.Close()) != nil {
		o.Errorf("its body has %d bytes, error %v", len(text), err)
	}
	if len(o.scheduled) != 1 || o.scheduled[0] != (Due{Row: task.Row, Tenant: "default", At: task.NextAttemptAt}) {
		o.Errorf("scheduled: %+v", o.scheduled)
	}
	again, _ := o.do(exchange{method: "POST", path: "/retry-tasks", status: http.StatusOK, body: taskBody(`"bodyRef": "` + task.BodyRef + `"`)})
	if again["taskId"] != id || len(o.scheduled) != 1 {
		o.Errorf("the same task again: %v, scheduled %d times", again, len(o.scheduled))
	}

	task.LastStatus, task.LastError, task.AttemptNumber = 503, "503 Service Unavailable", 3
	o.store.tasks[id] = task
	for n := range 3 {
		o.store.attempts[id] = append(o.store.attempts[id], Attempt{Number: n + 1, StartedAt: time.Now(), Duration: 5 * time.Millisecond, ResponseStatus: 503, Error: "503 Service Unavailable"})
	}
	doc, _ = o.do(exchange{method: "GET", path: "/retry-tasks/" + id, status: http.StatusOK})
	if doc["status"] != "PENDING" || doc["attemptNumber"] != 3.0 || doc["nextAttemptAt"] != float64(task.NextAttemptAt.UnixMilli()) {
		o.Errorf("the task: %v", doc)
	}
	doc, _ = o.do(exchange{method: "GET", path: "/retry-tasks/" + id + "/attempts?limit=2", status: http.StatusOK})
	rest, _ := o.do(exchange{method: "GET", path: fmt.Sprintf("/retry-tasks/%s/attempts?limit=2&cursor=%s", id, doc["nextCursor"]), status: http.StatusOK})
	if len(doc["attempts"].([]any)) != 2 || len(rest["attempts"].([]any)) != 1 || rest["nextCursor"] != nil {
		o.Errorf("pages %v, %v", doc, rest)
	}
	doc, _ = o.do(exchange{method: "DELETE", path: "/retry-tasks/" + id, status: http.StatusOK})
	if doc["status"] != "CANCELLED" || doc["nextAttemptAt"] != nil {
		o.Errorf("cancelled: %v", doc)
	}

	// A key from the header, bytes, and a time that is past.
	doc, _ = o.do(exchange{method: "POST", path: "/retry-tasks", header: http.Header{"Idempotency-Key": {"key-2"}, "X-Tenant": {"default"}}, status: http.StatusAccepted,
		body: taskBody(fmt.Sprintf(`"idempotencyKey": null, "bodyBase64": "AP8=", "nextAttemptAt": %d`, time.Now().Add(-time.Hour).UnixMilli()))})
	if task := o.store.tasks[doc["taskId"].(string)]; task.IdempotencyKey != "key-2" || !bytes.Equal(task.Body, []byte{0, 255}) || task.NextAttemptAt != task.CreatedAt {
		o.Errorf("task %+v", task)
	}
	if doc, _ = o.do(exchange{method: "GET", path: "/retry-tasks/" + doc["taskId"].(string) + "/attempts", status: http.StatusOK}); len(doc["attempts"].([]any)) != 0 {
		o.Errorf("attempts of a new task: %v", doc)
	}
}

// hostile sends what must be refused, and demands that it says why and stores nothing.
func hostile(o *office) {
	busy := "00000000-0000-7000-8000-000000000001"
	o.store.tasks[busy] = Task{ID: busy, Tenant: "default", IdempotencyKey: "busy", Status: InFlight}
	other := "00000000-0000-7000-8000-000000000002"
	o.store.tasks[other] = Task{ID: other, Tenant: "other", IdempotencyKey: "key-1", Status: Pending}
	foreign, err := o.api.Bodies.Put(o.Context(), "other", strings.NewReader("a secret"))
	if err != nil {
		o.Fatal(err)
	}
	large := strings.Repeat("a", maxBody+1)
	nested := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	var many []string
	for i := range maxHeaders + 1 {
		many = append(many, fmt.Sprintf(`"X-%d": ""`, i))
	}
	post := func(body string, k kind, detail string) exchange {
		return exchange{method: "POST", path: "/retry-tasks", body: body, problem: k, detail: detail}
	}
	task := func(change string, k kind, detail string) exchange { return post(taskBody(change), k, detail) }
	policy := func(from, to string, k kind, detail string) exchange {
		return exchange{method: "POST", path: "/retry-policies", body: strings.Replace(policyBody, from, to, 1), problem: k, detail: detail}
	}
	with := func(e exchange, name string, values ...string) exchange {
		e.header = http.Header{name: values}
		return e
	}
	get := func(path string, k kind, detail string) exchange {
		return exchange{method: "GET", path: path, problem: k, detail: detail}
	}
	for _, e := range []exchange{
		// JSON
		post(``, malformed, "line 1"),
		post(`[]`, malformed, "begin with {"),
		post(`{`, malformed, "unexpected end"),
		post("{\n\"method\" \"GET\"}", malformed, "line 2, byte 10"),
		post(taskBody("")+"{}", malformed, "after top-level value"),
		post(taskBody("")+"\x00", malformed, "after top-level value"),
		post("{\"method\": \"\xff\"}", malformed, "UTF-8"),
		post(`{"body": "\ud800"}`, malformed, "bodyBase64"),
		post(`{"method": "GET", "method": "PUT"}`, malformed, "twice"),
		post(`{"headers": {"A": "1", "A": "2"}}`, malformed, `"headers.A" is there twice`),
		post(`{"method": null}`, malformed, "method is null"),
		post(`{"method": 5}`, malformed, "method must be a string"),
		post(`{"headers": ["A"]}`, malformed, "must be an object"),
		post(`{"headers": {"A": {"B": {"C": {}}}}}`, malformed, "nested"),
		post(`{"headers": `+nested+`}`, malformed, "depth"),
		post(`{"headers": `+nested[15_000:25_000]+`}`, malformed, "nested"),
		post(`{"delayMs": 1e999}`, malformed, "whole number"),
		post(`{"delayMs": 99999999999999999999}`, malformed, "whole number"),
		post(`{"delayMs": 0.5}`, malformed, "whole number"),
		post(`{"targetURL": "https://api.example.com"}`, unknownField, "did you mean targetUrl?"),
		post(`{"`+strings.Repeat("x", 5000)+`": 1}`, unknownField, "…"),
		task(`"status": "SUCCEEDED"`, unknownField, "status"),
		with(task("", noJSON, "Content-Type"), "Content-Type", "text/plain"),
		// Targets
		task(`"targetUrl": null`, invalidTask, "http://"),
		task(`"targetUrl": "ftp://api.example.com"`, invalidTask, "http://"),
		task(`"targetUrl": "//api.example.com"`, invalidTask, "http://"),
		task(`"targetUrl": "http:api.example.com"`, invalidTask, "name a host"),
		task(`"targetUrl": "http://:80/"`, invalidTask, "name a host"),
		task(`"targetUrl": "https://u:p@api.example.com"`, invalidTask, "Authorization"),
		task(`"targetUrl": "https://api.example.com/#x"`, invalidTask, "fragment"),
		task(`"targetUrl": "https://api.example.com/#"`, invalidTask, "fragment"),
		task(`"targetUrl": "https://api.example.com:99999/"`, invalidTask, "port"),
		task(`"targetUrl": "https://api.example.com:x/"`, invalidTask, "no URL"),
		task(`"targetUrl": "https://api.example.com/\r\nX: y"`, invalidTask, "visible"),
		task(`"targetUrl": "https://api.example.com/é"`, invalidTask, "%XX"),
		task(`"targetUrl": "https://api.example.com/`+strings.Repeat("a", maxURL)+`"`, invalidTask, "2048"),
		task(`"targetUrl": "https://forbidden.example/"`, targetForbidden, "on no list"),
		task(`"method": "get"`, invalidTask, "capitals"),
		task(`"method": "GET / HTTP/1.1\r\nX:"`, invalidTask, "capitals"),
		task(`"method": "CONNECT"`, invalidTask, "CONNECT"),
		// Headers
		task(`"headers": {"X": "a\r\nY: b"}`, invalidTask, "value of X"),
		task(`"headers": {"X": "a\u0000"}`, invalidTask, "value of X"),
		task(`"headers": {"X": " a"}`, invalidTask, "value of X"),
		task(`"headers": {"X\r\nY": "a"}`, invalidTask, "which is none"),
		task(`"headers": {"": "a"}`, invalidTask, "which is none"),
		task(`"headers": {"X:": "a"}`, invalidTask, "which is none"),
		task(`"headers": {"x-a": "1", "X-A": "2"}`, invalidTask, "X-A twice"),
		task(`"headers": {"host": "internal"}`, invalidTask, "Host"),
		task(`"headers": {"content-length": "1"}`, invalidTask, "Content-Length"),
		task(`"headers": {"transfer-encoding": "chunked"}`, invalidTask, "Transfer-Encoding"),
		task(`"headers": {"idempotency-key": "another"}`, invalidTask, "Idempotency-Key"),
		task(`"headers": {`+strings.Join(many, ",")+`}`, invalidTask, "65"),
		task(`"headers": {"X": "`+strings.Repeat("a", maxHeaderBytes)+`"}`, invalidTask, "16384"),
		// Keys
		task(`"idempotencyKey": null`, invalidTask, "idempotencyKey must have"),
		task(`"idempotencyKey": "a b"`, invalidTask, "visible"),
		task(`"idempotencyKey": "a\r\nX: b"`, invalidTask, "visible"),
		task(`"idempotencyKey": "`+strings.Repeat("k", maxKey+1)+`"`, invalidTask, "200"),
		with(task("", invalidTask, "not that of the header"), "Idempotency-Key", "key-9"),
		with(task(`"idempotencyKey": null`, invalidTask, "more than one"), "Idempotency-Key", "a", "b"),
		task(`"targetUrl": "https://other.example/"`, keyReused, "key-1"),
		// Policies
		task(`"policyId": null`, invalidTask, "policyId"),
		task(`"policyId": "../quick"`, invalidTask, "policyId"),
		task(`"policyId": "none", "idempotencyKey": "new"`, unknownPolicy, "none"),
		with(task(`"idempotencyKey": "new"`, unknownPolicy, "other"), "X-Tenant", "other"),
		policy(`"maxAttempts": 4`, `"maxAttempts": -1`, invalidPolicy, "maxAttempts is -1"),
		policy(`"maxAttempts": 4`, `"maxAttempts": 2000000000`, invalidPolicy, "use 1 to 100"),
		policy(`"maxAttempts": 4`, `"maxAttempts": 0`, invalidPolicy, "for the default"),
		policy(`"maxDelayMs": 100`, `"maxDelayMs": -100`, invalidPolicy, "maxDelayMs is -100"),
		policy(`"maxDelayMs": 100`, `"maxDelayMs": 5`, invalidPolicy, "initialDelayMs"),
		policy(`"EXPONENTIAL"`, `""`, invalidPolicy, "backoff"),
		policy(`"EXPONENTIAL"`, `"FIXED"`, invalidPolicy, "multiplier"),
		policy(`"NONE"`, `"SOME"`, invalidPolicy, "FULL, EQUAL"),
		policy(`[503]`, `[400]`, invalidPolicy, "retryableStatusCodes"),
		policy(`"maxDelayMs": 100`, `"maxDelayMs": 9223372036854775808`, malformed, "maxDelayMs"),
		policy(`"maxDelayMs": 100`, `"maxDelayMs": "100"`, malformed, "must be a whole number"),
		policy(`"quick"`, `"a b"`, invalidPolicy, "policyId"),
		policy(`"quick"`, `""`, invalidPolicy, "policyId"),
		policy(`"maxAttempts": 4`, `"version": 7`, unknownField, "version"),
		policy(`"maxAttempts": 4`, `"multiplier": NaN`, malformed, "invalid character"),
		// Times
		task(`"delayMs": -1`, invalidTask, "-1"),
		task(`"delayMs": 9223372036854775807`, invalidTask, "a year"),
		task(`"nextAttemptAt": 1790000000`, invalidTask, "milliseconds since 1970"),
		task(`"nextAttemptAt": -1`, invalidTask, "milliseconds since 1970"),
		task(`"nextAttemptAt": 9223372036854775807`, invalidTask, "a year ahead"),
		task(`"nextAttemptAt": 1, "delayMs": 1`, invalidTask, "one of them"),
		task(`"delayMs": 60000`, invalidTask, "60000"),
		// Bodies
		task(`"body": "a", "bodyBase64": "YQ=="`, invalidTask, "more than once"),
		task(`"bodyBase64": "no base64"`, invalidTask, "base64"),
		task(`"bodyBase64": "`+base64.StdEncoding.EncodeToString([]byte(large))+`"`, tooLarge, "16777217 bytes"),
		post(`{"body": "`+large+large+`"}`, tooLarge, "the request"),
		task(`"idempotencyKey": "new", "bodyRef": "default/`+strings.Repeat("0", 64)+`"`, unknownBody, "names nothing"),
		task(`"idempotencyKey": "new", "bodyRef": "`+foreign+`"`, unknownBody, "names nothing"),
		task(`"idempotencyKey": "new", "bodyRef": "default/../`+foreign+`"`, unknownBody, "names nothing"),
		task(`"idempotencyKey": "new", "bodyRef": "/etc/passwd"`, unknownBody, "names nothing"),
		// Tasks
		{method: "DELETE", path: "/retry-tasks/" + busy, problem: notPending, detail: "IN_FLIGHT"},
		{method: "DELETE", path: "/retry-tasks/" + other, problem: noSuchTask},
		{method: "DELETE", path: "/retry-tasks/x", problem: noSuchTask},
		get("/retry-tasks/"+other, noSuchTask, other),
		get("/retry-tasks/%00", noSuchTask, "no ID"),
		get("/retry-tasks/"+strings.ToUpper("00000000-0000-7000-8000-00000000000a"), noSuchTask, "no ID"),
		get("/retry-tasks/"+other+"/attempts", noSuchTask, other),
		get("/retry-tasks/x/attempts", noSuchTask, "no ID"),
		get("/retry-tasks/"+busy+"/attempts?limit=0", invalidQuery, "limit"),
		get("/retry-tasks/"+busy+"/attempts?limit=501", invalidQuery, "500"),
		get("/retry-tasks/"+busy+"/attempts?limit=1&limit=2", invalidQuery, "one whole number"),
		get("/retry-tasks/"+busy+"/attempts?cursor=-1", invalidQuery, "cursor"),
		get("/retry-tasks/"+busy+"/attempts?cursor=99999999999", invalidQuery, "cursor"),
		get("/retry-tasks/"+busy+"/attempts?page=2", invalidQuery, "page"),
		// Tenants, paths and methods
		with(get("/retry-tasks/"+busy, untrustedHost, "tokens"), "Host", "[2001:db8::1]:7430"),
		with(get("/retry-tasks/"+busy+"/attempts", untrustedHost, "tokens"), "Host", "localhost.evil.example"),
		with(exchange{method: "DELETE", path: "/retry-tasks/" + busy, problem: untrustedHost}, "Host", "127.0.0.1.evil.example"),
		with(task("", invalidTenant, "X-Tenant"), "X-Tenant", strings.Repeat("t", 65)),
		with(get("/retry-tasks/"+busy, invalidTenant, "X-Tenant"), "X-Tenant", "a", "b"),
		with(get("/retry-tasks/"+busy+"/attempts", invalidTenant, "X-Tenant"), "X-Tenant", ".."),
		with(exchange{method: "DELETE", path: "/retry-tasks/" + busy, problem: invalidTenant}, "X-Tenant", "a/b"),
		with(policy("", "", invalidTenant, ""), "X-Tenant", ""),
		with(task("", untrustedHost, "tokens"), "Host", "evil.example:7430"),
		with(policy("", "", untrustedHost, "tokens"), "Host", "evil.example"),
		with(policy("", "", noJSON, "Content-Type"), "Content-Type", ""),
		{method: "POST", path: "/retry-policies", body: `{"policyId": "` + large[:maxPolicy] + `"}`, problem: tooLarge},
		get("/", noSuchPath, "/openapi.json"),
		get("/retry-tasks/"+busy+"/attempts/1", noSuchPath, "/openapi.json"),
		get("/retry-tasks", noSuchMethod, "use POST"),
		{method: "PATCH", path: "/retry-tasks/" + busy, problem: noSuchMethod, detail: "use GET or DELETE"},
	} {
		name := e.body
		if len(name) > 200 {
			name = name[:200]
		}
		before := o.stored()
		o.do(e)
		if o.stored() != before {
			o.Errorf("%s %s stored something: %s", e.method, e.path, name)
		}
		if o.Failed() {
			o.Fatalf("sent: %s", name)
		}
	}
}

// outages has the store fail, and the client hang.
func outages(o *office) {
	id := "00000000-0000-7000-8000-000000000001"
	o.store.broken = errors.New("the disk is full of secrets")
	for _, e := range []exchange{
		{method: "POST", path: "/retry-tasks", body: taskBody(`"idempotencyKey": "new"`), problem: unavailable, detail: "same key"},
		{method: "POST", path: "/retry-policies", body: policyBody, problem: unavailable},
		{method: "GET", path: "/retry-tasks/" + id, problem: unavailable},
		{method: "DELETE", path: "/retry-tasks/" + id, problem: unavailable},
		{method: "GET", path: "/retry-tasks/" + id + "/attempts", problem: unavailable},
	} {
		doc, header := o.do(e)
		if header.Get("Retry-After") == "" || strings.Contains(doc["detail"].(string), "secrets") {
			o.Errorf("%v, %v: want Retry-After, and nothing of the store's error", header, doc)
		}
	}
	o.store.broken = nil
	for _, path := range []string{"/retry-tasks", "/retry-policies"} {
		r := httptest.NewRequest(http.MethodPost, path, io.MultiReader(strings.NewReader("{"), late{}))
		r.Host = "localhost"
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		o.handler.ServeHTTP(w, r)
		if o.described.check(o.T, r, "", w); w.Code != http.StatusRequestTimeout {
			o.Errorf("a request that hangs: %d", w.Code)
		}
	}
}

type late struct{}

func (late) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

// withTokens demands the token of the right tenant.
func withTokens(plain *office) {
	o := newOffice(plain.T, Token{"shop", "the token of the shop"}, Token{"bank", "the token of the bank"}, Token{"shop", "the next token of the shop"})
	o.described = plain.described
	id := "00000000-0000-7000-8000-000000000001"
	bearer := func(token string, tenant ...string) http.Header {
		return http.Header{"Authorization": {"Bearer " + token}, "X-Tenant": tenant, "Host": {"retries.example.com"}}
	}
	for _, op := range []exchange{
		{method: "POST", path: "/retry-tasks", body: taskBody("")},
		{method: "POST", path: "/retry-policies", body: policyBody},
		{method: "GET", path: "/retry-tasks/" + id},
		{method: "DELETE", path: "/retry-tasks/" + id},
		{method: "GET", path: "/retry-tasks/" + id + "/attempts"},
	} {
		for _, try := range []struct {
			header http.Header
			want   kind
		}{
			{nil, unauthorized},
			{http.Header{"X-Tenant": {"shop"}}, unauthorized},
			{bearer(""), unauthorized},
			{bearer("the token of the shop "), unauthorized},
			{bearer("the token of nobody", "shop"), unauthorized},
			{http.Header{"Authorization": {"Basic the token of the shop"}}, unauthorized},
			{http.Header{"Authorization": {"Bearer the token of the shop", "Bearer the token of the shop"}}, unauthorized},
			{bearer("the token of the bank", "shop"), otherTenant},
			{bearer("the token of the shop", "default"), otherTenant},
		} {
			op.header, op.problem = try.header, try.want
			if _, header := o.do(op); (header.Get("WWW-Authenticate") != "") != (try.want.status == http.StatusUnauthorized) {
				o.Errorf("WWW-Authenticate: %q", header.Get("WWW-Authenticate"))
			}
		}
	}
	if o.stored() > 0 {
		o.Errorf("%d things stored without a token", o.stored())
	}
	o.do(exchange{method: "POST", path: "/retry-policies", body: policyBody, header: bearer("the next token of the shop", "shop"), status: http.StatusOK})
	o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(""), header: bearer("the token of the bank"), problem: unknownPolicy})
	doc, _ := o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(""), header: bearer("the token of the shop"), status: http.StatusAccepted})
	if task := o.store.tasks[doc["taskId"].(string)]; task.Tenant != "shop" {
		o.Errorf("the task is of %s", task.Tenant)
	}
	o.do(exchange{method: "GET", path: "/retry-tasks/" + doc["taskId"].(string), header: bearer("the token of the bank"), problem: noSuchTask})
}

// TestWithoutBodies refuses what a row may not hold.
func TestWithoutBodies(t *testing.T) {
	o := newOffice(t)
	o.api.Bodies = nil
	o.policy()
	for _, change := range []string{`"body": "` + strings.Repeat("a", inlineBody+1) + `"`, `"bodyRef": "default/` + strings.Repeat("0", 64) + `"`} {
		o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(change), problem: map[bool]kind{true: tooLarge, false: unknownBody}[strings.Contains(change, `"body"`)]})
	}
	doc, _ := o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(`"body": "` + strings.Repeat("a", inlineBody) + `"`), status: http.StatusAccepted})
	if task := o.store.tasks[doc["taskId"].(string)]; len(task.Body) != inlineBody || task.BodyRef != "" {
		t.Errorf("%d bytes in the row, reference %q", len(task.Body), task.BodyRef)
	}
}

// TestScheduleIsLost answers as ever.
func TestScheduleIsLost(t *testing.T) {
	o := newOffice(t)
	o.api.Scheduled = func(context.Context, ...Due) error { return errors.New("Redis is down") }
	o.policy()
	o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(""), status: http.StatusAccepted})
}

// TestLargeRequests reads few of them at once, however many there are.
func TestLargeRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		o.policy()
		const many = 3 * mostLarge
		var sending sync.WaitGroup
		var read atomic.Int64
		finish := make(chan struct{})
		for n := range many {
			sending.Go(func() {
				body := taskBody(fmt.Sprintf(`"idempotencyKey": "%d", "body": "%s"`, n, strings.Repeat("a", 2*smallRequest)))
				r := httptest.NewRequest(http.MethodPost, "/retry-tasks", &stuck{text: strings.NewReader(body), until: finish, read: &read})
				r.Host = "localhost"
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				if o.handler.ServeHTTP(w, r); w.Code != http.StatusAccepted {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		synctest.Wait()
		if n := read.Load(); n > many*smallRequest+mostLarge*(smallRequest+1024) || n < (many+mostLarge)*smallRequest {
			t.Errorf("%d bytes read of %d requests, want 1 MiB of each and all of %d", n, many, mostLarge)
		}
		close(finish)
		sending.Wait()
		if len(o.store.tasks) != many {
			t.Errorf("%d tasks, want %d", len(o.store.tasks), many)
		}
	})
}

// stuck is a body whose end does not come until a channel is closed.
type stuck struct {
	text  *strings.Reader
	until chan struct{}
	read  *atomic.Int64
}

func (s *stuck) Read(p []byte) (int, error) {
	n, err := s.text.Read(p)
	if s.read.Add(int64(n)); err != nil {
		<-s.until
	}
	return n, err
}

// TestSlowClients ends connections that take their time, and tells those that got as
// far as the body.
func TestSlowClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		here := &pipe{conns: make(chan net.Conn)}
		server := Server(o.handler, slog.New(slog.DiscardHandler))
		ended := make(chan error)
		go func() { ended <- server.Serve(here) }()
		for head, want := range map[string]string{
			"POST /retry-tasks HTTP/1.1\r\nHost: localh": "",
			"POST /retry-tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{": "408",
			"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("a", 64<<10) + "\r\n\r\n":                           "431",
		} {
			client, conn := net.Pipe()
			here.conns <- conn
			var answer []byte
			var reading sync.WaitGroup
			reading.Go(func() { answer, _ = io.ReadAll(client) })
			start := time.Now()
			_, _ = io.WriteString(client, head)
			reading.Wait()
			if took := time.Since(start); took > readTimeout+time.Second || !strings.Contains(string(answer), want) || want == "" && len(answer) > 0 {
				t.Errorf("after %v: %q, want %q", took, answer, want)
			}
			_ = client.Close()
		}
		if o.stored() > 0 {
			t.Error("something was stored")
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
}

// pipe is a listener without a network.
type pipe struct{ conns chan net.Conn }

func (p *pipe) Accept() (net.Conn, error) {
	if conn, ok := <-p.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p *pipe) Close() error   { close(p.conns); return nil }
func (p *pipe) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7430} }

// FuzzTask demands of each task that is taken that it can be sent as it is, and says
// the same when it is sent again.
func FuzzTask(f *testing.F) {
	for _, seed := range []string{taskBody(""), taskBody(`"headers": {"x": "y"}, "delayMs": 5, "body": "a"`), taskBody(`"method": "GET", "bodyBase64": "YQ=="`), `{"headers": {"a": [{}]}}`, "{\"\xff\": 1}", `{"body": "\ud800\udc00\ufffd"}`} {
		f.Add([]byte(seed), "key")
	}
	f.Fuzz(func(t *testing.T, raw []byte, key string) {
		now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
		task, p := parseTask(raw, []string{key}, now)
		if p != nil {
			if p.name == "" || p.Detail == "" || len(p.Detail) > 1000 {
				t.Fatalf("the problem %+v says too little, or too much", p)
			}
			return
		}
		r, err := http.NewRequest(task.Method, task.TargetURL, bytes.NewReader(task.Body))
		if err != nil {
			t.Fatalf("%q makes no request: %v", raw, err)
		}
		r.Header.Set("Idempotency-Key", task.IdempotencyKey)
		for name, value := range task.Headers {
			r.Header.Set(name, value)
		}
		var wire bytes.Buffer
		if err := r.Write(&wire); err != nil {
			t.Fatalf("%q cannot be sent: %v", raw, err)
		}
		head, _, _ := bytes.Cut(wire.Bytes(), []byte("\r\n\r\n"))
		names := []string{"Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Idempotency-Key"}
		for line := range bytes.SplitSeq(head, []byte("\r\n")) {
			if name, _, ok := bytes.Cut(line, []byte(":")); ok && task.Headers[string(name)] == "" && !slices.Contains(names, string(name)) && !bytes.HasSuffix(line, []byte("HTTP/1.1")) {
				if _, own := task.Headers[string(name)]; !own {
					t.Fatalf("%q has a header %q that nobody gave: %q", raw, name, head)
				}
			}
		}
		if again, p := parseTask(raw, []string{key}, now); p != nil || again.TargetURL != task.TargetURL || !bytes.Equal(again.Body, task.Body) {
			t.Fatalf("%q is another task now: %+v, %v", raw, again, p)
		}
	})
}

package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
	"github.com/redrive-go/redrive/operate/service/bodies"
)

// desk is a store that counts how often it counts.
type desk struct {
	*Store
	counted atomic.Int64 // calls of Usage
}

func (d *desk) Usage(ctx context.Context, tenant string) (Quota, error) {
	d.counted.Add(1)
	return d.Store.Usage(ctx, tenant)
}

// office is an API and what it works with.
type office struct {
	*testing.T
	api       *API
	store     *desk
	file      string
	bodies    string
	large     *shares
	handler   http.Handler
	described *description
	mu        sync.Mutex
	scheduled []Due
}

func newOffice(t *testing.T, tokens ...Token) *office {
	dir := t.TempDir()
	o := &office{T: t, store: &desk{}, file: filepath.Join(dir, "tasks.db"), bodies: filepath.Join(dir, "bodies"), described: readDescription(t)}
	o.open()
	o.api = &API{
		Store: o.store, Bodies: bodies.Dir(o.bodies), Tokens: tokens, Logger: slog.New(slog.DiscardHandler),
		Scheduled: func(_ context.Context, due ...Due) error {
			o.mu.Lock()
			defer o.mu.Unlock()
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
	o.large = newTurns()
	o.handler = o.api.handler(o.large)
	return o
}

// open opens the store for the length of the test.
func (o *office) open() {
	var err error
	o.store.Store, err = Open(o.Context(), o.file)
	must(o, err)
	o.Cleanup(func() { _ = o.store.Close() })
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

// do is send for an answer that is known.
func (o *office) do(e exchange) (doc map[string]any, header http.Header) {
	o.Helper()
	doc, header, code := o.send(e)
	if want := max(e.status, e.problem.status); code != want {
		o.Errorf("%s %s: status %d, %v; want %d", e.method, e.path, code, doc, want)
	}
	if e.problem.name != "" && (doc["type"] != problems+e.problem.name || !strings.Contains(doc["detail"].(string), e.detail)) {
		o.Errorf("%s %s: %v; want %s, %q", e.method, e.path, doc, e.problem.name, e.detail)
	}
	return doc, header
}

// send makes a request, and compares the answer with the description of the API.
func (o *office) send(e exchange) (doc map[string]any, header http.Header, code int) {
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
	return doc, w.Header(), w.Code
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

// policy registers the policy of tasks for some tenants.
func (o *office) policy(tenants ...string) {
	for _, tenant := range append(tenants, "default") {
		o.do(exchange{method: "POST", path: "/retry-policies", body: policyBody, header: http.Header{"X-Tenant": {tenant}}, status: http.StatusOK})
	}
}

// task returns a task of an answer as it is stored.
func (o *office) task(tenant string, doc map[string]any) Task {
	o.Helper()
	t, err := o.store.Task(o.Context(), tenant, doc["taskId"].(string))
	must(o, err)
	return t
}

// attempt has a task of an answer called, and its target answer.
func (o *office) attempt(doc map[string]any, status Status, responded int) Task {
	o.Helper()
	t := o.task("default", doc)
	claimed, err := o.store.Claim(o.Context(), []int64{t.Row}, t.NextAttemptAt, 0)
	must(o, err)
	must(o, o.store.Settle(o.Context(), []Outcome{ended(claimed[0], status, responded)}))
	return o.task("default", doc)
}

// put stores a task past the API, with a policy of its own.
func (o *office) put(t Task) Task {
	o.Helper()
	p, err := o.store.PutPolicy(o.Context(), policy(t.Tenant, 5))
	must(o, err)
	t.TargetURL, t.Method, t.PolicyID, t.PolicyVersion = "https://db.internal.example", "POST", p.ID, p.Version
	t.CreatedAt, t.NextAttemptAt, t.VisibilityTimeout = noon, noon, time.Minute
	return create(o, o.store.Store, t)[0]
}

// stored is how much is stored.
func (o *office) stored() (n int) {
	must(o, o.store.db.Look(o.Context(), func(tx sqldb.Tx) error {
		_, err := tx.Get(o.Context(), "select (select count(*) from retry_tasks) + (select count(*) from retry_policies)", nil, &n)
		return err
	}))
	_ = filepath.WalkDir(o.bodies, func(_ string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return nil
	})
	return n + len(o.scheduled)
}

// TestAPI makes requests of all kinds, and then demands that each operation, answer
// and field of the description was among them.
func TestAPI(t *testing.T) {
	o := newOffice(t)
	good(o)
	hostile(o)
	overQuotas(o)
	outages(o)
	withTokens(o)
	o.described.complete(t)
}

// good goes through what a task can come to.
func good(o *office) {
	o.policy()
	body, more := strings.Repeat("€", 30_000), `"method": "PUT", "headers": {"content-type": "text/plain", "X-A": "1"}, "delayMs": 1000, `
	doc, header := o.do(exchange{method: "POST", path: "/retry-tasks", status: http.StatusAccepted,
		body: taskBody(more + `"body": "` + body + `"`)})
	id := doc["taskId"].(string)
	task := o.task("default", doc)
	if header.Get("Location") != "/retry-tasks/"+id || task.Headers["Content-Type"] != "text/plain" || task.Body != nil || task.NextAttemptAt.Sub(task.CreatedAt) != time.Second {
		o.Errorf("task %+v at %s", task, header.Get("Location"))
	}
	if kept, _, err := o.api.Bodies.Open(o.Context(), task.BodyRef); err != nil {
		o.Errorf("its body: %v", err)
	} else if text, err := io.ReadAll(kept); string(text) != body || errors.Join(err, kept.Close()) != nil {
		o.Errorf("its body has %d bytes, error %v", len(text), err)
	}
	if len(o.scheduled) != 1 || o.scheduled[0] != (Due{Row: task.Row, Tenant: "default", At: task.NextAttemptAt}) {
		o.Errorf("scheduled: %+v", o.scheduled)
	}
	again, _ := o.do(exchange{method: "POST", path: "/retry-tasks", status: http.StatusOK, body: taskBody(more + `"bodyRef": "` + task.BodyRef + `"`)})
	if again["taskId"] != id || len(o.scheduled) != 1 {
		o.Errorf("the same task again: %v, scheduled %d times", again, len(o.scheduled))
	}

	for range 3 {
		o.attempt(again, Pending, 503)
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
	o.attempt(again, Exhausted, 503)
	doc, _ = o.do(exchange{method: "POST", path: "/retry-tasks/" + id + "/redrive", status: http.StatusOK})
	if doc["status"] != "PENDING" || len(o.scheduled) != 2 || o.scheduled[1].Row != task.Row || !o.scheduled[1].At.After(task.CreatedAt) {
		o.Errorf("sent again: %v, scheduled: %+v", doc, o.scheduled)
	}
	doc, _ = o.do(exchange{method: "DELETE", path: "/retry-tasks/" + id, status: http.StatusOK})
	if doc["status"] != "CANCELLED" || doc["nextAttemptAt"] != nil {
		o.Errorf("cancelled: %v", doc)
	}

	o.do(exchange{method: "POST", path: "/retry-policies", body: strings.Replace(policyBody, "quick", "spare", 1), status: http.StatusOK})
	if doc, _ = o.do(exchange{method: "DELETE", path: "/retry-policies/spare", status: http.StatusOK}); doc["policyId"] != "spare" {
		o.Errorf("deleted: %v", doc)
	}

	for size, ref := range map[int]bool{smallBody: false, smallBody + 1: true} {
		doc, _ = o.do(exchange{method: "POST", path: "/retry-tasks", status: http.StatusAccepted, body: taskBody(fmt.Sprintf(`"idempotencyKey": "%d", "body": "%s"`, size, strings.Repeat("a", size)))})
		if _, elsewhere := doc["bodyRef"]; elsewhere != ref {
			o.Errorf("a body of %d bytes is kept elsewhere: %v, want %v", size, elsewhere, ref)
		}
	}

	// A key from the header, bytes, and a time that is past.
	doc, _ = o.do(exchange{method: "POST", path: "/retry-tasks", header: http.Header{"Idempotency-Key": {"key-2"}, "X-Tenant": {"default"}}, status: http.StatusAccepted,
		body: taskBody(fmt.Sprintf(`"idempotencyKey": null, "bodyBase64": "AP8=", "nextAttemptAt": %d`, time.Now().Add(-time.Hour).UnixMilli()))})
	if task := o.task("default", doc); task.IdempotencyKey != "key-2" || !bytes.Equal(task.Body, []byte{0, 255}) || task.NextAttemptAt != task.CreatedAt {
		o.Errorf("task %+v", task)
	}
	if doc, _ = o.do(exchange{method: "GET", path: "/retry-tasks/" + doc["taskId"].(string) + "/attempts", status: http.StatusOK}); len(doc["attempts"].([]any)) != 0 {
		o.Errorf("attempts of a new task: %v", doc)
	}
}

// TestRequestAgain sends requests again whose tasks are stored, long after they would
// be refused if they were new: they are answered with their task, and nothing is kept.
func TestRequestAgain(t *testing.T) {
	o := newOffice(t)
	o.policy()
	large := strings.Repeat("a", smallBody+1)
	at := fmt.Sprintf(`"nextAttemptAt": %d, `, time.Now().Add(-300*24*time.Hour).UnixMilli())
	late := at + `"idempotencyKey": "late"`
	kept := `"body": "` + large + `"`
	send := func(change string, e exchange) map[string]any {
		e.method, e.path, e.body = "POST", "/retry-tasks", taskBody(change)
		doc, _ := o.do(e)
		return doc
	}
	first := send(kept, exchange{status: http.StatusAccepted})
	second := send(late, exchange{status: http.StatusAccepted})
	third := send(`"idempotencyKey": "delayed", "delayMs": 50000`, exchange{status: http.StatusAccepted})
	o.do(exchange{method: "POST", path: "/retry-policies", body: strings.Replace(policyBody, `"totalBudgetMs": 60000`, `"totalBudgetMs": 20000`, 1), status: http.StatusOK})
	o.api.Allowed = func(*url.URL) error { return errors.New("it is on no list") }
	if err := os.RemoveAll(o.bodies); err != nil { // as nobody needs them
		t.Fatal(err)
	}
	before := o.stored()
	for change, want := range map[string]map[string]any{kept: first, fmt.Sprintf(`"bodyRef": "%s"`, first["bodyRef"]): first, late: second, `"idempotencyKey": "delayed", "delayMs": 50000`: third} {
		if again := send(change, exchange{status: http.StatusOK}); again["taskId"] != want["taskId"] {
			t.Errorf("%.60s: the task is %v", change, again["taskId"])
		}
	}
	send(`"body": "`+large+`b"`, exchange{problem: keyReused, detail: "key-1"})
	send(`"idempotencyKey": "new"`, exchange{problem: targetForbidden})
	same(t, "stored", o.stored(), before)
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
	if task := o.task("default", doc); len(task.Body) != inlineBody || task.BodyRef != "" {
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

// hangingBodies answers nobody.
type hangingBodies struct{ bodies.Store }

func (hangingBodies) Put(ctx context.Context, _ string, _ io.Reader) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

// TestBodiesHang tells callers so, and stores nothing.
func TestBodiesHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		o.policy()
		o.api.Bodies = hangingBodies{}
		before := o.stored()
		o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(`"body": "` + strings.Repeat("a", smallBody+1) + `"`), problem: unavailable})
		same(t, "stored", o.stored(), before)
	})
}

// TestLargeReference refuses a body that somebody else has put, and that is too large.
func TestLargeReference(t *testing.T) {
	o := newOffice(t)
	o.policy()
	ref, err := o.api.Bodies.Put(t.Context(), "default", strings.NewReader(strings.Repeat("a", maxBody+1)))
	must(t, err)
	o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(`"bodyRef": "` + ref + `"`), problem: tooLarge})
}

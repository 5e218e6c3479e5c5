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
	"reflect"
	"strings"
	"sync"
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
	counted  int // calls of Usage
}

func newDesk() *desk {
	return &desk{policies: map[[2]string][]Policy{}, tasks: map[string]Task{}, attempts: map[string][]Attempt{}}
}

func (d *desk) PutPolicy(_ context.Context, p Policy) (Policy, error) {
	id := [2]string{p.Tenant, p.ID}
	if p.Version = len(d.policies[id]); p.Version > 0 && reflect.DeepEqual(d.policies[id][p.Version-1], p) {
		return p, d.broken
	}
	p.Version++
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

func (d *desk) DeletePolicy(ctx context.Context, tenant, id string) (Policy, error) {
	p, err := d.Policy(ctx, tenant, id, 0)
	if err != nil {
		return p, err
	}
	for _, t := range d.tasks {
		if t.Tenant == tenant && t.PolicyID == id && t.Status != Succeeded && t.Status != Cancelled {
			return p, ErrPolicyUsed
		}
	}
	delete(d.policies, [2]string{tenant, id})
	return p, nil
}

func (d *desk) Usage(_ context.Context, tenant string) (u Quota, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counted++
	for _, t := range d.tasks {
		if t.Tenant == tenant && (t.Status == Pending || t.Status == InFlight) {
			u.Tasks++
			u.Bytes += t.BodySize
		}
	}
	for id, versions := range d.policies {
		if id[0] == tenant {
			u.Policies += int64(len(versions))
		}
	}
	return u, d.broken
}

func (d *desk) Same(_ context.Context, t Task) (Task, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, other := range d.tasks {
		if other.Tenant == t.Tenant && other.IdempotencyKey == t.IdempotencyKey {
			if other.TargetURL != t.TargetURL || !bytes.Equal(bodySum(other), bodySum(t)) {
				return Task{}, ErrKeyReused
			}
			return other, nil
		}
	}
	return Task{}, errors.Join(ErrNotFound, d.broken)
}

func (d *desk) Create(ctx context.Context, t Task) (Task, bool, error) {
	if same, err := d.Same(ctx, t); !errors.Is(err, ErrNotFound) {
		return same, false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
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

func (d *desk) Revive(ctx context.Context, tenant, id string) (Task, error) {
	t, err := d.Task(ctx, tenant, id)
	if err != nil {
		return t, err
	}
	if t.Status != Exhausted {
		return t, &StateError{TaskID: id, Status: t.Status}
	}
	t.Status, t.NextAttemptAt = Pending, time.Now()
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
	large     *shares
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
	o.large = newTurns()
	o.handler = o.api.handler(o.large)
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
	overQuotas(o)
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
	if kept, _, err := o.api.Bodies.Open(o.Context(), task.BodyRef); err != nil {
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

	task.Status = Exhausted
	o.store.tasks[id] = task
	doc, _ = o.do(exchange{method: "POST", path: "/retry-tasks/" + id + "/redrive", status: http.StatusOK})
	if doc["status"] != "PENDING" || len(o.scheduled) != 2 || o.scheduled[1].Row != task.Row || !o.scheduled[1].At.After(task.CreatedAt) {
		o.Errorf("sent again: %v, scheduled: %+v", doc, o.scheduled)
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
	if task := o.store.tasks[doc["taskId"].(string)]; task.IdempotencyKey != "key-2" || !bytes.Equal(task.Body, []byte{0, 255}) || task.NextAttemptAt != task.CreatedAt {
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
	if o.stored() != before {
		t.Errorf("%d are stored, and were %d", o.stored(), before)
	}
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
		o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(`"body": "` + strings.Repeat("a", smallBody+1) + `"`), problem: unavailable})
		if len(o.store.tasks) > 0 {
			t.Errorf("stored %v", o.store.tasks)
		}
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

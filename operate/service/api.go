package service

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/operate/internal/text"

	"github.com/redrive-go/redrive/operate/internal/web"
	"github.com/redrive-go/redrive/operate/service/bodies"
)

// API is what callers of the service talk to, in JSON over HTTP. What it answers is
// described at /openapi.json. Whatever cannot be done is answered with a problem of
// RFC 9457 that says how to fix it, and nothing is stored. A task or a policy is
// answered when it is durable.
type API struct {
	// Store keeps tasks and policies: a [*Store].
	Store tasks

	// Bodies keeps bodies above 16 KiB, up to 16 MiB. Nil keeps them with their tasks
	// up to 64 KiB, and refuses larger ones.
	Bodies bodies.Store

	// Scheduled hears of each task once it is stored as PENDING, as [Schedule.Add] does.
	// Where that is lost, the sweeper finds the task. Nil leaves it all to the sweeper.
	Scheduled func(context.Context, ...Due) error

	// Allowed refuses targets that must not be called, with an error that says so to
	// the caller. It is no guard: what a name resolves to is known when it is called.
	// Nil allows all.
	Allowed func(*url.URL) error

	// Tokens are what callers have to show. Without any, everybody on this machine may
	// act as every tenant, and requests for other hosts than this one are refused:
	// then the service must listen on loopback only.
	Tokens []Token

	// Quotas bound the tasks, bodies and policies that are kept for each
	// tenant. The zero value sets no bound.
	Quotas Quotas

	// Logger hears of requests that failed for a reason of the service. Nil is
	// slog.Default().
	Logger *slog.Logger
}

// tasks is what the API does with a [Store].
type tasks interface {
	PutPolicy(ctx context.Context, p Policy) (Policy, error)
	DeletePolicy(ctx context.Context, tenant, id string) (Policy, error)
	Usage(ctx context.Context, tenant string) (Quota, error)
	Policy(ctx context.Context, tenant, id string, version int) (Policy, error)
	Create(ctx context.Context, t Task) (_ Task, created bool, err error)
	Same(ctx context.Context, t Task) (Task, error)
	Task(ctx context.Context, tenant, id string) (Task, error)
	Cancel(ctx context.Context, tenant, id string) (Task, error)
	Revive(ctx context.Context, tenant, id string) (Task, error)
	Attempts(ctx context.Context, tenant, id string, after, limit int) ([]Attempt, error)
}

// openAPI is the description of the API, OpenAPI 3.1 in JSON.
//
//go:embed openapi.json
var openAPI []byte

// keepTime is how long a large body may take, wherever it is kept.
const keepTime = 30 * time.Second

// request is one of a tenant.
type request struct {
	*http.Request
	w      http.ResponseWriter
	tenant string
	large  *shares
	meter  *meter
}

// Large requests take some times their size in memory, so only a few are read at once,
// half of them of one tenant.
const (
	smallRequest = 1 << 20 // bytes
	mostLarge    = 4
	mostQueued   = 16 // of one tenant, with those that are read
	turnTime     = 10 * time.Second
	shortTurn    = 5 * time.Second // a turn lasts at least so long if another tenant waits
)

func newTurns() *shares { return newShares(mostLarge, 1, mostQueued) }

// route is an operation of the API.
type route struct {
	method, path string
	do           func(*API, request) error
}

func routes() []route {
	return []route{
		{http.MethodPost, "/retry-tasks", (*API).createTask},
		{http.MethodGet, "/retry-tasks/{taskId}", (*API).showTask},
		{http.MethodDelete, "/retry-tasks/{taskId}", (*API).cancelTask},
		{http.MethodGet, "/retry-tasks/{taskId}/attempts", (*API).listAttempts},
		{http.MethodPost, "/retry-tasks/{taskId}/redrive", (*API).redriveTask},
		{http.MethodPost, "/retry-policies", (*API).putPolicy},
		{http.MethodDelete, "/retry-policies/{policyId}", (*API).deletePolicy},
	}
}

// Handler serves the API, and its description at /openapi.json.
func (a *API) Handler() http.Handler { return a.handler(newTurns()) }

func (a *API) handler(large *shares) http.Handler {
	tokens, meter := a.tokens(), &meter{count: a.Store.Usage}
	mux := http.NewServeMux()
	for _, op := range routes() {
		mux.HandleFunc(op.method+" "+op.path, func(w http.ResponseWriter, r *http.Request) {
			tenant, p := tenantOf(r, tokens)
			if p != nil {
				a.fail(w, r, p)
				return
			}
			web.Admit(r)
			if err := op.do(a, request{r, w, tenant, large, meter}); err != nil {
				a.fail(w, r, err)
			}
		})
	}
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openAPI)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { a.fail(w, r, nowhere(mux, w.Header(), r)) })
	return mux
}

// nowhere says what is wrong with a path that no operation has, or not with this
// method.
func nowhere(mux *http.ServeMux, header http.Header, r *http.Request) *problem {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		other := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := mux.Handler(other); strings.HasPrefix(pattern, method) {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return noSuchPath.because("there is no such path: /openapi.json has those that there are")
	}
	header.Set("Allow", strings.Join(allowed, ", "))
	return noSuchMethod.because("use %s here", strings.Join(allowed, " or "))
}

// fail answers with what is wrong.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	p, ok := errors.AsType[*problem](err)
	if !ok {
		p = unavailable.because("the store does not take it: send the same request again, with the same key")
		if r.Context().Err() == nil { // or the caller has gone
			cmp.Or(a.Logger, slog.Default()).Error("a request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		}
	}
	switch p.status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="redrive"`)
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", quotaRetry)
	}
	p.write(w)
}

// read returns the body of a request that is JSON. If it is large, it waits for its
// turn, and leave lets the next one in.
func (c request) read(most int64) (raw []byte, leave func(), _ *problem) {
	leave = func() {}
	mediaType, _, _ := strings.Cut(c.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(mediaType), "application/json") {
		return nil, leave, noJSON.because("send Content-Type: application/json")
	}
	body := http.MaxBytesReader(c.w, c.Body, most)
	raw, err := io.ReadAll(io.LimitReader(body, smallRequest))
	if err == nil && len(raw) == smallRequest {
		within, cancel := context.WithTimeout(c.Context(), turnTime)
		defer cancel()
		if !c.large.wait(within, c.tenant) {
			return nil, leave, busy.because("send it again in a moment: nothing was stored")
		}
		leave = sync.OnceFunc(func() { c.large.give(c.tenant) })
		var rest []byte
		var hurried bool
		rest, hurried, err = c.readTurn(body)
		raw = append(raw, rest...)
		if hurried && err != nil {
			return nil, leave, slow.because("the request did not arrive within %v while another tenant waited: send it again", shortTurn)
		}
	}
	return raw, leave, unread(err, most)
}

// readTurn reads the rest of a large request. It stops reading after shortTurn
// if a tenant waits that has no turn. Otherwise slow requests would block all
// tenants.
func (c request) readTurn(body io.Reader) (rest []byte, hurried bool, err error) {
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for began := time.Now(); !hurried; {
			select {
			case <-done:
				return
			case now := <-tick.C:
				hurried = now.Sub(began) >= shortTurn && c.large.wanted() && http.NewResponseController(c.w).SetReadDeadline(now) == nil
			}
		}
	})
	rest, err = io.ReadAll(body)
	close(done)
	watching.Wait()
	return rest, hurried, err
}

// unread says why a request could not be read; nil if it was.
func unread(err error, most int64) *problem {
	_, over := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil:
		return nil
	case over:
		return tooLarge.because("the request has more than %d bytes", most)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return slow.because("the request was not there within %v: send it again", web.ReadTimeout)
	}
	return malformed.because("the request ended before its end")
}

func (a *API) createTask(c request) error {
	raw, leave, p := c.read(maxRequest)
	defer leave()
	if p != nil {
		return p
	}
	t, p := parseTask(raw, c.Header.Values("Idempotency-Key"), time.Now())
	if p != nil {
		return p
	}
	t.Tenant, t.Trace = c.tenant, traceOf(c.Header)
	refusal := a.complete(c.Context(), &t)
	more := Quota{Tasks: 1}
	if len(t.Body) > smallBody {
		t.BodySize = int64(len(t.Body))
		more.Bytes = t.BodySize
	}
	if refusal == nil {
		refusal = c.meter.admit(c.Context(), c.tenant, a.Quotas.of(c.tenant), more)
	}
	if refusal != nil || a.isKept(t) { // before anything else is said, or kept
		if same, err := a.Store.Same(c.Context(), t); !errors.Is(err, ErrNotFound) {
			return c.created(t.IdempotencyKey, same, false, err)
		}
	}
	if refusal == nil {
		refusal = a.keepBody(c.Context(), &t)
	}
	if refusal != nil {
		return refusal
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	t.ID = id.String()
	stored, created, err := a.Store.Create(c.Context(), t)
	if err == nil && created {
		c.meter.added(c.tenant, more)
		a.schedule(c.Context(), stored)
	}
	return c.created(t.IdempotencyKey, stored, created, err)
}

// created answers with the task of a key that was stored, or was there before.
func (c request) created(key string, t Task, created bool, err error) error {
	switch {
	case errors.Is(err, ErrKeyReused):
		return keyReused.because("the task of the key %s has other content: send what was sent before, or use a new key", key)
	case errors.Is(err, ErrNotFound):
		return unknownPolicy.in("policyId", "was deleted or replaced while the task was created: register it by POST /retry-policies, and send the task again")
	case err != nil:
		return fmt.Errorf("a task could not be stored: %w", err)
	}
	status := http.StatusOK
	if created {
		status = http.StatusAccepted
	}
	c.w.Header().Set("Location", "/retry-tasks/"+t.ID)
	answer(c.w, status, "application/json", docOf(t))
	return nil
}

// complete adds to a task what the request alone does not say.
func (a *API) complete(ctx context.Context, t *Task) error {
	target, err := url.Parse(t.TargetURL)
	if err == nil && a.Allowed != nil {
		err = a.Allowed(target)
	}
	if err != nil {
		return targetForbidden.in("targetUrl", "is refused: %v", err)
	}
	policy, err := a.Store.Policy(ctx, t.Tenant, t.PolicyID, 0)
	if errors.Is(err, ErrNotFound) {
		return unknownPolicy.in("policyId", "%s is no policy of the tenant %s: register it by POST /retry-policies", t.PolicyID, t.Tenant)
	}
	if err != nil {
		return fmt.Errorf("a policy could not be read: %w", err)
	}
	t.PolicyVersion, t.VisibilityTimeout = policy.Version, millis(policy.VisibilityTimeoutMs)
	if wait := t.NextAttemptAt.Sub(t.CreatedAt).Milliseconds(); policy.TotalBudgetMs > 0 && wait >= policy.TotalBudgetMs {
		return invalidTask.in("nextAttemptAt", "is %d ms ahead, and the policy gives the whole task %d: wait for less, or use another policy", wait, policy.TotalBudgetMs)
	}
	return nil
}

// isKept reports whether the body of a task is kept elsewhere than in the row.
func (a *API) isKept(t Task) bool {
	return t.BodyRef != "" || a.Bodies != nil && len(t.Body) > smallBody
}

// keepBody has a large body kept elsewhere than in the row, durably before the row
// names it.
func (a *API) keepBody(ctx context.Context, t *Task) (err error) {
	ctx, cancel := context.WithTimeout(ctx, keepTime)
	defer cancel()
	most := smallBody
	if a.Bodies == nil {
		most = inlineBody
	}
	large := len(t.Body) > most
	switch {
	case !large && t.BodyRef == "":
		return nil
	case a.Bodies == nil && large:
		return tooLarge.in("body", "has %d bytes, and this service keeps at most %d: configure service.bodies", len(t.Body), most)
	case a.Bodies == nil:
		return unknownBody.in("bodyRef", "names nothing: this service keeps no bodies outside of tasks")
	case large:
		t.BodyRef, err = a.Bodies.Put(ctx, t.Tenant, bytes.NewReader(t.Body))
		t.Body = nil
	case !strings.HasPrefix(t.BodyRef, t.Tenant+"/"):
		err = bodies.ErrNotFound
	default:
		err = a.Bodies.Keep(ctx, t.BodyRef)
	}
	if errors.Is(err, bodies.ErrNotFound) {
		return unknownBody.in("bodyRef", "names nothing that is kept for the tenant %s", t.Tenant)
	}
	if errors.Is(err, bodies.ErrTooLarge) {
		return tooLarge.in("bodyRef", "names a body of more than %d bytes, which is never called with", maxBody)
	}
	if err != nil {
		return fmt.Errorf("the body of a task could not be kept: %w", err)
	}
	return nil
}

func (a *API) schedule(ctx context.Context, t Task) {
	if a.Scheduled == nil {
		return
	}
	if err := a.Scheduled(ctx, Due{Row: t.Row, Tenant: t.Tenant, At: t.NextAttemptAt}); err != nil {
		cmp.Or(a.Logger, slog.Default()).Warn("a task could not be scheduled: the sweeper will find it", "task", t.ID, "error", err)
	}
}

// taskID is the ID in the path.
func (c request) taskID() (string, *problem) {
	id := c.PathValue("taskId")
	if parsed, err := uuid.Parse(id); err != nil || parsed.String() != id {
		return "", noSuchTask.because("%q is no ID of a task", shortened(id))
	}
	return id, nil
}

// unknownTask is the problem of a task that the store does not find.
func unknownTask(id string, err error) error {
	if errors.Is(err, ErrNotFound) {
		return noSuchTask.because("the tenant has no task %s", id)
	}
	return err
}

// task does something with the task in the path. Unfit is for one whose state does
// not allow it.
func (c request) task(do func(ctx context.Context, tenant, id string) (Task, error), unfit kind) (Task, error) {
	id, p := c.taskID()
	if p != nil {
		return Task{}, p
	}
	t, err := do(c.Context(), c.tenant, id)
	if state, ok := errors.AsType[*StateError](err); ok {
		return t, unfit.because("the task is %s", state.Status)
	}
	return t, unknownTask(id, err)
}

func (a *API) showTask(c request) error {
	t, err := c.task(a.Store.Task, kind{})
	if err == nil {
		answer(c.w, http.StatusOK, "application/json", docOf(t))
	}
	return err
}

func (a *API) cancelTask(c request) error {
	t, err := c.task(a.Store.Cancel, notPending)
	if err == nil {
		answer(c.w, http.StatusOK, "application/json", docOf(t))
	}
	return err
}

func (a *API) redriveTask(c request) error {
	t, err := c.task(a.Store.Revive, notExhausted)
	if err == nil {
		a.schedule(c.Context(), t)
		answer(c.w, http.StatusOK, "application/json", docOf(t))
	}
	return err
}

// Sizes of a page of attempts.
const (
	defaultPage = 50
	maxPage     = 500
)

func (a *API) listAttempts(c request) error {
	id, p := c.taskID()
	if p != nil {
		return p
	}
	after, limit, p := page(c.URL.Query())
	if p != nil {
		return p
	}
	list, err := a.Store.Attempts(c.Context(), c.tenant, id, after, limit+1)
	if err != nil {
		return unknownTask(id, err)
	}
	doc := attemptsDoc{Attempts: []attemptDoc{}}
	for _, attempt := range list[:min(len(list), limit)] {
		doc.Attempts = append(doc.Attempts, attemptDoc{
			id, attempt.Number, attempt.StartedAt.UnixMilli(), attempt.Duration.Milliseconds(), attempt.ResponseStatus, visible(attempt.Error, attempt.ResponseStatus),
		})
	}
	if len(list) > limit {
		doc.NextCursor = strconv.Itoa(list[limit-1].Number)
	}
	answer(c.w, http.StatusOK, "application/json", doc)
	return nil
}

// page reads which attempts are asked for.
func page(q url.Values) (after, limit int, p *problem) {
	limit = defaultPage
	for name, values := range q {
		into, most := &after, int64(1<<31-1)
		if name == "limit" {
			into, most = &limit, maxPage
		}
		n, err := strconv.ParseInt(values[0], 10, 32)
		switch {
		case !slices.Contains([]string{"cursor", "limit"}, name):
			return 0, 0, invalidQuery.because("there is no parameter %q: use cursor and limit", shortened(name))
		case len(values) > 1 || err != nil || n < 1 || n > most:
			return 0, 0, invalidQuery.because("%s must be one whole number from 1 to %d, such as nextCursor of the page before", name, most)
		}
		*into = int(n)
	}
	return after, limit, nil
}

func (a *API) putPolicy(c request) error {
	raw, _, p := c.read(maxPolicy)
	if p != nil {
		return p
	}
	policy, p := parsePolicy(raw)
	if p != nil {
		return p
	}
	policy.Tenant = c.tenant
	more := Quota{Policies: 1}
	if a.hasPolicy(c.Context(), policy) {
		more = Quota{} // it makes no new version
	}
	if err := c.meter.admit(c.Context(), c.tenant, a.Quotas.of(c.tenant), more); err != nil {
		return err
	}
	stored, err := a.Store.PutPolicy(c.Context(), policy)
	if err != nil {
		return fmt.Errorf("a policy could not be stored: %w", err)
	}
	c.meter.added(c.tenant, more)
	answer(c.w, http.StatusOK, "application/json", stored)
	return nil
}

// hasPolicy reports whether a policy equals the newest version of its name.
// Storing it then makes no new version.
func (a *API) hasPolicy(ctx context.Context, p Policy) bool {
	newest, err := a.Store.Policy(ctx, p.Tenant, p.ID, 0)
	newest.Version = p.Version
	newest.RetryableStatusCodes, p.RetryableStatusCodes = codes(newest), codes(p)
	return err == nil && reflect.DeepEqual(newest, p)
}

func (a *API) deletePolicy(c request) error {
	id := c.PathValue("policyId")
	if !text.IsWord(id) {
		return noSuchPolicy.because("%q cannot be the ID of a policy", shortened(id))
	}
	deleted, err := a.Store.DeletePolicy(c.Context(), c.tenant, id)
	switch {
	case errors.Is(err, ErrNotFound):
		return noSuchPolicy.because("the tenant %s has no policy %s", c.tenant, id)
	case errors.Is(err, ErrPolicyUsed):
		return policyUsed.because("tasks of the tenant use %s: delete it after they have succeeded, were cancelled, or are no longer kept", id)
	case err != nil:
		return fmt.Errorf("a policy could not be deleted: %w", err)
	}
	answer(c.w, http.StatusOK, "application/json", deleted)
	return nil
}

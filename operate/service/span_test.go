package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry"
)

// scribe is a Tracer that numbers calls, and notes what it hears.
type scribe struct {
	mu    sync.Mutex
	calls int
	notes []string
}

type scribeKey struct{}

func (s *scribe) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

func (s *scribe) StartCall(r *http.Request, m brokers.Meta) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	r.Header.Set(traceparent, fmt.Sprint("span-", s.calls))
	s.note("call %d, attempt %d after %q, failed %v, back %d", s.calls, m.Attempt, m.Trace, !m.LastFailedAt.IsZero(), m.RedriveCount)
	return context.WithValue(r.Context(), scribeKey{}, s.calls)
}

func (s *scribe) Traceparent(ctx context.Context) string {
	return fmt.Sprint("span-", ctx.Value(scribeKey{}))
}

func (s *scribe) EndCall(ctx context.Context, status int, v classify.Verdict, d retry.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("end %v with %d: class %q, retry %v in %v, dead %v, %q", ctx.Value(scribeKey{}), status, v.Class, d.Retry, d.Delay, d.DeadLetter, d.Reason)
}

func (s *scribe) NotCalled(_ *http.Request, m brokers.Meta, d retry.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("not called, attempt %d after %q: retry %v, dead %v, %q", m.Attempt, m.Trace, d.Retry, d.DeadLetter, d.Reason)
}

func (s *scribe) heard() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.notes, "\n")
}

// TestTracer has a task fail, succeed, and come back after its end: the Tracer hears
// which attempt it is, which one was before, and what becomes of the task.
func TestTracer(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		heard := &scribe{}
		w.config.Tracer = heard
		w.store.policies["default"] = Policy{ID: "default", Backoff: Fixed, InitialDelayMs: 1500, JitterType: NoJitter, MaxAttempts: 3}.WithDefaults()
		var headers []string
		w.targets["shop.example"] = func(_ context.Context, r *http.Request) (*http.Response, error) {
			headers = append(headers, r.Header.Get(traceparent))
			switch len(headers) {
			case 1:
				return answered(503), nil
			case 2:
				return nil, errors.New("it broke")
			case 4:
				return answered(422), nil
			}
			return answered(200), nil
		}
		task := w.add("a", "shop.example", 0)
		task.Headers = map[string]string{traceparent: someParent}
		w.add("b", "shop.example", time.Minute).BudgetSince = time.Now().Add(-time.Second)
		w.start()
		w.within(10*time.Second, "a", Succeeded, 1)
		w.within(time.Minute, "b", Exhausted, 1)
		same(t, "the headers", headers, []string{"span-1", "span-2", "span-3", "span-4"})
		same(t, "the latest call", w.task(task).LastSpan, "span-3")
		same(t, "what the Tracer heard", heard.heard(), `call 1, attempt 1 after "", failed false, back 0
end 1 with 503: class "transient", retry true in 1.5s, dead false, "transient"
call 2, attempt 2 after "span-1", failed true, back 0
end 2 with 0: class "transient", retry true in 1.5s, dead false, "transient"
call 3, attempt 3 after "span-2", failed true, back 0
end 3 with 200: class "", retry false in 0s, dead false, ""
call 4, attempt 1 after "", failed false, back 1
end 4 with 422: class "poison", retry false in 0s, dead true, "poison"`)
	})
}

// TestTracerOfWhatIsNotCalled has a target whose breaker opens, one that refuses so many
// retries that there are no tokens, and one that must not be called.
func TestTracerOfWhatIsNotCalled(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		heard := &scribe{}
		w.config.Tracer = heard
		w.store.policies["default"] = Policy{ID: "default", Backoff: Fixed, InitialDelayMs: 100, JitterType: NoJitter, MaxAttempts: 100}.WithDefaults()
		w.targets["down.example"] = answers(time.Millisecond, always(503))
		for range 100 {
			w.add("a", "down.example", 0)
		}
		w.targets["refuses.example"] = answers(time.Millisecond, always(422))
		for range 300 {
			w.add("c", "refuses.example", 0).AttemptNumber = 1
		}
		w.add("b", "192.168.0.1", 0)
		w.start()
		w.within(10*time.Second, "b", Exhausted, 1)
		told := heard.heard()
		for _, want := range []string{`: retry true, dead false, "breaker"`, `: retry true, dead false, "budget"`, `not called, attempt 1 after "": retry false, dead true, "poison"`} {
			if !strings.Contains(told, want) {
				t.Errorf("the Tracer did not hear %q", want)
			}
		}
		if calls, ends := strings.Count(told, "call "), strings.Count(told, "end "); calls != w.made() || ends != calls {
			t.Errorf("%d spans begin and %d end, of %d calls", calls, ends, w.made())
		}
	})
}

// TestWordsOfDeferrals holds the words against all reasons.
func TestWordsOfDeferrals(t *testing.T) {
	for reason, want := range map[string]string{
		reasonTokens: "budget", reasonDown: "breaker", reasonBusy: "busy", reasonNoWorker: "no-worker", reasonBody: "body", reasonNoBodies: "body", reasonNoTarget: "other",
	} {
		same(t, reason, (&deferral{reason: reason}).word(), want)
	}
}

// TestReleasedCall ends the span of a call that is given back.
func TestReleasedCall(t *testing.T) {
	heard := &scribe{}
	(&span{tracer: heard, ctx: t.Context()}).released()
	(&span{tracer: heard}).released()
	(*span)(nil).released()
	same(t, "what the Tracer heard", heard.heard(), `end <nil> with 0: class "shutdown", retry false in 0s, dead false, "shutdown"`)
}

// careless is a Tracer that panics.
type careless struct{ Tracer }

// TestTracerThatPanics has nothing change for a task.
func TestTracerThatPanics(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.config.Tracer = careless{} // its methods are those of nil
		w.targets["shop.example"] = answers(time.Millisecond, func(n int) int { return 503 - 303*(n/2) })
		task := w.add("a", "shop.example", 0)
		w.add("b", "192.168.0.1", 0)
		w.start()
		w.within(time.Minute, "a", Succeeded, 1)
		w.within(0, "b", Exhausted, 1)
		if n := len(w.callsOf(task)); n != 2 || !strings.Contains(w.log.String(), "Config.Tracer panicked") {
			t.Errorf("%d calls, want 2, and a line in the log", n)
		}
	})
}

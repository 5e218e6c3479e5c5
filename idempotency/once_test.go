package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/idempotency"
)

var errBusy = errors.New("the bank is busy")

// wrap makes a handler that runs once, and a log.
func wrap(t testing.TB, s idempotency.Store, h consumer.Handler, change func(*idempotency.Options)) (consumer.Handler, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	o := idempotency.Options{Retention: week, Redrive: week, Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if change != nil {
		change(&o)
	}
	middleware, err := idempotency.Once(s, o)
	ok(t, err)
	return middleware(h), log
}

// ok checks that nothing failed.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// bubble runs a subtest in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func order(id, body string) *brokers.Message {
	return &brokers.Message{ID: id, Topic: "orders", Body: []byte(body)}
}

// counted is a handler that counts its runs.
type counted struct {
	mu   sync.Mutex
	runs map[string]int
	then func(ctx context.Context, run int) error
}

// first ends the first run of a message so, and lets the others succeed.
func first(end func() error) func(context.Context, int) error {
	return func(_ context.Context, run int) error {
		if run == 1 {
			return end()
		}
		return nil
	}
}

func isBusy() error { return errBusy }

func (c *counted) handle(ctx context.Context, m *brokers.Message) error {
	c.mu.Lock()
	if c.runs == nil {
		c.runs = map[string]int{}
	}
	c.runs[m.ID]++
	run := c.runs[m.ID]
	c.mu.Unlock()
	if c.then == nil {
		return nil
	}
	return c.then(ctx, run)
}

func (c *counted) want(t testing.TB, id string, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs[id] != n {
		t.Errorf("the handler ran %d times for %s, want %d", c.runs[id], id, n)
	}
}

// wantUncounted demands an error that neither counts nor stops the source.
func wantUncounted(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("the handler returns %v, want %v", err, target)
	}
	if v := classify.Of(err); !v.Deferred || v.Ambiguous {
		t.Errorf("the verdict on it is %+v, want deferred", v)
	}
}

func TestSuccessIsRecorded(t *testing.T) {
	h := &counted{}
	handle, log := wrap(t, idempotency.NewMemory(0), h.handle, nil)
	for range 3 {
		ok(t, handle(t.Context(), order("order-7", "x")))
	}
	h.want(t, "order-7", 1)
	if n := strings.Count(log.String(), "handled before"); n != 2 || strings.Contains(log.String(), "level=INFO") {
		t.Errorf("the log tells of %d duplicates, want 2 at level debug:\n%s", n, log)
	}
}

// TestFailureIsNotRecorded is about the ways in which a run can fail.
func TestFailureIsNotRecorded(t *testing.T) {
	for name, end := range map[string]func() error{
		"error":     isBusy,
		"permanent": func() error { return classify.Permanent(errBusy) },
		"skip":      func() error { return classify.Skip(errBusy) },
		"panic":     func() error { panic(errBusy) },
		"goexit":    func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			h := &counted{then: first(end)}
			handle, _ := wrap(t, idempotency.NewMemory(0), h.handle, func(o *idempotency.Options) { o.Wait = -1 })
			apart(t, name == "panic", func() {
				if err := handle(t.Context(), order("order-7", "x")); !errors.Is(err, errBusy) {
					t.Errorf("the handler returns %v, want %v", err, errBusy)
				}
			})
			ok(t, handle(t.Context(), order("order-7", "x")))
			h.want(t, "order-7", 2)
		})
	}
}

// apart runs f in a goroutine of its own, and checks whether it panics.
func apart(t *testing.T, panics bool, f func()) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() {
			if v := recover(); (v != nil) != panics {
				t.Errorf("recovered %v", v)
			}
		}()
		f()
	})
	wg.Wait()
}

func TestSecondRunWaits(t *testing.T) {
	tests := []struct {
		name string
		wait time.Duration // of the second
		runs time.Duration // of the first
		err  error
		took time.Duration
	}{
		{"until the first is done", time.Minute, 3 * time.Second, nil, 3 * time.Second},
		{"for half a second", 0, time.Minute, idempotency.ErrInProgress, 500 * time.Millisecond},
		{"not at all", -1, time.Minute, idempotency.ErrInProgress, 0},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			h := &counted{then: func(context.Context, int) error { time.Sleep(tt.runs); return nil }}
			handle, _ := wrap(t, idempotency.NewMemory(0), h.handle, func(o *idempotency.Options) { o.Wait = tt.wait })
			var wg sync.WaitGroup
			wg.Go(func() { ok(t, handle(t.Context(), order("order-7", "x"))) })
			synctest.Wait()
			began := time.Now()
			err := handle(t.Context(), order("order-7", "x"))
			if tt.err == nil {
				ok(t, err)
			} else {
				wantUncounted(t, err, tt.err)
			}
			if took := time.Since(began); took < tt.took || took > tt.took+250*time.Millisecond {
				t.Errorf("the second run took %s, want %s and at most 250ms more", took, tt.took)
			}
			wg.Wait()
			h.want(t, "order-7", 1)
		})
	}
}

func TestSecondRunTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &counted{then: first(func() error { time.Sleep(time.Second); return errBusy })}
		handle, _ := wrap(t, idempotency.NewMemory(0), h.handle, func(o *idempotency.Options) { o.Wait = 10 * time.Second })
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := handle(t.Context(), order("order-7", "x")); !errors.Is(err, errBusy) {
				t.Errorf("the first run returns %v", err)
			}
		})
		synctest.Wait()
		ok(t, handle(t.Context(), order("order-7", "x")))
		wg.Wait()
		h.want(t, "order-7", 2)
	})
}

func TestWaitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := idempotency.NewMemory(0)
		hold(t, s, "orders:order-7", "somebody", time.Hour)
		h := &counted{}
		handle, _ := wrap(t, s, h.handle, func(o *idempotency.Options) { o.Wait = time.Hour })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantUncounted(t, handle(ctx, order("order-7", "x")), idempotency.ErrInProgress)
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		err := handle(ctx, order("order-7", "x"))
		wantUncounted(t, err, idempotency.ErrInProgress)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v does not say that the context has ended", err)
		}
		h.want(t, "order-7", 0)
	})
}

// hold claims a key for somebody else.
func hold(t testing.TB, s idempotency.Store, key, token string, lease time.Duration) {
	t.Helper()
	r, err := s.Begin(t.Context(), idempotency.Claim{Key: key, Token: token}, lease)
	if err != nil || r.State != idempotency.Claimed {
		t.Fatalf("Begin by %s = %+v, %v", token, r, err)
	}
}

func TestOtherPayload(t *testing.T) {
	tests := []struct {
		name        string
		fingerprint func(*brokers.Message) string
		refused     bool
	}{
		{"bodies", nil, true},
		{"not compared", func(*brokers.Message) string { return "" }, false},
		{"what the user compares", func(m *brokers.Message) string { return string(m.Body[:1]) }, false},
		{"as long as it likes", func(m *brokers.Message) string { return strings.Repeat(string(m.Body), 500) + "\n" }, true},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			h := &counted{then: func(context.Context, int) error { time.Sleep(time.Minute); return nil }}
			handle, _ := wrap(t, idempotency.NewMemory(0), h.handle, func(o *idempotency.Options) { o.Fingerprint = tt.fingerprint })
			check := func(err, otherwise error) {
				t.Helper()
				if !tt.refused {
					if !errors.Is(err, otherwise) {
						t.Errorf("the other payload: %v, want %v", err, otherwise)
					}
					return
				}
				if v := classify.Of(err); !errors.Is(err, idempotency.ErrMismatch) || v.Class != classify.ClassPoison {
					t.Errorf("the other payload: %v (%s), want ErrMismatch, poison", err, v.Class)
				}
			}
			var wg sync.WaitGroup
			wg.Go(func() { ok(t, handle(t.Context(), order("order-7", "10 EUR"))) })
			synctest.Wait()
			check(handle(t.Context(), order("order-7", "1000 EUR")), idempotency.ErrInProgress)
			wg.Wait()
			check(handle(t.Context(), order("order-7", "1000 EUR")), nil)
			h.want(t, "order-7", 1)
		})
	}
}

func TestScopes(t *testing.T) {
	s := idempotency.NewMemory(0)
	var h counted
	handle, _ := wrap(t, s, h.handle, nil)
	audit, _ := wrap(t, s, h.handle, func(o *idempotency.Options) { o.Scope = "audit" })
	for range 2 {
		for _, topic := range []string{"orders", "refunds"} {
			ok(t, handle(t.Context(), &brokers.Message{ID: "order-7", Topic: topic}))
			ok(t, audit(t.Context(), &brokers.Message{ID: "order-7", Topic: topic}))
		}
	}
	h.want(t, "order-7", 3)
}

func TestKeysOfTheUser(t *testing.T) {
	h := &counted{}
	byCustomer := func(m *brokers.Message, _ brokers.Meta) string { return m.Key }
	handle, _ := wrap(t, idempotency.NewMemory(0), h.handle, func(o *idempotency.Options) { o.Key = byCustomer })
	for _, m := range []*brokers.Message{{ID: "a", Key: "7"}, {ID: "b", Key: "7"}, {ID: "c", Key: strings.Repeat("\x00", 10<<10)}, {ID: "d", Key: strings.Repeat("\x00", 10<<10)}} {
		ok(t, handle(t.Context(), m))
	}
	for id, n := range map[string]int{"a": 1, "b": 0, "c": 1, "d": 0} {
		h.want(t, id, n)
	}
	err := handle(t.Context(), &brokers.Message{ID: "e"})
	if v := classify.Of(err); err == nil || v.Class != classify.ClassPoison {
		t.Errorf("without a key: %v (%s), want a dead letter", err, v.Class)
	}
	h.want(t, "e", 0)
}

// faulty is a Memory whose calls may fail.
type faulty struct {
	*idempotency.Memory

	mu    sync.Mutex
	fault func(call string, nth int) error
	calls map[string]int
}

func newFaulty(fault func(call string, nth int) error) *faulty {
	return &faulty{Memory: idempotency.NewMemory(0), fault: fault, calls: map[string]int{}}
}

// failing fails the first n of these calls.
func failing(which string, n int) *faulty {
	return newFaulty(func(call string, nth int) error {
		if call == which && nth <= n {
			return errDown
		}
		return nil
	})
}

func (f *faulty) fails(call string) error {
	f.mu.Lock()
	f.calls[call]++
	nth := f.calls[call]
	f.mu.Unlock()
	return f.fault(call, nth)
}

func (f *faulty) Begin(ctx context.Context, c idempotency.Claim, lease time.Duration) (idempotency.Record, error) {
	if err := f.fails("Begin"); err != nil {
		return idempotency.Record{}, err
	}
	return f.Memory.Begin(context.WithoutCancel(ctx), c, lease)
}

func (f *faulty) Complete(ctx context.Context, c idempotency.Claim, ttl time.Duration) error {
	if err := f.fails("Complete"); err != nil {
		return err
	}
	return f.Memory.Complete(ctx, c, ttl)
}

func (f *faulty) Release(ctx context.Context, c idempotency.Claim) error {
	if err := f.fails("Release"); err != nil {
		return err
	}
	return f.Memory.Release(ctx, c)
}

// TestErrorsOfTheStore demands that no failure of the store before the run
// counts as one that may have had an effect, or against the message.
func TestErrorsOfTheStore(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"refused", errDown, classify.ClassTransient},
		{"timeout", &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, classify.ClassTransient},
		{"deadline", fmt.Errorf("redisstore: %w", context.DeadlineExceeded), classify.ClassTransient},
		{"poison", classify.Permanent(errBusy), classify.ClassTransient},
		{"cancelled", fmt.Errorf("redisstore: %w", context.Canceled), classify.ClassUnknown},
		{"environment", redisError("NOAUTH Authentication required."), classify.ClassEnvironment},
		{"unknown", errors.New("database is odd"), classify.ClassUnknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newFaulty(func(string, int) error { return tt.err })
			handle, _ := wrap(t, s, (&counted{}).handle, nil)
			err := handle(t.Context(), order("order-7", "x"))
			if !strings.Contains(err.Error(), tt.err.Error()) {
				t.Errorf("%v does not tell %v", err, tt.err)
			}
			if _, ok := errors.AsType[*net.OpError](err); ok != (tt.name == "timeout") {
				t.Error("the type of the store's error is lost")
			}
			if v := classify.Of(err); v.Class != tt.want || v.Ambiguous {
				t.Errorf("the verdict is %+v, want %s and not ambiguous", v, tt.want)
			}
		})
	}
}

// redisError is an error reply of a Redis server.
type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

var errDown = fmt.Errorf("dial the store: %w", syscall.ECONNREFUSED)

func TestStoreIsDownAtFirst(t *testing.T) {
	h := &counted{}
	handle, _ := wrap(t, failing("Begin", 1), h.handle, nil)
	if err := handle(t.Context(), order("order-7", "x")); !errors.Is(err, errDown) {
		t.Errorf("%v, want the store's error", err)
	}
	h.want(t, "order-7", 0)
	ok(t, handle(t.Context(), order("order-7", "x")))
	h.want(t, "order-7", 1)
}

func TestRecordFails(t *testing.T) {
	for _, test := range []struct {
		failures, runs int // the runs are for the message and a duplicate
		panics         bool
	}{{2, 1, false}, {3, 2, false}, {3, 2, true}} {
		bubble(t, fmt.Sprintf("%+v", test), func(t *testing.T) {
			h := &counted{}
			store := newFaulty(func(call string, nth int) error {
				switch {
				case call != "Complete" || nth > test.failures:
					return nil
				case test.panics:
					panic("makeslice: len out of range")
				}
				return errDown
			})
			handle, log := wrap(t, store, h.handle, nil)
			ok(t, handle(t.Context(), order("order-7", "x")))
			if logged := strings.Contains(log.String(), "level=ERROR"); logged != (test.runs > 1) {
				t.Errorf("logged as an error: %t\n%s", logged, log)
			}
			time.Sleep(time.Minute) // the lease ends
			ok(t, handle(t.Context(), order("order-7", "x")))
			h.want(t, "order-7", test.runs)
		})
	}
}

func TestReleaseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &counted{then: first(isBusy)}
		handle, log := wrap(t, failing("Release", 100), h.handle, nil)
		if err := handle(t.Context(), order("order-7", "x")); !errors.Is(err, errBusy) {
			t.Errorf("%v, want the handler's error", err)
		}
		if !strings.Contains(log.String(), "level=WARN") {
			t.Errorf("nothing is logged:\n%s", log)
		}
		wantUncounted(t, handle(t.Context(), order("order-7", "x")), idempotency.ErrInProgress)
		time.Sleep(30 * time.Second)
		ok(t, handle(t.Context(), order("order-7", "x"))) // after the lease
	})
}

// TestSuccessInSpiteOfTheContext is about a handler that has finished when the
// worker was stopping.
func TestSuccessInSpiteOfTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := &counted{then: func(context.Context, int) error { cancel(); return nil }}
	handle, _ := wrap(t, idempotency.NewMemory(0), h.handle, nil)
	ok(t, handle(ctx, order("order-7", "x")))
	ok(t, handle(t.Context(), order("order-7", "x")))
	h.want(t, "order-7", 1)
}

package retry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// trouble is an error that carries its verdict; asIs is the rule that reads it.
type trouble struct{ verdict classify.Verdict }

func (e *trouble) Error() string { return "trouble" }

func asIs(err error) error {
	if e, ok := errors.AsType[*trouble](err); ok {
		return classify.With(err, e.verdict)
	}
	return nil
}

// hint is an error that asks to wait.
func hint(d time.Duration) *trouble {
	return &trouble{classify.Verdict{Class: "throttled", RetryAfter: d}}
}

func class(c string) *trouble { return &trouble{classify.Verdict{Class: c}} }

// exact is a policy whose delays are known: 1 s, 2 s, 4 s …
func exact() Policy {
	return Policy{MaxAttempts: 4, Backoff: Backoff{Jitter: NoJitter}}.withDefaults()
}

// call runs Do in virtual time with a function that fails as told, then
// succeeds, and reports when each run began.
func call(ctx context.Context, p Policy, failures ...*trouble) (began []time.Duration, err error) {
	start := time.Now()
	err = p.Do(ctx, func(context.Context) error {
		began = append(began, time.Since(start))
		if len(began) <= len(failures) {
			return fmt.Errorf("run %d: %w", len(began), failures[len(began)-1])
		}
		return nil
	}, asIs)
	return began, err
}

func repeat(e *trouble, n int) []*trouble { return slices.Repeat([]*trouble{e}, n) }

func TestDo(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name     string
		policy   Policy
		failures []*trouble
		began    []time.Duration
		says     string // empty: success
	}{
		{"success at once", exact(), nil, []time.Duration{0}, ""},
		{"success in the end", exact(), repeat(class("transient"), 3), []time.Duration{0, s, 3 * s, 7 * s}, ""},
		{"exhausted", exact(), repeat(class("transient"), 9), []time.Duration{0, s, 3 * s, 7 * s},
			"gave up after 4 attempts in 7s (no attempts left): run 4: trouble"},
		{"exhausted by the verdict", exact(), repeat(&trouble{classify.Verdict{Class: "unknown", MaxAttempts: 2}}, 9), []time.Duration{0, s},
			"gave up after 2 attempts in 1s (no attempts left): run 2: trouble"},
		{"poison", exact(), repeat(class("poison"), 9), []time.Duration{0},
			"gave up after 1 attempt in 0s (another one cannot succeed): run 1: trouble"},
		{"poison that may run twice", exact(), repeat(&trouble{classify.Verdict{Class: "poison", MaxAttempts: 2}}, 9), []time.Duration{0, s},
			"gave up after 2 attempts in 1s (another one cannot succeed): run 2: trouble"},
		{"poison after a retry", exact(), []*trouble{class("transient"), class("poison")}, []time.Duration{0, s},
			"gave up after 2 attempts in 1s (another one cannot succeed): run 2: trouble"},
		{"skip", exact(), repeat(&trouble{classify.Verdict{Class: "skipped"}}, 9), []time.Duration{0},
			"gave up after 1 attempt in 0s (skipped): run 1: trouble"},
		{"shutdown", exact(), repeat(class("shutdown"), 9), []time.Duration{0}, "(shutdown): run 1"},
		{"lost", exact(), repeat(class("lost"), 9), []time.Duration{0}, "(lost): run 1"},
		{"throttles are not free", exact(), repeat(class("throttled"), 9), []time.Duration{0, s, 3 * s, 7 * s},
			"gave up after 4 attempts in 7s (no attempts left)"},
		{"throttles are not free under the verdict's limit", exact(), repeat(&trouble{classify.Verdict{Class: "throttled", MaxAttempts: 2}}, 9),
			[]time.Duration{0, s}, "gave up after 2 attempts in 1s (no attempts left)"},
		{"hint too long", exact(), repeat(hint(time.Hour), 9), []time.Duration{0},
			"gave up after 1 attempt in 0s (asked to wait 1h0m0s, longer than MaxRetryAfter (15m0s)): run 1: trouble"},
		{"too old", Policy{MaxAttempts: 9, MaxAge: 5 * s, Backoff: exact().Backoff}, repeat(class("transient"), 9), []time.Duration{0, s, 3 * s},
			"gave up after 3 attempts in 3s (another one would end after MaxAge (5s)): run 3: trouble"},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			began, err := call(t.Context(), tt.policy, tt.failures...)
			if tt.began != nil && fmt.Sprint(began) != fmt.Sprint(tt.began) {
				t.Errorf("runs began after %v, want %v", began, tt.began)
			}
			if tt.says == "" {
				if err != nil {
					t.Errorf("got error %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("got error %v, want %q", err, tt.says)
			}
			last := tt.failures[len(began)-1]
			if got, ok := errors.AsType[*trouble](err); !ok || !errors.Is(err, last) || got != last {
				t.Errorf("%v does not wrap the last error", err)
			}
		})
	}
}

// Decorrelated delays can only outgrow three times the base if each one knows
// the one before.
func TestDoRemembersTheDelayBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Policy{MaxAttempts: 50, MaxAge: 1 << 62, Backoff: Backoff{Base: time.Second, Cap: time.Minute, Jitter: DecorrelatedJitter}}
		began, _ := call(t.Context(), p, repeat(class("transient"), 50)...)
		var longest time.Duration
		for i := 1; i < len(began); i++ {
			longest = max(longest, began[i]-began[i-1])
		}
		if longest <= 3*time.Second {
			t.Errorf("longest delay of %d is %v, want more than 3s", len(began)-1, longest)
		}
	})
}

// When the wait and the context end together, no further run begins.
func TestWaitPrefersTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 {
			if wait(ctx, 0) {
				t.Fatal("waited successfully in a cancelled context")
			}
		}
	})
}

func TestDoIsNotPatient(t *testing.T) {
	const s = time.Second
	for name, tt := range map[string]struct {
		policy         Policy
		failure        *trouble
		runs           int
		least, longest time.Duration // before the last run
		says           string
	}{
		"transient":           {Policy{}, class("transient"), 3, 0, 300 * ms, "no attempts left"},
		"environment":         {Policy{}, class("environment"), 3, 2 * s, 4 * s, "no attempts left"},
		"patient environment": {exact(), class("environment"), 4, 90 * s, 180 * s, "no attempts left"},
		"hint":                {Policy{}, hint(2 * s), 3, 2 * s, 4 * s, "no attempts left"},
		"long hint":           {Policy{}, hint(2*s + 1), 1, 0, 0, "longer than MaxRetryAfter (2s)"},
		"patient hint":        {exact(), hint(10 * s), 4, 30 * s, 33 * s, "no attempts left"},
		"a minute":            {Policy{MaxAttempts: 99, Backoff: Backoff{Base: 25 * s, Cap: 25 * s, Jitter: NoJitter}}, class("transient"), 3, 50 * s, 50 * s, "MaxAge (1m0s)"},
	} {
		bubble(t, name, func(t *testing.T) {
			began, err := call(t.Context(), tt.policy, repeat(tt.failure, 99)...)
			if last := began[len(began)-1]; len(began) != tt.runs || last < tt.least || last > tt.longest {
				t.Errorf("runs began after %v, want %d, the last after %v to %v", began, tt.runs, tt.least, tt.longest)
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %q", err, tt.says)
			}
			if last, ok := errors.AsType[*trouble](err); ok && classify.Of(err, asIs).RetryAfter != last.verdict.RetryAfter {
				t.Errorf("%v is classified as %+v, want what is said of the last error", err, classify.Of(err, asIs))
			}
		})
	}
}

// bubble runs a subtest in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// The time that a run takes is part of the estimate for the next.
func TestDoLeavesTimeForTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		p := Policy{MaxAge: 12 * time.Second, Backoff: exact().Backoff}
		err := p.Do(t.Context(), func(context.Context) error {
			runs++
			time.Sleep(4 * time.Second)
			return class("transient")
		}, asIs)
		if runs != 2 || !strings.Contains(err.Error(), "after 2 attempts in 9s (another one would end after MaxAge (12s))") {
			t.Errorf("%d runs, error %v", runs, err)
		}
	})
}

func TestDoDoesNotWaitPastTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		began, err := call(ctx, exact(), repeat(class("transient"), 9)...)
		if waited := time.Since(start); waited != 3*time.Second || len(began) != 3 {
			t.Errorf("returned after %v and %d runs, want 3 runs in 3s", waited, len(began))
		}
		const want = "gave up after 3 attempts in 3s (the next one is due in 4s, but the context ends in 2s): run 3"
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Error("the deadline has not passed, but the error says so")
		}
	})
}

func TestDoCancelledWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quit := errors.New("operator said stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(2*time.Second, func() { cancel(quit) })
		start := time.Now()
		began, err := call(ctx, exact(), repeat(class("transient"), 9)...)
		if waited := time.Since(start); waited != 2*time.Second || len(began) != 2 {
			t.Errorf("returned after %v and %d runs, want 2 runs in 2s", waited, len(began))
		}
		if !strings.Contains(err.Error(), "after 2 attempts in 2s (operator said stop): run 2: trouble") {
			t.Errorf("got error %v", err)
		}
	})
}

func TestDoCancelledWhileRunning(t *testing.T) {
	quit := errors.New("operator said stop")
	for _, c := range []string{"transient", "poison"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		err := exact().Do(ctx, func(context.Context) error {
			cancel(quit)
			return class(c)
		}, asIs)
		if _, ok := errors.AsType[*trouble](err); !ok || !errors.Is(err, quit) {
			t.Errorf("%s: %v must match both the cause and the last error", c, err)
		}
	}
}

// A success counts, even if the context ended meanwhile.
func TestDoSucceedsInACancelledContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if err := exact().Do(ctx, func(context.Context) error { cancel(); return nil }); err != nil {
		t.Errorf("got error %v", err)
	}
}

func TestDoDoesNotStart(t *testing.T) {
	never := func(context.Context) error {
		t.Error("fn was run")
		return nil
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	quit := errors.New("too late")
	cancel(quit)
	if err := exact().Do(ctx, never); !errors.Is(err, quit) || !strings.Contains(err.Error(), "not started") {
		t.Errorf("in a cancelled context: got error %v", err)
	}
	if err := (Policy{MaxAttempts: -1}).Do(t.Context(), never); err == nil || !strings.Contains(err.Error(), "Policy.MaxAttempts") {
		t.Errorf("with an invalid policy: got error %v", err)
	}
}

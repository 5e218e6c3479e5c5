package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/classify"
)

var created = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// response is the result of a call that was answered.
func response(status int, header ...string) result {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	r := result{began: created, took: 20 * time.Millisecond, status: status}
	switch {
	case status >= 400:
		r.err = classify.FromResponse(&http.Response{StatusCode: status, Header: h})
	case status >= 300:
		r.err = fmt.Errorf("a redirect: %w", &classify.HTTPError{Status: status})
	}
	return r
}

func failure(err error) result {
	return result{began: created, took: 20 * time.Millisecond, err: err}
}

// fresh is a task that was claimed for the first time.
func fresh() Task {
	return Task{ID: "t", Status: InFlight, CreatedAt: created, BudgetSince: created, NextAttemptAt: created, Version: 2}
}

func TestDecide(t *testing.T) {
	refused := failure(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
	const counted, free = 1, 0
	for _, tt := range []struct {
		name     string
		policy   Policy
		task     func(*Task)
		result   result
		after    time.Duration // since created, of the decision
		status   Status
		attempts int  // that counted
		logged   bool // in the log of attempts
		delay    time.Duration
		err      string
	}{
		{name: "success", result: response(204), status: Succeeded, attempts: counted, logged: true},
		{name: "503", result: response(503), status: Pending, attempts: counted, logged: true, delay: time.Second, err: "http status 503"},
		{name: "500", result: response(500), status: Pending, attempts: counted, logged: true, delay: time.Second},
		{name: "refused connection", result: refused, status: Pending, attempts: counted, logged: true, delay: time.Second, err: "connection refused"},
		{name: "timeout", result: failure(fmt.Errorf("no answer: %w", context.DeadlineExceeded)), status: Pending, attempts: counted, logged: true, delay: time.Second},
		{name: "certificate", result: failure(&net.DNSError{Err: "no such host", IsNotFound: true}), status: Pending, attempts: counted, logged: true, delay: time.Second},
		{name: "400", result: response(400), status: Exhausted, attempts: counted, logged: true, err: "poison: http status 400"},
		{name: "400 in the list", policy: Policy{RetryableStatusCodes: []int{400}}, result: response(400), status: Exhausted, attempts: counted, logged: true},
		{name: "401", result: response(401), status: Exhausted, attempts: counted, logged: true},
		{name: "501", result: response(501), status: Exhausted, attempts: counted, logged: true},
		{name: "302", result: response(302), status: Exhausted, attempts: counted, logged: true},
		{name: "404 in the list", policy: Policy{RetryableStatusCodes: []int{404}}, result: response(404), status: Pending, attempts: counted, logged: true, delay: time.Second},
		{name: "500 not in the list", policy: Policy{RetryableStatusCodes: []int{404}}, result: response(500), status: Exhausted, attempts: counted, logged: true},
		{name: "the list is not about errors", policy: Policy{RetryableStatusCodes: []int{404}}, result: refused, status: Pending, attempts: counted, logged: true, delay: time.Second},
		{name: "401 in the list counts", policy: Policy{RetryableStatusCodes: []int{401}}, result: response(401), status: Pending, attempts: counted, logged: true, delay: time.Second},
		{name: "409 in the list has all attempts", policy: Policy{RetryableStatusCodes: []int{409}}, task: func(t *Task) { t.AttemptNumber = 8 },
			result: response(409), status: Pending, attempts: 9, logged: true, delay: 256 * time.Second},
		{name: "the last attempt", task: func(t *Task) { t.AttemptNumber = 9 }, result: response(503), status: Exhausted, attempts: 10, logged: true, err: "exhausted: http status 503"},
		{name: "one attempt", policy: Policy{MaxAttempts: 1}, result: response(503), status: Exhausted, attempts: counted, logged: true},
		{name: "Retry-After", result: response(503, "Retry-After", "60"), status: Pending, attempts: counted, logged: true, delay: 60 * time.Second},
		{name: "Retry-After too long", result: response(503, "Retry-After", "86400"), status: Pending, attempts: counted, logged: true, delay: 15*time.Minute - 5*time.Second},
		{name: "Retry-After beyond the budget", policy: Policy{TotalBudgetMs: 30_000}, result: response(503, "Retry-After", "60"), status: Exhausted, attempts: counted, logged: true, err: "expired"},
		{name: "429", result: response(429), status: Pending, attempts: counted, logged: true, delay: time.Second},
		{name: "the last 429", task: func(t *Task) { t.AttemptNumber = 9 }, result: response(429, "Retry-After", "1"), status: Exhausted, attempts: 10, logged: true, err: "exhausted: http status 429"},
		{name: "429 not in the list", policy: Policy{RetryableStatusCodes: []int{500}}, result: response(429, "Retry-After", "1"), status: Exhausted, attempts: counted, logged: true},
		{name: "the budget is spent", policy: Policy{TotalBudgetMs: 60_000}, result: response(503), after: 59*time.Second + 980*time.Millisecond, status: Exhausted, attempts: counted, logged: true, err: "expired: http status 503"},
		{name: "the budget is just enough", policy: Policy{TotalBudgetMs: 60_000}, result: response(503), after: 58*time.Second + 979*time.Millisecond, status: Pending, attempts: counted, logged: true, delay: time.Second},
		{name: "the budget has no room for the call", policy: Policy{TotalBudgetMs: 60_000}, result: response(503), after: 58*time.Second + 980*time.Millisecond, status: Exhausted, attempts: counted, logged: true},
		{name: "breaker", result: failure(&deferral{"down", "", 7 * time.Second}), status: Pending, attempts: free, delay: 7 * time.Second, err: "not called: down"},
		{name: "breaker at the last attempt", task: func(t *Task) { t.AttemptNumber = 9 }, result: failure(&deferral{"down", "", 7 * time.Second}), status: Pending, attempts: 9, delay: 7 * time.Second},
		{name: "breaker for longer than the budget", policy: Policy{TotalBudgetMs: 10_000}, result: failure(&deferral{"down", "", time.Minute}), status: Pending, attempts: free, delay: 5 * time.Second},
		{name: "breaker until the budget ends", policy: Policy{TotalBudgetMs: 10_000}, result: failure(&deferral{"down", "", time.Minute}), after: 9 * time.Second, status: Exhausted, attempts: free, err: "expired: not called"},
		{name: "breaker of a slow policy", policy: Policy{InitialDelayMs: 600_000, TotalBudgetMs: 900_000}, result: failure(&deferral{"down", "", 7 * time.Second}),
			after: 14 * time.Minute, status: Pending, attempts: free, delay: 7 * time.Second},
		{name: "no more files of a slow policy", policy: Policy{InitialDelayMs: 600_000}, result: failure(syscall.EMFILE), status: Pending, attempts: free, delay: time.Second},
		{name: "no more files", result: failure(&net.OpError{Op: "dial", Err: syscall.EMFILE}), status: Pending, attempts: free, delay: time.Second},
		{name: "forbidden target", result: failure(fmt.Errorf("dial: %w", &TargetError{"10.0.0.1", "it is private"})), status: Exhausted, attempts: counted, logged: true, err: "poison: the target must not be called: 10.0.0.1: it is private"},
		{name: "lease over", result: leaseOver(fresh(), created.Add(time.Minute)), after: time.Minute, status: Pending, attempts: counted, logged: true, delay: time.Second, err: "lease over"},
		{name: "lease over, and little left", policy: Policy{TotalBudgetMs: 62_000}, result: leaseOver(fresh(), created.Add(time.Minute)), after: time.Minute, status: Pending, attempts: counted, logged: true, delay: time.Second},
		{name: "the last lease is over", task: func(t *Task) { t.AttemptNumber = 9 }, result: leaseOver(fresh(), created.Add(time.Minute)), after: time.Minute, status: Exhausted, attempts: 10, logged: true},
		{name: "the clock was set back", policy: Policy{TotalBudgetMs: 60_000}, result: response(503), after: -time.Hour, status: Pending, attempts: counted, logged: true, delay: time.Second},
		{name: "it came back", policy: Policy{TotalBudgetMs: 60_000}, task: func(t *Task) { t.CreatedAt = created.Add(-time.Hour) }, result: response(503), status: Pending, attempts: counted, logged: true, delay: time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.policy
			p.JitterType = NoJitter
			p = p.WithDefaults()
			task := fresh()
			if tt.task != nil {
				tt.task(&task)
			}
			now := created.Add(tt.after)
			o := decide(task, p, tt.result, now, 0)
			if o.Task.Status != tt.status || o.Task.AttemptNumber != tt.attempts || (o.Attempt != nil) != tt.logged {
				t.Errorf("%s after %d attempts, logged: %v; want %s after %d, logged: %v", o.Task.Status, o.Task.AttemptNumber, o.Attempt, tt.status, tt.attempts, tt.logged)
			}
			if got := o.Task.NextAttemptAt.Sub(now); tt.status == Pending && got != tt.delay {
				t.Errorf("due after %v, want %v", got, tt.delay)
			}
			if !strings.Contains(o.Task.LastError, tt.err) || (o.Task.LastError == "") != (tt.status == Succeeded) {
				t.Errorf("the error is %q, want %q", o.Task.LastError, tt.err)
			}
			if reason, _, _ := strings.Cut(o.Task.LastError, ": "); tt.status == Exhausted && reason != "exhausted" && reason != "expired" && reason != "poison" {
				t.Errorf("the reason is %q", reason)
			}
			if o.Task.Version != task.Version || o.Task.Row != task.Row || !o.Task.UpdatedAt.Equal(now) {
				t.Errorf("the row is %+v", o.Task)
			}
		})
	}
}

func TestDelayIsJittered(t *testing.T) {
	p := Policy{}.WithDefaults()
	for _, random := range []float64{0, 0.25, 0.5} {
		o := decide(fresh(), p, response(503), created, random)
		if got, want := o.Task.NextAttemptAt.Sub(created), time.Duration(random*float64(time.Second)); got != want {
			t.Errorf("random %v: %v, want %v", random, got, want)
		}
	}
	d := decide(fresh(), p, failure(&deferral{"down", "", 10 * time.Second}), created, 0.3)
	if got := d.Task.NextAttemptAt.Sub(created); got < 10*time.Second || got > 11*time.Second {
		t.Errorf("deferred by %v, want 10 s to 11 s", got)
	}
}

// FuzzDecide holds what is decided against what must always be so.
func FuzzDecide(f *testing.F) {
	f.Add(3, int64(100), int64(1000), int64(5000), 2.0, 503, "", 2, int64(700), int64(30), int64(50), 0.5)
	f.Add(1, int64(1), int64(1), int64(1), 1.0, 0, "broken", 0, int64(0), int64(0), int64(0), 1.0)
	f.Add(10, int64(1000), int64(60000), int64(1<<40), 1e9, 429, "7", 9, int64(1<<50), int64(-5), int64(1<<60), math.NaN())
	f.Fuzz(func(t *testing.T, attempts int, initial, most, budget int64, multiplier float64, status int, text string, made int, elapsed, prev, took int64, random float64) {
		p := Policy{MaxAttempts: attempts, InitialDelayMs: initial, MaxDelayMs: most, TotalBudgetMs: budget, Multiplier: multiplier}.WithDefaults()
		valid := p.Validate() == nil && made >= 0 && made < p.MaxAttempts
		task := fresh()
		task.AttemptNumber, task.PrevDelay = made, millis(prev)
		now := created.Add(millis(elapsed))
		r := result{began: created, took: millis(took), status: status, err: errors.New(text)}
		switch {
		case status >= 200 && status < 300:
			r.err = nil
		case status >= 400:
			r = response(status, "Retry-After", text)
			r.took = millis(took)
		case status == 1:
			r.status, r.err = 0, &deferral{text, "", millis(took)}
		}
		o := decide(task, p, r, now, random)
		got := o.Task
		if !slices.Contains([]Status{Pending, Succeeded, Exhausted}, got.Status) {
			t.Fatalf("status %q", got.Status)
		}
		if !utf8.ValidString(got.LastError) || len(got.LastError) > mostError {
			t.Fatalf("error %q", got.LastError)
		}
		if !valid {
			return
		}
		if got.AttemptNumber < made || got.AttemptNumber > made+1 || got.AttemptNumber > p.MaxAttempts || got.Status == Pending && got.AttemptNumber == p.MaxAttempts {
			t.Fatalf("%s after %d attempts of %d, %d before", got.Status, got.AttemptNumber, p.MaxAttempts, made)
		}
		if (o.Attempt != nil) != (got.AttemptNumber == made+1) {
			t.Fatalf("%d attempts, %d before, logged: %v", got.AttemptNumber, made, o.Attempt)
		}
		if got.Status != Pending {
			return
		}
		end := task.BudgetSince.Add(millis(p.TotalBudgetMs))
		if now.Before(task.BudgetSince) {
			end = now.Add(millis(p.TotalBudgetMs))
		}
		if got.NextAttemptAt.Before(now) || got.NextAttemptAt.After(end) || !got.NextAttemptAt.Equal(got.NextAttemptAt.Truncate(time.Millisecond)) {
			t.Fatalf("due at %v, decided at %v, budget until %v", got.NextAttemptAt, now, end)
		}
	})
}

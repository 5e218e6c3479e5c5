package classify_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// cycle wraps itself.
type cycle struct{}

func (cycle) Error() string   { return "cycle" }
func (c cycle) Unwrap() error { return c }

// bush wraps itself many times.
type bush struct{ width int }

func (bush) Error() string { return "bush" }
func (b bush) Unwrap() []error {
	errs := make([]error, b.width)
	for i := range errs {
		errs[i] = b
	}
	return errs
}

// list is not comparable.
type list []error

func (list) Error() string { return "list" }

// bomb panics in the methods that are named.
type bomb struct {
	error
	in string
}

func (b bomb) maybe(method string) {
	if b.in == method {
		panic("boom in " + method)
	}
}
func (b bomb) Error() string             { b.maybe("Error"); return "bomb" }
func (b bomb) Unwrap() error             { b.maybe("Unwrap"); return b.error }
func (b bomb) Is(error) bool             { b.maybe("Is"); return false }
func (b bomb) Timeout() bool             { b.maybe("Timeout"); return false }
func (b bomb) SafeToRetry() bool         { b.maybe("SafeToRetry"); return false }
func (b bomb) HTTPStatusCode() int       { b.maybe("HTTPStatusCode"); return 0 }
func (b bomb) ErrorCode() string         { b.maybe("ErrorCode"); return "" }
func (b bomb) Deferred() bool            { b.maybe("Deferred"); return false }
func (b bomb) RetryAfter() time.Duration { b.maybe("RetryAfter"); return 0 }

// statusBomb has a status, and panics when unwrapped.
type statusBomb struct{ bomb }

func (statusBomb) HTTPStatusCode() int { return 502 }

func TestHostileTrees(t *testing.T) {
	deep := func(err error, n int) error {
		for range n {
			err = fmt.Errorf("%w", err)
		}
		return err
	}
	wide := func(err error, n int) error {
		errs := make([]error, n)
		for i := range errs {
			errs[i] = err
		}
		return errors.Join(errs...)
	}
	bad := &classify.HTTPError{Status: 400}
	tests := []expect{
		{"cycle", cycle{}, unknown("walk limit", "")},
		{"bush", bush{50}, unknown("walk limit", "")},
		{"bush of one", bush{1}, unknown("walk limit", "")},
		{"empty bush", bush{0}, unknown("", "")},
		{"mark around a cycle", classify.Permanent(cycle{}), poison("mark: permanent", "")},
		{"cycle beside a mark", errors.Join(cycle{}, classify.Permanent(io.EOF)), poison("mark: permanent", "")},
		{"cycle beside an outage", errors.Join(cycle{}, syscall.ECONNREFUSED), transient("errno ECONNREFUSED", "ECONNREFUSED")},
		{"deep", deep(bad, 90), poison("http status 400", "400")},
		{"too deep", deep(bad, 5000), unknown("walk limit", "")},
		{"wide", wide(bad, 999), poison("http status 400", "400")},
		{"too wide", wide(bad, 5000), unknown("walk limit", "")},
		{"uncomparable", list{io.EOF}, unknown("", "")},
		{"join of nothing", fmt.Errorf("nothing: %w", errors.Join(bush{0}, list{})), unknown("", "")},
		{"nil pointer", (*classify.HTTPError)(nil), unknown("panic in a method of the error", "")},
		{"nil panic error", (*classify.PanicError)(nil), panicked},
		{"nil in %w", fmt.Errorf("%w", error(nil)), unknown("", "")},
		{"panic in Unwrap after a status", statusBomb{bomb{in: "Unwrap"}}, transient("http status 502", "502")},
		{"panic beside an outage", errors.Join(bomb{in: "Unwrap"}, syscall.ECONNREFUSED), transient("errno ECONNREFUSED", "ECONNREFUSED")},
	}
	for _, method := range []string{"Unwrap", "Is", "Timeout", "SafeToRetry", "HTTPStatusCode", "ErrorCode", "Deferred", "RetryAfter"} {
		tests = append(tests, expect{"panic in " + method, bomb{in: method}, unknown("panic in a method of the error", "")})
	}
	for _, tt := range tests {
		if got := classify.Of(tt.err); got != tt.want {
			t.Errorf("%s:\n got %+v\nwant %+v", tt.name, got, tt.want)
		}
	}
}

// A rule may do what it likes: it harms nobody, and what has no mark is no
// opinion.
func TestHostileRules(t *testing.T) {
	refused := fmt.Errorf("charge: %w", syscall.ECONNREFUSED)
	byItself := transient("errno ECONNREFUSED", "ECONNREFUSED")
	wide := make([]error, 5000)
	for i := range wide {
		wide[i] = classify.Permanent(io.EOF)
	}
	tests := []struct {
		name   string
		answer func(error) error
		want   classify.Verdict
	}{
		{"the error as it is", func(err error) error { return err }, byItself},
		{"another error without a mark", func(error) error { return &classify.HTTPError{Status: 400} }, byItself},
		{"nil pointer", func(error) error { return (*classify.HTTPError)(nil) }, byItself},
		{"uncomparable", func(error) error { return list{io.EOF} }, byItself},
		{"cycle", func(error) error { return cycle{} }, byItself},
		{"bush", func(error) error { return bush{50} }, byItself},
		{"panicking method", func(error) error { return bomb{in: "Unwrap"} }, byItself},
		{"mark around a panicking method", func(error) error { return classify.Permanent(bomb{in: "Unwrap"}) }, poison("user rule 1: permanent", "")},
		{"mark below a panicking method", func(err error) error { return bomb{classify.Permanent(err), "Is"} }, byItself},
		{"mark around a cycle", func(error) error { return classify.Permanent(cycle{}) }, poison("user rule 1: permanent", "")},
		{"cycle beside a mark", func(error) error { return errors.Join(cycle{}, classify.Permanent(io.EOF)) }, poison("user rule 1: permanent", "")},
		{"thousands of marks", func(error) error { return errors.Join(wide...) }, poison("user rule 1: permanent", "")},
		{"absurd verdict", func(err error) error {
			return classify.With(err, classify.Verdict{Class: "\x00", MaxAttempts: -1 << 63, RetryAfter: -1 << 63})
		}, unknown("user rule 1: with", "ECONNREFUSED")},
		{"panic", func(error) error { panic("bug") }, unknown("user rule 1: panic: bug", "")},
		{"panic with a panicking error", func(error) error { panic(bomb{in: "Error"}) },
			unknown("user rule 1: panic: %!v(PANIC=Error method: boom in Error)", "")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := classify.Of(refused, tt.answer); got != tt.want {
				t.Errorf("got %+v\nwant %+v", got, tt.want)
			}
			if tt.want != byItself {
				return
			}
			if got, want := classify.Of(refused, tt.answer, classify.Permanent).Rule, "user rule 2: permanent"; got != want {
				t.Errorf("decided by %q, want the next rule to be asked", got)
			}
			if got, want := classify.Explain(refused, tt.answer), "user rule 1: no match, because the error that it returned has no mark\n"; !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		})
	}
}

// Explain calls the Error method of every error, Of of hardly any.
func TestExplainHostileTrees(t *testing.T) {
	for _, err := range []error{
		cycle{}, bush{50}, list{}, bomb{in: "Error"}, bomb{in: "Is"}, (*classify.HTTPError)(nil),
		classify.Permanent(bomb{in: "Error"}), errors.New(strings.Repeat("long\n", 1e5)),
	} {
		got := classify.Explain(err)
		if len(got) > 1<<16 {
			t.Errorf("Explain(%T) has %d bytes, want at most 64 KiB", err, len(got))
		}
		if v := classify.Of(err); !strings.Contains(got, "verdict: "+v.Class) {
			t.Errorf("Explain(%T) does not end in the verdict %q:\n%s", err, v.Class, got)
		}
	}
}

package classify_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
)

func TestExplain(t *testing.T) {
	refused := &fs.PathError{Op: "dial", Path: "/run/pay", Err: syscall.ECONNREFUSED}
	no := func(error) error { return nil }
	yes := func(err error) error {
		return classify.With(err, classify.Verdict{Class: classify.ClassThrottled, RetryAfter: time.Second, Rule: "house rule"})
	}
	tests := []struct {
		name  string
		err   error
		rules []classify.Rule
		want  string
	}{
		{"nil", nil, []classify.Rule{no}, `
verdict: none, because the error is nil`},
		{"unknown", errors.New("out of\npaper"), nil, `
*errors.errorString: out of paper => no rule
verdict: unknown, because no rule matches, runs at most 6, reason unclassified`},
		{"chain with rules", fmt.Errorf("charge: %w", refused), []classify.Rule{no, yes, no}, `
*fmt.wrapError: charge: dial /run/pay: connection refused
  *fs.PathError: dial /run/pay: connection refused
    syscall.Errno: connection refused => transient by "errno ECONNREFUSED"
user rule 1: no match
user rule 2: throttled by "house rule"
verdict: throttled by "house rule", code ECONNREFUSED, retry after 1s`},
		{"marks", fmt.Errorf("charge: %w", classify.With(refused, classify.Verdict{Class: classify.ClassPoison, Rule: "declined"})), nil, `
*fmt.wrapError: charge: dial /run/pay: connection refused
  classify.With: dial /run/pay: connection refused => poison by "declined"
    *fs.PathError: dial /run/pay: connection refused
      syscall.Errno: connection refused => transient by "errno ECONNREFUSED"
verdict: poison by "declined", code ECONNREFUSED, runs at most 1`},
		{"joins", fmt.Errorf("%w; %w", errors.Join(os.ErrNotExist, refused), classify.Skip(&classify.HTTPError{Status: 500})), []classify.Rule{no}, `
*fmt.wrapErrors: file does not exist dial /run/pay: connection refused; http status 500 Internal Server Error
  *errors.joinError: file does not exist dial /run/pay: connection refused
    *errors.errorString: file does not exist => unknown by "fs.ErrNotExist"
    *fs.PathError: dial /run/pay: connection refused
      syscall.Errno: connection refused => transient by "errno ECONNREFUSED"
  => joined: transient by "errno ECONNREFUSED"
  classify.Skip: http status 500 Internal Server Error => skipped by "mark: skip"
    *classify.HTTPError: http status 500 Internal Server Error => transient by "http status 500"
=> joined: skipped by "mark: skip"
user rules: not asked
verdict: skipped by "mark: skip", code 500, may have had its effect`},
		{"panicking method", bomb{in: "Unwrap", error: refused}, nil, `
classify_test.bomb: bomb => unknown by "panic in a method of the error"
verdict: unknown by "panic in a method of the error", runs at most 6, reason unclassified`},
		{"status before a panic", statusBomb{bomb{in: "Unwrap"}}, nil, `
classify_test.statusBomb: bomb => transient by "http status 502"
verdict: transient by "http status 502", code 502`},
		{"panicking text", bomb{in: "Error"}, nil, `
classify_test.bomb: (its Error method panics) => no rule
verdict: unknown, because no rule matches, runs at most 6, reason unclassified`},
	}
	for _, tt := range tests {
		if got, want := classify.Explain(tt.err, tt.rules...), strings.TrimPrefix(tt.want, "\n"); got != want {
			t.Errorf("%s: got\n%s\n\nwant\n%s", tt.name, got, want)
		}
	}
}

func TestExplainEnds(t *testing.T) {
	errs := make([]error, 300)
	for i := range errs {
		errs[i] = fmt.Errorf("number %d", i)
	}
	got := classify.Explain(errors.Join(errs...))
	if lines := strings.Count(got, "\n"); lines > 205 || !strings.Contains(got, "and 101 more errors") {
		t.Errorf("%d lines, want about 200 and a note on the rest:\n%s", lines, got)
	}
	if got := classify.Explain(cycle{}); !strings.Contains(got, "the walk ended at 1000 errors or a depth of 100: the rest is unknown") {
		t.Errorf("no note on the end of the walk:\n%s", got)
	}
}

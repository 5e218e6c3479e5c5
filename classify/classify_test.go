package classify_test

import (
	"context"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// check compares the whole verdict, and that wrapping err changes nothing.
func check(t *testing.T, err error, want classify.Verdict, rules ...classify.Rule) {
	t.Helper()
	if err == nil {
		t.Fatal("there is no error to classify")
	}
	for _, err := range []error{err, fmt.Errorf("handle: %w", err), errors.Join(nil, err)} {
		if got := classify.Of(err, rules...); got != want {
			t.Errorf("Of(%T %v)\n got %+v\nwant %+v\n%s", err, err, got, want, classify.Explain(err, rules...))
		}
	}
}

func poison(rule, code string) classify.Verdict {
	return classify.Verdict{Class: classify.ClassPoison, MaxAttempts: 1, Rule: rule, Code: code}
}

func transient(rule, code string) classify.Verdict {
	return classify.Verdict{Class: classify.ClassTransient, Rule: rule, Code: code}
}

func ambiguous(rule, code string) classify.Verdict {
	return classify.Verdict{Class: classify.ClassTransient, Ambiguous: true, Rule: rule, Code: code}
}

func upTo(runs int, rule, code string) classify.Verdict {
	return classify.Verdict{Class: classify.ClassTransient, MaxAttempts: runs, Rule: rule, Code: code}
}

func environment(rule, code string) classify.Verdict {
	return classify.Verdict{Class: classify.ClassEnvironment, Rule: rule, Code: code}
}

func throttled(rule, code string, hint time.Duration) classify.Verdict {
	return classify.Verdict{Class: classify.ClassThrottled, RetryAfter: hint, Rule: rule, Code: code}
}

func unknown(rule, code string) classify.Verdict {
	return classify.Verdict{Class: classify.ClassUnknown, MaxAttempts: 6, Reason: "unclassified", Rule: rule, Code: code}
}

func TestNil(t *testing.T) {
	rule := func(error) (classify.Verdict, bool) {
		t.Error("a rule was asked about nil")
		return classify.Verdict{}, true
	}
	if got := classify.Of(nil, rule); got != (classify.Verdict{}) {
		t.Errorf("Of(nil) = %+v, want the zero verdict", got)
	}
	marks := map[string]error{
		"Permanent":   classify.Permanent(nil),
		"Transient":   classify.Transient(nil),
		"RetryAfter":  classify.RetryAfter(nil, time.Second),
		"Defer":       classify.Defer(nil, time.Second),
		"Skip":        classify.Skip(nil),
		"Undecodable": classify.Undecodable(nil),
	}
	for name, err := range marks {
		if err != nil {
			t.Errorf("%s(nil) = %#v, want nil", name, err)
		}
	}
}

func TestMarks(t *testing.T) {
	cause := fmt.Errorf("order 7: %w", fs.ErrNotExist)
	tests := []struct {
		name string
		err  error
		want classify.Verdict
	}{
		{"permanent", classify.Permanent(cause), poison("mark: permanent", "")},
		{"transient", classify.Transient(cause), transient("mark: transient", "")},
		{"retry after", classify.RetryAfter(cause, time.Minute), throttled("mark: retry after", "", time.Minute)},
		{"retry after nothing", classify.RetryAfter(cause, -time.Minute), throttled("mark: retry after", "", 0)},
		{"defer", classify.Defer(cause, time.Minute), classify.Verdict{Class: classify.ClassTransient, Deferred: true, RetryAfter: time.Minute, Rule: "mark: defer"}},
		{"retry after ages", classify.RetryAfter(cause, 1<<62), throttled("mark: retry after", "", 365*24*time.Hour)},
		{"skip", classify.Skip(cause), classify.Verdict{Class: classify.ClassPoison, Skip: true, MaxAttempts: 1, Rule: "mark: skip"}},
		{"undecodable", classify.Undecodable(cause), classify.Verdict{Class: classify.ClassPoison, MaxAttempts: 1, Reason: "undecodable", Rule: "undecodable"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			check(t, tt.err, tt.want)
			if tt.err.Error() != cause.Error() {
				t.Errorf("text %q, want that of the cause, %q", tt.err, cause)
			}
			if outer := fmt.Errorf("a: %w", fmt.Errorf("b: %w", tt.err)); !errors.Is(outer, fs.ErrNotExist) {
				t.Error("errors.Is does not find the cause")
			}
		})
	}
}

// The outermost mark of a branch wins, and over everything but another mark.
func TestMarkPrecedence(t *testing.T) {
	base := errors.New("boom")
	reset := os.NewSyscallError("read", syscall.ECONNRESET)
	tooMany := &classify.HTTPError{Status: 429, Wait: 9 * time.Second}
	tests := []struct {
		name string
		err  error
		want classify.Verdict
	}{
		{"permanent around transient", classify.Permanent(fmt.Errorf("x: %w", classify.Transient(base))), poison("mark: permanent", "")},
		{"transient around permanent", classify.Transient(fmt.Errorf("x: %w", classify.Permanent(base))), transient("mark: transient", "")},
		{"code stays", classify.Permanent(tooMany), poison("mark: permanent", "429")},
		{"server's hint stays", classify.Transient(tooMany), classify.Verdict{
			Class: classify.ClassTransient, RetryAfter: 9 * time.Second, Rule: "mark: transient", Code: "429"}},
		{"own hint wins", classify.RetryAfter(tooMany, time.Second), throttled("mark: retry after", "429", time.Second)},
		{"ambiguity stays", classify.Transient(reset), ambiguous("mark: transient", "ECONNRESET")},
		{"mark below a typed error", &statusError{status: 502, cause: classify.Permanent(base)}, poison("mark: permanent", "502")},
		{"mark below a decode failure", classify.Undecodable(classify.Transient(base)), transient("mark: transient", "")},
		{"decode failure around a transient error", classify.Undecodable(&classify.HTTPError{Status: 503}), classify.Verdict{
			Class: classify.ClassPoison, MaxAttempts: 1, Reason: "undecodable", Rule: "undecodable", Code: "503"}},
		{"mark below a panic", &classify.PanicError{Value: classify.Transient(base)}, ambiguous("mark: transient", "")},
		{"mark around a join", classify.Permanent(errors.Join(classify.Transient(base), reset)),
			classify.Verdict{Class: classify.ClassPoison, Ambiguous: true, MaxAttempts: 1, Rule: "mark: permanent"}},
		{"mark around a timeout", classify.Permanent(classify.ErrAttemptTimeout),
			classify.Verdict{Class: classify.ClassPoison, Ambiguous: true, MaxAttempts: 1, Rule: "mark: permanent"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { check(t, tt.err, tt.want) })
	}
}

func TestJoins(t *testing.T) {
	var (
		bad      = &classify.HTTPError{Status: 400}
		down     = &classify.HTTPError{Status: 502}
		unclear  = &classify.HTTPError{Status: 504}
		login    = &classify.HTTPError{Status: 401}
		slow     = &classify.HTTPError{Status: 429, Wait: time.Second}
		slower   = &classify.HTTPError{Status: 429, Wait: time.Minute}
		conflict = &classify.HTTPError{Status: 409, Wait: time.Hour}
		strange  = errors.New("strange")
		moved    = &serviceError{code: "ReceiptHandleIsInvalid"}
	)
	withHint := func(v classify.Verdict, d time.Duration) classify.Verdict { v.RetryAfter = d; return v }
	tests := []struct {
		name string
		errs []error
		want classify.Verdict
	}{
		{"poison and transient", []error{bad, down}, transient("http status 502", "502")},
		{"poison and unknown", []error{bad, strange}, unknown("", "")},
		{"poison and lost", []error{bad, moved}, classify.Verdict{
			Class: classify.ClassLost, Rule: "service code ReceiptHandleIsInvalid", Code: "ReceiptHandleIsInvalid"}},
		{"poison alone", []error{bad, nil, bad}, poison("http status 400", "400")},
		{"unknown and transient", []error{strange, down}, transient("http status 502", "502")},
		{"transient and environment", []error{down, login}, environment("http status 401", "401")},
		{"environment and throttled", []error{login, slow}, throttled("http status 429", "429", time.Second)},
		{"longest hint", []error{slow, slower}, throttled("http status 429", "429", time.Minute)},
		{"longest hint of another class", []error{conflict, slow}, throttled("http status 429", "429", time.Hour)},
		{"ambiguity", []error{down, unclear}, ambiguous("http status 502", "502")},
		{"the more patient one", []error{conflict, down}, withHint(transient("http status 502", "502"), time.Hour)},
		{"mark and throttled", []error{slow, classify.Permanent(strange)}, poison("mark: permanent", "")},
		{"marks of poison and transient", []error{classify.Permanent(bad), classify.Transient(strange)}, transient("mark: transient", "")},
		{"skip and permanent", []error{classify.Skip(strange), classify.Permanent(strange)}, poison("mark: permanent", "")},
		{"undecodable and transient", []error{down, classify.Undecodable(strange)}, classify.Verdict{
			Class: classify.ClassPoison, MaxAttempts: 1, Reason: "undecodable", Rule: "undecodable"}},
		{"panic and transient", []error{&classify.PanicError{Value: 1}, down}, transient("http status 502", "502")},
		{"attempt timeout and environment", []error{login, classify.ErrAttemptTimeout}, classify.Verdict{
			Class: classify.ClassTransient, Ambiguous: true, MaxAttempts: 5, Reason: "timeout", Rule: "attempt timeout"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			check(t, errors.Join(tt.errs...), tt.want)
			nested := tt.errs[0]
			for _, err := range tt.errs[1:] {
				if err != nil {
					nested = fmt.Errorf("%w, then %w", nested, err)
				}
			}
			check(t, nested, tt.want)
		})
	}
}

func TestContexts(t *testing.T) {
	expired, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	canceled, cancelNow := context.WithCancel(t.Context())
	cancelNow()
	timedOut, cancelCause := context.WithTimeoutCause(t.Context(), -1, classify.ErrAttemptTimeout)
	defer cancelCause()
	timeout := classify.Verdict{Class: classify.ClassTransient, Ambiguous: true, MaxAttempts: 5, Reason: "timeout", Rule: "attempt timeout"}

	check(t, expired.Err(), ambiguous("context deadline exceeded", ""))
	check(t, canceled.Err(), unknown("context canceled", ""))
	check(t, context.Cause(timedOut), timeout)
	check(t, fmt.Errorf("%w: %w", context.Cause(timedOut), timedOut.Err()), timeout)
	check(t, &statusError{status: 500, cause: context.Cause(timedOut)}, withCode(timeout, "500"))
}

func withCode(v classify.Verdict, code string) classify.Verdict {
	v.Code = code
	return v
}

func caught(f func()) (err error) {
	defer func() { err = &classify.PanicError{Value: recover(), Stack: []byte("stack")} }()
	f()
	return nil
}

func TestPanics(t *testing.T) {
	var nilMap map[string]int
	want := classify.Verdict{Class: classify.ClassPoison, Ambiguous: true, MaxAttempts: 2, Reason: "panic", Rule: "panic"}
	tests := []struct {
		name string
		f    func()
		text string
		want classify.Verdict
	}{
		{"runtime error", func() { nilMap["a"] = 1 }, "panic: assignment to entry in nil map", want},
		{"nil", func() { panic(nil) }, "panic: " + new(runtime.PanicNilError).Error(), want},
		{"text", func() { panic("out of paper") }, "panic: out of paper", want},
		{"transient error", func() { panic(syscall.ECONNREFUSED) }, "panic: " + syscall.ECONNREFUSED.Error(), withCode(want, "ECONNREFUSED")},
		{"uncomparable", func() { panic([]int{1}) }, "panic: [1]", want},
		{"abort", func() { panic(http.ErrAbortHandler) }, "panic: net/http: abort Handler", classify.Verdict{
			Class: classify.ClassUnknown, Ambiguous: true, MaxAttempts: 6, Reason: "panic", Rule: "panic: http.ErrAbortHandler"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := caught(tt.f)
			check(t, err, tt.want)
			if err.Error() != tt.text {
				t.Errorf("text %q, want %q", err, tt.text)
			}
		})
	}
	if err := caught(func() { nilMap["a"] = 1 }); !isRuntimeError(err) {
		t.Errorf("errors.As does not find the runtime error in %v", err)
	}
}

func isRuntimeError(err error) bool {
	_, ok := errors.AsType[runtime.Error](err)
	return ok
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, missing := os.Open(filepath.Join(dir, "missing"))
	check(t, missing, unknown("errno ENOENT", "ENOENT"))
	check(t, os.Mkdir(dir, 0o700), unknown("errno EEXIST", "EEXIST"))
	check(t, os.Rename(filepath.Join(dir, "missing"), plain), unknown("errno ENOENT", "ENOENT"))
	_, missing = fs.Stat(os.DirFS(dir), "../x")
	check(t, missing, unknown("", ""))

	if runtime.GOOS == "windows" {
		t.Skip("the rest needs a Unix shell and permission bits")
	}
	check(t, exec.Command(plain).Run(), environment("errno EACCES", "EACCES"))
	check(t, exec.Command("redrive-no-such-program").Run(), environment("exec.ErrNotFound", ""))
	check(t, exec.Command("sh", "-c", "exit 3").Run(), unknown("process exit status", "3"))
	check(t, exec.Command("sh", "-c", "kill -9 $$").Run(), transient("process ended by a signal", ""))
	_, err := os.ReadDir(plain)
	check(t, err, unknown("", "")) // ENOTDIR, which no table lists
}

// A parse error is poison only in the decode stage: elsewhere the text may be
// the reply of a dependency.
func TestParseErrors(t *testing.T) {
	var order struct{ ID int }
	_, number := strconv.Atoi("seven")
	_, date := time.Parse(time.RFC3339, "yesterday")
	_, b64 := base64.StdEncoding.DecodeString("?")
	_, rows := csv.NewReader(strings.NewReader("a,b\nc\n")).ReadAll()
	errs := map[string]error{
		"json syntax": json.Unmarshal([]byte("<html>"), &order),
		"json type":   json.Unmarshal([]byte(`{"ID":"x"}`), &order),
		"json cut":    json.Unmarshal([]byte(`{"ID":`), &order),
		"xml":         xml.Unmarshal([]byte("<a"), &order),
		"csv":         rows,
		"number":      number,
		"date":        date,
		"base64":      b64,
	}
	for name, err := range errs {
		t.Run(name, func(t *testing.T) {
			check(t, err, unknown("", ""))
			check(t, classify.Undecodable(err), classify.Verdict{
				Class: classify.ClassPoison, MaxAttempts: 1, Reason: "undecodable", Rule: "undecodable"})
		})
	}
	check(t, json.NewDecoder(strings.NewReader("")).Decode(&order), unknown("io.EOF", ""))
	check(t, json.NewDecoder(strings.NewReader("{")).Decode(&order), unknown("io.ErrUnexpectedEOF", ""))
}

func TestRules(t *testing.T) {
	printer := errors.New("out of paper")
	outOfPaper := func(err error) (classify.Verdict, bool) {
		return classify.Verdict{Class: classify.ClassEnvironment, Rule: "printer", Code: "paper"}, errors.Is(err, printer)
	}
	no := func(error) (classify.Verdict, bool) { return classify.Verdict{Class: classify.ClassPoison}, false }
	yes := func(v classify.Verdict) classify.Rule {
		return func(error) (classify.Verdict, bool) { return v, true }
	}
	refused := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	tests := []struct {
		name  string
		err   error
		rules []classify.Rule
		want  classify.Verdict
	}{
		{"hit", printer, []classify.Rule{no, nil, outOfPaper}, environment("printer", "paper")},
		{"no hit", refused, []classify.Rule{no, outOfPaper}, transient("errno ECONNREFUSED", "ECONNREFUSED")},
		{"before typed errors", refused, []classify.Rule{yes(classify.Verdict{Class: classify.ClassPoison})}, poison("user rule 1", "")},
		{"before a library's word", &libraryError{retryable: true}, []classify.Rule{yes(classify.Verdict{Class: classify.ClassPoison})}, poison("user rule 1", "")},
		{"after marks", classify.Transient(printer), []classify.Rule{outOfPaper}, transient("mark: transient", "")},
		{"after panics", &classify.PanicError{Value: printer}, []classify.Rule{outOfPaper}, classify.Verdict{
			Class: classify.ClassPoison, Ambiguous: true, MaxAttempts: 2, Reason: "panic", Rule: "panic"}},
		{"after decoding", classify.Undecodable(printer), []classify.Rule{outOfPaper}, classify.Verdict{
			Class: classify.ClassPoison, MaxAttempts: 1, Reason: "undecodable", Rule: "undecodable"}},
		{"after the attempt timeout", errors.Join(printer, classify.ErrAttemptTimeout), []classify.Rule{outOfPaper}, classify.Verdict{
			Class: classify.ClassTransient, Ambiguous: true, MaxAttempts: 5, Reason: "timeout", Rule: "attempt timeout"}},
		{"first of two", printer, []classify.Rule{yes(classify.Verdict{Class: classify.ClassTransient}), outOfPaper}, transient("user rule 1", "")},
		{"no class", printer, []classify.Rule{no, yes(classify.Verdict{})}, unknown("user rule 2", "")},
		{"bad class", printer, []classify.Rule{yes(classify.Verdict{Class: "fatal"})}, unknown("user rule 1", "")},
		{"shutdown", printer, []classify.Rule{yes(classify.Verdict{Class: classify.ClassShutdown})}, classify.Verdict{Class: classify.ClassShutdown, Rule: "user rule 1"}},
		{"out of range", printer, []classify.Rule{yes(classify.Verdict{Class: classify.ClassTransient, MaxAttempts: -1, RetryAfter: -1})}, transient("user rule 1", "")},
		{"kept", printer, []classify.Rule{yes(classify.Verdict{Class: classify.ClassUnknown, MaxAttempts: 9, Reason: "paper", RetryAfter: 1})}, classify.Verdict{
			Class: classify.ClassUnknown, MaxAttempts: 9, Reason: "paper", RetryAfter: 1, Rule: "user rule 1"}},
		{"panic", refused, []classify.Rule{no, func(error) (classify.Verdict, bool) { panic("bug") }, outOfPaper}, unknown("user rule 2: panic: bug", "")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := classify.Of(tt.err, tt.rules...); got != tt.want {
				t.Errorf("got %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestOfDoesNotAllocate(t *testing.T) {
	errs := []error{
		fmt.Errorf("a: %w", errors.New("b")),
		fmt.Errorf("a: %w", classify.Permanent(io.EOF)),
		fmt.Errorf("a: %w", os.NewSyscallError("connect", syscall.ECONNREFUSED)),
		fmt.Errorf("a: %w", &classify.HTTPError{Status: 503}),
		errors.Join(context.DeadlineExceeded, io.EOF),
	}
	for _, err := range errs {
		if n := testing.AllocsPerRun(100, func() { classify.Of(err) }); n != 0 {
			t.Errorf("Of(%v) makes %v allocations, want 0", err, n)
		}
	}
}

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
	"net/url"
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

// expect is an error with its verdict.
type expect struct {
	name string
	err  error
	want classify.Verdict
}

func checkAll(t *testing.T, all []expect) {
	t.Helper()
	for _, e := range all {
		t.Run(e.name, func(t *testing.T) { check(t, e.err, e.want) })
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

// late, panicked and undecodable are the verdicts of errors that no rule outranks.
var (
	late        = classify.Verdict{Class: classify.ClassTransient, Ambiguous: true, MaxAttempts: 5, Reason: "timeout", Rule: "attempt timeout"}
	panicked    = classify.Verdict{Class: classify.ClassUnknown, Ambiguous: true, MaxAttempts: 6, Reason: "panic", Rule: "panic"}
	undecodable = classify.Verdict{Class: classify.ClassPoison, MaxAttempts: 1, Reason: "undecodable", Rule: "undecodable"}
)

func withCode(v classify.Verdict, code string) classify.Verdict {
	v.Code = code
	return v
}

func withRuns(v classify.Verdict, runs int) classify.Verdict {
	v.MaxAttempts = runs
	return v
}

func withHint(v classify.Verdict, d time.Duration) classify.Verdict {
	v.RetryAfter = d
	return v
}

func unknown(rule, code string) classify.Verdict {
	return classify.Verdict{Class: classify.ClassUnknown, MaxAttempts: 6, Reason: "unclassified", Rule: rule, Code: code}
}

func TestNil(t *testing.T) {
	rule := func(error) error {
		t.Error("a rule was asked about nil")
		return classify.Permanent(io.EOF)
	}
	if got := classify.Of(nil, rule); got != (classify.Verdict{}) {
		t.Errorf("Of(nil) = %+v, want the zero verdict", got)
	}
	marks := map[string]error{
		"Permanent":   classify.Permanent(nil),
		"Transient":   classify.Transient(nil),
		"RetryAfter":  classify.RetryAfter(nil, time.Second),
		"Throttled":   classify.Throttled(nil, time.Second),
		"Defer":       classify.Defer(nil, time.Second),
		"Skip":        classify.Skip(nil),
		"Undecodable": classify.Undecodable(nil),
		"With":        classify.With(nil, classify.Verdict{Class: classify.ClassPoison}),
	}
	for name, err := range marks {
		if err != nil {
			t.Errorf("%s(nil) = %#v, want nil", name, err)
		}
	}
}

func TestMarks(t *testing.T) {
	cause := fmt.Errorf("order 7: %w", fs.ErrNotExist)
	all := []expect{
		{"permanent", classify.Permanent(cause), poison("mark: permanent", "")},
		{"transient", classify.Transient(cause), transient("mark: transient", "")},
		{"retry after", classify.RetryAfter(cause, time.Minute), withHint(transient("mark: retry after", ""), time.Minute)},
		{"retry after nothing", classify.RetryAfter(cause, -time.Minute), transient("mark: retry after", "")},
		{"throttled", classify.Throttled(cause, time.Minute), throttled("mark: throttled", "", time.Minute)},
		{"throttled for no time", classify.Throttled(cause, -time.Minute), throttled("mark: throttled", "", 0)},
		{"defer", classify.Defer(cause, time.Minute), classify.Verdict{Class: classify.ClassTransient, Deferred: true, RetryAfter: time.Minute, Rule: "mark: defer"}},
		{"throttled for ages", classify.Throttled(cause, 1<<62), throttled("mark: throttled", "", 365*24*time.Hour)},
		{"skip", classify.Skip(cause), classify.Verdict{Class: classify.ClassSkipped, Rule: "mark: skip"}},
		{"undecodable", classify.Undecodable(cause), undecodable},
	}
	checkAll(t, all)
	for _, e := range all {
		if e.err.Error() != cause.Error() {
			t.Errorf("%s: text %q, want that of the cause, %q", e.name, e.err, cause)
		}
		if outer := fmt.Errorf("a: %w", fmt.Errorf("b: %w", e.err)); !errors.Is(outer, fs.ErrNotExist) {
			t.Errorf("%s: errors.Is does not find the cause", e.name)
		}
	}
}

// The outermost mark of a branch wins, and over everything but another mark.
func TestMarkPrecedence(t *testing.T) {
	base := errors.New("boom")
	reset := os.NewSyscallError("read", syscall.ECONNRESET)
	tooMany := &classify.HTTPError{Status: 429, Wait: 9 * time.Second}
	ambiguousPoison := classify.Verdict{Class: classify.ClassPoison, Ambiguous: true, MaxAttempts: 1, Rule: "mark: permanent"}
	checkAll(t, []expect{
		{"permanent around transient", classify.Permanent(fmt.Errorf("x: %w", classify.Transient(base))), poison("mark: permanent", "")},
		{"transient around permanent", classify.Transient(fmt.Errorf("x: %w", classify.Permanent(base))), transient("mark: transient", "")},
		{"code stays", classify.Permanent(tooMany), poison("mark: permanent", "429")},
		{"server's hint stays", classify.Transient(tooMany), withHint(transient("mark: transient", "429"), 9*time.Second)},
		{"own hint wins", classify.Throttled(tooMany, time.Second), throttled("mark: throttled", "429", time.Second)},
		{"the message, not the server", classify.RetryAfter(tooMany, time.Second), withHint(transient("mark: retry after", "429"), time.Second)},
		{"with around permanent", classify.With(classify.Permanent(base), classify.Verdict{Class: classify.ClassTransient, Rule: "mine"}), transient("mine", "")},
		{"ambiguity stays", classify.Transient(reset), ambiguous("mark: transient", "ECONNRESET")},
		{"mark below a typed error", &statusError{status: 502, cause: classify.Permanent(base)}, poison("mark: permanent", "502")},
		{"mark below a decode failure", classify.Undecodable(classify.Transient(base)), transient("mark: transient", "")},
		{"decode failure around a transient error", classify.Undecodable(&classify.HTTPError{Status: 503}), withCode(undecodable, "503")},
		{"mark below a panic", &classify.PanicError{Value: classify.Transient(base)}, ambiguous("mark: transient", "")},
		{"mark around a join", classify.Permanent(errors.Join(classify.Transient(base), reset)), ambiguousPoison},
		{"mark around a timeout", classify.Permanent(classify.ErrAttemptTimeout), ambiguousPoison},
	})
}

// With takes a verdict as it is, and fills what is empty or out of range.
func TestWith(t *testing.T) {
	odd := errors.New("odd")
	reset := os.NewSyscallError("read", syscall.ECONNRESET)
	tooMany := &classify.HTTPError{Status: 429, Wait: 9 * time.Second}
	whole := classify.Verdict{Class: classify.ClassUnknown, Ambiguous: true, RetryAfter: time.Second, MaxAttempts: 9,
		Deferred: true, Reason: "paper", Rule: "printer", Code: "7"}
	tests := []struct {
		name  string
		err   error
		given classify.Verdict
		want  classify.Verdict
	}{
		{"whole", tooMany, whole, whole},
		{"no class", odd, classify.Verdict{}, unknown("mark: with", "")},
		{"bad class", odd, classify.Verdict{Class: "fatal"}, unknown("mark: with", "")},
		{"shutdown", odd, classify.Verdict{Class: classify.ClassShutdown}, classify.Verdict{Class: classify.ClassShutdown, Rule: "mark: with"}},
		{"out of range", odd, classify.Verdict{Class: classify.ClassTransient, MaxAttempts: -1, RetryAfter: -1}, transient("mark: with", "")},
		{"a single run", odd, classify.Verdict{MaxAttempts: 1}, withRuns(unknown("mark: with", ""), 1)},
		{"runs of poison", odd, classify.Verdict{Class: classify.ClassPoison, MaxAttempts: 3}, withRuns(poison("mark: with", ""), 3)},
		{"hint of poison", tooMany, classify.Verdict{Class: classify.ClassPoison}, poison("mark: with", "429")},
		{"code and hint of the error", tooMany, classify.Verdict{Class: classify.ClassTransient}, withHint(transient("mark: with", "429"), 9*time.Second)},
		{"ambiguity of the error", reset, classify.Verdict{Class: classify.ClassTransient}, ambiguous("mark: with", "ECONNRESET")},
		{"the same", reset, classify.Of(reset), classify.Of(reset)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { check(t, classify.With(tt.err, tt.given), tt.want) })
	}
}

// deferredError is an error of a call that was not tried.
type deferredError struct {
	wait time.Duration
	not  bool
}

func (deferredError) Error() string               { return "not sent" }
func (e deferredError) Deferred() bool            { return !e.not }
func (e deferredError) RetryAfter() time.Duration { return e.wait }

func TestDeferred(t *testing.T) {
	busy := deferredError{wait: time.Minute}
	want := classify.Verdict{Class: classify.ClassTransient, Deferred: true, RetryAfter: time.Minute, Rule: "Deferred method"}
	counted := withHint(transient("errno ECONNREFUSED", "ECONNREFUSED"), time.Minute)
	checkAll(t, []expect{
		{"with a time", &url.Error{Op: "Get", Err: busy}, want},
		{"without a time", deferredError{wait: -1}, withHint(want, 0)},
		{"not deferred", deferredError{wait: time.Minute, not: true}, throttled("RetryAfter method", "", time.Minute)},
		{"beside an error without a meaning", errors.Join(errors.New("charge failed"), busy), want},
		{"beside poison", errors.Join(&classify.HTTPError{Status: 400}, busy), want},
		{"beside a call that was made", errors.Join(busy, syscall.ECONNREFUSED), counted},
		{"the other way round", errors.Join(syscall.ECONNREFUSED, busy), counted},
		{"below a mark", classify.Permanent(busy), poison("mark: permanent", "")},
		{"below a counted mark", classify.RetryAfter(busy, time.Second), withHint(transient("mark: retry after", ""), time.Second)},
	})
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
		{"deferred and transient", []error{classify.Defer(strange, 0), classify.Transient(strange)}, transient("mark: transient", "")},
		{"undecodable and transient", []error{down, classify.Undecodable(strange)}, undecodable},
		{"panic and transient", []error{&classify.PanicError{Value: 1}, down}, ambiguous("http status 502", "502")},
		{"attempt timeout and environment", []error{login, classify.ErrAttemptTimeout}, late},
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
	check(t, expired.Err(), ambiguous("context deadline exceeded", ""))
	check(t, canceled.Err(), unknown("context canceled", ""))
	check(t, context.Cause(timedOut), late)
	check(t, fmt.Errorf("%w: %w", context.Cause(timedOut), timedOut.Err()), late)
	check(t, &statusError{status: 500, cause: context.Cause(timedOut)}, withCode(late, "500"))
}

func caught(f func()) (err error) {
	defer func() { err = &classify.PanicError{Value: recover(), Stack: []byte("stack")} }()
	f()
	return nil
}

func TestPanics(t *testing.T) {
	var nilMap map[string]int
	tests := []struct {
		name string
		f    func()
		text string
		want classify.Verdict
	}{
		{"runtime error", func() { nilMap["a"] = 1 }, "panic: assignment to entry in nil map", panicked},
		{"nil", func() { panic(nil) }, "panic: " + new(runtime.PanicNilError).Error(), panicked},
		{"text", func() { panic("out of paper") }, "panic: out of paper", panicked},
		{"transient error", func() { panic(syscall.ECONNREFUSED) }, "panic: " + syscall.ECONNREFUSED.Error(), withCode(panicked, "ECONNREFUSED")},
		{"uncomparable", func() { panic([]int{1}) }, "panic: [1]", panicked},
	}
	for _, tt := range tests {
		err := caught(tt.f)
		check(t, err, tt.want)
		if err.Error() != tt.text {
			t.Errorf("%s: text %q, want %q", tt.name, err, tt.text)
		}
	}
	if err := caught(tests[0].f); !errors.As(err, new(runtime.Error)) {
		t.Errorf("errors.As does not find the runtime error in %v", err)
	}
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
		checkAll(t, []expect{{name, err, unknown("", "")}, {name, classify.Undecodable(err), undecodable}})
	}
	check(t, json.NewDecoder(strings.NewReader("")).Decode(&order), unknown("io.EOF", ""))
	check(t, json.NewDecoder(strings.NewReader("{")).Decode(&order), unknown("io.ErrUnexpectedEOF", ""))
}

func TestRules(t *testing.T) {
	printer := errors.New("out of paper")
	refused := os.NewSyscallError("connect", syscall.ECONNREFUSED)
	outOfPaper := func(err error) error {
		if !errors.Is(err, printer) {
			return nil
		}
		return classify.With(err, classify.Verdict{Class: classify.ClassEnvironment, Rule: "printer", Code: "paper"})
	}
	no := func(error) error { return nil }
	yes := func(v classify.Verdict) classify.Rule {
		return func(err error) error { return classify.With(err, v) }
	}
	returns := func(answer error) classify.Rule { return func(error) error { return answer } }
	tests := []struct {
		name  string
		err   error
		rules []classify.Rule
		want  classify.Verdict
	}{
		{"hit", printer, []classify.Rule{no, nil, outOfPaper}, environment("printer", "paper")},
		{"no hit", refused, []classify.Rule{no, outOfPaper}, transient("errno ECONNREFUSED", "ECONNREFUSED")},
		{"a plain mark", refused, []classify.Rule{no, classify.Permanent}, poison("user rule 2: permanent", "ECONNREFUSED")},
		{"a mark with an argument", printer, []classify.Rule{func(err error) error { return classify.Throttled(err, time.Minute) }},
			throttled("user rule 1: throttled", "", time.Minute)},
		{"a mark below %w", printer, []classify.Rule{func(err error) error { return fmt.Errorf("print: %w", classify.Transient(err)) }},
			transient("user rule 1: transient", "")},
		{"a mark around another error", refused, []classify.Rule{returns(classify.Permanent(printer))}, poison("user rule 1: permanent", "")},
		{"undecodable", printer, []classify.Rule{classify.Undecodable}, undecodable},
		{"the attempt timeout", printer, []classify.Rule{returns(classify.ErrAttemptTimeout)}, late},
		{"before a library's word", &libraryError{retryable: true}, []classify.Rule{classify.Permanent}, poison("user rule 1: permanent", "")},
		{"after marks", classify.Transient(printer), []classify.Rule{outOfPaper}, transient("mark: transient", "")},
		{"after panics", &classify.PanicError{Value: printer}, []classify.Rule{outOfPaper}, panicked},
		{"after decoding", classify.Undecodable(printer), []classify.Rule{outOfPaper}, undecodable},
		{"after the attempt timeout", errors.Join(printer, classify.ErrAttemptTimeout), []classify.Rule{outOfPaper}, late},
		{"first of two", printer, []classify.Rule{yes(classify.Verdict{Class: classify.ClassTransient}), outOfPaper}, transient("user rule 1: with", "")},
		{"no class", printer, []classify.Rule{no, yes(classify.Verdict{})}, unknown("user rule 2: with", "")},
		{"kept", printer, []classify.Rule{yes(classify.Verdict{Class: classify.ClassUnknown, MaxAttempts: 9, Reason: "paper", RetryAfter: 1, Rule: "mine"})},
			classify.Verdict{Class: classify.ClassUnknown, MaxAttempts: 9, Reason: "paper", RetryAfter: 1, Rule: "mine"}},
	}
	for _, tt := range tests {
		if got := classify.Of(tt.err, tt.rules...); got != tt.want {
			t.Errorf("%s:\n got %+v\nwant %+v", tt.name, got, tt.want)
		}
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

package classify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func FuzzRetryAfter(f *testing.F) {
	const date = "Sun, 06 Nov 1994 08:49:37 GMT"
	for _, value := range []string{
		"", "0", "120", "-1", "+1", "1.5", " 3 ", "9223372036854775808", "٣",
		"Sun, 06 Nov 1994 08:50:37 GMT", "Sunday, 06-Nov-94 08:50:37 GMT", "Sun Nov  6 08:50:37 1994",
	} {
		f.Add(value, date)
		f.Add(value, "")
	}
	local := func() time.Time { return time.Date(1994, time.November, 6, 8, 49, 37, 0, time.UTC) }
	f.Fuzz(func(t *testing.T, value, date string) {
		got := retryAfter(value, date, local)
		if got < 0 || got > maxHint {
			t.Fatalf("retryAfter(%q, %q) = %v, want within 0 and %v", value, date, got, maxHint)
		}
		if got%time.Second != 0 {
			t.Fatalf("retryAfter(%q, %q) = %v, want whole seconds", value, date, got)
		}
		if strings.ContainsAny(value, "-+.") && !strings.Contains(value, ":") && got != 0 {
			t.Fatalf("retryAfter(%q, %q) = %v: a number has digits only", value, date, got)
		}
	})
}

// FuzzOf builds error trees from a program of one byte an operation on a stack.
func FuzzOf(f *testing.F) {
	for _, program := range []string{"", "a", "abjw", "aPbTj", "cPdjSUw", "efghiJ", "kRlmj", "nopq", "zzz", "aaaaaaaaJJJ", "aQbFJ", "abcWj"} {
		f.Add([]byte(program))
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		err := build(program[:min(len(program), 300)]) // the text of the error grows with each wrapper
		got := Of(err)
		if again := Of(err); again != got {
			t.Fatalf("two verdicts on one error:\n%+v\n%+v", got, again)
		}
		var whole trace
		if wrapped := judge(fmt.Errorf("x: %w", err), nil, &whole); wrapped != got && !whole.cut {
			t.Fatalf("wrapping changes the verdict:\n%+v\n%+v", got, wrapped)
		}
		for _, answer := range []error{nil, errors.New("no mark")} {
			if ruled := Of(err, func(error) error { return answer }); ruled != got {
				t.Fatalf("a rule that returns %v changes the verdict:\n%+v\n%+v", answer, got, ruled)
			}
		}
		wellFormed(t, got)
		wellFormed(t, Of(err, func(err error) error { return With(err, hostileVerdict(program)) }))
		wellFormed(t, Of(errors.New("odd"), func(error) error { return err }))
		if text := Explain(err); !strings.Contains(text, "verdict: "+got.Class) {
			t.Fatalf("Explain does not agree with the verdict %+v:\n%s", got, text)
		}
		marked := Of(Permanent(err))
		if marked.Class != ClassPoison || marked.MaxAttempts != 1 {
			t.Fatalf("a permanent error has the verdict %+v", marked)
		}
	})
}

func wellFormed(t *testing.T, v Verdict) {
	t.Helper()
	if weight(v.Class) == 0 {
		t.Fatalf("%q is none of the classes: %+v", v.Class, v)
	}
	if v.RetryAfter < 0 || v.RetryAfter > maxHint || v.RetryAfter > 0 && !v.retryable() {
		t.Fatalf("hint out of range: %+v", v)
	}
	if v.MaxAttempts < 0 || v.Class == ClassPoison && v.MaxAttempts == 0 || v.Class == ClassUnknown && v.MaxAttempts == 0 {
		t.Fatalf("run limit out of range: %+v", v)
	}
	if v.Class == ClassUnknown && v.Reason == "" {
		t.Fatalf("unknown without a reason: %+v", v)
	}
}

func hostileVerdict(b []byte) Verdict {
	n := len(b)
	return Verdict{Class: string(b), MaxAttempts: n/2 - n*n, RetryAfter: time.Duration(n*n-n) * time.Hour * 1000, Code: string(b)}
}

// loop wraps itself and others.
type loop struct{ errs []error }

func (*loop) Error() string     { return "loop" }
func (l *loop) Unwrap() []error { return append(l.errs, l) }

// trap panics in one of its methods.
type trap struct{ in byte }

func (t trap) Error() string { return "trap" }
func (t trap) Timeout() bool { return t.spring(0) }
func (t trap) Is(error) bool { return t.spring(1) }
func (t trap) Unwrap() error { t.spring(2); return nil }
func (t trap) SafeToRetry() bool {
	return t.spring(3)
}
func (t trap) spring(in byte) bool {
	if t.in%5 == in {
		panic("trap")
	}
	return t.in%2 == 0
}

func leaf(b byte) error {
	leaves := []error{
		io.EOF, context.Canceled, context.DeadlineExceeded, ErrAttemptTimeout, os.ErrNotExist, net.ErrClosed,
		syscall.Errno(b), syscall.ECONNRESET, &net.DNSError{IsNotFound: b%2 == 0, IsTimeout: b%3 == 0},
		&HTTPError{Status: 400 + int(b), Wait: time.Duration(b) << 40}, &HTTPError{Status: 503},
		(*HTTPError)(nil), &PanicError{Value: b}, trap{b}, errors.New("strange"), &loop{},
	}
	return leaves[int(b)%len(leaves)]
}

func build(program []byte) error {
	stack := []error{leaf(0)}
	wrappers := map[byte]func(error) error{
		'w': func(err error) error { return fmt.Errorf("w: %w", err) },
		'P': Permanent,
		'T': Transient,
		'R': func(err error) error { return RetryAfter(err, time.Duration(len(stack))<<58) },
		'Q': func(err error) error { return Throttled(err, time.Duration(len(stack))<<58) },
		'F': func(err error) error { return Defer(err, time.Duration(len(stack))) },
		'W': func(err error) error { return With(err, hostileVerdict(program)) },
		'S': Skip,
		'U': Undecodable,
		'H': func(err error) error { return &url.Error{Op: http.MethodPost, Err: err} },
		'D': func(err error) error { return &net.OpError{Op: "dial", Err: err} },
		'V': func(err error) error { return &PanicError{Value: err} },
	}
	for _, b := range program {
		top := len(stack) - 1
		switch wrap := wrappers[b]; {
		case wrap != nil:
			stack[top] = wrap(stack[top])
		case b == 'J':
			stack = []error{errors.Join(stack...)}
		case b == 'L':
			stack = []error{&loop{stack}}
		case b == 'j' && top > 0:
			stack = append(stack[:top-1], errors.Join(stack[top-1], stack[top]))
		case b != 'j':
			stack = append(stack, leaf(b))
		}
	}
	return errors.Join(stack...)
}

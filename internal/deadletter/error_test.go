package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/internal/text"
)

type declinedError struct{ order int }

func (e *declinedError) Error() string { return fmt.Sprintf("order %d declined", e.order) }

type panickyError struct{}

func (panickyError) Error() string { panic("no text") }

type cyclicError struct{}

func (cyclicError) Error() string   { return "round and round" }
func (e cyclicError) Unwrap() error { return e }

type trapError struct{ declinedError }

func (*trapError) Unwrap() error { panic("no cause") }

func entryOf(err error, v classify.Verdict) dlq.Entry {
	var e dlq.Entry
	SetError(&e, err, v, nil, false)
	return e
}

func TestErrorType(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"plain", errors.New("x"), "*errors.errorString"},
		{"wrapped plain", fmt.Errorf("charge: %w", io.EOF), "*errors.errorString"},
		{"own type", &declinedError{1}, "*deadletter.declinedError"},
		{"wrapped own type", fmt.Errorf("charge: %w", fmt.Errorf("again: %w", &declinedError{1})), "*deadletter.declinedError"},
		{"marked", classify.Permanent(&declinedError{1}), "*deadletter.declinedError"},
		{"joined", errors.Join(errors.New("x"), &declinedError{1}), "*deadletter.declinedError"},
		{"two verbs", fmt.Errorf("%w, %w", io.EOF, &declinedError{1}), "*deadletter.declinedError"},
		{"outer of two", fmt.Errorf("%w", &wrapper{&declinedError{1}}), "*deadletter.wrapper"},
		{"refused", &url.Error{Op: "Get", URL: "http://x", Err: refused}, "*net.OpError"},
		{"resolver", &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host"}}, "*net.DNSError"},
		{"errno", os.NewSyscallError("open", syscall.ENOENT), "syscall.Errno"},
		{"deadline in a request", &url.Error{Op: "Get", URL: "http://x", Err: context.DeadlineExceeded}, "context.deadlineExceededError"},
		{"JSON", fmt.Errorf("decode: %w", json.Unmarshal([]byte("{"), &struct{}{})), "*json.SyntaxError"},
		{"panic", &classify.PanicError{Value: "boom"}, "*classify.PanicError"},
		{"typed nil", (*declinedError)(nil), "*deadletter.declinedError"},
		{"cycle", cyclicError{}, "deadletter.cyclicError"},
		{"Unwrap panics", fmt.Errorf("x: %w", &trapError{}), "*deadletter.trapError"},
		{"nil among wrapped", fmt.Errorf("x: %w", &wrapper{nil}), "*deadletter.wrapper"},
	}
	for _, tt := range tests {
		if got := entryOf(tt.err, classify.Verdict{}).ErrorType; got != tt.want {
			t.Errorf("%s: ErrorType = %q, want %q", tt.name, got, tt.want)
		}
	}
}

type wrapper struct{ cause error }

func (w *wrapper) Error() string { return "wrapped" }
func (w *wrapper) Unwrap() error { return w.cause }

func TestSetError(t *testing.T) {
	e := dlq.Entry{Meta: brokers.Meta{Attempt: 3, Class: "unknown"}}
	err := fmt.Errorf("charge: %w", &declinedError{8471})
	SetError(&e, err, classify.Verdict{Class: classify.ClassPoison, Code: "402", Rule: "http status 402"}, nil, false)
	var described dlq.Entry
	described.DescribeError("*deadletter.declinedError", "402", "charge: order 8471 declined", "", nil)
	want := dlq.Entry{
		Meta:      brokers.Meta{Attempt: 3, Class: "unknown"},
		ErrorType: "*deadletter.declinedError", ErrorCode: "402", ErrorText: "charge: order 8471 declined", Rule: "http status 402",
		Fingerprint: described.Fingerprint,
	}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("SetError\n got %+v\nwant %+v", e, want)
	}
	SetError(&e, nil, classify.Verdict{Code: "x"}, nil, true)
	if !reflect.DeepEqual(e, want) {
		t.Errorf("SetError(nil) changed the entry to %+v", e)
	}
}

// What another system says of an error is treated like an error of this program.
func TestDescribeError(t *testing.T) {
	const message = "charge 4711 declined\x1b, password=hunter2"
	want := entryOf(errors.New(message), classify.Verdict{Code: "E402"})
	var got dlq.Entry
	got.DescribeError("*errors.errorString", "E402", message, "at A.java:12\n\tpassword=hunter2\x1b", nil)
	if want := "at A.java:12\n\tpassword=[redacted]"; got.Stack != want {
		t.Errorf("Stack = %q, want %q", got.Stack, want)
	}
	got.Stack = ""
	if !reflect.DeepEqual(got, want) {
		t.Errorf("described %+v\nwant what SetError says, %+v", got, want)
	}
	got.DescribeError("", "", "", "", nil)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("nothing described: %+v, want no change", got)
	}
	got.DescribeError("java.lang.Error", "", strings.Repeat("x ", text.MaxError), strings.Repeat("at x\n", text.MaxStack), nil)
	if len(got.ErrorText) > text.MaxError || len(got.Stack) > text.MaxStack || !reflect.DeepEqual(got.Truncated, []string{"error-message"}) {
		t.Errorf("long: text of %d bytes, stack of %d, truncated %q", len(got.ErrorText), len(got.Stack), got.Truncated)
	}
}

func TestErrorTextIsSafe(t *testing.T) {
	tests := []struct {
		name, in, want string
		cut            bool
	}{
		{"terminal escapes", "\x1b[31mred\x1b[0m", `\x1b[31mred\x1b[0m`, false},
		{"lines", "a\r\nlevel=error b", `a\r\nlevel=error b`, false},
		{"not UTF-8", "a\xffb", `a\xffb`, false},
		{"NUL and bidi", "a\x00\u202eb", `a\x00\u202eb`, false},
		{"long", strings.Repeat("x ", 2000), strings.Repeat("x ", 1022) + "x…", true},
		{"endless word", strings.Repeat("x", 1<<20), "…", false},
	}
	for _, tt := range tests {
		e := entryOf(errors.New(tt.in), classify.Verdict{})
		if e.ErrorText != tt.want {
			t.Errorf("%s: ErrorText = %.100q, want %.100q", tt.name, e.ErrorText, tt.want)
		}
		if len(e.ErrorText) > text.MaxError || !utf8.ValidString(e.ErrorText) {
			t.Errorf("%s: %d bytes, valid UTF-8: %v", tt.name, len(e.ErrorText), utf8.ValidString(e.ErrorText))
		}
		if got := strings.Join(e.Truncated, ","); (got == "error-message") != tt.cut {
			t.Errorf("%s: Truncated = %q, cut: %v", tt.name, got, tt.cut)
		}
	}
	if e := entryOf(panickyError{}, classify.Verdict{}); !strings.Contains(e.ErrorText, "panicked") {
		t.Errorf("ErrorText of an error whose Error method panics = %q", e.ErrorText)
	}
}

func TestRedactionHook(t *testing.T) {
	var e dlq.Entry
	var seen string
	SetError(&e, errors.New("password=x\x1b"), classify.Verdict{}, func(s string) string {
		seen = s
		return "mine\x00" + strings.Repeat("y", 1<<16)
	}, false)
	if seen != "password=x\x1b" {
		t.Errorf("the hook sees %q, want the text as it is", seen)
	}
	if !strings.HasPrefix(e.ErrorText, `mine\x00y`) || len(e.ErrorText) > text.MaxError {
		t.Errorf("ErrorText = %.40q of %d bytes, want the hook's, escaped and cut", e.ErrorText, len(e.ErrorText))
	}
	SetError(&e, errors.New("password=x"), classify.Verdict{}, func(string) string { panic("hook") }, false)
	if !strings.Contains(e.ErrorText, "panicked") || strings.Contains(e.ErrorText, "password") {
		t.Errorf("ErrorText = %q after the hook panicked, want it to say so and keep nothing", e.ErrorText)
	}
}

func recovered(f func()) (err *classify.PanicError) {
	defer func() { err = &classify.PanicError{Value: recover(), Stack: debug.Stack()} }()
	f()
	return nil
}

func indexOrders(at int) { _ = []int{1, 2, 3}[at] }

//go:noinline
func indexRefunds(at int) { _ = []int{1, 2, 3}[at] }

func TestPanics(t *testing.T) {
	orders, refunds := recovered(func() { indexOrders(7) }), recovered(func() { indexRefunds(7) })
	e := entryOf(fmt.Errorf("handler: %w", orders), classify.Verdict{})
	if e.Stack != "" {
		t.Errorf("the stack is kept although nobody asked: %q", e.Stack)
	}
	if entryOf(orders, classify.Verdict{}).Fingerprint == entryOf(refunds, classify.Verdict{}).Fingerprint {
		t.Error("the same panic in two functions has one fingerprint")
	}
	if entryOf(orders, classify.Verdict{}).Fingerprint != entryOf(recovered(func() { indexOrders(9) }), classify.Verdict{}).Fingerprint {
		t.Error("the same bug with two indexes has two fingerprints")
	}
	SetError(&e, orders, classify.Verdict{}, nil, true)
	if !strings.HasPrefix(e.Stack, "panic(") || !strings.Contains(e.Stack, "indexOrders") || len(e.Stack) > text.MaxStack {
		t.Errorf("Stack = %q, want it from the panic on", e.Stack)
	}
	SetError(&e, errors.New("no panic"), classify.Verdict{}, nil, true)
	if e.Stack != "" {
		t.Errorf("Stack = %q for an error that is no panic", e.Stack)
	}
	SetError(&e, &classify.PanicError{Value: "x", Stack: []byte("garbage\x1b\nf(")}, classify.Verdict{}, nil, true)
	if e.Stack != "garbage\\x1b\nf(" {
		t.Errorf("Stack = %q, want it escaped", e.Stack)
	}
}

// TestRealErrors makes errors with the standard library and checks that two of
// a kind share a group.
func TestRealErrors(t *testing.T) {
	dial := func() error {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listener.Close()
		_, err = http.Get("http://" + listener.Addr().String() + "/v1/charges")
		return err
	}
	first, second := entryOf(dial(), classify.Verdict{}), entryOf(dial(), classify.Verdict{})
	if first.ErrorType != "*net.OpError" || first.Fingerprint != second.Fingerprint {
		t.Errorf("two refused connections: %q %q and %q %q", first.ErrorType, first.ErrorText, second.ErrorType, second.ErrorText)
	}
	decode := func(body string) dlq.Entry {
		var order struct{ Amount int }
		return entryOf(json.Unmarshal([]byte(body), &order), classify.Verdict{})
	}
	if a, b := decode(`{"amount":"x"}`), decode(`{"amount":"yy"  }`); a.Fingerprint != b.Fingerprint {
		t.Errorf("two wrong types: %q and %q", a.ErrorText, b.ErrorText)
	}
	if a, b := decode(`{"amount":"x"}`), decode(`{"amount":`); a.Fingerprint == b.Fingerprint {
		t.Errorf("a wrong type and a cut body: %q and %q", a.ErrorText, b.ErrorText)
	}
}

func BenchmarkSetError(b *testing.B) {
	err := fmt.Errorf("handler: %w", fmt.Errorf("charge: %w", errors.New("charge order 8471: Post \"https://api.pay.example/v1/charges\": dial tcp 10.0.0.7:443: connect: connection refused")))
	b.ReportAllocs()
	for b.Loop() {
		var e dlq.Entry
		SetError(&e, err, classify.Verdict{Class: classify.ClassTransient, Code: "ECONNREFUSED", Rule: "errno ECONNREFUSED"}, nil, false)
	}
}

package dlq

import (
	"reflect"
	"strings"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/internal/text"
)

const (
	// rawText is how much of an error text is looked at: more than is kept,
	// since redaction shortens.
	rawText = 4 * maxError

	// maxErrors bounds the walk over an error tree.
	maxErrors = 100
)

// SetError fills the error fields, Fingerprint and Rule with err and the
// verdict on it; the stack of a [classify.PanicError] only if stack is set.
// redact sees the text, and the stack, before they are cut and escaped; nil
// means [Redact]. If redact, or the Error method, panics, the text says so.
// Meta is left alone, and a nil err changes nothing.
func (e *Entry) SetError(err error, v classify.Verdict, redact func(string) string, stack bool) {
	if err == nil {
		return
	}
	if redact == nil {
		redact = Redact
	}
	panicked, told := telling(err)
	site, trace := "", ""
	if panicked != nil {
		trace = fromPanic(string(panicked.Stack))
		site = function(trace)
		if !stack {
			trace = ""
		}
	}
	raw := guard(err.Error, "(no text: the Error method panicked)")
	e.describe(reflect.TypeOf(told).String(), v.Code, site, raw, trace, redact)
	e.Rule = e.text("rule", v.Rule, text.MaxShort)
}

// DescribeError fills the error fields and Fingerprint with what another system
// says of an error, as SetError does with one of this program, redacted by
// [Redact]: its type, its code, its text and its stack, each empty where that is
// not known. Where all are, it changes nothing.
func (e *Entry) DescribeError(errorType, code, message, stack string) {
	if errorType != "" || code != "" || message != "" || stack != "" {
		e.describe(errorType, code, "", message, stack, Redact)
	}
}

// describe fills the error fields. The site is what tells the fault from others
// of the same code.
func (e *Entry) describe(errorType, code, site, raw, trace string, redact func(string) string) {
	raw = guard(func() string { return redact(head(raw, rawText)) }, "(no text: the redaction function panicked)")
	e.ErrorType = e.text("error-type", errorType, text.MaxShort)
	e.ErrorCode = e.text("error-code", code, text.MaxShort)
	e.ErrorText = e.text("error-message", raw, maxError)
	e.Stack = ""
	if trace != "" {
		trace = guard(func() string { return redact(head(trace, rawText)) }, "")
		e.Stack, _ = text.Lines(trace, maxStack)
	}
	e.Fingerprint = fingerprint(e.ErrorType, e.ErrorCode+site, e.ErrorText)
}

// text makes s safe and notes if it had to be cut.
func (e *Entry) text(field, s string, max int) string {
	s, cut := text.Line(s, max)
	if cut {
		e.Truncated = append(e.Truncated, field)
	}
	return s
}

func guard(f func() string, otherwise string) (s string) {
	defer func() {
		if recover() != nil {
			s = otherwise
		}
	}()
	return f()
}

// head returns the first max bytes of s or less: a last word that may be half
// a secret is left out.
func head(s string, max int) string {
	if len(s) <= max {
		return s
	}
	s = s[:max]
	return s[:strings.LastIndexAny(s, " \t\n\r,;&\"'<>(){}[]")+1] + "…"
}

// telling returns the first panic in the tree of err, and the error in it whose
// type says most about the fault.
func telling(err error) (panicked *classify.PanicError, best error) {
	best, most := err, -1
	todo := []error{err}
	for n := 0; len(todo) > 0 && n < maxErrors; n++ {
		err, todo = todo[0], todo[1:]
		if err == nil {
			continue
		}
		if p, ok := err.(*classify.PanicError); ok && panicked == nil {
			panicked = p
		}
		if weight := weigh(err); weight > most {
			best, most = err, weight
		}
		todo = append(unwrap(err), todo...)
	}
	return panicked, best
}

func unwrap(err error) (wrapped []error) {
	defer func() { _ = recover() }()
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return []error{e.Unwrap()}
	case interface{ Unwrap() []error }:
		return e.Unwrap()
	}
	return nil
}

// weigh says how much the type of err tells: types that wrap or print any
// error tell least, those of a program or a library most.
func weigh(err error) int {
	switch reflect.TypeOf(err).String() {
	case "*fmt.wrapError", "*fmt.wrapErrors", "*errors.joinError", "*classify.mark",
		"*errors.withStack", "*errors.withMessage":
		return 0
	case "*errors.errorString", "*errors.fundamental":
		return 1
	case "*url.Error", "*os.SyscallError":
		return 2
	case "*net.OpError", "*fs.PathError", "syscall.Errno":
		return 3
	}
	return 4
}

// fromPanic leaves out what runs between the panic and the dump of its stack.
func fromPanic(stack string) string {
	if i := strings.Index(stack, "\npanic("); i >= 0 {
		return stack[i+1:]
	}
	return stack
}

// function returns the name of the function that panicked.
func function(trace string) string {
	for line := range strings.Lines(trace) {
		name := line[:max(0, strings.LastIndexByte(line, '('))]
		if name == "" || strings.HasPrefix(line, "\t") || name == "panic" || strings.HasPrefix(name, "runtime.") ||
			strings.HasPrefix(name, "runtime/debug.") {
			continue
		}
		return name
	}
	return ""
}

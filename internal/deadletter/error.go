// Package deadletter fills dead letters for the worker. Package dlq has their public
// part, which tools read and write.
package deadletter

import (
	"reflect"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/internal/text"
)

// maxErrors bounds the walk over an error tree.
const maxErrors = 100

// SetError fills the error fields, Fingerprint and Rule of e with err and the
// verdict on it; the stack of a [classify.PanicError] only if stack is set.
// redact sees the text, and the stack, before they are cut and escaped; nil means
// [dlq.Redact]. If redact, or the Error method, panics, the text says so. Meta is
// left alone, and a nil err changes nothing.
func SetError(e *dlq.Entry, err error, v classify.Verdict, redact func(string) string, stack bool) {
	if err == nil {
		return
	}
	panicked, told := telling(err)
	trace := ""
	if panicked != nil {
		trace = string(panicked.Stack)
	}
	e.DescribeError(reflect.TypeOf(told).String(), v.Code, textOf(err), trace, redact)
	if !stack {
		e.Stack = ""
	}
	e.Rule = line(e, "rule", v.Rule, text.MaxShort)
}

func textOf(err error) (s string) {
	defer func() {
		if recover() != nil {
			s = "(no text: the Error method panicked)"
		}
	}()
	return err.Error()
}

// line makes s safe and notes in e if it had to be cut.
func line(e *dlq.Entry, field, s string, max int) string {
	s, cut := text.Line(s, max)
	if cut {
		e.Truncated = append(e.Truncated, field)
	}
	return s
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

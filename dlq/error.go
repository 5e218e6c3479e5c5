package dlq

import (
	"strings"

	"github.com/redrive-go/redrive/internal/text"
)

// rawText is how much of an error text is looked at: more than is kept, since
// redaction shortens.
const rawText = 4 * maxError

// DescribeError fills the error fields and Fingerprint with what is known of an
// error: its type, its code, its text and its stack, each empty where that is not
// known. Where all are, it changes nothing. Of the stack of a Go panic it keeps
// what is below the panic, and the function that panicked is part of the
// fingerprint. redact sees text and stack before they are cut and escaped; nil
// means [Redact]. If redact panics, the text says so.
func (e *Entry) DescribeError(errorType, code, message, stack string, redact func(string) string) {
	if errorType == "" && code == "" && message == "" && stack == "" {
		return
	}
	if redact == nil {
		redact = Redact
	}
	stack, site := fromPanic(stack)
	message = guard(func() string { return redact(head(message, rawText)) }, "(no text: the redaction function panicked)")
	e.ErrorType = e.text("error-type", errorType, text.MaxShort)
	e.ErrorCode = e.text("error-code", code, text.MaxShort)
	e.ErrorText = e.text("error-message", message, maxError)
	e.Stack = ""
	if stack != "" {
		stack = guard(func() string { return redact(head(stack, rawText)) }, "")
		e.Stack, _ = text.Lines(stack, maxStack)
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

// fromPanic leaves out what runs between a panic and the dump of its stack, and
// returns the function that panicked. Of other stacks it leaves out nothing.
func fromPanic(stack string) (below, site string) {
	if !strings.HasPrefix(stack, "panic(") {
		i := strings.Index(stack, "\npanic(")
		if i < 0 {
			return stack, ""
		}
		stack = stack[i+1:]
	}
	return stack, function(stack)
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

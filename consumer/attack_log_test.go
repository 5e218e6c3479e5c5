package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// plain is a slog.Handler that writes what it gets as it is, as a homemade one may.
type plain struct{ io.Writer }

func (plain) Enabled(context.Context, slog.Level) bool { return true }
func (p plain) WithAttrs([]slog.Attr) slog.Handler     { return p }
func (p plain) WithGroup(string) slog.Handler          { return p }

func (p plain) Handle(_ context.Context, r slog.Record) error {
	fmt.Fprint(p, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(p, " %s=%s", a.Key, a.Value)
		return true
	})
	_, err := fmt.Fprintln(p)
	return err
}

// lineLimit bounds a line of the log. Handlers may escape once more.
const lineLimit = 16 << 10

// everyLine logs an event of each kind, and all else that is logged, with s wherever
// somebody else may choose a text, and returns how many lines that are.
func everyLine(h slog.Handler, s string) (lines int) {
	log := newLogObserver(slog.New(h), dlq.Redact)
	cause := errors.New(s)
	entry := dlq.Entry{Message: brokers.Message{ID: s, Topic: s}, Reason: s, ErrorType: s, ErrorCode: s, ErrorText: s, Fingerprint: s, Rule: s}
	for kind := range logText {
		if kind == logPanicked { // below
			continue
		}
		e := Event{Kind: kind, Time: time.Now(), Topic: s, Message: &brokers.Message{ID: s, Topic: s, Key: s}, Dependency: s, Operation: s,
			Verdict: classify.Verdict{Class: s, Rule: s, Code: s}, DeadLetter: &entry, Err: cause,
			Decision: retry.Decision{Retry: true, Reason: onPoison.reason}}
		for range logBurst + 1 { // the last is counted, and told of in the end
			log.Observe(context.Background(), e)
		}
		lines += logBurst + 1
	}
	log.panicked(context.Background(), nil, Event{Kind: EventSettled}, s)
	log.stopped(fmt.Errorf("consumer: open %s: %w", s, cause))
	return lines + 2
}

var handlers = map[string]func(io.Writer) slog.Handler{
	"plain": func(w io.Writer) slog.Handler { return plain{w} },
	"json":  func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) },
	"text":  func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) },
}

// checkLines demands that the log of everyLine is so many lines, short and plain.
func checkLines(t *testing.T, handler, s string) {
	t.Helper()
	var out bytes.Buffer
	want := everyLine(handlers[handler](&out), s)
	log := out.String()
	if got := strings.Count(log, "\n"); got != want {
		t.Errorf("%s: %d lines for %.40q, want %d", handler, got, s, want)
	}
	for line := range strings.Lines(log) {
		if len(line) > lineLimit {
			t.Fatalf("%s: a line of %d bytes for %.40q", handler, len(line), s)
		}
	}
	if !utf8.ValidString(log) {
		t.Errorf("%s: the log of %.40q is not UTF-8", handler, s)
	}
	odd := func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) }
	if i := strings.IndexFunc(log, odd); i >= 0 {
		t.Errorf("%s: %.40q leaves %q in the log", handler, s, log[i:min(i+12, len(log))])
	}
}

// Whatever somebody writes into an ID or an error, and whichever handler is behind
// the Logger, it forges no line, moves no cursor and floods no disk.
func TestAttackLogIsEscaped(t *testing.T) {
	for _, s := range []string{
		"x\x1b]0;owned\a\x1b[2J", "a\nlevel=ERROR msg=forged", "a\r\nb\vc\fd", "\u009b31m \u0085 \u2028 \u2029", "\x7f\b\b\b\x00",
		"abc\u202edef\u2066ghi\u200f", "\xff\xfe\xc3(", "\ufeff\ufffe", "ä 🙂 ok", strings.Repeat("x", 256<<10), strings.Repeat("\x1b", 64<<10),
		strings.Repeat("\xff", 64<<10), strings.Repeat("\"\\", 64<<10),
	} {
		for handler := range handlers {
			checkLines(t, handler, s)
		}
	}
}

func FuzzLog(f *testing.F) {
	for _, s := range []string{"", "order-7", "a\nb", "\x1b[31m", "\xff", "\u202e", "password=x\x00y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for handler := range handlers {
			checkLines(t, handler, s)
		}
	})
}

package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/internal/text"
	"github.com/redrive-go/redrive/retry"
)

// logObserver writes events to a slog.Logger: failed attempts as warnings;
// dead letters, stuck handlers and troubles of the broker as errors. Of equal
// events it writes the first few in each period and counts the rest, so that a
// million failures make a few lines. What comes from outside (names, IDs, texts of
// errors) is redacted where it is text, escaped and cut, whatever the handler of
// the Logger does: a line has no control characters in it, and is bounded.
type logObserver struct {
	logger *slog.Logger
	redact func(string) string

	mu         sync.Mutex
	tallies    map[logKey]*tally
	swept      time.Time // when tallies was last full
	suppressed int       // of keys that did not fit, or are forgotten
}

// logKey says which events are equal.
type logKey struct {
	kind         EventKind
	topic, class string
	operation    string
}

type tally struct {
	since      time.Time
	written    int
	suppressed int
}

const (
	logPeriod = time.Minute
	logBurst  = 10   // lines of one key and period
	logKeys   = 1024 // keys at a time
	logError  = 2048 // bytes of an error text
	logRaw    = 8192 // bytes of it that are looked at
)

func newLogObserver(logger *slog.Logger, redact func(string) string) *logObserver {
	return &logObserver{logger: logger, redact: redact, tallies: map[logKey]*tally{}}
}

// Observe implements Observer.
func (l *logObserver) Observe(ctx context.Context, e Event) {
	if e.Kind.routine() {
		return
	}
	key := logKey{e.Kind, e.Topic, string(e.Verdict.Class), e.Operation}
	if l.admit(ctx, key, e.Time) {
		l.logger.LogAttrs(ctx, level(e), logText[e.Kind], l.attributes(e)...)
	}
}

// panicked logs that an observer did when it saw e.
func (l *logObserver) panicked(ctx context.Context, observer Observer, e Event, value any) {
	if l.admit(ctx, logKey{kind: "observer-panicked"}, e.Time) {
		l.logger.LogAttrs(ctx, slog.LevelError, "observer panicked", slog.String("event", string(e.Kind)),
			slog.String("observer", fmt.Sprintf("%T", observer)), slog.String("panic", l.textOf(value)))
	}
}

// admit decides whether to write an event of key, and tells how many were not
// written before.
func (l *logObserver) admit(ctx context.Context, key logKey, now time.Time) bool {
	write, before := l.sample(key, now)
	if before > 0 {
		l.summarize(ctx, key, before)
	}
	return write
}

// sample decides whether to write an event of key. If a period of suppressed
// ones has ended with it, before is their number.
func (l *logObserver) sample(key logKey, now time.Time) (write bool, before int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tallies[key]
	if t == nil {
		l.sweep(now)
		if len(l.tallies) >= logKeys {
			l.suppressed++
			return false, 0
		}
		t = &tally{since: now}
		l.tallies[key] = t
	}
	if now.Sub(t.since) >= logPeriod {
		before = t.suppressed
		*t = tally{since: now}
	}
	if t.written == logBurst {
		t.suppressed++
		return false, before
	}
	t.written++
	return true, before
}

// sweep makes room in a full table by forgetting the keys whose period is
// over, once a period. mu is held.
func (l *logObserver) sweep(now time.Time) {
	if len(l.tallies) < logKeys || now.Sub(l.swept) < logPeriod {
		return
	}
	l.swept = now
	for key, t := range l.tallies {
		if now.Sub(t.since) >= logPeriod {
			l.suppressed += t.suppressed
			delete(l.tallies, key)
		}
	}
}

func (l *logObserver) summarize(ctx context.Context, key logKey, n int) {
	attrs := []slog.Attr{slog.String("event", string(key.kind)), name("topic", key.topic), name("class", key.class)}
	if key.operation != "" {
		attrs = append(attrs, name("operation", key.operation))
	}
	l.logger.LogAttrs(ctx, slog.LevelWarn, "more of the same were not logged", append(attrs, slog.Int("suppressed", n))...)
}

// started and stopped log the changes of state.
func (l *logObserver) started(c *Consumer, found []inspect.Finding) {
	l.logger.Info("worker started", "topics", c.topics(), "concurrency", c.cfg.Concurrency)
	for _, f := range found {
		l.logger.LogAttrs(context.Background(), slog.LevelWarn, "a queue or topic gives less than it could", name("topic", f.Topic),
			slog.String("severity", f.Severity.String()), slog.String("finding", l.textOf(f)))
	}
}

// anonymous logs that messages of topic have no ID.
func (l *logObserver) anonymous(topic string) {
	l.logger.LogAttrs(context.Background(), slog.LevelWarn, "messages have no ID: each delivery gets another one, so that nothing can tell a repeated one: "+
		"have producers set it, or tell the adapter where it is", name("topic", topic))
}

func (l *logObserver) stopped(err error) {
	l.mu.Lock()
	tallies, left := l.tallies, l.suppressed
	l.tallies = map[logKey]*tally{}
	l.mu.Unlock()
	for key, t := range tallies {
		if t.suppressed > 0 {
			l.summarize(context.Background(), key, t.suppressed)
		}
	}
	if left > 0 {
		l.summarize(context.Background(), logKey{kind: "other"}, left)
	}
	if err != nil {
		l.logger.Error("worker stopped", "error", l.textOf(err))
		return
	}
	l.logger.Info("worker stopped")
}

var logText = map[EventKind]string{
	EventFailed:            "handler failed",
	EventReleased:          "message given back",
	EventDeadLettered:      "message dead-lettered",
	EventRejected:          "message left to the broker's own dead-lettering, its dead letter is a stub",
	EventDiscarded:         "message discarded",
	EventDeadLetterRefused: "dead letter refused, the message is kept",
	EventReceiptDropped:    "receipt dropped",
	EventLeaseLost:         "lease lost",
	EventStuck:             "handler stuck",
	EventUnstuck:           "stuck handler returned",
	EventPaused:            "dependency paused, its messages wait uncounted",
	EventResumed:           "dependency resumed",
	EventError:             "broker operation failed, will be tried again",
}

func level(e Event) slog.Level {
	switch e.Kind {
	case EventFailed, EventLeaseLost, EventUnstuck, EventRejected, EventReceiptDropped:
		return slog.LevelWarn
	case EventReleased, EventResumed:
		return slog.LevelInfo
	}
	return slog.LevelError
}

// attributes are the fixed keys of a log line. Bodies and headers never appear.
func (l *logObserver) attributes(e Event) []slog.Attr {
	attrs := make([]slog.Attr, 0, 12)
	if e.Topic != "" {
		attrs = append(attrs, name("topic", e.Topic))
	}
	if e.Dependency != "" {
		attrs = append(attrs, name("dependency", e.Dependency))
	}
	if !e.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", e.Until))
	}
	if e.Message != nil {
		attrs = append(attrs, name("msg_id", e.Message.ID), slog.Int("attempt", e.Attempt))
	}
	if e.Verdict.Class != "" {
		attrs = append(attrs, name("class", string(e.Verdict.Class)), name("rule", e.Verdict.Rule))
	}
	if e.Operation != "" {
		attrs = append(attrs, name("operation", e.Operation))
	}
	if e.Kind == EventFailed {
		attrs = append(attrs, slog.String("outcome", outcomeIn(e.Decision)), slog.Duration("delay", e.Decision.Delay))
	}
	if d := e.DeadLetter; d != nil {
		attrs = append(attrs, name("reason", d.Reason), name("fingerprint", d.Fingerprint), slog.String("dead_error", oneLine(d.ErrorText)))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", l.textOf(e.Err)))
	}
	return attrs
}

// outcomeIn is a decision in a word.
func outcomeIn(d retry.Decision) string {
	switch {
	case d.Retry:
		return "retry"
	case d.DeadLetter:
		return "dead-letter"
	}
	return d.Reason
}

// name is an attribute whose value may be anybody's choice.
func name(key, value string) slog.Attr {
	value, _ = text.Line(value, text.MaxShort)
	return slog.String(key, value)
}

// oneLine is s on one line of bounded length.
func oneLine(s string) string {
	s, _ = text.Line(s, logError)
	return s
}

// textOf is what v, an error or the value of a panic, says of itself, without
// secrets. Package fmt takes care of methods that panic.
func (l *logObserver) textOf(v any) (s string) {
	defer func() {
		if recover() != nil {
			s = "(no text: the redaction function panicked)"
		}
	}()
	raw := fmt.Sprint(v)
	return oneLine(l.redact(raw[:min(len(raw), logRaw)]))
}

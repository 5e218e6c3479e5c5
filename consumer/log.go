package consumer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/internal/text"
	"github.com/redrive-go/redrive/retry"
)

// logObserver writes one line for each decision about a message, and for each change
// of state: docs/reference/logs.md has its messages and keys. Of equal events it
// writes the first few and counts the rest, so that a million failures make a few
// lines. What comes from outside (names, IDs, texts of errors) is redacted where it is
// text, escaped and cut, whatever the handler of the Logger does: a line has no
// control characters in it, and is bounded.
type logObserver struct {
	logger *slog.Logger
	redact func(string) string

	dependencies map[string]string // by topic; set before the first event

	mu         sync.Mutex
	tallies    map[logKey]*tally
	pauses     map[string]*pauseLog // by dependency
	swept      time.Time            // when tallies was last full
	suppressed int                  // of keys that did not fit, or are forgotten
	timer      *time.Timer          // writes counts; nil while there are none
	over       bool                 // the worker has stopped

	writing sync.Mutex // held while the timer writes
}

// logKey says which events are equal.
type logKey struct {
	kind              string
	topic, dependency string
	class, rule       string
	reason, operation string // the reason of a dead letter, a put-off run, or a batch that failed
}

// repeats is what was suppressed of a key.
type repeats struct {
	logKey
	tally
}

type tally struct {
	since      time.Time
	lasts      time.Duration // the period
	written    int
	suppressed int
}

// pauseLog is the pause of a dependency, as far as the log has told of it.
type pauseLog struct {
	since  time.Time
	probes int // that failed
}

const (
	logSoon   = 10 * time.Second // the first period of a key
	logPeriod = time.Minute      // every other one
	logBurst  = 3                // lines of one key and period
	logKeys   = 1024             // keys at a time
	logError  = 2048             // bytes of an error text
	logRaw    = 8192             // bytes of it that are looked at
)

// Kinds of lines that are not kinds of events.
const (
	logReleased  = "released"
	logRejected  = "rejected"
	logDiscarded = "discarded"
	logProbe     = "probe"
	logPanicked  = "observer-panicked"
	logOther     = "other"
)

func newLogObserver(logger *slog.Logger, redact func(string) string) *logObserver {
	return &logObserver{logger: logger, redact: redact, dependencies: map[string]string{}, tallies: map[logKey]*tally{}, pauses: map[string]*pauseLog{}}
}

// Observe implements Observer.
func (l *logObserver) Observe(ctx context.Context, e Event) {
	if e.routine() {
		return
	}
	key, pause := l.keyOf(e)
	if l.admit(key, e.Time) {
		l.logger.LogAttrs(ctx, levels[key.kind], logText[key.kind], l.attributes(e, pause)...)
	}
}

// keyOf returns the key of e, and the pause that ends with it.
func (l *logObserver) keyOf(e Event) (key logKey, ended pauseLog) {
	key = logKey{kind: e.Kind, topic: e.Topic, dependency: e.Dependency, class: e.Verdict.Class, rule: e.Verdict.Rule,
		operation: e.Operation}
	switch d := e.DeadLetter; {
	case d != nil:
		key.class, key.rule, key.reason = d.Meta.Class, d.Rule, d.Reason
	case e.Decision.Reason != key.class:
		key.reason = e.Decision.Reason
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e.Kind {
	case EventSettled:
		if key.kind = logReleased; e.Action == brokers.Reject {
			key.kind = logRejected
		}
	case EventDeadLettered:
		if e.DeadLetterTopic == dlq.Discard {
			key.kind = logDiscarded
		}
	case EventPaused:
		l.pauses[e.Dependency] = &pauseLog{since: e.Time}
	case EventResumed:
		if p := l.pauses[e.Dependency]; p != nil {
			ended = *p
			delete(l.pauses, e.Dependency)
		}
	case EventFailed: // a run that began before the pause is no probe
		on, known := l.dependencies[e.Topic]
		if p := l.pauses[on]; known && p != nil && !e.Time.Add(-e.Duration).Before(p.since) {
			p.probes++
			key.kind = logProbe
		}
	}
	return key, ended
}

// panicked logs that an observer did when it saw e.
func (l *logObserver) panicked(ctx context.Context, observer Observer, e Event, value any) {
	if l.admit(logKey{kind: logPanicked}, e.Time) {
		l.logger.LogAttrs(ctx, levels[logPanicked], logText[logPanicked], slog.String("event", e.Kind),
			slog.String("observer", fmt.Sprintf("%T", observer)), slog.String("error", l.textOf(value)))
	}
}

// admit decides whether to write an event of key, and writes before how many were not
// written. Before a pause begins or ends, that is of all failures.
func (l *logObserver) admit(key logKey, now time.Time) bool {
	write, before := l.sample(key, now)
	l.summarize(before)
	return write
}

// sample decides whether to write an event of key, and returns what is to be counted
// before.
func (l *logObserver) sample(key logKey, now time.Time) (write bool, before []repeats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tallies[key]
	if t == nil {
		l.sweep(now)
		if len(l.tallies) >= logKeys {
			l.suppressed++
			return false, nil
		}
		t = &tally{since: now, lasts: logSoon}
		l.tallies[key] = t
	}
	if now.Sub(t.since) >= t.lasts {
		before = t.next(key, now, nil)
	}
	if t.written == logBurst {
		t.suppressed++
		if l.timer == nil && !l.over {
			l.timer = time.AfterFunc(logSoon, l.tell)
		}
		return false, before
	}
	t.written++
	if key.kind == EventPaused || key.kind == EventResumed {
		for key, t := range l.tallies {
			if (key.kind == EventFailed || key.kind == logProbe) && t.suppressed > 0 {
				before = append(before, repeats{key, *t})
				t.suppressed = 0
			}
		}
	}
	return true, before
}

// next begins the next period of t at now, and appends what was suppressed in the last
// one to counts. A key without an event for a minute begins anew.
func (t *tally) next(key logKey, now time.Time, counts []repeats) []repeats {
	if t.suppressed > 0 {
		counts = append(counts, repeats{key, *t})
	}
	lasts := logPeriod
	if now.Sub(t.since) >= t.lasts+logPeriod {
		lasts = logSoon
	}
	*t = tally{since: now, lasts: lasts}
	return counts
}

// tell is called by the timer. It writes what was suppressed in periods that are over.
func (l *logObserver) tell() {
	l.writing.Lock()
	defer l.writing.Unlock()
	var counts []repeats
	l.mu.Lock()
	now, left := time.Now(), false
	for key, t := range l.tallies {
		if t.suppressed > 0 && now.Sub(t.since) >= t.lasts {
			counts = t.next(key, now, counts)
		}
		left = left || t.suppressed > 0
	}
	if l.timer = nil; left && !l.over {
		l.timer = time.AfterFunc(logSoon, l.tell)
	}
	l.mu.Unlock()
	l.summarize(counts)
}

// sweep makes room in a full table by forgetting the keys whose period is
// over, once a minute. mu is held.
func (l *logObserver) sweep(now time.Time) {
	if len(l.tallies) < logKeys || now.Sub(l.swept) < logPeriod {
		return
	}
	l.swept = now
	for key, t := range l.tallies {
		if now.Sub(t.since) >= t.lasts {
			l.suppressed += t.suppressed
			delete(l.tallies, key)
		}
	}
}

// summarize writes counts, in the order in which their periods began. They belong to no
// span.
func (l *logObserver) summarize(counts []repeats) {
	slices.SortFunc(counts, func(a, b repeats) int { return a.since.Compare(b.since) })
	for _, c := range counts {
		attrs := make([]slog.Attr, 0, 8)
		for _, a := range []slog.Attr{name("topic", c.topic), name("dependency", c.dependency), name("class", c.class),
			name("rule", c.rule), name("reason", c.reason), name("operation", c.operation)} {
			if a.Value.String() != "" {
				attrs = append(attrs, a)
			}
		}
		if !c.since.IsZero() {
			attrs = append(attrs, slog.Time("since", c.since))
		}
		l.logger.LogAttrs(context.Background(), levels[c.kind], "more of the same: "+logText[c.kind], append(attrs, slog.Int("suppressed", c.suppressed))...)
	}
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
	l.tallies, l.over = map[logKey]*tally{}, true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.writing.Lock() // the last count may just be written
	defer l.writing.Unlock()
	var counts []repeats
	for key, t := range tallies {
		if t.suppressed > 0 {
			counts = append(counts, repeats{key, *t})
		}
	}
	if left > 0 {
		counts = append(counts, repeats{logKey{kind: logOther}, tally{suppressed: left}})
	}
	l.summarize(counts)
	if err != nil {
		l.logger.Error("worker stopped", "error", l.textOf(err))
		return
	}
	l.logger.Info("worker stopped")
}

var logText = map[string]string{
	EventFailed:            "handler failed",
	logProbe:               "probe failed",
	EventDeferred:          "message put aside",
	logReleased:            "message given back",
	EventDeadLettered:      "message dead-lettered",
	logRejected:            "message left to the broker's own dead-lettering, its dead letter is a stub",
	logDiscarded:           "message discarded",
	EventDeadLetterRefused: "dead letter refused, the message is kept",
	EventReceiptDropped:    "receipt dropped",
	EventLeaseLost:         "lease lost",
	EventStuck:             "handler stuck",
	EventUnstuck:           "stuck handler returned",
	EventByHand:            "paused by hand",
	EventPaused:            "dependency paused, its messages wait uncounted",
	EventResumed:           "dependency resumed",
	EventError:             "broker operation failed, will be tried again",
	logPanicked:            "observer panicked",
	logOther:               "events of too many kinds",
}

var levels = map[string]slog.Level{
	EventFailed:            slog.LevelWarn,
	logProbe:               slog.LevelWarn,
	EventDeferred:          slog.LevelWarn,
	logReleased:            slog.LevelInfo,
	EventDeadLettered:      slog.LevelError,
	logRejected:            slog.LevelWarn,
	logDiscarded:           slog.LevelError,
	EventDeadLetterRefused: slog.LevelError,
	EventReceiptDropped:    slog.LevelWarn,
	EventLeaseLost:         slog.LevelWarn,
	EventStuck:             slog.LevelError,
	EventUnstuck:           slog.LevelWarn,
	EventByHand:            slog.LevelWarn,
	EventPaused:            slog.LevelError,
	EventResumed:           slog.LevelInfo,
	EventError:             slog.LevelError,
	logPanicked:            slog.LevelError,
	logOther:               slog.LevelWarn,
}

// attributes are the keys of a line about e, without those that would be empty.
// Bodies and headers never appear.
func (l *logObserver) attributes(e Event, ended pauseLog) []slog.Attr {
	attrs := make([]slog.Attr, 0, 12)
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, name(key, value))
		}
	}
	add("topic", e.Topic)
	add("dependency", e.Dependency)
	if !e.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", e.Until))
	}
	if !ended.since.IsZero() {
		attrs = append(attrs, slog.Duration("after", e.Time.Sub(ended.since).Round(time.Millisecond)), slog.Int("failed_probes", ended.probes))
	}
	if e.Message != nil {
		attrs = append(attrs, name("msg_id", e.Message.ID), slog.Int("attempt", e.Attempt))
	}
	class, rule := e.Verdict.Class, e.Verdict.Rule
	if e.DeadLetter != nil {
		class, rule = e.DeadLetter.Meta.Class, e.DeadLetter.Rule
	}
	add("class", class)
	add("rule", rule)
	add("operation", e.Operation)
	if e.Kind == EventFailed {
		add("outcome", outcomeIn(e.Decision))
	}
	if e.Decision.Retry {
		attrs = append(attrs, slog.Duration("delay", e.Decision.Delay.Round(time.Millisecond)))
	}
	if d := e.DeadLetter; d != nil {
		add("reason", d.Reason)
		add("fingerprint", d.Fingerprint)
		if e.Err == nil {
			return append(attrs, slog.String("error", oneLine(d.ErrorText)))
		}
		attrs = append(attrs, slog.String("dead_error", oneLine(d.ErrorText)))
	}
	if e.Kind == EventByHand {
		names := make([]string, len(e.ByHand))
		for i, p := range e.ByHand {
			names[i] = p.String()
		}
		attrs = append(attrs, slog.Int("pauses", len(names)), slog.String("paused", l.textOf(cmp.Or(strings.Join(names, "; "), "nothing"))))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", l.textOf(e.Err)))
	}
	return attrs
}

// outcomeIn is a decision in a word.
func outcomeIn(d retry.Decision) string {
	if d.Retry && d.Reason != reasonBatch {
		return "retry"
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

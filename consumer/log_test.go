package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/internal/deadletter"
	"github.com/redrive-go/redrive/retry"
)

// ledger is a slog.Handler that adds up the lines and what they say of those
// that were not written.
type ledger struct {
	mu         sync.Mutex
	lines      int
	events     int
	suppressed int
}

func (l *ledger) Enabled(context.Context, slog.Level) bool { return true }
func (l *ledger) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *ledger) WithGroup(string) slog.Handler            { return l }

func (l *ledger) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines++
	summary := false
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "suppressed" {
			summary = true
			l.suppressed += int(a.Value.Int64())
		}
		return true
	})
	if !summary && !strings.HasPrefix(r.Message, "worker ") {
		l.events++
	}
	return nil
}

// logged returns what the log makes of the events that next returns until it
// is done.
func logged(n int, next func(i int) Event) (l *ledger, log *logObserver) {
	l = new(ledger)
	log = newLogObserver(slog.New(l), dlq.Redact)
	for i := range n {
		log.Observe(context.Background(), next(i))
	}
	return l, log
}

func TestMillionEqualFailuresMakeFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1_000_000
		began := time.Now()
		failure := Event{Kind: EventFailed, Topic: "orders", Message: &brokers.Message{ID: "m"}, Attempt: 1, Decision: retry.Decision{Retry: true},
			Verdict: classify.Verdict{Class: classify.ClassTransient}, Err: errors.New("status 503")}
		l, log := logged(n, func(i int) Event {
			failure.Time = began.Add(time.Duration(i) * 10 * time.Minute / n)
			return failure
		})
		log.stopped(nil)
		if l.lines > 50 || l.lines < 40 {
			t.Errorf("%d lines for a million equal failures in 10 min, want about 45", l.lines)
		}
		if l.events+l.suppressed != n {
			t.Errorf("%d written and %d counted as suppressed, want %d together", l.events, l.suppressed, n)
		}
	})
}

func TestSuppressedCountIsWrittenWithTheNextPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l, _ := logged(101, func(i int) Event {
			e := Event{Kind: EventLeaseLost, Topic: "orders", Time: began, Err: errors.New("gone")}
			if i == 100 {
				e.Time = began.Add(logSoon)
			}
			return e
		})
		if l.events != 4 || l.suppressed != 97 {
			t.Errorf("%d events written and %d suppressed, want 4 and 97", l.events, l.suppressed)
		}
	})
}

// What was not written is counted soon, although nothing else happens, and not after
// the end.
func TestSuppressedCountIsWrittenByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := func(int) Event {
			return Event{Kind: EventLeaseLost, Topic: "orders", Time: time.Now(), Err: errors.New("gone")}
		}
		l, log := logged(100, lost)
		time.Sleep(logSoon)
		synctest.Wait()
		if l.events != 3 || l.suppressed != 97 || l.lines != 4 {
			t.Errorf("%d lines after %v, %d events and %d suppressed, want 4, 3 and 97", l.lines, logSoon, l.events, l.suppressed)
		}
		for i := range 100 {
			log.Observe(context.Background(), lost(i))
		}
		log.stopped(nil)
		lines := l.lines
		time.Sleep(time.Hour)
		synctest.Wait()
		if l.events+l.suppressed != 200 || l.lines != lines {
			t.Errorf("%d lines, %d an hour later, %d events and %d suppressed, want 200 of these and no line after the end",
				lines, l.lines, l.events, l.suppressed)
		}
	})
}

func TestKindsTopicsClassesAndOperationsAreSampledApart(t *testing.T) {
	began := time.Now()
	l, _ := logged(5000, func(i int) Event {
		e := Event{Kind: EventFailed, Topic: "orders", Time: began, Verdict: classify.Verdict{Class: classify.ClassTransient}}
		switch i % 5 {
		case 1:
			e.Topic = "refunds"
		case 2:
			e.Kind = EventDeadLettered
		case 3:
			e.Verdict.Class = classify.ClassPoison
		case 4:
			e.Operation = "ack"
		}
		return e
	})
	if l.events != 5*logBurst {
		t.Errorf("%d lines, want %d of each of 5", l.events, logBurst)
	}
}

func TestLogMemoryIsBounded(t *testing.T) {
	const n = 20_000
	began := time.Now()
	at := func(minute int) func(int) Event {
		return func(i int) Event {
			return Event{Kind: EventFailed, Topic: fmt.Sprintf("topic-%d-%d", minute, i), Time: began.Add(time.Duration(minute) * time.Minute)}
		}
	}
	l, log := logged(n, at(0))
	if len(log.tallies) > logKeys || l.events > logKeys*logBurst || l.events < logKeys {
		t.Errorf("%d keys kept and %d lines written, want %d at most and one of each that is kept", len(log.tallies), l.events, logKeys)
	}
	before := l.events
	for i := range n {
		log.Observe(context.Background(), at(2)(i))
	}
	if l.events < before+logKeys || len(log.tallies) > logKeys {
		t.Errorf("%d lines two minutes later, want new topics to have their turn", l.events-before)
	}
	log.stopped(nil)
	if l.events+l.suppressed != 2*n {
		t.Errorf("%d written and %d suppressed, want %d together", l.events, l.suppressed, 2*n)
	}
}

// One line a decision: a failed run that another event follows is not written.
func TestRoutineEventsAreNotLogged(t *testing.T) {
	events := []Event{
		{Kind: EventReceived}, {Kind: EventStarted}, {Kind: EventSucceeded}, {Kind: EventHeld}, {Kind: EventExtended},
		{Kind: EventSettled, Action: brokers.Ack}, {Kind: EventSettled, Action: brokers.Retry},
		{Kind: EventDeferred, Decision: retry.Decision{Retry: true, Reason: "budget"}},
		{Kind: EventFailed, Decision: retry.Decision{DeadLetter: true}},
		{Kind: EventFailed, Verdict: classify.Verdict{Class: classify.ClassShutdown}},
		{Kind: EventFailed, Verdict: classify.Verdict{Class: classify.ClassLost}},
	}
	l, log := logged(len(events), func(i int) Event { return events[i] })
	if l.lines != 0 || len(log.tallies) != 0 {
		t.Errorf("%d lines, want none", l.lines)
	}
}

func TestLogLinesSayWhatHappenedAndNoSecrets(t *testing.T) {
	const secret = "hunter2"
	message := &brokers.Message{ID: "m-1", Topic: "orders", Key: "customer", Body: []byte(`{"card":"` + secret + `"}`),
		Headers: brokers.Headers{{Name: "authorization", Value: "Bearer " + secret}}}
	failed := fmt.Errorf("post https://shop:%s@pay.example/v1: password=%s: status 503", secret, secret)
	entry := &dlq.Entry{Message: *message}
	verdict := classify.Of(failed)
	deadletter.SetError(entry, failed, verdict, dlq.Redact, true)
	entry.Reason = "exhausted"
	for kind, want := range map[string]struct{ level, message string }{
		EventFailed:       {"WARN", "handler failed"},
		EventDeferred:     {"WARN", "message put aside"},
		logReleased:       {"INFO", "message given back"},
		logRejected:       {"WARN", "message left to the broker's own dead-lettering, its dead letter is a stub"},
		EventDeadLettered: {"ERROR", "message dead-lettered"},
		logDiscarded:      {"ERROR", "message discarded"},
		EventLeaseLost:    {"WARN", "lease lost"},
		EventStuck:        {"ERROR", "handler stuck"},
		EventUnstuck:      {"WARN", "stuck handler returned"},
		EventPaused:       {"ERROR", "dependency paused, its messages wait uncounted"},
		EventResumed:      {"INFO", "dependency resumed"},
		EventError:        {"ERROR", "broker operation failed, will be tried again"},
	} {
		var out bytes.Buffer
		log := newLogObserver(slog.New(slog.NewJSONHandler(&out, nil)), dlq.Redact)
		e := Event{Kind: kind, Time: time.Now(), Topic: "orders", Message: message, Attempt: 3, DeadLetterTopic: "orders-dead",
			Verdict: verdict, Decision: retry.Decision{Retry: true, Delay: time.Second, Reason: "poison"}, DeadLetter: entry, Err: failed}
		switch kind {
		case logReleased:
			e.Kind, e.Action = EventSettled, brokers.Release
		case logRejected:
			e.Kind, e.Action = EventSettled, brokers.Reject
		case logDiscarded:
			e.Kind, e.DeadLetterTopic = EventDeadLettered, dlq.Discard
		}
		log.Observe(context.Background(), e)
		log.stopped(fmt.Errorf("consumer: open orders: amqp://user:%s@host/", secret))
		if strings.Contains(out.String(), secret) {
			t.Errorf("%s: the secret is in the log: %s", kind, out.String())
		}
		line, _, _ := strings.Cut(out.String(), "\n")
		var got map[string]any
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		if got["level"] != want.level || got["msg"] != want.message || got["topic"] != "orders" || got["msg_id"] != "m-1" || got["attempt"] != 3.0 ||
			!strings.Contains(fmt.Sprint(got["error"]), "status 503") {
			t.Errorf("%s: line %s, want %v, the message and the error", kind, line, want)
		}
	}
}

func TestLogNamesWhatPauses(t *testing.T) {
	var out bytes.Buffer
	log := newLogObserver(slog.New(slog.NewTextHandler(&out, nil)), dlq.Redact)
	now := time.Now()
	log.Observe(context.Background(), Event{Kind: EventPaused, Time: now, Dependency: "payments", Until: now.Add(time.Minute), Err: errors.New("down")})
	if line := out.String(); !strings.Contains(line, "dependency=payments until=") || !strings.Contains(line, "error=down") {
		t.Errorf("line %q, want what pauses, until when, and why", line)
	}
}

// A pause has a line, as have the probes that fail in it, and one at its end says how
// many these were. Runs that began before it are no probes.
func TestLogOfAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := newLogObserver(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "since" {
				return slog.Attr{}
			}
			return a
		}})), dlq.Redact)
		log.dependencies["orders"] = "payments"
		failed := func(topic, id string) {
			log.Observe(t.Context(), Event{Kind: EventFailed, Time: time.Now(), Duration: time.Second, Topic: topic, Message: &brokers.Message{ID: id}, Attempt: 1,
				Verdict: classify.Verdict{Class: classify.ClassTransient}, Decision: retry.Decision{Retry: true, Delay: time.Second, Reason: "transient"}, Err: errors.New("down")})
		}
		for _, id := range []string{"1", "2", "3", "4", "5"} {
			failed("orders", id)
		}
		log.Observe(t.Context(), Event{Kind: EventPaused, Time: time.Now(), Dependency: "payments", Err: errors.New("64 of the last 64 messages failed")})
		failed("orders", "6")
		time.Sleep(time.Second)
		for _, id := range []string{"7", "8", "9", "10"} {
			failed("orders", id)
		}
		failed("refunds", "other")
		time.Sleep(time.Second)
		log.Observe(t.Context(), Event{Kind: EventResumed, Time: time.Now(), Dependency: "payments"})
		failed("orders", "11")
		log.stopped(nil)
		const run = "topic=orders msg_id=%s attempt=1 class=transient outcome=retry delay=1s error=down\n"
		want := fmt.Sprintf(strings.Repeat(`level=WARN msg="handler failed" `+run, 3), "1", "2", "3") +
			`level=WARN msg="more of the same: handler failed" topic=orders class=transient suppressed=2
level=ERROR msg="dependency paused, its messages wait uncounted" dependency=payments error="64 of the last 64 messages failed"
` + fmt.Sprintf(strings.Repeat(`level=WARN msg="probe failed" `+run, 3), "7", "8", "9") +
			`level=WARN msg="handler failed" topic=refunds msg_id=other attempt=1 class=transient outcome=retry delay=1s error=down
level=WARN msg="more of the same: handler failed" topic=orders class=transient suppressed=1
level=WARN msg="more of the same: probe failed" topic=orders class=transient suppressed=1
level=INFO msg="dependency resumed" dependency=payments after=2s failed_probes=4
level=WARN msg="more of the same: handler failed" topic=orders class=transient suppressed=1
level=INFO msg="worker stopped"
`
		if out.String() != want {
			t.Errorf("log\n%s\nwant\n%s", out.String(), want)
		}
	})
}

// The page of the log has each message with its level.
func TestLogMessagesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	for kind, message := range logText {
		if row := fmt.Sprintf("| `%s` | %s |", message, levels[kind]); !strings.Contains(string(page), row) {
			t.Errorf("docs/reference/logs.md has no row %s", row)
		}
	}
	if len(levels) != len(logText) {
		t.Errorf("%d levels for %d messages", len(levels), len(logText))
	}
}

func TestErrorTextsInTheLogAreCut(t *testing.T) {
	var out bytes.Buffer
	log := newLogObserver(slog.New(slog.NewJSONHandler(&out, nil)), dlq.Redact)
	log.Observe(context.Background(), Event{Kind: EventFailed, Topic: "orders", Time: time.Now(), Err: errors.New(strings.Repeat("ä", 10<<20))})
	var line struct{ Error string }
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	if n := len(line.Error); n < 2<<10-len("…") || n > 2<<10 || !utf8.ValidString(line.Error) {
		t.Errorf("an error text of %d bytes, want it cut to 2 KiB, and no broken character", n)
	}
}

func TestLogSurvivesARedactionThatPanics(t *testing.T) {
	var out bytes.Buffer
	log := newLogObserver(slog.New(slog.NewTextHandler(&out, nil)), func(string) string { panic("no") })
	log.Observe(context.Background(), Event{Kind: EventFailed, Topic: "orders", Time: time.Now(), Err: errors.New("token=abcdef")})
	if !strings.Contains(out.String(), "handler failed") || strings.Contains(out.String(), "abcdef") {
		t.Errorf("log %q, want the line without its text", out.String())
	}
}

// The log of a Consumer adds up: what it did not write, it counts when it
// stops. So much poison would stop the topic before.
func TestConsumerLogAddsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		broker := memory.New(memory.Options{})
		for range n {
			if err := broker.Publish(t.Context(), "orders", brokers.Message{}); err != nil {
				t.Fatal(err)
			}
		}
		l := new(ledger)
		c, err := New(broker, Config{DeadLetter: "*.dead", Guard: Guard{Off: true}, Logger: slog.New(l)})
		if err != nil {
			t.Fatal(err)
		}
		c.Handle("orders", func(context.Context, *brokers.Message) error { return classify.Permanent(errors.New("no")) })
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(10 * time.Minute) // dead letters that found no room come back after one to three
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		if l.events+l.suppressed != n || l.lines > 20 {
			t.Errorf("%d lines, %d written and %d suppressed; want a dead letter of each of %d messages in 20 lines at most",
				l.lines, l.events, l.suppressed, n)
		}
	})
}

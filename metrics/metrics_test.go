package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/metrics"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
	"github.com/redrive-go/redrive/settings"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// values returns every sample of c, histograms by their _count and _sum, under
// its name and labels.
func values(t *testing.T, cs ...prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(cs...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := func(suffix string) string {
				return fmt.Sprintf("%s%s{%s}", f.GetName(), suffix, strings.Join(labels, ","))
			}
			if h := m.GetHistogram(); h != nil {
				found[key("_count")], found[key("_sum")] = float64(h.GetSampleCount()), h.GetSampleSum()
				continue
			}
			found[key("")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return found
}

// expect compares some of the values of c.
func expect(t *testing.T, c prometheus.Collector, want map[string]float64) {
	t.Helper()
	got := values(t, c)
	for name, v := range want {
		if g, ok := got[name]; !ok || g != v {
			t.Errorf("%s = %v (there: %v), want %v", name, g, ok, v)
		}
	}
}

// script is the events of one message.
type script struct {
	m       *metrics.Metrics
	message *brokers.Message
	meta    brokers.Meta
}

func newScript(t *testing.T) *script {
	t.Helper()
	m := must(metrics.New(metrics.Topic{Name: "orders", Policy: "slow"}))
	return &script{m: m, message: &brokers.Message{ID: "m-1", Topic: "orders"}}
}

func (s *script) see(kinds ...string) {
	for _, kind := range kinds {
		s.event(eventOf(kind))
	}
}

// eventOf is an event of a kind, or the one of a delivery that ends so.
func eventOf(kind string) consumer.Event {
	for _, action := range []brokers.Action{brokers.Ack, brokers.Retry, brokers.Release, brokers.Reject} {
		if kind == action.String() {
			return consumer.Event{Kind: consumer.EventSettled, Action: action}
		}
	}
	return consumer.Event{Kind: kind}
}

// discarded is the event of a dead letter that is dropped.
func discarded(letter *dlq.Entry) consumer.Event {
	return consumer.Event{Kind: consumer.EventDeadLettered, DeadLetterTopic: dlq.Discard, DeadLetter: letter}
}

func (s *script) event(e consumer.Event) {
	e.Topic, e.Message, e.Meta = s.message.Topic, s.message, s.meta
	if e.Time.IsZero() {
		e.Time = noon
	}
	s.m.Observe(context.Background(), e)
}

var (
	retries = retry.Decision{Retry: true}
	dies    = retry.Decision{DeadLetter: true}
)

// failed is the event of a run that failed.
func failed(class string, decision retry.Decision) consumer.Event {
	return consumer.Event{
		Kind: consumer.EventFailed, Duration: 2 * time.Second, Err: errors.New("no"),
		Verdict: classify.Verdict{Class: class}, Decision: decision,
	}
}

const (
	received     = consumer.EventReceived
	started      = consumer.EventStarted
	succeeded    = consumer.EventSucceeded
	acked        = "ack" // an EventSettled by its Action
	held         = consumer.EventHeld
	retried      = "retry"   // by its Action
	released     = "release" // by its Action
	rejected     = "reject"  // by its Action
	leaseLost    = consumer.EventLeaseLost
	stuckHandler = consumer.EventStuck
	unstuck      = consumer.EventUnstuck
)

func TestSuccess(t *testing.T) {
	s := newScript(t)
	s.see(received, started)
	expect(t, s.m, map[string]float64{
		"redrive_deliveries_total{kind=fresh,topic=orders}":  1,
		"redrive_deliveries_total{kind=repeat,topic=orders}": 0,
		"redrive_messages_in_flight{topic=orders}":           1,
		"redrive_messages_running{topic=orders}":             1,
	})
	s.event(consumer.Event{Kind: succeeded, Duration: 250 * time.Millisecond})
	expect(t, s.m, map[string]float64{
		"redrive_messages_in_flight{topic=orders}": 1,
		"redrive_messages_running{topic=orders}":   0,
	})
	s.see(acked)
	expect(t, s.m, map[string]float64{
		"retry_attempts_total{class=none,outcome=success,policy=slow,topic=orders}": 1,
		"redrive_settlements_total{action=ack,topic=orders}":                        1,
		"redrive_messages_in_flight{topic=orders}":                                  0,
		"redrive_handler_duration_seconds_count{result=success,topic=orders}":       1,
		"redrive_handler_duration_seconds_sum{result=success,topic=orders}":         0.25,
		"redrive_handler_duration_seconds_count{result=failure,topic=orders}":       0,
		"redrive_retry_lateness_seconds_count{topic=orders}":                        0,
		"redrive_last_success_timestamp_seconds{topic=orders}":                      float64(noon.Unix()),
	})
}

func TestRetry(t *testing.T) {
	s := newScript(t)
	s.see(received, started)
	e := failed(classify.ClassThrottled, retries)
	s.meta.FirstFailedAt, s.meta.DueAt = noon, noon.Add(time.Minute)
	s.event(e)
	s.see(held)
	expect(t, s.m, map[string]float64{
		"redrive_messages_held{topic=orders}":      1,
		"redrive_messages_running{topic=orders}":   0,
		"redrive_messages_in_flight{topic=orders}": 1,
	})
	s.event(consumer.Event{Kind: started, Time: noon.Add(61 * time.Second), Lateness: time.Second})
	expect(t, s.m, map[string]float64{
		"retry_attempts_total{class=throttled,outcome=retry,policy=slow,topic=orders}": 1,
		"redrive_handler_duration_seconds_sum{result=failure,topic=orders}":            2,
		"redrive_retry_lateness_seconds_sum{topic=orders}":                             1,
		"retry_task_age_seconds_sum{policy=slow,topic=orders}":                         61,
		"redrive_messages_held{topic=orders}":                                          0,
		"redrive_messages_running{topic=orders}":                                       1,
	})
	s.event(failed(classify.ClassThrottled, retries))
	s.see(retried, received)
	expect(t, s.m, map[string]float64{
		"redrive_settlements_total{action=retry,topic=orders}": 1,
		"redrive_deliveries_total{kind=fresh,topic=orders}":    1,
		"redrive_deliveries_total{kind=repeat,topic=orders}":   1,
		"redrive_messages_in_flight{topic=orders}":             1,
	})
}

// TestAge follows messages from the time they were published to their end.
func TestAge(t *testing.T) {
	const ends, sum = "redrive_message_age_at_end_seconds_count{topic=orders}", "redrive_message_age_at_end_seconds_sum{topic=orders}"
	tests := []struct {
		name string
		play func(s *script)
		want float64 // -1: it has not ended
	}{
		{"success", func(s *script) { s.see(started, succeeded, acked) }, 60},
		{"success after a retry", func(s *script) {
			s.see(started)
			s.event(failed(classify.ClassTransient, retries))
			s.see(held, started)
			s.event(consumer.Event{Kind: succeeded, Time: noon.Add(time.Hour)})
			s.see(acked)
		}, 3660},
		{"dead letter", func(s *script) {
			s.see(started)
			s.event(failed(classify.ClassPoison, dies))
			s.event(consumer.Event{Kind: consumer.EventDeadLettered, Time: noon.Add(time.Second)})
			s.see(acked)
		}, 61},
		{"dead letter that the broker has to keep", func(s *script) { s.see(consumer.EventDeadLettered, rejected) }, 60},
		{"dropped", func(s *script) { s.event(discarded(nil)); s.see(acked) }, 60},
		{"skipped", func(s *script) {
			s.see(started)
			s.event(failed(classify.ClassSkipped, retry.Decision{}))
			s.see(acked)
		}, 60},
		{"retried", func(s *script) { s.see(started); s.event(failed(classify.ClassTransient, retries)); s.see(retried) }, -1},
		{"released", func(s *script) {
			s.see(started)
			s.event(failed(classify.ClassShutdown, retry.Decision{}))
			s.see(released)
		}, -1},
		{"lost", func(s *script) { s.see(started, leaseLost) }, -1},
		{"published in the future", func(s *script) { s.message.PublishedAt = noon.Add(time.Hour); s.see(started, succeeded) }, 0},
		{"published 10,000 years ago", func(s *script) { s.message.PublishedAt = noon.AddDate(-10_000, 0, 0); s.see(started, succeeded) }, 30 * 24 * 3600},
		{"published at a time that nobody knows", func(s *script) {
			s.message.PublishedAt = time.Time{}
			s.event(consumer.Event{Kind: started, Time: noon.Add(-9 * time.Second)})
			s.see(succeeded)
		}, 9},
		{"published at a time that nobody knows, and retried", func(s *script) {
			s.message.PublishedAt, s.meta.FirstFailedAt = time.Time{}, noon.Add(-5*time.Minute)
			s.see(started, succeeded)
		}, 300},
		{"sent back", func(s *script) {
			s.message.PublishedAt, s.meta.RedriveCount = noon.Add(-100*time.Hour), 1
			s.event(consumer.Event{Kind: started, Time: noon.Add(-time.Second)})
			s.see(succeeded)
		}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t)
			s.message.PublishedAt = noon.Add(-time.Minute)
			s.see(received)
			tt.play(s)
			want := map[string]float64{ends: 1, sum: tt.want, "redrive_messages_oldest_seconds{topic=orders}": 0}
			if tt.want < 0 {
				want[ends], want[sum] = 0, 0
			}
			expect(t, s.m, want)
		})
	}
}

// TestOldest asks for the age of the oldest message in the process.
func TestOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := must(metrics.New(metrics.Topic{Name: "orders"}))
		oldest := func(want time.Duration) {
			t.Helper()
			expect(t, m, map[string]float64{"redrive_messages_oldest_seconds{topic=orders}": want.Seconds()})
		}
		see := func(message *brokers.Message, kinds ...string) {
			for _, kind := range kinds {
				e := eventOf(kind)
				e.Time, e.Topic, e.Message = time.Now(), "orders", message
				m.Observe(t.Context(), e)
			}
		}
		old := &brokers.Message{ID: "a", PublishedAt: time.Now()}
		time.Sleep(time.Minute)
		young := &brokers.Message{ID: "b", PublishedAt: time.Now()}
		oldest(0)
		see(young, received, held)
		oldest(0)
		see(old, received, started)
		oldest(time.Minute)
		time.Sleep(time.Second)
		see(young, started)
		oldest(61 * time.Second)
		see(old, succeeded, acked)
		oldest(time.Second)
		see(young, succeeded, acked)
		oldest(0)
		early := &brokers.Message{ID: "c", PublishedAt: time.Now().Add(time.Hour)} // its producer's clock is fast
		see(early, received, started)
		oldest(0)
	})
}

// TestEveryRunIsCountedOnce lets runs end in all ways.
func TestEveryRunIsCountedOnce(t *testing.T) {
	letter := func(kind string) consumer.Event {
		return consumer.Event{Kind: kind, DeadLetter: &dlq.Entry{Reason: "poison"}}
	}
	tests := []struct {
		name string
		play func(s *script)
		want string // outcome and class
	}{
		{"success", func(s *script) { s.see(succeeded, acked) }, "none,outcome=success"},
		{"success, and the ack comes too late", func(s *script) { s.see(succeeded, leaseLost) }, "none,outcome=success"},
		{"dead letter", func(s *script) {
			s.event(failed(classify.ClassPoison, dies))
			s.event(letter(consumer.EventDeadLettered))
			s.see(acked)
		}, "poison,outcome=dead_letter"},
		{"skip", func(s *script) { s.event(failed(classify.ClassSkipped, retry.Decision{})); s.see(acked) }, "skipped,outcome=skip"},
		{"retry refused by the broker", func(s *script) {
			s.event(failed(classify.ClassTransient, retries))
			s.see(held)
			s.event(letter(consumer.EventDeadLettered))
			s.see(acked)
		}, "transient,outcome=retry"},
		{"held, then lost", func(s *script) {
			s.event(failed(classify.ClassTransient, retries))
			s.see(held, leaseLost)
		}, "transient,outcome=retry"},
		{"held at a drain", func(s *script) {
			s.event(failed(classify.ClassTransient, retries))
			s.see(held, retried)
		}, "transient,outcome=retry"},
		{"deferred", func(s *script) {
			e := failed(classify.ClassTransient, retries)
			e.Verdict.Deferred = true
			s.event(e)
			s.see(retried)
		}, "transient,outcome=defer"},
		{"shutdown", func(s *script) { s.event(failed(classify.ClassShutdown, retry.Decision{})); s.see(released) }, "shutdown,outcome=release"},
		{"lost by the handler's word", func(s *script) { s.event(failed(classify.ClassLost, retry.Decision{})); s.see(leaseLost) }, "lost,outcome=lost"},
		{"lost while it runs", func(s *script) { s.see(leaseLost) }, "lost,outcome=lost"},
		{"stuck, then lost", func(s *script) { s.see(stuckHandler, unstuck, leaseLost) }, "lost,outcome=lost"},
		{"stuck at the end of a drain", func(s *script) { s.see(stuckHandler, stuckHandler, released) }, "shutdown,outcome=release"},
		{"a class of the user's", func(s *script) { s.event(failed("gremlins", retries)); s.see(retried) }, "other,outcome=retry"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t)
			s.see(received, started)
			tt.play(s)
			got, total := values(t, s.m), 0.0
			for name, v := range got {
				if strings.HasPrefix(name, "retry_attempts_total") {
					total += v
				}
			}
			key := "retry_attempts_total{class=" + tt.want + ",policy=slow,topic=orders}"
			if got[key] != 1 || total != 1 {
				t.Errorf("%s = %v of %v runs, want 1 of 1", key, got[key], total)
			}
			for _, gauge := range []string{"in_flight", "running", "held", "stuck"} {
				if v := got["redrive_messages_"+gauge+"{topic=orders}"]; v != 0 {
					t.Errorf("%v messages %s are left, want 0", v, gauge)
				}
			}
		})
	}
}

func TestStuck(t *testing.T) {
	s := newScript(t)
	s.see(received, started, stuckHandler)
	expect(t, s.m, map[string]float64{"redrive_messages_stuck{topic=orders}": 1, "redrive_messages_running{topic=orders}": 1})
	s.see(unstuck)
	expect(t, s.m, map[string]float64{"redrive_messages_stuck{topic=orders}": 0, "redrive_messages_running{topic=orders}": 1})
}

func TestTrouble(t *testing.T) {
	s := newScript(t)
	for _, op := range []string{"receive", "budget", "receipt", "receipt"} {
		s.m.Observe(t.Context(), consumer.Event{Kind: consumer.EventError, Operation: op, Err: errors.New("no")})
	}
	for range 2 {
		s.m.Observe(t.Context(), consumer.Event{Kind: consumer.EventError, Operation: "receive", Topic: "orders", Err: errors.New("deleted")})
	}
	for range 3 {
		s.m.Observe(t.Context(), consumer.Event{Kind: consumer.EventReceiptDropped, Err: errors.New("no")})
	}
	s.see(received, consumer.EventExtended, consumer.EventExtended)
	for i, op := range []string{
		"ack", "retry", "release", "extend", "dead-letter", "deadline",
	} {
		for range i + 1 {
			s.event(consumer.Event{Kind: consumer.EventError, Operation: op})
		}
	}
	s.event(consumer.Event{Kind: consumer.EventDeadLettered, DeadLetter: &dlq.Entry{Reason: "ambiguous"}})
	s.event(discarded(&dlq.Entry{Reason: "too sour"}))
	s.event(discarded(nil))
	expect(t, s.m, map[string]float64{
		"redrive_receive_errors_total{}":                            3,
		"redrive_topic_errors_total{topic=orders}":                  2,
		"redrive_receipt_errors_total{}":                            2,
		"redrive_receipts_dropped_total{}":                          3,
		"redrive_settle_errors_total{action=ack,topic=orders}":      1,
		"redrive_settle_errors_total{action=retry,topic=orders}":    2,
		"redrive_settle_errors_total{action=release,topic=orders}":  3,
		"redrive_lease_extension_errors_total{topic=orders}":        4,
		"redrive_lease_extensions_total{topic=orders}":              2,
		"redrive_dead_letter_errors_total{topic=orders}":            5,
		"redrive_deadline_errors_total{topic=orders}":               6,
		"redrive_dead_letters_total{reason=ambiguous,topic=orders}": 1,
		"redrive_discarded_total{reason=other,topic=orders}":        2,
	})
}

func TestReturned(t *testing.T) {
	s := newScript(t)
	s.see(received, started, succeeded)
	s.meta.RedriveCount = 1
	s.see(received, started)
	s.event(failed(classify.ClassTransient, retries))
	s.event(failed(classify.ClassPoison, dies))
	s.see(received, started, succeeded)
	expect(t, s.m, map[string]float64{
		"redrive_returned_runs_total{result=success,topic=orders}": 1,
		"redrive_returned_runs_total{result=failure,topic=orders}": 2,
	})
}

func TestDeferred(t *testing.T) {
	s := newScript(t)
	s.see(received)
	for n, reason := range []string{"", "budget", "dependency", "room", "poison"} {
		for range n {
			s.event(consumer.Event{Kind: consumer.EventDeferred, Decision: retry.Decision{Retry: true, Reason: reason}})
			s.see(held)
		}
	}
	s.see(retried)
	expect(t, s.m, map[string]float64{
		"redrive_runs_deferred_total{reason=budget,topic=orders}":     1,
		"redrive_runs_deferred_total{reason=dependency,topic=orders}": 2,
		"redrive_runs_deferred_total{reason=room,topic=orders}":       3,
		"redrive_runs_deferred_total{reason=poison,topic=orders}":     4,
		"redrive_messages_held{topic=orders}":                         0,
		"redrive_messages_in_flight{topic=orders}":                    0,
	})
}

func TestPaused(t *testing.T) {
	m := must(metrics.New(metrics.Topic{Name: "orders", Dependency: "payments"}, metrics.Topic{Name: "refunds", Dependency: "payments"}, metrics.Topic{Name: "mails"}))
	see := func(kind string, dependency string) {
		m.Observe(t.Context(), consumer.Event{Kind: kind, Dependency: dependency})
	}
	want := map[string]float64{
		"redrive_paused{dependency=payments}":       1,
		"redrive_pauses_total{dependency=payments}": 2,
		"redrive_paused{dependency=mails}":          0,
		"redrive_pauses_total{dependency=mails}":    0,
		"redrive_paused{dependency=other}":          1,
		"redrive_pauses_total{dependency=other}":    3,
	}
	see(consumer.EventPaused, "payments")
	see(consumer.EventResumed, "payments")
	see(consumer.EventPaused, "payments")
	for _, name := range []string{"a", "b", "c"} {
		see(consumer.EventPaused, name)
	}
	see(consumer.EventResumed, "b")
	got := values(t, m)
	for name, v := range got {
		if w, ok := want[name]; strings.HasPrefix(name, "redrive_pause") && !strings.HasPrefix(name, "redrive_paused_by_hand") && (!ok || w != v) {
			t.Errorf("%s = %v, want %v (there: %v)", name, v, w, ok)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestPausedByHand(t *testing.T) {
	m := must(metrics.New(metrics.Topic{Name: "orders"}))
	until := time.Now().Add(time.Hour)
	see := func(pauses ...health.ByHand) {
		m.Observe(t.Context(), consumer.Event{Kind: consumer.EventByHand, ByHand: pauses})
	}
	is := func(want map[string]float64) {
		t.Helper()
		n := 0
		for name, v := range values(t, m) {
			if strings.HasPrefix(name, "redrive_paused_by_hand") {
				if n++; v != want[name] {
					t.Errorf("%s = %v, want %v", name, v, want[name])
				}
			}
		}
		if n != 2 {
			t.Errorf("%d series, want 2, whatever tenants there are", n)
		}
	}
	is(nil)
	see(health.ByHand{Topic: "orders"}, health.ByHand{Topic: "mails", Until: until}, health.ByHand{Dependency: "bank"}, health.ByHand{Tenant: "a", Until: until}, health.ByHand{Tenant: "b", Until: until})
	is(map[string]float64{"redrive_paused_by_hand{end=none}": 2, "redrive_paused_by_hand{end=timed}": 3})
	see()
	is(nil)
}

// TestSeriesAreBounded feeds words that nobody knows.
func TestSeriesAreBounded(t *testing.T) {
	m := must(metrics.New(metrics.Topic{Name: "orders"}))
	feed := func(n int) int {
		for i := range n {
			word := fmt.Sprintf("\xff\x1b[2J{secret=\"%d\"}\n", i)
			message := &brokers.Message{ID: word, Topic: word, Key: word}
			for _, topic := range []string{word, "orders"} {
				for _, kind := range []string{received, started, consumer.EventFailed, consumer.EventDeadLettered, consumer.EventSettled, word} {
					e := failed(word, []retry.Decision{retries, dies, {}}[i%3])
					e.Kind, e.Topic, e.Message, e.Err, e.Time = kind, topic, message, errors.New(word), noon
					e.DeadLetter = &dlq.Entry{Reason: word, ErrorText: word}
					m.Observe(t.Context(), e)
				}
				m.Observe(t.Context(), consumer.Event{Kind: consumer.EventDeferred, Topic: topic, Message: message, Decision: retry.Decision{Reason: word}})
				m.Observe(t.Context(), consumer.Event{Kind: consumer.EventPaused, Dependency: word})
			}
		}
		found := values(t, m)
		for name := range found {
			if strings.Contains(name, "secret") {
				t.Errorf("a label has a word of the message: %q", name)
			}
		}
		return len(found)
	}
	if first, then := feed(10), feed(1000); first != then {
		t.Errorf("%d series after 10 strange messages, %d after 1000 more: want no more", first, then)
	}
	if expect(t, m, map[string]float64{"redrive_deliveries_total{kind=fresh,topic=other}": 1010}); t.Failed() {
		t.Log("messages of topics that nobody named count as other")
	}
	const most = 77 // two of them for all topics together: what is paused by hand
	if n := len(values(t, must(metrics.New(metrics.Topic{Name: "orders"})))); n > most {
		t.Errorf("%d series for one topic, want at most %d", n, most)
	}
}

func TestATopicNamedOther(t *testing.T) {
	m := must(metrics.New(metrics.Topic{Name: "other", Policy: "slow"}))
	for _, topic := range []string{"other", "stray"} {
		m.Observe(t.Context(), consumer.Event{Kind: received, Topic: topic, Message: &brokers.Message{}, Time: noon})
	}
	expect(t, m, map[string]float64{"redrive_deliveries_total{kind=fresh,topic=other}": 2})
}

func TestNewReportsAllFaults(t *testing.T) {
	many := make([]metrics.Topic, metrics.MaxTopics+1)
	for i := range many {
		many[i].Name = fmt.Sprint(i)
	}
	tests := []struct {
		name   string
		topics []metrics.Topic
		want   []string
	}{
		{"none", nil, []string{"topics: are missing"}},
		{"too many", many, []string{"topics: are 101"}},
		{"several", []metrics.Topic{{Name: "a"}, {}, {Name: "a", Policy: "\xff"}, {Name: "\xfe"}, {Name: "b", Dependency: "\xff"}},
			[]string{"topics[4].Dependency: is not UTF-8", "topics[1].Name: is empty", `topics[2].Name: is "a" once more`, "topics[2].Policy: is not UTF-8", "topics[3].Name: is not UTF-8"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := metrics.New(tt.topics...)
			if _, ok := errors.AsType[*settings.Error](err); !ok {
				t.Fatalf("error %v, want a *settings.Error", err)
			}
			if lines := strings.Count(err.Error(), "\n") + 1; lines != len(tt.want) {
				t.Errorf("%d faults, want %d:\n%v", lines, len(tt.want), err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q:\n%v", want, err)
				}
			}
		})
	}
	if _, err := metrics.New(many[:metrics.MaxTopics]...); err != nil {
		t.Errorf("%d topics: %v", metrics.MaxTopics, err)
	}
}

func TestLint(t *testing.T) {
	families, err := everything(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// everything is a registry with all metrics there are.
func everything(t *testing.T) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	watch := must(metrics.New(metrics.Topic{Name: "orders"}))
	follow(t, watch)
	registry.MustRegister(watch,
		metrics.NewLimiter("bank", flow.New(10, rand.Float64)),
		metrics.NewBudget("bank", must(budget.New(budget.Queue()))),
		metrics.NewBreaker("bank", breaker.New(breaker.Config{})))
	return registry
}

// TestSeveralWorkers registers two in one registry, told apart by a label.
func TestSeveralWorkers(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for _, name := range []string{"a", "b"} {
		worker := prometheus.WrapRegistererWith(prometheus.Labels{"worker": name}, registry)
		worker.MustRegister(must(metrics.New(metrics.Topic{Name: "orders"})))
	}
	registry.MustRegister(metrics.NewLimiter("bank", flow.New(10, rand.Float64)),
		metrics.NewLimiter("post", flow.New(10, rand.Float64)))
	families, err := registry.Gather()
	n := 0
	for _, f := range families {
		if name := f.GetName(); name == "redrive_paused" || name == "redrive_limit" {
			n += len(f.GetMetric())
		}
	}
	if n != 4 || err != nil {
		t.Errorf("%d series, error %v, want 4", n, err)
	}
}

func TestConcurrent(t *testing.T) {
	const workers, each = 8, 200
	m := must(metrics.New(metrics.Topic{Name: "orders"}))
	done := make(chan struct{})
	var scraper, group sync.WaitGroup
	scraper.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if v := values(t, m)["redrive_messages_in_flight{topic=orders}"]; v < 0 {
					t.Errorf("%v messages in flight, want at least 0", v)
				}
			}
		}
	})
	for w := range workers {
		group.Go(func() {
			for i := range each {
				s := &script{m: m, message: &brokers.Message{ID: fmt.Sprint(w*each + i), Topic: "orders"}}
				s.see(received, started)
				s.event(failed(classify.ClassUnknown, retries))
				s.see(held, started, succeeded, acked)
			}
		})
	}
	group.Wait()
	close(done)
	scraper.Wait()
	expect(t, m, map[string]float64{
		"retry_attempts_total{class=none,outcome=success,policy=default,topic=orders}":  workers * each,
		"retry_attempts_total{class=unknown,outcome=retry,policy=default,topic=orders}": workers * each,
		"redrive_messages_running{topic=orders}":                                        0,
		"redrive_messages_held{topic=orders}":                                           0,
	})
}

func TestObserveAllocatesNothing(t *testing.T) {
	s := newScript(t)
	s.meta.FirstFailedAt, s.meta.DueAt = noon, noon
	e := failed(classify.ClassTransient, retries)
	if n := testing.AllocsPerRun(100, func() {
		s.see(received, started)
		s.event(e)
		s.see(held, started, succeeded, acked)
	}); n != 0 {
		t.Errorf("%v allocations for the events of a message, want 0", n)
	}
}

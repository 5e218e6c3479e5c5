package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/metrics"
)

// followed is a worker with a status.
type followed struct{ status health.Status }

func (f *followed) Status() health.Status { return f.status }

// onKafka is a worker that owns a partition of each topic.
func onKafka(topics ...string) *followed {
	f := &followed{health.Status{At: noon, State: health.Running}}
	for _, topic := range topics {
		f.status.Broker.Partitions = append(f.status.Broker.Partitions, health.Partition{Topic: topic})
	}
	return f
}

// TestStalledPartitions counts those that have stood for three minutes, by topic.
func TestStalledPartitions(t *testing.T) {
	m := must(metrics.New(metrics.Topic{Name: "orders"}, metrics.Topic{Name: "mails"}, metrics.Topic{Name: "idle"}))
	w := onKafka("orders", "orders", "orders", "mails", "refunds")
	m.Follow(w)
	for i, since := range []time.Duration{time.Hour, 3 * time.Minute, 3*time.Minute - 1, 0, time.Hour} {
		if since > 0 {
			w.status.Broker.Partitions[i].StalledSince = noon.Add(-since)
		}
	}
	shows(t, m, "redrive_partition_stalled", map[string]float64{"{topic=orders}": 2, "{topic=mails}": 0, "{topic=other}": 1})
}

// shows compares all series whose names begin with a prefix.
func shows(t *testing.T, m *metrics.Metrics, prefix string, want map[string]float64) {
	t.Helper()
	got := map[string]float64{}
	for name, v := range values(t, m) {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			got[rest] = v
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", prefix, got, want)
	}
}

// counted is a worker whose broker says how much it has.
type counted struct {
	followed
	calls  atomic.Int64
	answer func(ctx context.Context) ([]brokers.Backlog, error)
}

func (c *counted) Backlogs(ctx context.Context) ([]brokers.Backlog, error) {
	c.calls.Add(1)
	return c.answer(ctx)
}

// asking runs test in virtual time with a worker whose broker answers so.
func asking(t *testing.T, answer func(ctx context.Context) ([]brokers.Backlog, error), test func(t *testing.T, m *metrics.Metrics, w *counted)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := must(metrics.New(metrics.Topic{Name: "orders"}, metrics.Topic{Name: "mails"}))
		w := &counted{followed: followed{health.Status{State: health.Running}}, answer: answer}
		m.Follow(w)
		test(t, m, w)
	})
}

// scrape lets time pass, and scrapes. What that asks for has its answer when it returns,
// if that comes at once.
func scrape(t *testing.T, m *metrics.Metrics, after time.Duration) {
	t.Helper()
	time.Sleep(after)
	began := time.Now()
	values(t, m)
	if took := time.Since(began); took > 0 {
		t.Errorf("a scrape took %v", took)
	}
	synctest.Wait()
}

func ready(topic string, n int64) brokers.Backlog { return brokers.Backlog{Topic: topic, Ready: &n} }

// telling is a worker whose broker says all that any does.
func telling() *counted {
	b := brokers.Backlog{Topic: "orders", Ready: new(int64(1)), Taken: new(int64(1)), Delayed: new(int64(1)), Oldest: noon}
	letters := b
	letters.Topic, letters.DeadLetters = "orders-dead", true
	return &counted{followed: *onKafka("orders"), answer: func(context.Context) ([]brokers.Backlog, error) { return []brokers.Backlog{b, letters}, nil }}
}

// follow has m follow such a worker, and waits until it has told.
func follow(t *testing.T, m *metrics.Metrics) {
	t.Helper()
	m.Follow(telling())
	for values(t, m)["redrive_backlog_asks_total{result=success}"] == 0 {
		runtime.Gosched()
	}
}

// TestBacklogs shows what the broker has said, and of what it has not said, nothing.
func TestBacklogs(t *testing.T) {
	oldest := time.Date(1999, 12, 31, 23, 0, 0, 0, time.UTC) // an hour before the bubble begins
	letters := ready("orders-dead", 4)
	letters.DeadLetters, letters.Oldest = true, oldest
	many := brokers.Backlog{Topic: "mails", Ready: new(int64(1)), Taken: new(int64(2)), Delayed: new(int64(3)), Oldest: oldest}
	all := []brokers.Backlog{ready("orders", 0), many, ready("refunds", 5), ready("invoices", 6), letters, {Topic: "silent-dead", DeadLetters: true}}
	asking(t, func(context.Context) ([]brokers.Backlog, error) { return all, nil }, func(t *testing.T, m *metrics.Metrics, w *counted) {
		shows(t, m, "redrive_backlog_", map[string]float64{"asks_total{result=success}": 0, "asks_total{result=failure}": 0})
		scrape(t, m, time.Minute)
		want := map[string]float64{
			"messages{state=ready,topic=orders}": 0, "messages{state=ready,topic=other}": 11,
			"messages{state=ready,topic=mails}": 1, "messages{state=taken,topic=mails}": 2, "messages{state=delayed,topic=mails}": 3,
			"oldest_seconds{topic=mails}": 3660, "dead_letters{topic=orders-dead}": 4, "dead_letters_oldest_seconds{topic=orders-dead}": 3660,
			"asks_total{result=success}": 2, "asks_total{result=failure}": 0,
		}
		shows(t, m, "redrive_backlog_", want)
		w.status.State = health.Draining // whose broker others ask
		shows(t, m, "redrive_backlog_", map[string]float64{"asks_total{result=success}": 2, "asks_total{result=failure}": 0})
	})
}

// TestBrokerIsAskedSeldom has scrapes ask at most every 30 s, however many there are, and
// once each if they are rare.
func TestBrokerIsAskedSeldom(t *testing.T) {
	answer := func(context.Context) ([]brokers.Backlog, error) { return []brokers.Backlog{ready("orders", 1)}, nil }
	asking(t, answer, func(t *testing.T, m *metrics.Metrics, w *counted) {
		var work sync.WaitGroup
		for range 3 {
			work.Go(func() {
				for range 100 {
					time.Sleep(3 * time.Second)
					values(t, m)
				}
			})
		}
		work.Wait()
		if n := w.calls.Load(); n != 10 {
			t.Errorf("asked %d times in 5 min, want 10", n)
		}
		for range 10 {
			scrape(t, m, 2*time.Minute)
			expect(t, m, map[string]float64{"redrive_backlog_messages{state=ready,topic=orders}": 1})
		}
		if n := w.calls.Load(); n != 20 {
			t.Errorf("asked %d times, want once for each scrape", n)
		}
		time.Sleep(6 * time.Minute) // in which nobody scrapes
		if n, ok := values(t, m)["redrive_backlog_messages{state=ready,topic=orders}"]; ok {
			t.Errorf("%v messages are shown 6 min after the broker said so", n)
		}
	})
}

// TestBrokerThatHangs delays no scrape: what it said before vanishes, and there is one
// call at a time, though that ignores the end of its context.
func TestBrokerThatHangs(t *testing.T) {
	var hangs bool
	var heal chan struct{} // of the bubble
	answer := func(context.Context) ([]brokers.Backlog, error) {
		if hangs {
			<-heal
		}
		return []brokers.Backlog{ready("orders", 1)}, nil
	}
	asking(t, answer, func(t *testing.T, m *metrics.Metrics, w *counted) {
		scrape(t, m, time.Minute)
		hangs, heal = true, make(chan struct{})
		scrape(t, m, time.Minute)
		for range 20 {
			scrape(t, m, 15*time.Second)
			shows(t, m, "redrive_backlog_", map[string]float64{"asks_total{result=success}": 1, "asks_total{result=failure}": 1})
		}
		if n := w.calls.Load(); n != 2 {
			t.Errorf("asked %d times, want no more while a call is open", n)
		}
		hangs = false
		close(heal)
		synctest.Wait()
		shows(t, m, "redrive_backlog_", map[string]float64{"asks_total{result=success}": 1, "asks_total{result=failure}": 1})
		synctest.Wait()
		expect(t, m, map[string]float64{"redrive_backlog_messages{state=ready,topic=orders}": 1, "redrive_backlog_asks_total{result=success}": 2})
	})
}

// TestFailedAsk shows what the broker said nevertheless, and that an ask has failed.
func TestFailedAsk(t *testing.T) {
	err := error(nil)
	answer := func(context.Context) ([]brokers.Backlog, error) {
		if err != nil {
			return []brokers.Backlog{ready("mails", 2)}, err
		}
		return []brokers.Backlog{ready("orders", 1), ready("mails", 1)}, nil
	}
	asking(t, answer, func(t *testing.T, m *metrics.Metrics, _ *counted) {
		scrape(t, m, time.Minute)
		err = errors.New("the queue is gone")
		scrape(t, m, time.Minute)
		shows(t, m, "redrive_backlog_", map[string]float64{
			"messages{state=ready,topic=mails}": 2, "asks_total{result=success}": 1, "asks_total{result=failure}": 1,
		})
		err = errors.ErrUnsupported
		scrape(t, m, time.Minute)
		shows(t, m, "redrive_backlog_asks_total", map[string]float64{"{result=success}": 1, "{result=failure}": 1})
	})
}

// TestManyTopics has a broker offer 100,000 names.
func TestManyTopics(t *testing.T) {
	var all []brokers.Backlog
	for i := range 100_000 {
		b := ready(fmt.Sprint("topic-", i), 1)
		if i%2 > 0 {
			b.DeadLetters = true
		}
		all = append(all, b)
	}
	all = append(all, brokers.Backlog{Topic: "\xff", DeadLetters: true, Ready: new(int64(1))})
	asking(t, func(context.Context) ([]brokers.Backlog, error) { return all, nil }, func(t *testing.T, m *metrics.Metrics, w *counted) {
		for _, b := range all {
			w.status.Broker.Partitions = append(w.status.Broker.Partitions, health.Partition{Topic: b.Topic})
		}
		scrape(t, m, time.Minute)
		got, series := values(t, m), 0
		for name := range got {
			if strings.HasPrefix(name, "redrive_backlog_") || strings.HasPrefix(name, "redrive_partition_") {
				series++
			}
		}
		if want := metrics.MaxTopics + 1 + 1 + 1 + 2; series != want {
			t.Errorf("%d series, want %d", series, want)
		}
		for name, want := range map[string]float64{"redrive_backlog_messages{state=ready,topic=other}": 50_000, "redrive_backlog_dead_letters{topic=other}": 50_001 - metrics.MaxTopics} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
	})
}

// TestBacklogOfAWorker follows a worker whose broker takes an hour to say how much it
// has: its handlers do not wait, and neither does its end.
func TestBacklogOfAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		broker := memory.New(memory.Options{Fault: func(op memory.Op) (f memory.Fault) {
			if op.Operation == memory.Count && slow.Load() {
				f.Latency = time.Hour
			}
			return f
		}})
		m := must(metrics.New(metrics.Topic{Name: "orders"}))
		worker := must(consumer.New(broker, consumer.Config{DeadLetter: "*-dead", Observers: []consumer.Observer{m}, Logger: slog.New(slog.DiscardHandler), Concurrency: 1}))
		var took time.Duration
		worker.Handle("orders", func(_ context.Context, message *brokers.Message) error {
			took = time.Since(message.PublishedAt)
			if string(message.Body) == "long" {
				time.Sleep(time.Hour)
			}
			return nil
		})
		m.Follow(worker)
		scrape(t, m, 0) // before it runs
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- worker.Run(ctx) }()
		publish := func(topic, body string) {
			if err := broker.Publish(t.Context(), topic, brokers.Message{Body: []byte(body)}); err != nil {
				t.Fatal(err)
			}
		}
		publish("orders-dead", "letter")
		scrape(t, m, time.Minute)
		expect(t, m, map[string]float64{
			"redrive_backlog_messages{state=ready,topic=orders}": 0, "redrive_backlog_messages{state=taken,topic=orders}": 0,
			"redrive_backlog_dead_letters{topic=orders-dead}": 1, "redrive_backlog_dead_letters_oldest_seconds{topic=orders-dead}": 60,
		})
		slow.Store(true)
		scrape(t, m, time.Minute)
		publish("orders", "quick")
		synctest.Wait()
		if took != 0 {
			t.Errorf("a handler began after %v, while the broker was asked", took)
		}
		scrape(t, m, 11*time.Second)
		shows(t, m, "redrive_backlog_", map[string]float64{"asks_total{result=success}": 1, "asks_total{result=failure}": 1})
		began := time.Now()
		stop()
		if err := <-ended; err != nil || time.Since(began) > 0 {
			t.Errorf("Run returned %v after %v", err, time.Since(began))
		}
		_ = broker.Close(context.Background())
	})
}

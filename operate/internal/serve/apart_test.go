package serve_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
)

// journal is a log that can be read while it is written.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

// lines returns how many lines of the log have all parts.
func (j *journal) lines(parts ...string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for line := range strings.Lines(j.text.String()) {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			n++
		}
	}
	return n
}

// listen makes the server log to a journal.
func (w *world) listen() *journal {
	j := &journal{}
	w.server.Logger = slog.New(slog.NewTextHandler(j, nil))
	return j
}

// on replaces the configuration and the brokers of the server.
func (w *world) on(text string, broker brokers.Broker) {
	w.Helper()
	c, err := config.Parse("redrive.yaml", []byte(text+"store: {url: letters.db}\n"))
	w.must(err)
	w.server.Config = c
	w.server.Brokers = serve.NewBrokers(func(context.Context, string) (brokers.Broker, error) { return broker, nil })
}

const queues = `
brokers:
  aws: {kind: sqs, region: us-east-1}
topics:
  - {name: orders, broker: aws, dead: [orders-dead], collect: true}
  - {name: payments.fifo, broker: aws, dead: [payments-dead.fifo], collect: true}
  - {name: refunds, broker: aws, dead: [refunds-dead], collect: true}
  - {name: stock.fifo, broker: aws, dead: [stock-dead.fifo], collect: true}
`

// inQueues runs a test with an SQS server. Each of its queues for dead letters
// has 3 letters, except for the queues that are missing.
func inQueues(t *testing.T, missing []string, test func(w *world, server *sqstest.Server, publish func(queue string))) {
	t.Helper()
	inWorld(t, func(w *world) {
		server := sqstest.New(sqstest.Options{})
		defer server.Close()
		broker, err := sqs.New(sqs.Options{Config: server.Config(), Create: true})
		w.must(err)
		publish := func(queue string) {
			topic := strings.Replace(queue, "-dead", "", 1)
			source, err := broker.Open(w.Context(), brokers.Subscription{Topics: []string{topic}, DeadLetters: map[string]string{topic: queue}, InFlight: 1}) // creates the queues
			w.must(err)
			w.must(source.Close(w.Context()))
			for n := range 3 {
				e := dlq.Entry{Message: brokers.Message{ID: fmt.Sprintf("%s-%d", topic, n), Topic: topic, Body: []byte("{}")}, Reason: "poison", DeadAt: time.Now().Add(-time.Hour)}
				w.must(broker.Publish(w.Context(), queue, e.Encode(0)))
			}
		}
		for _, queue := range []string{"orders-dead", "payments-dead.fifo", "refunds-dead", "stock-dead.fifo"} {
			if !slices.Contains(missing, queue) {
				publish(queue)
			}
		}
		before := w.server.Brokers
		defer func() { w.must(before.Close(context.WithoutCancel(w.Context()))) }()
		w.on(queues, broker)
		test(w, server, publish)
	})
}

// collected fails the test unless the store has exactly n letters of each
// topic.
func (w *world) collected(n int64, topics ...string) {
	w.Helper()
	stats, err := w.store.Stats(w.Context(), time.Now())
	w.must(err)
	var got []string
	for _, t := range stats.Topics {
		got = append(got, fmt.Sprintf("%s: %d", t.Topic, t.Counts.Collected))
	}
	var want []string
	for _, topic := range topics {
		want = append(want, fmt.Sprintf("%s: %d", topic, n))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.Errorf("the store has %q, want %q", got, want)
	}
}

// TestQueueIsMissing tests that the server collects from the other queues,
// names the missing queue, and collects from it once it is created.
func TestQueueIsMissing(t *testing.T) {
	const queue = "payments-dead.fifo"
	t.Run("once", func(t *testing.T) {
		inQueues(t, []string{queue}, func(w *world, _ *sqstest.Server, _ func(string)) {
			err := w.server.Collect(w.Context(), serve.Collected(w.server.Config))
			if !errors.Is(err, brokers.ErrNotFound) || !strings.Contains(err.Error(), queue) || strings.Contains(err.Error(), "refunds") {
				w.Errorf("Collect: %v, want only the missing queue", err)
			}
			w.collected(3, "orders", "refunds", "stock.fifo")
		})
	})
	t.Run("serve", func(t *testing.T) {
		inQueues(t, []string{queue}, func(w *world, _ *sqstest.Server, publish func(string)) {
			log := w.listen()
			w.run()
			w.pass(30 * time.Minute)
			w.collected(3, "orders", "refunds", "stock.fifo")
			w.wants(`redrive_collect_paused{broker="aws",topic="payments-dead.fifo"}`, "1")
			w.wants(`redrive_collect_paused{broker="aws",topic="stock-dead.fifo"}`, "0")
			if n := log.lines("collecting dead letters does not work", "topics=[payments-dead.fifo]"); n < 5 || n > 7 {
				w.Errorf("%d lines in the log, want one every five minutes\n%s", n, &log.text)
			}
			publish(queue)
			w.pass(2 * time.Minute)
			w.collected(3, "orders", "payments.fifo", "refunds", "stock.fifo")
			w.wants(`redrive_collect_paused{broker="aws",topic="payments-dead.fifo"}`, "0")
		})
	})
}

// TestQueueIsDenied tests that the server collects from the other queues of a
// source if one may not be read. Only the first poll shows that.
func TestQueueIsDenied(t *testing.T) {
	denied := sqstest.Fault{Operation: "ReceiveMessage", Queue: "refunds-dead", Code: "AccessDenied"}
	standard := strings.ReplaceAll(queues, ".fifo", "")
	for _, serving := range []bool{false, true} {
		t.Run(fmt.Sprint("serving: ", serving), func(t *testing.T) {
			inQueues(t, nil, func(w *world, server *sqstest.Server, publish func(string)) {
				for _, queue := range []string{"payments-dead", "stock-dead"} {
					publish(queue)
				}
				broker, err := w.server.Brokers.Open(w.Context(), "aws")
				w.must(err)
				w.on(standard, broker)
				allow := server.Inject(denied)
				if !serving {
					err := w.server.Collect(w.Context(), serve.Collected(w.server.Config))
					denied, ok := errors.AsType[*brokers.TopicError](err)
					if !ok || denied.Topic != "refunds-dead" || !strings.Contains(err.Error(), "dead letters of refunds-dead on aws has failed") {
						w.Errorf("Collect: %v, want the queue that is denied", err)
					}
					w.collected(3, "orders", "payments", "stock")
					return
				}
				w.run()
				w.pass(10 * time.Minute)
				w.collected(3, "orders", "payments", "stock")
				w.wants(`redrive_collect_paused{broker="aws",topic="refunds-dead"}`, "1")
				w.wants(`redrive_collect_paused{broker="aws",topic="orders-dead"}`, "0")
				allow()
				w.pass(2 * time.Minute)
				w.collected(3, "orders", "payments", "refunds", "stock")
			})
		})
	}
}

// picky is a broker that does not open some topics.
type picky struct {
	*memory.Broker
	mu     sync.Mutex
	refuse func(topics []string) error
	opened [][]string
}

func (p *picky) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refuse(sub.Topics); err != nil {
		return nil, err
	}
	p.opened = append(p.opened, sub.Topics)
	return p.Broker.Open(ctx, sub)
}

// TestSomeFail tests that a topic that cannot be opened stops no other topic,
// for every reason.
func TestSomeFail(t *testing.T) {
	errLater := errors.New("the node of the queue is down")
	fails := func(topic string, err error) func([]string) error {
		return func(topics []string) error {
			if slices.Contains(topics, topic) {
				return err
			}
			return nil
		}
	}
	for name, tt := range map[string]struct {
		refuse func(topics []string) error
		want   string // the sources that are opened last
		failed bool   // refunds-dead fails
	}{
		"none": {func([]string) error { return nil }, "[[orders-dead refunds-dead stock-dead]]", false},
		"together": {func(topics []string) error {
			if len(topics) > 1 {
				return brokers.ErrMisconfigured
			}
			return nil
		}, "[[orders-dead] [refunds-dead] [stock-dead]]", false},
		"one for good":       {fails("refunds-dead", brokers.ErrMisconfigured), "[[orders-dead stock-dead]]", true},
		"one for the moment": {fails("refunds-dead", errLater), "[[orders-dead stock-dead]]", true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				broker := &picky{Broker: w.brokers["shop"], refuse: func([]string) error { return nil }}
				for _, topic := range []string{"orders-dead", "refunds-dead", "stock-dead"} {
					w.publish("shop", topic, 3)
				}
				w.on(`
brokers:
  shop: {kind: rabbitmq, urls: [amqp://localhost]}
topics:
  - {name: orders, broker: shop, dead: [orders-dead], collect: true}
  - {name: refunds, broker: shop, dead: [refunds-dead], collect: true}
  - {name: stock, broker: shop, dead: [stock-dead], collect: true}
`, broker)
				broker.refuse = tt.refuse
				w.run()
				w.pass(2 * time.Minute)
				broker.mu.Lock()
				last := broker.opened[max(0, len(broker.opened)-strings.Count(tt.want, "-dead]")):]
				if !tt.failed && len(broker.opened) > 6 {
					w.Errorf("%d sources were opened: %q", len(broker.opened), broker.opened)
				}
				got := slices.SortedFunc(slices.Values(last), slices.Compare)
				broker.mu.Unlock()
				if fmt.Sprint(got) != tt.want {
					w.Errorf("the sources are %v, want %s", got, tt.want)
				}
				if !tt.failed {
					w.collected(3, "orders", "refunds", "stock")
					return
				}
				w.collected(3, "orders", "stock")
				w.wants(`redrive_collect_paused{broker="shop",topic="refunds-dead"}`, "1")
				broker.mu.Lock()
				broker.refuse = func([]string) error { return nil }
				broker.mu.Unlock()
				w.pass(2 * time.Minute)
				w.collected(3, "orders", "refunds", "stock")
			})
		})
	}
}

// TestBrokerRestarts tests that topics share a source after an outage of their
// broker.
func TestBrokerRestarts(t *testing.T) {
	inWorld(t, func(w *world) {
		down := true
		broker := &picky{Broker: w.brokers["shop"]}
		broker.refuse = func([]string) error {
			if down {
				return errors.New("connection refused")
			}
			return nil
		}
		w.on(strings.Replace(text, "store: {url: letters.db}\n", "", 1), broker)
		w.publish("shop", "orders-dead", 3)
		w.publish("shop", "refunds-dead", 3)
		w.publish("shop", "payments-dead", 3)
		w.run()
		w.pass(time.Hour)
		broker.mu.Lock()
		down = false
		broker.mu.Unlock()
		w.pass(2 * time.Minute)
		w.collected(3, "orders", "payments", "refunds")
		broker.mu.Lock()
		defer broker.mu.Unlock()
		if !slices.ContainsFunc(broker.opened, func(topics []string) bool { return slices.Equal(topics, []string{"orders-dead", "refunds-dead"}) }) {
			w.Errorf("the sources are %q", broker.opened)
		}
	})
}

// TestStoreRefusesOneTopic tests that the server collects another topic while
// the store refuses more than 100 letters of the first.
func TestStoreRefusesOneTopic(t *testing.T) {
	inWorld(t, func(w *world) {
		log := w.listen()
		db, err := sql.Open("sqlite", w.file)
		w.must(err)
		_, err = db.Exec("create trigger refuse before insert on letters when cast(new.message_id as text) like 'refunds%' begin select raise(abort, 'no'); end")
		w.must(errors.Join(err, db.Close()))
		w.publish("shop", "refunds-dead", 101)
		w.publish("shop", "orders-dead", 3)
		w.run()
		w.pass(10 * time.Second)
		w.publish("shop", "orders-dead", 2)
		w.pass(10 * time.Second)
		if n := w.letters("orders"); n != 5 {
			w.Errorf("%d letters of orders, want 5", n)
		}
		w.wants(`redrive_collect_paused{broker="shop",topic="refunds-dead"}`, "1")
		w.wants(`redrive_collect_paused{broker="shop",topic="orders-dead"}`, "0")
		if log.lines("collecting dead letters does not work", "topics=[refunds-dead]", collect.ErrRefused.Error()) == 0 {
			w.Errorf("the log does not name the topic\n%s", &log.text)
		}
	})
}

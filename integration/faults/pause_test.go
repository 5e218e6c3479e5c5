package faults

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/livetest"
)

// What mails need is down for 25 s. The Consumer has the default Config: it
// pauses mails at the broker, orders flow, and in the end all mails are sent.
// So on each broker.

func TestOnRabbitMQOneTopicPausesAndTheOtherFlows(t *testing.T) {
	t.Parallel() // with the others that do, when the rest is done
	o := newOwn(t, livetest.Address(t, "REDRIVE_RABBITMQ4_URL"), 16*time.Minute)
	mails := o.prefix + ".mails"
	if err := o.broker.Declare(t.Context(), mails); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, queue := range []string{mails, mails + ".dead", o.prefix + ".retry.v1." + mails} {
			if ch, err := o.admin.Channel(); err == nil {
				ch.QueueDelete(queue, false, false, false)
				ch.Close()
			}
		}
	})
	testPause(t, o.broker, o.topic, mails, ".dead")
}

func TestOnKafkaOneTopicPausesAndTheOtherFlows(t *testing.T) {
	t.Parallel() // with the others that do, when the rest is done
	address := livetest.Address(t, "REDRIVE_KAFKA_URL")
	orders, mails := makeTopic(t, address), makeTopic(t, address)
	broker, err := kafka.New(kafkaOptions(address, orders))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { broker.Close(context.Background()) })
	testPause(t, broker, orders, mails, ".dead")
}

func TestOnSQSOneTopicPausesAndTheOtherFlows(t *testing.T) {
	t.Parallel() // with the others that do, when the rest is done
	address := livetest.Address(t, "REDRIVE_SQS_URL")
	options := sqsOptions(address)
	options.PollWait = 0 // the default
	broker, err := sqs.New(options)
	if err != nil {
		t.Fatal(err)
	}
	name := "faults-" + strings.ToLower(rand.Text()[:8])
	orders, mails := name+"-orders", name+"-mails"
	t.Cleanup(func() {
		broker.Close(context.Background())
		for _, queue := range []string{orders, orders + "-dead", mails, mails + "-dead"} {
			body := strings.NewReader(fmt.Sprintf(`{"QueueUrl": %q}`, address+"/000000000000/"+queue))
			call, err := http.NewRequest(http.MethodPost, address, body)
			if err != nil {
				t.Fatal(err)
			}
			call.Header.Set("Content-Type", "application/x-amz-json-1.0")
			call.Header.Set("X-Amz-Target", "AmazonSQS.DeleteQueue")
			if answer, err := http.DefaultClient.Do(call); err == nil {
				answer.Body.Close()
			}
		}
	})
	testPause(t, broker, orders, mails, "-dead")
}

// watch is what is seen of a Consumer with two topics.
type watch struct {
	orders, mails string

	mu        sync.Mutex
	down      bool                 // what mails need
	published map[string]time.Time // by the ID of a message
	handled   map[string]bool
	waited    time.Duration // an order, the longest
	paused    time.Time     // zero if mails are not
	pauses    []string      // why
	letters   []string
	received  int // mails while paused, but for the first moments
	probes    int // mails that ran while paused
}

// onItsWay is how long after the beginning of a pause a mail may still come.
const onItsWay = 3 * time.Second

// Observe implements consumer.Observer.
func (w *watch) Observe(_ context.Context, e consumer.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.Kind {
	case consumer.EventPaused:
		w.paused = e.Time
		w.pauses = append(w.pauses, fmt.Sprintf("%s until %v: %v", e.Dependency, e.Until, e.Err))
	case consumer.EventResumed:
		w.paused = time.Time{}
	case consumer.EventDeadLettered:
		w.letters = append(w.letters, e.Message.ID+": "+e.DeadLetter.ErrorText)
	case consumer.EventReceived:
		if e.Topic == w.mails && !w.paused.IsZero() && time.Since(w.paused) > onItsWay {
			w.received++
		}
	case consumer.EventStarted:
		if e.Topic == w.mails && !w.paused.IsZero() {
			w.probes++
		}
	}
}

func (w *watch) handle(_ context.Context, m *brokers.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.Topic == w.mails && w.down {
		return fmt.Errorf("dial the mail server: %w", syscall.ECONNREFUSED)
	}
	if at, known := w.published[m.ID]; known && m.Topic == w.orders && !w.handled[m.ID] {
		w.waited = max(w.waited, time.Since(at))
	}
	w.handled[m.ID] = true
	return nil
}

func (w *watch) set(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
}

// count returns how many of a topic are published, and how many are handled.
func (w *watch) count(topic string) (published, handled int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.published {
		if strings.HasPrefix(id, topic) {
			published++
			if w.handled[id] {
				handled++
			}
		}
	}
	return published, handled
}

// publish sends 50 messages a second to each topic until ctx ends.
func (w *watch) publish(ctx context.Context, t *testing.T, broker brokers.Broker) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; {
		for _, topic := range []string{w.orders, w.mails} {
			batch := make([]brokers.Message, 5)
			w.mu.Lock()
			for i := range batch {
				n++
				batch[i] = brokers.Message{ID: fmt.Sprintf("%s %d", topic, n), Body: []byte("{}")}
				w.published[batch[i].ID] = time.Now()
			}
			w.mu.Unlock()
			if err := broker.Publish(context.WithoutCancel(ctx), topic, batch...); err != nil {
				t.Errorf("publish: %v", err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func testPause(t *testing.T, broker brokers.Broker, orders, mails, dead string) {
	w := &watch{orders: orders, mails: mails, published: map[string]time.Time{}, handled: map[string]bool{}}
	c, err := consumer.New(broker, consumer.Config{DeadLetter: dlq.Suffix(dead), Observers: []consumer.Observer{w}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c.Handle(orders, w.handle)
	c.Handle(mails, w.handle)
	ctx, stop := context.WithCancel(t.Context())
	var work, traffic sync.WaitGroup
	work.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	defer work.Wait()
	defer stop()
	flowing, end := context.WithCancel(ctx)
	defer traffic.Wait()
	defer end()
	for _, topic := range []string{orders, mails} { // the worker makes its queues
		until(t, time.Minute, func() bool { return broker.Publish(ctx, topic, brokers.Message{ID: "first"}) == nil })
	}
	traffic.Go(func() { w.publish(flowing, t, broker) })
	until(t, time.Minute, func() bool { _, n := w.count(mails); return n > 50 })

	w.mu.Lock()
	w.waited = 0 // for the start of the worker
	w.mu.Unlock()
	w.set(true)
	begun := time.Now()
	until(t, time.Minute, func() bool { return time.Since(begun) > 25*time.Second })
	sent, _ := w.count(orders)
	until(t, time.Minute, func() bool { _, handled := w.count(orders); return handled >= sent }) // in the outage of mails
	w.mu.Lock()
	t.Logf("in the outage: %d orders handled, the longest waited %v; mails: %d received while paused, %d probes; pauses %q",
		sent, w.waited, w.received, w.probes, w.pauses)
	if len(w.pauses) == 0 || !strings.HasPrefix(w.pauses[0], mails+" ") {
		t.Errorf("pauses are %q, want mails to pause", w.pauses)
	}
	if w.waited > 20*time.Second { // nearly as long as the outage
		t.Errorf("an order waited %v", w.waited)
	}
	// A probe comes with what its source has at hand, up to the room of a topic.
	if most := 20 * (w.probes + 1); w.received > most {
		t.Errorf("%d mails were received while they were paused, for %d probes; want at most %d", w.received, w.probes, most)
	}
	w.mu.Unlock()

	w.set(false)
	recovered := time.Now()
	until(t, 2*time.Minute, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.paused.IsZero()
	})
	t.Logf("mails go on %v after the outage", time.Since(recovered))
	end()
	traffic.Wait()
	for _, topic := range []string{orders, mails} {
		until(t, 3*time.Minute, func() bool { sent, handled := w.count(topic); return handled == sent })
	}
	t.Logf("all are handled %v after the outage", time.Since(recovered))
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.letters) > 0 {
		t.Errorf("%d dead letters: %q", len(w.letters), w.letters[:min(3, len(w.letters))])
	}
}

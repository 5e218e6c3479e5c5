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
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/integration/livetest"
)

// What mails need is down for 25 s. The Consumer has the default Config: it
// pauses mails at the broker, orders flow, the load comes back as a ramp, and in the end
// all mails are sent. Then a backlog of mails meets a rate limit. So on each broker.

func TestOnRabbitMQOneTopicPausesAndTheOtherFlows(t *testing.T) {
	t.Parallel() // with the others that do, when the rest is done
	o := newOwn(t, livetest.Address(t, "REDRIVE_RABBITMQ4_URL"), 16*time.Minute)
	mails := o.prefix + ".mails"
	must(t, o.broker.Declare(t.Context(), mails))
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
	must(t, err)
	t.Cleanup(func() { broker.Close(context.Background()) })
	testPause(t, broker, orders, mails, ".dead")
}

func TestOnSQSOneTopicPausesAndTheOtherFlows(t *testing.T) {
	t.Parallel() // with the others that do, when the rest is done
	address := livetest.Address(t, "REDRIVE_SQS_URL")
	options := sqsOptions(address)
	options.PollWait = 0 // the default
	broker, err := sqs.New(options)
	must(t, err)
	name := "faults-" + strings.ToLower(rand.Text()[:8])
	orders, mails := name+"-orders", name+"-mails"
	t.Cleanup(func() {
		broker.Close(context.Background())
		for _, queue := range []string{orders, orders + "-dead", mails, mails + "-dead"} {
			body := strings.NewReader(fmt.Sprintf(`{"QueueUrl": %q}`, address+"/000000000000/"+queue))
			call, err := http.NewRequest(http.MethodPost, address, body)
			must(t, err)
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

	recovered time.Time // when what mails need was up again
	ramp      [5]int    // mails that ran in each second from the first one on
	limited   bool      // what mails need answers rateLimit calls a second
	tokens    float64
	filled    time.Time
	calls     int
}

// usualRate is how many mails are published in a second, and rateLimit how many calls
// are answered in a second while the rate is limited.
const (
	usualRate = 50
	rateLimit = 100
)

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
	if m.Topic == w.mails {
		if err := w.call(time.Now()); err != nil {
			return err
		}
	}
	if at, known := w.published[m.ID]; known && m.Topic == w.orders && !w.handled[m.ID] {
		w.waited = max(w.waited, time.Since(at))
	}
	w.handled[m.ID] = true
	return nil
}

// call is a call of what mails need. mu is held.
func (w *watch) call(now time.Time) error {
	if w.down {
		return fmt.Errorf("dial the mail server: %w", syscall.ECONNREFUSED)
	}
	if second := int(now.Sub(w.recovered) / time.Second); !w.recovered.IsZero() && second < len(w.ramp) {
		w.ramp[second]++
	}
	if !w.limited {
		return nil
	}
	w.calls++
	w.tokens = min(rateLimit, w.tokens+rateLimit*now.Sub(w.filled).Seconds())
	w.filled = now
	if w.tokens < 1 {
		return &classify.HTTPError{Status: http.StatusTooManyRequests}
	}
	w.tokens--
	return nil
}

func (w *watch) set(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down = down; !down {
		w.recovered = time.Now()
	}
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
	c, err := consumer.New(broker, consumer.Config{DeadLetter: "*" + dead, Observers: []consumer.Observer{w}, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
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
		until(t, func() bool { return broker.Publish(ctx, topic, brokers.Message{ID: "first"}) == nil })
	}
	traffic.Go(func() { w.publish(flowing, t, broker) })
	until(t, func() bool { _, n := w.count(mails); return n > 25*usualRate }) // the worker learns the usual rate

	w.mu.Lock()
	w.waited = 0 // for the start of the worker
	w.mu.Unlock()
	w.set(true)
	begun := time.Now()
	until(t, func() bool { return time.Since(begun) > 25*time.Second })
	sent, _ := w.count(orders)
	until(t, func() bool { _, handled := w.count(orders); return handled >= sent }) // in the outage of mails
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
	until(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.paused.IsZero()
	})
	t.Logf("mails go on %v after the outage", time.Since(recovered))
	end()
	traffic.Wait()
	for _, topic := range []string{orders, mails} {
		until(t, func() bool { sent, handled := w.count(topic); return handled == sent })
	}
	t.Logf("all are handled %v after the outage", time.Since(recovered))
	w.mu.Lock()
	t.Logf("mails in the first seconds after the outage: %v", w.ramp)
	for second, n := range w.ramp {
		if n > 2*usualRate {
			t.Errorf("%d mails ran in second %d after the outage, want at most twice the usual %d", n, second+1, usualRate)
		}
	}
	w.mu.Unlock()
	w.meetRateLimit(t, broker)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.letters) > 0 {
		t.Errorf("%d dead letters: %q", len(w.letters), w.letters[:min(3, len(w.letters))])
	}
}

// meetRateLimit has a backlog of mails meet a dependency that answers rateLimit calls a
// second, and others with status 429.
func (w *watch) meetRateLimit(t *testing.T, broker brokers.Broker) {
	const backlog, batch = 3000, 10
	w.mu.Lock()
	w.limited, w.filled, w.tokens = true, time.Now(), rateLimit
	w.mu.Unlock()
	begun := time.Now()
	for n := range backlog / batch {
		ms := make([]brokers.Message, batch)
		w.mu.Lock()
		for i := range ms {
			ms[i] = brokers.Message{ID: fmt.Sprintf("%s backlog %d", w.mails, batch*n+i), Body: []byte("{}")}
			w.published[ms[i].ID] = time.Now()
		}
		w.mu.Unlock()
		must(t, broker.Publish(t.Context(), w.mails, ms...))
	}
	until(t, func() bool { sent, handled := w.count(w.mails); return handled == sent })
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("%d mails against %d calls a second took %v and %d calls", backlog, rateLimit, time.Since(begun), w.calls)
	if w.calls > backlog*3/2 {
		t.Errorf("%d calls for %d mails, want at most 1.5 for each", w.calls, backlog)
	}
}

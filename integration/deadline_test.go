package integration_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/retry"
)

// A first run that is put off waits in the broker, where it outlives the worker,
// and is no attempt. A deadline ends messages on every broker, and those that are
// sent back have none.
func TestDeadlineAndStartAfter(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { firstRuns(t, memory.New(memory.Options{}), nil, "orders") })
	})
	t.Run("sqstest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			server := sqstest.New(sqstest.Options{})
			t.Cleanup(server.Close)
			b, err := sqs.New(sqs.Options{Config: server.Config(), Create: true})
			firstRuns(t, b, err, "orders")
		})
	})
	onBrokers(t, "first", firstRuns)
}

// starter runs workers on a topic, and notes what becomes of its messages.
type starter struct {
	spare int // attempts that the broker may count too many: SQS takes a message that a worker which stops gives back for one

	mu      sync.Mutex
	put     int // off
	runs    map[string][]brokers.Meta
	early   []string
	dead    map[string]dlq.Entry
	handled chan string
}

const startAfter = 5 * time.Second // more than is held in the process

func (s *starter) handle(ctx context.Context, m *brokers.Message) error {
	s.mu.Lock()
	s.runs[m.ID] = append(s.runs[m.ID], consumer.MetaFrom(ctx))
	first := len(s.runs[m.ID]) == 1
	if m.ID != "passed" && time.Since(m.PublishedAt) < startAfter {
		s.early = append(s.early, m.ID)
	}
	s.mu.Unlock()
	if m.ID == "cut" {
		<-ctx.Done()
		return ctx.Err()
	}
	if m.ID == "retried" && first {
		return classify.Transient(errors.New("busy"))
	}
	return nil
}

// Observe implements consumer.Observer.
func (s *starter) Observe(_ context.Context, e consumer.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Kind {
	case consumer.EventDeadLettered:
		s.dead[e.Message.ID] = *e.DeadLetter
	case consumer.EventSettled:
		switch e.Action {
		case brokers.Retry:
			if e.Meta.FirstFailedAt.IsZero() {
				s.put++
			}
		case brokers.Ack:
			s.handled <- e.Message.ID
		}
	}
}

// work starts a worker.
func (s *starter) work(t *testing.T, b brokers.Broker, topic string) (stop func()) {
	t.Helper()
	c, err := consumer.New(b, consumer.Config{DeadLetter: "*-dead", Logger: slog.New(slog.DiscardHandler), Observers: []consumer.Observer{s}})
	must(t, err)
	c.HandleWith(topic, s.handle, consumer.TopicConfig{StartAfter: startAfter})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// await waits until so many messages have ended.
func (s *starter) await(t *testing.T, n int) {
	t.Helper()
	timeout := time.After(2 * time.Minute)
	for range n {
		select {
		case <-s.handled:
		case <-timeout:
			t.Fatalf("a message has not ended within 2 min: runs %v, dead %v", s.runs, s.dead)
		}
	}
}

func firstRuns(t *testing.T, b brokers.Broker, err error, topic string) {
	t.Helper()
	must(t, err)
	defer func() {
		if err := b.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Close: %v", err)
		}
	}()
	s := &starter{runs: map[string][]brokers.Meta{}, dead: map[string]dlq.Entry{}, handled: make(chan string, 100)}
	if _, estimates := b.(*sqs.Broker); estimates {
		s.spare = 1
	}
	stop := s.work(t, b, topic)
	message := func(id string, deadline time.Duration) brokers.Message {
		m := brokers.Message{ID: id, Body: []byte("order")}
		if deadline > 0 {
			m.SetDeadline(time.Now().Add(deadline))
		}
		return m
	}
	for tries := 0; ; tries++ { // the worker makes the queue
		err := b.Publish(t.Context(), topic, message("plain", 0), message("retried", time.Hour), message("passed", time.Second), message("cut", startAfter+3*time.Second))
		if err == nil {
			break
		}
		if tries == 30 {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	for range 300 {
		s.mu.Lock()
		put := s.put
		s.mu.Unlock()
		if put == 4 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	stop = s.work(t, b, topic)
	s.await(t, 4)
	stop()
	s.expect(t, map[string]int{"plain": 1, "retried": 2, "cut": 1}, "passed", "cut")

	passed := s.dead["passed"]
	if len(passed.Message.Headers) != 1 || passed.Meta.Attempt > s.spare || !passed.Meta.FirstFailedAt.IsZero() || !strings.HasPrefix(passed.ErrorText, consumer.ErrDeadline.Error()) {
		t.Errorf("dead letter %+v, want one without an attempt that has its header", passed)
	}
	stop = s.work(t, b, topic)
	must(t, b.SendBack(t.Context(), topic, topic, brokers.Item{Message: &passed.Message, Meta: passed.Meta}))
	s.await(t, 1)
	stop()
	s.expect(t, map[string]int{"plain": 1, "retried": 2, "cut": 1, "passed": 1}, "passed", "cut")
}

// RabbitMQ may not know when a message was published, or have been told a time in
// the future. Then the first arrival counts, and copies carry it.
func TestDeadlineFromTheFirstArrival(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		topic := "arrival-" + strings.ToLower(rand.Text()[:10])
		t.Cleanup(func() { dropQueues(t, target.URL, topic, topic+"-dead", "redrive.retry.v1."+topic) })
		b, err := rabbitmq.New(rabbitmq.Options{URLs: []string{target.URL}})
		must(t, err)
		defer b.Close(context.WithoutCancel(t.Context()))
		const deadline = 4 * time.Second
		dead := make(chan dlq.Entry, 10)
		c, err := consumer.New(b, consumer.Config{
			DeadLetter: "*-dead", Logger: slog.New(slog.DiscardHandler), HoldLimit: -1,
			Guard: consumer.Guard{Off: true}, Retry: retry.Policy{MaxAttempts: 100, Backoff: retry.Backoff{Base: time.Second, Multiplier: 1, Jitter: retry.NoJitter}},
			Observers: []consumer.Observer{observing(func(e consumer.Event) {
				if e.Kind == consumer.EventDeadLettered {
					dead <- *e.DeadLetter
				}
			})},
		})
		must(t, err)
		c.HandleWith(topic, func(_ context.Context, m *brokers.Message) error {
			if age := time.Since(m.PublishedAt); age < 0 || age >= deadline {
				t.Errorf("a run %v after %v", age, m.PublishedAt)
			}
			return classify.Transient(errors.New("busy"))
		}, consumer.TopicConfig{Deadline: deadline})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		publishForeign(t, target.URL, topic,
			amqp.Publishing{MessageId: "unknown", Body: []byte("order")},
			amqp.Publishing{MessageId: "future", Body: []byte("order"), Timestamp: time.Now().AddDate(100, 0, 0)})
		for range 2 {
			select {
			case letter := <-dead:
				if n := letter.Meta.Attempt; letter.Reason != "expired" || n < 2 || letter.ErrorText != "busy" {
					t.Errorf("dead letter %+v, want it expired after a few attempts", letter)
				}
			case <-time.After(time.Minute):
				t.Error("a message did not end within a minute")
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// publishForeign publishes messages as another program does, once there is a queue
// for them.
func publishForeign(t *testing.T, url, queue string, messages ...amqp.Publishing) {
	t.Helper()
	conn, err := amqp.Dial(url)
	must(t, err)
	defer conn.Close()
	for tries := 0; ; tries++ {
		ch, err := conn.Channel()
		must(t, err)
		if _, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil && tries < 30 {
			time.Sleep(time.Second)
			continue
		}
		for _, m := range messages {
			err = errors.Join(err, ch.Publish("", queue, false, false, m))
		}
		if err = errors.Join(err, ch.Close()); err != nil { // which waits for the broker
			t.Fatal(err)
		}
		return
	}
}

// expect compares runs and dead letters. A broker may deliver a message twice, as
// after a lost connection.
func (s *starter) expect(t *testing.T, runs map[string]int, dead ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, want := range runs {
		if got := s.runs[id]; len(got) < want || !got[0].FirstFailedAt.IsZero() || got[0].Attempt > 1+s.spare || got[want-1].Attempt > want+s.spare {
			t.Errorf("runs of %s: %+v, want %d", id, got, want)
		}
	}
	for id := range s.runs {
		if runs[id] == 0 {
			t.Errorf("%s has run", id)
		}
	}
	for id, letter := range s.dead {
		if letter.Reason != "expired" || !slices.Contains(dead, id) {
			t.Errorf("dead letter of %s: %+v", id, letter)
		}
	}
	if len(s.dead) != len(dead) || len(s.early) > 0 {
		t.Errorf("%d dead letters, want %d; early: %v", len(s.dead), len(dead), s.early)
	}
}

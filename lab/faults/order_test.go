package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/retry"
)

// sequence is what handlers did with messages that are numbered from 0 on for
// each key.
type sequence struct {
	mu       sync.Mutex
	runs     map[string]int // by key and number
	order    []string       // of the successes, each when it was the first
	next     map[string]int // by key: the number after the highest success
	overtook int
	done     int
}

func newSequence() *sequence {
	return &sequence{runs: make(map[string]int), next: make(map[string]int)}
}

// run says whether this run of a message succeeds: not before it has failed so
// many times.
func (q *sequence) run(m *brokers.Message, failures int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	id := m.Key + "/" + string(m.Body)
	if q.runs[id]++; q.runs[id] <= failures {
		return errors.New("busy")
	}
	if q.runs[id] > failures+1 {
		return nil // handled before, by a worker that could not commit it
	}
	n, _ := strconv.Atoi(string(m.Body))
	if n != q.next[m.Key] {
		q.overtook++
	}
	q.next[m.Key] = max(q.next[m.Key], n+1)
	q.order = append(q.order, id)
	q.done++
	return nil
}

func (q *sequence) counts() (done, overtook int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.done, q.overtook
}

// orderly is a worker that keeps the order of keys with many handlers. It may
// be killed: then its connections end, and it makes no new ones.
type orderly struct {
	killed atomic.Bool
	mu     sync.Mutex
	conns  []net.Conn
	stop   func()
}

func startOrderly(t *testing.T, address, topic string, delay time.Duration, h consumer.Handler) *orderly {
	t.Helper()
	w := &orderly{}
	options := kafkaOptions(address, topic)
	options.Dial = w.dial
	broker, err := kafka.New(options)
	must(t, err)
	c, err := consumer.New(broker, consumer.Config{
		DeadLetter: dlq.Discard, OrderByKey: true, Concurrency: 20, Prefetch: 200, HoldLimit: time.Minute, DrainTimeout: -1,
		Retry:  retry.Policy{Backoff: retry.Backoff{Base: delay, Cap: delay, Floor: delay / 2}},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	must(t, err)
	c.Handle(topic, func(ctx context.Context, m *brokers.Message) error {
		if w.killed.Load() || ctx.Err() != nil {
			return context.Canceled
		}
		return h(ctx, m)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { c.Run(ctx) })
	w.stop = sync.OnceFunc(func() {
		cancel()
		work.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		broker.Close(ctx)
	})
	t.Cleanup(w.stop)
	return w
}

func (w *orderly) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.killed.Load() {
		conn.Close()
		return nil, errors.New("killed")
	}
	w.conns = append(w.conns, conn)
	return conn, nil
}

func (w *orderly) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.killed.Store(true)
	for _, conn := range w.conns {
		conn.Close()
	}
}

func publishKeys(t *testing.T, address, topic string, keys, each int) {
	t.Helper()
	broker, err := kafka.New(kafkaOptions(address, topic))
	must(t, err)
	defer broker.Close(context.Background())
	var messages []brokers.Message
	for n := range each {
		for k := range keys {
			messages = append(messages, brokers.Message{Key: fmt.Sprint("key-", k), Body: fmt.Append(nil, n)})
		}
	}
	must(t, broker.Publish(t.Context(), topic, messages...))
}

// A retry that is held holds its key, however many handlers there are, when a
// worker joins while it waits, and when one is killed.
func TestHeldRetriesKeepTheOrderOfTheirKey(t *testing.T) {
	t.Parallel() // with the others that do, when the rest is done
	onKafka(t, func(t *testing.T, target livetest.Target) {
		const keys, each = 8, 24
		topic := makeTopic(t, target.URL)
		publishKeys(t, target.URL, topic, keys, each)
		q := newSequence()
		handler := func(_ context.Context, m *brokers.Message) error {
			time.Sleep(10 * time.Millisecond) // the handler's work
			if n, _ := strconv.Atoi(string(m.Body)); n%3 == 0 {
				return q.run(m, 2)
			}
			return q.run(m, 0)
		}
		reach := func(fourths int) {
			until(t, func() bool {
				done, _ := q.counts()
				return done >= keys*each*fourths/4
			})
		}
		first := startOrderly(t, target.URL, topic, 400*time.Millisecond, handler)
		reach(1)
		startOrderly(t, target.URL, topic, 400*time.Millisecond, handler)
		reach(2)
		first.kill()
		reach(4)
		if done, overtook := q.counts(); overtook > 0 {
			t.Errorf("%d of %d messages overtook others of their key: %s", overtook, done, strings.Join(q.order, " "))
		}
	})
}

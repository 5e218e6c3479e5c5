package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/bench/internal/figure"
	"github.com/redrive-go/redrive/bench/kafka"
	"github.com/redrive-go/redrive/brokers"
	adapter "github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

// delays of the failures that are outstanding together: the first is due when
// all have failed.
const (
	firstDue = 12 * time.Second
	lastDue  = 36 * time.Second
)

// failOnceLater has a message come back after firstDue to lastDue.
var failOnceLater = consumer.Config{
	Guard:    unguarded,
	Prefetch: kafkaPrefetch,
	Retry:    retry.Policy{Backoff: retry.Backoff{Base: lastDue, Cap: lastDue, Floor: firstDue}},
}

const kafkaOutstanding = 100_000

// lateness lets 100,000 messages fail and measures how late their retries run,
// and how many run early.
func (s *kafkaSession) lateness(ctx context.Context) error {
	topic, err := s.filled(ctx, "lateness", kafkaOutstanding)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := newWaits()
	cfg := failOnceLater
	cfg.Observers = []consumer.Observer{w}
	var failed, done, together atomic.Int64
	err = kafka.Work(ctx, s.world, cfg, s.world.Group(), topic, func(ctx context.Context, _ *brokers.Message) error {
		if consumer.MetaFrom(ctx).Attempt == 1 {
			failed.Add(1)
			return errBusy
		}
		switch done.Add(1) {
		case 1:
			together.Store(failed.Load())
		case kafkaOutstanding:
			stop()
		}
		return nil
	})
	late, stored := w.take()
	if err == nil && (len(late) < kafkaOutstanding || stored < kafkaOutstanding) {
		err = fmt.Errorf("%d retries ran and %d were stored, of %d: %w", len(late), stored, kafkaOutstanding, context.Cause(ctx))
	}
	if err != nil {
		return err
	}
	note("lateness p50 %v, p99 %v, with %d outstanding when the first was due", figure.Median(late), figure.Quantile(late, 0.99), together.Load())
	s.report(figure.Figure{Name: "kafka_late_p99_ms", Value: milliseconds(figure.Quantile(late, 0.99)), Unit: "ms", Goal: 20})
	s.report(figure.Figure{Name: "kafka_early", Value: float64(early(late)), Unit: "retries", Goal: 0})
	return nil
}

const kafkaWaiting = 1_000_000

// Retries of the part waiting are due between these, after they were stored:
// none as long as they are being stored.
const (
	waitingFrom = 75 * time.Second
	waitingTo   = 14 * time.Minute
)

// waiting measures what a million outstanding retries take in memory, and how
// long a worker that begins with them takes to hand out the first.
func (s *kafkaSession) waiting(ctx context.Context) error {
	topic, err := s.filled(ctx, "waiting", kafkaWaiting)
	if err != nil {
		return err
	}
	group := s.world.Group()
	before := heap()
	began := time.Now()
	w, err := s.open(ctx, group, topic)
	if err != nil {
		return err
	}
	if err := w.postpone(ctx, kafkaWaiting); err != nil {
		return errors.Join(err, w.close(ctx))
	}
	stored := time.Since(began)
	if err := w.quiet(ctx); err != nil {
		return errors.Join(err, w.close(ctx))
	}
	perMessage := float64(heap()-before) / kafkaWaiting
	note("%d retries stored in %v, and read in %v", kafkaWaiting, stored, time.Since(began)-stored)
	s.report(figure.Figure{Name: "kafka_bytes_per_waiting", Value: perMessage, Unit: "B", Goal: 64})
	if err := w.close(ctx); err != nil {
		return err
	}
	time.Sleep(time.Until(began.Add(waitingFrom + time.Second)))
	return s.restart(ctx, group, topic)
}

// restart measures the time until a worker hands out the first of a million
// retries that somebody else has left.
func (s *kafkaSession) restart(ctx context.Context, group, topic string) error {
	began := time.Now()
	w, err := s.open(ctx, group, topic)
	if err != nil {
		return err
	}
	ds, err := w.source.Receive(ctx, 1)
	took := time.Since(began)
	if err == nil && ds[0].Meta.Attempt == 0 {
		err = errors.New("a message was handed out that had been retried")
	}
	if err != nil {
		return errors.Join(err, w.close(ctx))
	}
	note("restart: %.0f MB read until the first retry", float64(w.read.Load())/1e6)
	s.report(figure.Figure{Name: "kafka_restart_s", Value: took.Seconds(), Unit: "s", Goal: 10})
	return w.close(ctx)
}

// heap returns the bytes of the heap in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what pools kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// bare is a source without a pipeline, whose connections are counted.
type bare struct {
	broker *adapter.Broker
	source brokers.Source
	read   atomic.Int64 // bytes
}

func (s *kafkaSession) open(ctx context.Context, group, topic string) (*bare, error) {
	w := &bare{}
	var err error
	w.broker, err = s.world.Broker(group, func(o *adapter.Options) { o.Dial = w.dial })
	if err != nil {
		return nil, err
	}
	w.source, err = w.broker.Open(ctx, brokers.Subscription{
		Topics: []string{topic}, InFlight: 10_000, MaxDelay: waitingTo, MaxAge: time.Hour, MaxAttempts: 10,
	})
	if err != nil {
		return nil, errors.Join(err, w.broker.Close(ctx))
	}
	return w, nil
}

func (w *bare) close(ctx context.Context) error { return w.broker.Close(ctx) }

func (w *bare) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return countedConn{conn, &w.read}, nil
}

type countedConn struct {
	net.Conn
	read *atomic.Int64
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// postpone receives n messages and stores a retry of each.
func (w *bare) postpone(ctx context.Context, n int) error {
	const together = 10_000
	var batch []brokers.Settlement
	for n > 0 {
		for len(batch) < min(together, n) {
			ds, err := w.source.Receive(ctx, min(together, n)-len(batch))
			if err != nil {
				return err
			}
			for _, d := range ds {
				batch = append(batch, postponed(d, waitingFrom+rand.N(waitingTo-waitingFrom)))
			}
		}
		if err := errors.Join(w.source.Settle(ctx, batch)...); err != nil {
			return err
		}
		n -= len(batch)
		batch = batch[:0]
	}
	return nil
}

// postponed is what the pipeline would settle d with after its first failure.
func postponed(d *brokers.Delivery, delay time.Duration) brokers.Settlement {
	now := time.Now()
	meta := d.Meta
	meta.Attempt, meta.FirstFailedAt, meta.LastFailedAt, meta.Class = 1, now, now, "transient"
	meta.DueAt, meta.Delay = now.Add(delay), delay
	meta.History = []brokers.Failure{{Attempt: 1, At: now, Class: meta.Class, Fingerprint: "0123456789abcdef", Delay: delay}}
	return brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: delay, Meta: meta}
}

// quiet waits until the source has read all that there is: some seconds
// without more than the answers to heartbeats and idle fetches.
func (w *bare) quiet(ctx context.Context) error {
	const idle = 100_000 // bytes a second, far below what reading takes
	for last := int64(0); ; {
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now := w.read.Load()
		if now-last < 2*idle {
			return nil
		}
		last = now
	}
}

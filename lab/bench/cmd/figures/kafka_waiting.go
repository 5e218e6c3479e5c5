package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	adapter "github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/lab/bench/contender"
	"github.com/redrive-go/redrive/lab/bench/internal/figure"
)

// Retries of the part waiting are due between these, after they were stored:
// none as long as they are being stored.
const (
	waitingFrom = 75 * time.Second
	waitingTo   = 14 * time.Minute
)

// waiting measures what a million outstanding retries take in memory, and how
// long a worker that begins with them takes to hand out the first.
func (s *kafkaSession) waiting(ctx context.Context, samples *figure.Samples) error {
	s.world.NextGroup()
	topics, err := s.world.Fill(ctx, kafkaWaiting, "waiting")
	if err != nil {
		return err
	}
	before, began := heap(2).HeapInuse, time.Now()
	w, err := s.open(ctx, topics[0])
	if err != nil {
		return err
	}
	for left := kafkaWaiting; left > 0 && err == nil; {
		together := min(10_000, left)
		_, _, err = w.settle(ctx, together, together, func() time.Duration { return waitingFrom + rand.N(waitingTo-waitingFrom) })
		left -= together
	}
	stored := time.Since(began)
	if err := errors.Join(err, w.quiet(ctx)); err != nil {
		return errors.Join(err, w.broker.Close(ctx))
	}
	samples.Add("kafka_bytes_per_waiting", (float64(heap(2).HeapInuse)-float64(before))/kafkaWaiting)
	figure.Note("%d retries stored in %v, and read in %v", kafkaWaiting, stored, time.Since(began)-stored)
	if err := w.broker.Close(ctx); err != nil {
		return err
	}
	if err := pause(ctx, time.Until(began.Add(waitingFrom+time.Second))); err != nil {
		return err
	}
	took, fresh, err := s.reread(ctx, topics[0])
	if err == nil && fresh > 0 {
		err = errors.New("a message was handed out that had been retried")
	}
	if err == nil {
		samples.Add("kafka_restart_s", took.Seconds())
	}
	return err
}

// reread returns how long a worker takes to hand out the first retry of those
// that another has left, and how many messages came before it.
func (s *kafkaSession) reread(ctx context.Context, topic string) (took time.Duration, fresh int, err error) {
	began := time.Now()
	w, err := s.open(ctx, topic)
	if err != nil {
		return 0, 0, err
	}
	for {
		ds, err := w.source.Receive(ctx, 1)
		if err != nil {
			return 0, 0, errors.Join(err, w.broker.Close(ctx))
		}
		if ds[0].Meta().Attempt > 0 {
			break
		}
		fresh++
	}
	took = time.Since(began)
	figure.Note("restart: %.0f MB read until the first retry, in %v", float64(w.read.Load())/1e6, took.Round(10*time.Millisecond))
	return took, fresh, w.broker.Close(ctx)
}

// heap returns what the heap is like after so many collections: the second takes
// what pools kept.
func heap(collections int) (stats runtime.MemStats) {
	for range collections {
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return stats
}

// bare is a source without a pipeline, whose connections are counted.
type bare struct {
	broker *adapter.Broker
	source brokers.Source
	read   atomic.Int64 // bytes
}

// open opens a source for the current group.
func (s *kafkaSession) open(ctx context.Context, topics ...string) (*bare, error) {
	w := &bare{}
	options := s.world.Options
	options.Dial = w.dial
	var err error
	if w.broker, err = adapter.New(options); err != nil {
		return nil, err
	}
	w.source, err = w.broker.Open(ctx, brokers.Subscription{
		Topics: topics, InFlight: 10_000, MaxDelay: waitingTo, MaxAge: time.Hour, MaxAttempts: 10,
	})
	if err != nil {
		return nil, errors.Join(err, w.broker.Close(ctx))
	}
	return w, nil
}

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

// settle settles some messages at once: what comes first is retried after a
// delay, and what comes back is acked. It returns how many came back, and how
// many came first.
func (w *bare) settle(ctx context.Context, least, most int, delay func() time.Duration) (back, first int, err error) {
	var batch []brokers.Settlement
	for len(batch) < least {
		ds, err := w.source.Receive(ctx, most-len(batch))
		if err != nil {
			return back, first, err
		}
		for _, d := range ds {
			if d.Meta().Attempt > 0 {
				batch = append(batch, brokers.Settlement{Delivery: d})
				back++
				continue
			}
			batch = append(batch, postponed(d, delay()))
			first++
		}
	}
	return back, first, errors.Join(w.source.Settle(ctx, batch)...)
}

// postponed is what the pipeline would settle d with after its first failure.
func postponed(d *brokers.Delivery, delay time.Duration) brokers.Settlement {
	now := time.Now()
	meta := d.Meta()
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
		if err := pause(ctx, 2*time.Second); err != nil {
			return err
		}
		now := w.read.Load()
		if now-last < 2*idle {
			return nil
		}
		last = now
	}
}

// filledRange tells how far the committed offsets lag while a range of delays is
// full for long, and what a worker reads that begins then: so many retries a
// second are stored with delays up to the longest, until twice as long has passed.
func (s *kafkaSession) filledRange(ctx context.Context, _ *figure.Samples) error {
	const (
		rate    = 1000
		pace    = 100 * time.Millisecond
		longest = 30 * time.Second
	)
	s.world.NextGroup()
	topics, err := s.world.Declare(ctx, "filled")
	if err != nil {
		return err
	}
	w, err := s.open(ctx, topics[0])
	if err != nil {
		return err
	}
	run, stop := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		messages := make([]brokers.Message, rate*pace/time.Second)
		for i := range messages {
			messages[i].Body = contender.Body(i)
		}
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		for run.Err() == nil {
			if err := w.broker.Publish(run, topics[0], messages...); err != nil {
				stop(err)
			}
			select {
			case <-ticker.C:
			case <-run.Done():
			}
		}
	})
	stored, acked, begin, next := 0, 0, time.Now(), longest/3
	for err == nil && next <= 2*longest {
		var back, first int
		back, first, err = w.settle(run, 1, 1000, func() time.Duration { return rand.N(longest) })
		stored, acked = stored+first, acked+back
		if err == nil && time.Since(begin) > next {
			var behind int
			behind, err = s.world.Left(ctx, "redrive.delay.v1."+s.world.Options.Group+".1m")
			figure.Note("filled range, after %v: %d retries stored, %d wait, %d records behind the committed offsets", next, stored, stored-acked, behind)
			next += longest / 3
		}
	}
	if err != nil {
		err = errors.Join(err, context.Cause(run))
	}
	stop(nil)
	work.Wait()
	if err := errors.Join(err, w.broker.Close(ctx)); err != nil {
		return err
	}
	_, _, err = s.reread(ctx, topics[0])
	return err
}

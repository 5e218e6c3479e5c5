package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// A range of delays that is full for long: so many retries a second are stored
// with delays of up to filledDelay, until twice as long has passed.
const (
	filledRate  = 1000
	filledDelay = 30 * time.Second
	filledTotal = int(2*filledDelay/time.Second) * filledRate
)

// filledRange tells how far the committed offsets lag while a range of delays
// is full, and what a worker reads that begins then.
func (s *kafkaSession) filledRange(ctx context.Context) error {
	topic, err := s.filled(ctx, "filled", filledTotal)
	if err != nil {
		return err
	}
	group := s.world.Group()
	w, err := s.open(ctx, group, topic)
	if err != nil {
		return err
	}
	f := &filling{bare: w, fresh: make(chan *brokers.Delivery, filledTotal)}
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var work sync.WaitGroup
	for _, part := range []func(context.Context) error{f.receive, f.store} {
		work.Go(func() {
			if err := part(run); err != nil && run.Err() == nil {
				stop(err)
			}
		})
	}
	delayTopic := "redrive.delay.v1." + group + ".1m"
	for took := filledDelay / 3; took <= 2*filledDelay && err == nil; took += filledDelay / 3 {
		select {
		case <-time.After(filledDelay / 3):
			err = s.lag(ctx, delayTopic, group, took, f)
		case <-run.Done():
			err = context.Cause(run)
		}
	}
	stop(nil)
	work.Wait()
	if err = errors.Join(err, w.close(ctx)); err != nil {
		return err
	}
	return s.reread(ctx, group, topic)
}

// filling stores retries at a steady rate, and acks those that come back.
type filling struct {
	*bare
	fresh         chan *brokers.Delivery
	stored, acked atomic.Int64
}

func (f *filling) receive(ctx context.Context) error {
	for ctx.Err() == nil {
		ds, err := f.source.Receive(ctx, 1000)
		if err != nil {
			return err
		}
		var acks []brokers.Settlement
		for _, d := range ds {
			if d.Meta.Attempt == 0 {
				f.fresh <- d
				continue
			}
			acks = append(acks, brokers.Settlement{Delivery: d})
		}
		if err := errors.Join(f.source.Settle(ctx, acks)...); err != nil {
			return err
		}
		f.acked.Add(int64(len(acks)))
	}
	return nil
}

func (f *filling) store(ctx context.Context) error {
	const pace = 100 * time.Millisecond
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for {
		var batch []brokers.Settlement
		for range filledRate * int(pace) / int(time.Second) {
			select {
			case d := <-f.fresh:
				batch = append(batch, postponed(d, rand.N(filledDelay)))
			case <-ctx.Done():
				return nil
			}
		}
		if err := errors.Join(f.source.Settle(ctx, batch)...); err != nil {
			return err
		}
		f.stored.Add(int64(len(batch)))
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// lag notes how many records lie behind the committed offsets.
func (s *kafkaSession) lag(ctx context.Context, topic, group string, took time.Duration, f *filling) error {
	committed, err := s.world.Committed(ctx, group, topic)
	if err != nil {
		return err
	}
	end, err := s.world.End(ctx, topic)
	if err != nil {
		return err
	}
	stored := f.stored.Load()
	note("filled range, after %v: %d retries stored, %d wait, %d records behind the committed offsets", took, stored, stored-f.acked.Load(), end-committed)
	return nil
}

// reread notes what a worker reads before it hands out the first retry.
func (s *kafkaSession) reread(ctx context.Context, group, topic string) error {
	began := time.Now()
	w, err := s.open(ctx, group, topic)
	if err != nil {
		return err
	}
	for {
		ds, err := w.source.Receive(ctx, 1)
		if err != nil {
			return errors.Join(err, w.close(ctx))
		}
		if ds[0].Meta.Attempt > 0 {
			break
		}
	}
	note("filled range, restart: %.0f MB read until the first retry, in %v", float64(w.read.Load())/1e6, time.Since(began).Round(10*time.Millisecond))
	return w.close(ctx)
}

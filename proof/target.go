package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// target is a broker under proof.
type target interface {
	// worker connects the worker with this number; 0 is the producer.
	worker(number int) link

	// left counts the messages of topic that are not settled.
	left(topic string) int

	// letters returns what is in a dead-letter topic.
	letters(topic string) []brokers.Message

	close(ctx context.Context) error
}

// link is one worker's way to the broker.
type link interface {
	brokers.Broker

	// kill cuts the link the way that a dying process does.
	kill()
}

// openLetters opens a dead-letter topic to read it at the end. A broker that is
// busy with what the faults left behind is asked again.
func openLetters(ctx context.Context, l link, sub brokers.Subscription) (brokers.Source, error) {
	const limit, pause = time.Minute, 500 * time.Millisecond
	for begun := time.Now(); ; {
		source, err := l.Open(ctx, sub)
		if err == nil || errors.Is(err, brokers.ErrMisconfigured) || ctx.Err() != nil || time.Since(begun) > limit {
			return source, err
		}
		wait(ctx, pause)
	}
}

// readLetters takes as many messages out of a dead-letter topic as are left in
// it.
func readLetters(ctx context.Context, l link, sub brokers.Subscription, left int) (all []brokers.Message, err error) {
	const batch, limit = 500, 30 * time.Second
	sub.InFlight = batch
	source, err := openLetters(ctx, l, sub)
	if err != nil {
		return nil, err
	}
	defer source.Close(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for left > 0 {
		ds, err := source.Receive(ctx, batch)
		if err != nil {
			return nil, fmt.Errorf("%d messages of %s are still to be read: %w", left, sub.Topics[0], err)
		}
		acks := make([]brokers.Settlement, len(ds))
		for i, d := range ds {
			all = append(all, d.Message)
			acks[i] = brokers.Settlement{Delivery: d}
		}
		left -= len(ds)
		if errs := source.Settle(ctx, acks); errs != nil {
			return nil, errors.Join(errs...)
		}
	}
	return all, nil
}

// memoryTarget is the memory broker, whose workers are goroutines.
type memoryTarget struct{ *memory.Broker }

// newMemoryTarget has everything go wrong that s says, and writes it down.
func newMemoryTarget(s *scenario, l *ledger) memoryTarget {
	options := s.options
	options.Fault = func(op memory.Op) memory.Fault {
		f := s.fault(l.now(), op)
		if f == (memory.Fault{}) {
			return f
		}
		e := event{Kind: faulted, Topic: op.Topic, ID: op.ID, Action: op.Action, Err: failOf(f.Err), Delay: f.Latency, Note: string(op.Operation)}
		if f.Lost {
			e.Flags |= isLost
		}
		if f.Done {
			e.Flags |= isDone
		}
		if f.Duplicate {
			e.Flags |= isDuplicate
		}
		l.add(e)
		return f
	}
	return memoryTarget{memory.New(options)}
}

func (t memoryTarget) worker(int) link                        { return &memoryLink{Broker: t.Broker} }
func (t memoryTarget) left(topic string) int                  { return t.Len(topic) }
func (t memoryTarget) letters(topic string) []brokers.Message { return t.Messages(topic) }
func (t memoryTarget) close(ctx context.Context) error        { return t.Broker.Close(ctx) }

type memoryLink struct {
	*memory.Broker

	mu     sync.Mutex
	source brokers.Source
	dead   bool
}

func (l *memoryLink) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return nil, brokers.ErrClosed
	}
	source, err := l.Broker.Open(ctx, sub)
	l.source = source
	return source, err
}

func (l *memoryLink) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	if l.source != nil {
		l.Crash(l.source)
	}
}

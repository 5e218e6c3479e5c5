package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// rabbitTarget is a RabbitMQ, as the driver sees it. What it counts are the
// queues that somebody was seen to declare.
type rabbitTarget struct {
	target
	urls []string
	tag  string
	link link

	mu    sync.Mutex
	names map[string]map[string]bool // "queue" and "exchange"
	conn  *amqp.Connection
}

func newRabbitTarget(url, tag string) (*rabbitTarget, error) {
	t := &rabbitTarget{urls: strings.Split(url, ","), tag: tag, names: map[string]map[string]bool{"queue": {}, "exchange": {}}}
	var err error
	t.link, err = connectRabbit(url, tag, &wiretap{isDead: func(string) bool { return false }, declared: t.declared, consuming: func() {}, copying: func(string) {}})
	return t, err
}

func (t *rabbitTarget) worker(int) link { return t.link }

func (t *rabbitTarget) watch(context.Context, *ledger) (stop func()) { return func() {} }

func (t *rabbitTarget) declared(what, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names[what][name] = true
}

func (t *rabbitTarget) known(what string) (names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.names[what] {
		names = append(names, name)
	}
	return names
}

// channel runs f on a channel of its own.
func (t *rabbitTarget) channel(f func(*amqp.Channel) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil || t.conn.IsClosed() {
		if err := t.connect(); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	ch, err := t.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	return f(ch)
}

// connect tries the nodes in turn. mu is held.
func (t *rabbitTarget) connect() (err error) {
	for _, url := range t.urls {
		if t.conn, err = amqp.Dial(url); err == nil {
			return nil
		}
	}
	return err
}

// counts are the messages that are ready, by queue; empty ones are left out.
func (t *rabbitTarget) counts() (map[string]int, error) {
	counts := map[string]int{}
	for _, name := range t.known("queue") {
		err := t.channel(func(ch *amqp.Channel) error {
			q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			if err == nil && q.Messages > 0 {
				counts[name] = q.Messages
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("count %s: %w", name, err)
		}
	}
	return counts, nil
}

// wait returns when the workers have declared every topic and its dead-letter
// topic.
func (t *rabbitTarget) wait(ctx context.Context, s *scenario) error {
	const limit, pause = 30 * time.Second, 50 * time.Millisecond
	for begun := time.Now(); ; {
		known := t.known("queue")
		missing := ""
		for _, topic := range s.topics {
			for _, name := range []string{topic.name, topic.dead} {
				if name != "" && !slices.Contains(known, name) {
					missing = name
				}
			}
		}
		switch {
		case missing == "":
			wait(ctx, 10*pause) // the last one may still be under way
			return nil
		case ctx.Err() != nil || time.Since(begun) > limit:
			return fmt.Errorf("no worker has declared %s", missing)
		}
		wait(ctx, pause)
	}
}

// drain takes everything out of a topic.
func (t *rabbitTarget) drain(ctx context.Context, topic string) (all []brokers.Message, err error) {
	const batch, still = 500, 2 * time.Second
	source, err := openLetters(ctx, t.link, brokers.Subscription{Topics: []string{topic}, InFlight: batch})
	if err != nil {
		return nil, err
	}
	defer source.Close(context.WithoutCancel(ctx))
	for {
		left, err := t.counts()
		if err != nil {
			return nil, err
		}
		limit := still
		if left[topic] > 0 {
			limit = 10 * still
		}
		waiting, cancel := context.WithTimeout(ctx, limit)
		ds, err := source.Receive(waiting, batch)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		acks := make([]brokers.Settlement, len(ds))
		for i, d := range ds {
			all = append(all, d.Message)
			acks[i] = brokers.Settlement{Delivery: d}
		}
		if errs := source.Settle(ctx, acks); errs != nil {
			return nil, errors.Join(errs...)
		}
	}
}

// close removes all that was declared.
func (t *rabbitTarget) close(ctx context.Context) error {
	errs := []error{t.link.Close(ctx)}
	for _, name := range t.known("queue") {
		errs = append(errs, t.channel(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		}))
	}
	for _, name := range t.known("exchange") {
		errs = append(errs, t.channel(func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, false, false) }))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn != nil {
		errs = append(errs, t.conn.Close())
	}
	return errors.Join(errs...)
}

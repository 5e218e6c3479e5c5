package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// server is a broker that is a process of its own, as the driver sees it.
type server interface {
	// declared notes what a worker has declared.
	declared(what, name string)

	// counts are the messages that are not settled, by each topic that there is.
	// Those that nobody reads may be left out, unless they are among others.
	counts(ctx context.Context, others ...string) (map[string]int, error)

	// close removes all that was declared.
	close(ctx context.Context) error
}

// callTimeout is how long an answer of the broker may take: a worker whose
// network is a black hole stops within that time, or twice.
const callTimeout = 5 * time.Second

func newServer(ctx context.Context, j job, s *scenario) (server, error) {
	switch j.Broker {
	case "kafka":
		return newKafka(ctx, j, s)
	case "sqs":
		return newSQS(j), nil
	}
	return newRabbit(j), nil
}

// connect connects a worker process, or the driver, whose trap is nil.
func connect(j job, t *trap, declared func(what, name string)) (brokers.Broker, error) {
	switch j.Broker {
	case "kafka":
		return connectKafka(j)
	case "sqs":
		return connectSQS(j)
	}
	return connectRabbit(j, &wiretap{trap: t, declared: declared})
}

// await returns when the workers have declared every topic and its dead-letter
// topic.
func await(ctx context.Context, b server, s *scenario) error {
	const limit, pause = 10 * time.Minute, 100 * time.Millisecond // of a busy machine
	for begun := time.Now(); ; wait(ctx, pause) {
		known, err := b.counts(ctx, s.dead()...)
		missing := slices.DeleteFunc(s.names(), func(name string) bool {
			_, ok := known[name]
			return ok
		})
		switch {
		case err == nil && len(missing) == 0:
			wait(ctx, 5*pause) // the last one may still be under way
			return nil
		case ctx.Err() != nil || time.Since(begun) > limit:
			return errors.Join(fmt.Errorf("no worker has declared %q", missing), err)
		}
	}
}

// addressOf returns url, or where the environment says that the broker is.
func addressOf(broker, url string) (string, error) {
	variables := []string{"REDRIVE_RABBITMQ4_URL", "REDRIVE_RABBITMQ_URL"}
	switch broker {
	case "kafka":
		variables = []string{"REDRIVE_KAFKA_URL", "REDRIVE_KAFKA39_URL"}
	case "sqs":
		variables = []string{"REDRIVE_SQS_URL"}
	}
	for _, variable := range variables {
		url = cmp.Or(url, os.Getenv(variable))
	}
	if url == "" {
		return "", fmt.Errorf("there is no broker: set -url, or %s", strings.Join(variables, " or "))
	}
	return url, nil
}

// openLetters opens a dead-letter topic to read it at the end. A broker that is
// busy with what the faults left behind is asked again.
func openLetters(ctx context.Context, b brokers.Broker, sub brokers.Subscription) (brokers.Source, error) {
	const limit, pause = time.Minute, 500 * time.Millisecond
	for begun := time.Now(); ; {
		source, err := b.Open(ctx, sub)
		if err == nil || errors.Is(err, brokers.ErrMisconfigured) || ctx.Err() != nil || time.Since(begun) > limit {
			return source, err
		}
		wait(ctx, pause)
	}
}

// readLetters takes as many messages out of a dead-letter topic as are left in
// it, with a group of its own where there are groups. Those whose IDs it adds to
// moved were put there by the broker itself, at its delivery limit.
func readLetters(ctx context.Context, b brokers.Broker, topic, group string, left int, moved map[string]bool) (all []brokers.Message, err error) {
	const batch, limit = 500, 30 * time.Second
	if left == 0 {
		return nil, nil
	}
	source, err := openLetters(ctx, b, brokers.Subscription{Topics: []string{topic}, Group: group, InFlight: batch})
	if err != nil {
		return nil, err
	}
	defer source.Close(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for left > 0 {
		ds, err := source.Receive(ctx, batch)
		if err != nil {
			return nil, fmt.Errorf("%d messages of %s are still to be read: %w", left, topic, err)
		}
		acks := make([]brokers.Settlement, len(ds))
		for i, d := range ds {
			all = append(all, d.Message)
			if d.Meta().Origin.Get("death-reason") == "delivery_limit" {
				moved[d.Message.ID] = true
			}
			acks[i] = brokers.Settlement{Delivery: d}
		}
		left -= len(ds)
		if errs := source.Settle(ctx, acks); errs != nil {
			return nil, errors.Join(errs...)
		}
	}
	return all, nil
}

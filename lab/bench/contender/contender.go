// Package contender has what those who do the same work on a broker share.
package contender

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

// World is a broker, with queues (or topics) of names that nobody else has.
type World interface {
	// Fill puts n messages of Body into queues that it makes. It returns
	// their names.
	Fill(ctx context.Context, n int, queues ...string) ([]string, error)
	// Left returns how many messages of queue nobody has settled.
	Left(ctx context.Context, queue string) (int, error)
	// Broker connects with this project's adapter.
	Broker() (brokers.Broker, error)
	// Close deletes all queues.
	Close(ctx context.Context) error
}

// Dead is what queues of dead letters have behind their names.
const Dead = "-dead"

const digits = 8

// Size is that of most bodies, in bytes.
const Size = 256

// Body is that of a message: Size bytes that begin with its number.
func Body(number int) []byte { return Sized(number, Size) }

// Sized is Body with so many bytes.
func Sized(number, size int) []byte {
	return append(fmt.Appendf(nil, "%0*d", digits, number), bytes.Repeat([]byte("x"), size-digits)...)
}

// Number is the number of a message with that body.
func Number(body []byte) int {
	n, err := strconv.Atoi(string(body[:digits]))
	if err != nil {
		panic(fmt.Sprintf("not a body of these: %q", body))
	}
	return n
}

// Contender settles the messages of a queue until ctx ends, and calls handle
// for each before.
type Contender func(ctx context.Context, queue string, handle func()) error

// Time returns how long c takes from the first of n messages to the last, which
// leaves out connecting and declaring for all alike.
func (c Contender) Time(ctx context.Context, queue string, n int) (time.Duration, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var handled, first, last atomic.Int64
	begin := time.Now()
	err := c(ctx, queue, func() {
		number := handled.Add(1)
		if number == 1 {
			first.Store(int64(time.Since(begin)))
		}
		if number == int64(n) {
			last.Store(int64(time.Since(begin)))
			stop()
		}
	})
	if done := handled.Load(); done < int64(n) {
		err = errors.Join(fmt.Errorf("%d of %d messages handled", done, n), err, context.Cause(ctx))
	}
	return time.Duration(last.Load() - first.Load()), err
}

// Redrive is a consumer of this project.
func Redrive(w World, cfg consumer.Config) Contender {
	return func(ctx context.Context, queue string, handle func()) error {
		return Work(ctx, w, cfg, func(context.Context, *brokers.Message) error {
			handle()
			return nil
		}, queue)
	}
}

// Work runs a consumer of this project with handler h for queues until ctx ends.
// What the broker refuses or loses is logged.
func Work(ctx context.Context, w World, cfg consumer.Config, h consumer.Handler, queues ...string) error {
	return Watched(ctx, w, cfg, func(*consumer.Consumer) {}, h, queues...)
}

// Watched is Work, and calls watch with the consumer before that runs.
func Watched(ctx context.Context, w World, cfg consumer.Config, watch func(*consumer.Consumer), h consumer.Handler, queues ...string) error {
	broker, err := w.Broker()
	if err != nil {
		return err
	}
	defer broker.Close(context.WithoutCancel(ctx))
	if cfg.DeadLetter == "" {
		cfg.DeadLetter = "*" + Dead
	}
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	c, err := consumer.New(broker, cfg)
	if err != nil {
		return err
	}
	for _, queue := range queues {
		c.Handle(queue, h)
	}
	watch(c)
	return c.Run(ctx)
}

// Watermill runs a router of Watermill, with so many subscriptions of queue.
func Watermill(ctx context.Context, subscriber message.Subscriber, subscriptions int, queue string, handle func()) error {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	for i := range subscriptions {
		router.AddConsumerHandler(fmt.Sprint("bench-", i), queue, subscriber, func(*message.Message) error {
			handle()
			return nil
		})
	}
	result := make(chan error, 1)
	go func() { result <- router.Run(context.WithoutCancel(ctx)) }()
	select {
	case err := <-result:
		return errors.Join(err, router.Close())
	case <-ctx.Done():
		return errors.Join(router.Close(), <-result)
	}
}

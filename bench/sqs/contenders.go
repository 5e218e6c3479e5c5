package sqs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsqs "github.com/ThreeDotsLabs/watermill-aws/sqs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/bench/internal/clock"
	"github.com/redrive-go/redrive/brokers"
	adapter "github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// Contender handles and deletes the n messages of a queue with a handler that
// does nothing. It returns the time from the first message to the last, which
// leaves out connecting and declaring for all alike.
type Contender func(ctx context.Context, w *World, queue string, n int) (time.Duration, error)

// Raw is the bare SDK: so many loops that receive 10 messages and delete them
// in one call.
func Raw(loops int) Contender {
	return func(ctx context.Context, w *World, queue string, n int) (time.Duration, error) {
		client := awssqs.NewFromConfig(w.Config)
		out, err := client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: aws.String(queue)})
		if err != nil {
			return 0, err
		}
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		polls, stopPolls := context.WithCancel(ctx)
		defer stopPolls()
		c := clock.New(n)
		var work sync.WaitGroup
		for range loops {
			work.Go(func() {
				if err := rawLoop(ctx, polls, client, out.QueueUrl, c); err != nil {
					stop(err)
				}
			})
		}
		took, err := c.Wait(ctx)
		stopPolls()
		work.Wait()
		return took, errors.Join(err, context.Cause(ctx))
	}
}

// rawLoop ends with polls, when it has deleted what it received.
func rawLoop(ctx, polls context.Context, client *awssqs.Client, url *string, c *clock.Clock) error {
	input := &awssqs.ReceiveMessageInput{QueueUrl: url, MaxNumberOfMessages: together, WaitTimeSeconds: 20}
	for {
		got, err := client.ReceiveMessage(polls, input)
		if polls.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if len(got.Messages) == 0 {
			continue
		}
		entries := make([]types.DeleteMessageBatchRequestEntry, len(got.Messages))
		for i, m := range got.Messages {
			c.Tick()
			entries[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle}
		}
		out, err := client.DeleteMessageBatch(ctx, &awssqs.DeleteMessageBatchInput{QueueUrl: url, Entries: entries})
		if err == nil && len(out.Failed) > 0 {
			err = errors.New(aws.ToString(out.Failed[0].Message))
		}
		if err != nil {
			return err
		}
	}
}

// Redrive is a consumer of this project.
func Redrive(cfg consumer.Config) Contender {
	return func(ctx context.Context, w *World, queue string, n int) (time.Duration, error) {
		c := clock.New(n)
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		result := make(chan error, 1)
		go func() {
			result <- Work(ctx, w, cfg, queue, func(context.Context, *brokers.Message) error {
				c.Tick()
				return nil
			})
			stop()
		}()
		took, err := c.Wait(ctx)
		stop()
		return took, errors.Join(err, <-result)
	}
}

// Work runs a consumer with handler h for queue until ctx ends. What the server
// refuses or loses is logged. A poll waits for one second only, because an end
// waits for the polls that are open.
func Work(ctx context.Context, w *World, cfg consumer.Config, queue string, h consumer.Handler) error {
	own := w.Config.Copy()
	own.HTTPClient = &http.Client{Transport: w.Calls}
	broker, err := adapter.New(adapter.Options{Config: own, Create: true, PollWait: time.Second})
	if err != nil {
		return err
	}
	defer broker.Close(context.WithoutCancel(ctx))
	cfg.DeadLetter = dlq.Suffix("-dead")
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	c, err := consumer.New(broker, cfg)
	if err != nil {
		return err
	}
	c.Handle(queue, h)
	return c.Run(ctx)
}

// Watermill is a router of Watermill with so many subscriptions of the queue,
// each of which asks for so many messages at a time. A number of 0 leaves the
// default, which is 1.
func Watermill(together int32, subscriptions int) Contender {
	return func(ctx context.Context, w *World, queue string, n int) (time.Duration, error) {
		cfg := watermillsqs.SubscriberConfig{AWSConfig: w.Config, DoNotCreateQueueIfNotExists: true}
		if together > 0 {
			cfg.GenerateReceiveMessageInput = func(ctx context.Context, url watermillsqs.QueueURL) (*awssqs.ReceiveMessageInput, error) {
				input, err := watermillsqs.GenerateReceiveMessageInputDefault(ctx, url)
				if err == nil {
					input.MaxNumberOfMessages = together
				}
				return input, err
			}
		}
		subscriber, err := watermillsqs.NewSubscriber(cfg, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		c := clock.New(n)
		for i := range max(subscriptions, 1) {
			router.AddConsumerHandler(fmt.Sprint("bench-", i), queue, subscriber, func(*message.Message) error {
				c.Tick()
				return nil
			})
		}
		result := make(chan error, 1)
		go func() { result <- router.Run(ctx) }()
		took, err := c.Wait(ctx)
		return took, errors.Join(err, router.Close(), <-result)
	}
}

package sqs

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	watermillsqs "github.com/ThreeDotsLabs/watermill-aws/sqs"
	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/lab/bench/contender"
)

// Raw is the bare SDK: so many loops that receive 10 messages and delete them
// in one call.
func (w *World) Raw(loops int) contender.Contender {
	return func(ctx context.Context, queue string, handle func()) error {
		client := awssqs.NewFromConfig(w.Config)
		out, err := client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: aws.String(queue)})
		if err != nil {
			return err
		}
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		errs := make([]error, loops)
		var work sync.WaitGroup
		for i := range loops {
			work.Go(func() {
				if errs[i] = rawLoop(ctx, client, out.QueueUrl, handle); errs[i] != nil {
					stop()
				}
			})
		}
		work.Wait()
		return errors.Join(errs...)
	}
}

// rawLoop ends with ctx, when it has deleted what it received.
func rawLoop(ctx context.Context, client *awssqs.Client, url *string, handle func()) error {
	input := &awssqs.ReceiveMessageInput{QueueUrl: url, MaxNumberOfMessages: together, WaitTimeSeconds: 20}
	for {
		got, err := client.ReceiveMessage(ctx, input)
		if ctx.Err() != nil {
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
			handle()
			entries[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle}
		}
		out, err := client.DeleteMessageBatch(context.WithoutCancel(ctx), &awssqs.DeleteMessageBatchInput{QueueUrl: url, Entries: entries})
		if err == nil && len(out.Failed) > 0 {
			err = errors.New(aws.ToString(out.Failed[0].Message))
		}
		if err != nil {
			return err
		}
	}
}

// Watermill is a router of Watermill with so many subscriptions of the queue,
// each of which asks for so many messages at a time.
func (w *World) Watermill(together int32, subscriptions int) contender.Contender {
	return func(ctx context.Context, queue string, handle func()) error {
		cfg := watermillsqs.SubscriberConfig{AWSConfig: w.Config, DoNotCreateQueueIfNotExists: true}
		cfg.GenerateReceiveMessageInput = func(ctx context.Context, url watermillsqs.QueueURL) (*awssqs.ReceiveMessageInput, error) {
			input, err := watermillsqs.GenerateReceiveMessageInputDefault(ctx, url)
			if err == nil {
				input.MaxNumberOfMessages = together
			}
			return input, err
		}
		subscriber, err := watermillsqs.NewSubscriber(cfg, watermill.NopLogger{})
		if err != nil {
			return err
		}
		return contender.Watermill(ctx, subscriber, subscriptions, queue, handle)
	}
}

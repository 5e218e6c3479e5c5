// Package sqs lets several consumers do the same work on a server of Amazon
// SQS's protocol: the bare SDK, redrive, and Watermill.
package sqs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
	adapter "github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/lab/bench/contender"
)

// World is what is measured on a server, in queues of names that nobody else
// has.
type World struct {
	// Config is for clients of the server. Their calls are counted.
	Config aws.Config
	// Calls are those of Config's clients, and of the adapter.
	Calls *Calls
	// PollWait is that of the adapter: one second, because an end waits for the
	// polls that are open.
	PollWait time.Duration

	name   string
	client *awssqs.Client // not counted
}

// NewWorld prepares to measure on the server at endpoint, which may be any but
// Amazon's: the credentials are made up.
func NewWorld(endpoint string) *World {
	calls := newCalls()
	cfg := aws.Config{
		Region: "us-east-1", BaseEndpoint: aws.String(endpoint), Credentials: anyone{},
		HTTPClient: &http.Client{Transport: spared{calls}},
	}
	own := cfg.Copy()
	own.HTTPClient = &http.Client{Transport: spared{newCalls()}}
	return &World{
		Config:   cfg,
		Calls:    calls,
		PollWait: time.Second,
		name:     fmt.Sprintf("bench-%d", time.Now().UnixNano()),
		client:   awssqs.NewFromConfig(own),
	}
}

type anyone struct{}

// Retrieve implements aws.CredentialsProvider.
func (anyone) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "bench", SecretAccessKey: "bench"}, nil
}

// Broker implements contender.World.
func (w *World) Broker() (brokers.Broker, error) {
	own := w.Config.Copy()
	own.HTTPClient = &http.Client{Transport: w.Calls}
	return adapter.New(adapter.Options{Config: own, Create: true, PollWait: w.PollWait})
}

// Delete deletes a queue, and those whose names begin with its name.
func (w *World) Delete(ctx context.Context, queue string) error {
	pages := awssqs.NewListQueuesPaginator(w.client, &awssqs.ListQueuesInput{QueueNamePrefix: aws.String(queue)})
	var errs []error
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, url := range page.QueueUrls {
			_, err := w.client.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: aws.String(url)})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Close implements contender.World: it deletes what is left of its queues, those
// that redrive made included.
func (w *World) Close(ctx context.Context) error { return w.Delete(ctx, w.name) }

const (
	fillers  = 4
	together = 10 // messages of a call, at most
)

// Fill implements contender.World. Queues have everything at its default, and
// messages no attributes.
func (w *World) Fill(ctx context.Context, n int, queues ...string) (names []string, err error) {
	for _, queue := range queues {
		name := w.name + "-" + queue
		made, err := w.client.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: aws.String(name)})
		if err != nil {
			return nil, err
		}
		errs := make([]error, fillers)
		var wg sync.WaitGroup
		for f := range fillers {
			wg.Go(func() { errs[f] = w.fill(ctx, made.QueueUrl, n*f/fillers, n*(f+1)/fillers) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

func (w *World) fill(ctx context.Context, url *string, from, to int) error {
	for from < to {
		entries := make([]types.SendMessageBatchRequestEntry, min(together, to-from))
		for i := range entries {
			body := string(contender.Body(from + i))
			entries[i] = types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(body)}
		}
		out, err := w.client.SendMessageBatch(ctx, &awssqs.SendMessageBatchInput{QueueUrl: url, Entries: entries})
		if err == nil && len(out.Failed) > 0 {
			err = errors.New(aws.ToString(out.Failed[0].Message))
		}
		if err != nil {
			return fmt.Errorf("fill queue %s: %w", *url, err)
		}
		from += len(entries)
	}
	return nil
}

// Left implements contender.World.
func (w *World) Left(ctx context.Context, queue string) (n int, err error) {
	of, err := w.client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: aws.String(queue)})
	if err != nil {
		return 0, err
	}
	counts := []types.QueueAttributeName{
		types.QueueAttributeNameApproximateNumberOfMessages,
		types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
		types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
	}
	out, err := w.client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: of.QueueUrl, AttributeNames: counts})
	if err != nil {
		return 0, err
	}
	for _, name := range counts {
		count, err := strconv.Atoi(out.Attributes[string(name)])
		if err != nil {
			return 0, fmt.Errorf("%s of queue %q: %w", name, queue, err)
		}
		n += count
	}
	return n, nil
}

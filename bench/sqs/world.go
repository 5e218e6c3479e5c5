// Package sqs lets several consumers do the same work on a server of Amazon
// SQS's protocol: the bare SDK, redrive, and Watermill.
package sqs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// World is what is measured on a server, in queues of names that nobody else
// has.
type World struct {
	// Config is for clients of the server. Their calls are counted.
	Config aws.Config
	// Calls are those of Config's clients, and of the adapter.
	Calls *Calls

	name   string
	client *awssqs.Client // not counted
}

// NewWorld prepares to measure on the server at endpoint, which may be any but
// Amazon's: the credentials are made up.
func NewWorld(endpoint string) *World {
	calls := NewCalls()
	cfg := aws.Config{
		Region: "us-east-1", BaseEndpoint: aws.String(endpoint), Credentials: anyone{},
		HTTPClient: &http.Client{Transport: spared{calls}},
	}
	own := cfg.Copy()
	own.HTTPClient = &http.Client{Transport: spared{NewCalls()}}
	return &World{
		Config: cfg,
		Calls:  calls,
		name:   fmt.Sprintf("bench-%d", time.Now().UnixNano()),
		client: awssqs.NewFromConfig(own),
	}
}

type anyone struct{}

// Retrieve implements aws.CredentialsProvider.
func (anyone) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "bench", SecretAccessKey: "bench"}, nil
}

// Declare makes a queue with everything at its default, and returns its name.
func (w *World) Declare(ctx context.Context, queue string) (string, error) {
	queue = w.name + "-" + queue
	_, err := w.client.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: aws.String(queue)})
	return queue, err
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

// Close deletes what is left of the queues of the world, those that redrive
// made included.
func (w *World) Close(ctx context.Context) error { return w.Delete(ctx, w.name) }

func (w *World) url(ctx context.Context, queue string) (*string, error) {
	out, err := w.client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: aws.String(queue)})
	if err != nil {
		return nil, err
	}
	return out.QueueUrl, nil
}

const (
	fillers  = 4
	together = 10 // messages of a call, at most
	bodySize = 256
	digits   = 8
)

// Fill puts n messages into queue, as any producer might write them: a body of
// 256 bytes that begins with their number, and no attributes.
func (w *World) Fill(ctx context.Context, queue string, n int) error {
	url, err := w.url(ctx, queue)
	if err != nil {
		return err
	}
	errs := make([]error, fillers)
	var wg sync.WaitGroup
	for f := range fillers {
		wg.Go(func() { errs[f] = w.fill(ctx, url, n*f/fillers, n*(f+1)/fillers) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (w *World) fill(ctx context.Context, url *string, from, to int) error {
	for from < to {
		entries := make([]types.SendMessageBatchRequestEntry, min(together, to-from))
		for i := range entries {
			body := fmt.Sprintf("%0*d%s", digits, from+i, strings.Repeat("x", bodySize-digits))
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

// Number is the number of a message of Fill, from 0 on.
func Number(body []byte) int {
	n, err := strconv.Atoi(string(body[:digits]))
	if err != nil {
		panic(fmt.Sprintf("not a body of Fill: %q", body))
	}
	return n
}

// Left returns how many messages of queue nobody has deleted.
func (w *World) Left(ctx context.Context, queue string) (n int, err error) {
	url, err := w.url(ctx, queue)
	if err != nil {
		return 0, err
	}
	counts := []types.QueueAttributeName{
		types.QueueAttributeNameApproximateNumberOfMessages,
		types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
		types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
	}
	out, err := w.client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: url, AttributeNames: counts})
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

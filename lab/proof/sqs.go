package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers/sqs"
)

const (
	sqsLease    = 3 * time.Second
	sqsPollWait = time.Second
)

// sqsServer is a server of Amazon SQS's protocol, as the driver sees it: the
// queues with the tag. The workers create them.
type sqsServer struct {
	tag   string
	calls *awssqs.Client
}

func newSQS(j job) *sqsServer {
	return &sqsServer{tag: j.Tag, calls: awssqs.NewFromConfig(sqsConfig(), func(o *awssqs.Options) { o.BaseEndpoint = &j.URL })}
}

func sqsConfig() aws.Config {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 100 // one for every call that a worker has open
	return aws.Config{
		Region:     "us-east-1",
		HTTPClient: &http.Client{Transport: transport},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "proof", SecretAccessKey: "proof"}, nil
		}),
	}
}

func (t *sqsServer) declared(string, string) {}

// urls are those of the queues with the tag, by name.
func (t *sqsServer) urls(ctx context.Context) (map[string]string, error) {
	out, err := t.calls.ListQueues(ctx, &awssqs.ListQueuesInput{QueueNamePrefix: aws.String(t.tag + "-")})
	if err != nil {
		return nil, fmt.Errorf("list the queues: %w", err)
	}
	urls := map[string]string{}
	for _, url := range out.QueueUrls {
		urls[path.Base(url)] = url
	}
	return urls, nil
}

// counts has also what is in flight or delayed.
func (t *sqsServer) counts(ctx context.Context, _ ...string) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	urls, err := t.urls(ctx)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for name, url := range urls {
		out, err := t.calls.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{
			types.QueueAttributeNameApproximateNumberOfMessages,
			types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
			types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
		}})
		if err != nil {
			return nil, fmt.Errorf("count %s: %w", name, err)
		}
		for what, value := range out.Attributes {
			n, err := strconv.Atoi(value)
			if err != nil {
				return nil, fmt.Errorf("count %s: %s: %w", name, what, err)
			}
			counts[name] += n
		}
	}
	return counts, nil
}

// close deletes all queues with the tag.
func (t *sqsServer) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout)
	defer cancel()
	urls, err := t.urls(ctx)
	errs := []error{err}
	for _, url := range urls {
		_, err := t.calls.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: &url})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// asQueue makes a queue name of the name of a topic: there are no dots in it but
// that before fifo.
func asQueue(name string, fifo bool) string {
	name = strings.ReplaceAll(name, ".", "-")
	if fifo {
		name += ".fifo"
	}
	return name
}

func connectSQS(j job) (*sqs.Broker, error) {
	return sqs.New(sqs.Options{
		Config:      sqsConfig(),
		Endpoint:    j.URL,
		Create:      true,
		Copies:      j.Copies,
		PollWait:    sqsPollWait,
		CallTimeout: callTimeout,
	})
}

package sqs

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyendpoints "github.com/aws/smithy-go/endpoints"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/wire"
)

// client talks to SQS. Receiving, settling and sending have an SDK client each,
// so that failures of one do not use up what the others have for retries.
type client struct {
	polls, settles, sends *awssqs.Client

	http    *httpClient
	timeout time.Duration
}

// queue is a queue as a source receives from it.
type queue struct {
	topic string // as the subscription spells it
	url   string
	fifo  bool
	limit int // MaximumMessageSize; 0 means 1 MiB
	seal  adapter.Seal

	receives int  // maxReceiveCount; 0 if there is none, or it is not known
	tight    bool // that is less than the worker has use for, or not known

	// maxDelay is how far ahead the due time of a message may lie; 0 means 14
	// days, the longest retention.
	maxDelay time.Duration

	retention time.Duration // how long the queue keeps a message
}

// atOnce is how many calls may be open that send messages or give them back. On a
// FIFO queue their order counts.
func (q *queue) atOnce() int {
	if q.fifo {
		return 1
	}
	return callsAtOnce
}

// record is a message as a poll brought it.
type record struct {
	message  brokers.Message
	meta     brokers.Meta
	stored   bool // a copy made by a worker for this queue: meta is the one that was settled with it
	handle   string
	id       string // SQS's own
	group    string // likewise
	receives int
	sent     time.Time
	err      error // the message cannot be handed out: give it back later

	// unreadable says why this worker cannot open its envelope: another one may.
	unreadable error
}

// outgoing is a message ready to be sent, as compose makes it. Sent again, it
// has the same deduplication id.
type outgoing struct {
	entry types.SendMessageBatchRequestEntry
	size  int

	// bare is what to send should SQS refuse a dead letter: without notes.
	bare *types.SendMessageBatchRequestEntry
}

func newClient(o Options) *client {
	c := &client{http: newHTTPClient(o.Config.HTTPClient), timeout: o.CallTimeout}
	configure := func(options *awssqs.Options) {
		options.HTTPClient = c.http
		if o.Endpoint != "" {
			options.BaseEndpoint = &o.Endpoint
		}
		// One damaged body must not cost the others of its batch: see parse and
		// send.
		options.DisableMessageChecksumValidation = true
		options.Retryer = retry.AddWithErrorCodes(options.Retryer, "KmsThrottled", "KMS.ThrottlingException")
		options.EndpointResolverV2 = &endpoint{resolver: options.EndpointResolverV2}
	}
	c.polls = awssqs.NewFromConfig(o.Config, configure, func(options *awssqs.Options) {
		options.HTTPClient = &httpClient{next: c.http.next, turn: make(chan struct{}, 1)}
		// The source lets a queue rest whose poll failed. Repeats here would come
		// on top of that, from each poll that is open.
		options.Retryer = retry.AddWithMaxAttempts(options.Retryer, 1)
	})
	c.settles = awssqs.NewFromConfig(o.Config, configure)
	c.sends = awssqs.NewFromConfig(o.Config, configure)
	return c
}

// endpoint is where the calls of one SDK client go, which its options say alone: it
// is found once, not for each call.
type endpoint struct {
	resolver awssqs.EndpointResolverV2
	once     sync.Once
	found    smithyendpoints.Endpoint
	err      error
}

// ResolveEndpoint implements sqs.EndpointResolverV2.
func (e *endpoint) ResolveEndpoint(ctx context.Context, params awssqs.EndpointParameters) (smithyendpoints.Endpoint, error) {
	e.once.Do(func() { e.found, e.err = e.resolver.ResolveEndpoint(ctx, params) })
	return e.found, e.err
}

// cautious does not repeat what may have been done.
type cautious struct{ aws.RetryerV2 }

// IsErrorRetryable implements aws.Retryer.
func (c cautious) IsErrorRetryable(err error) bool {
	return !mayBeDone(err) && c.RetryerV2.IsErrorRetryable(err)
}

// call runs f with a deadline and explains what it returns.
func (c *client) call(ctx context.Context, o operation, queue string, timeout time.Duration, f func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := f(bounded)
	if wrapped, ok := err.(*smithy.OperationError); ok {
		err = wrapped.Err // explain says which operation
	}
	if most, ok := err.(*retry.MaxAttemptsError); ok && most.Attempt == 1 {
		err = most.Err // of a poll, which is made once
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	case bounded.Err() != nil:
		err = fmt.Errorf("no answer within %v: %w", timeout, err)
	}
	return explain(err, o, queue)
}

// resolve returns the URL of a topic, which is a queue name or a URL.
func (c *client) resolve(ctx context.Context, topic string) (string, error) {
	if strings.Contains(topic, "://") {
		return topic, nil
	}
	var url string
	err := c.call(ctx, resolving, topic, c.timeout, func(ctx context.Context) error {
		out, err := c.sends.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: &topic})
		if err == nil {
			url = aws.ToString(out.QueueUrl)
		}
		return err
	})
	return url, err
}

// inspect returns the attributes of a queue.
func (c *client) inspect(ctx context.Context, url string, options ...func(*awssqs.Options)) (a attributes, err error) {
	asked := time.Now()
	err = c.call(ctx, inspecting, queueName(url), c.timeout, func(ctx context.Context) error {
		out, err := c.sends.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{
			QueueUrl:       &url,
			AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
		}, options...)
		if err != nil {
			return err
		}
		a, err = readAttributes(out.Attributes)
		a.asked, a.told = asked, time.Now()
		a.date, _ = awsmiddleware.GetServerTime(out.ResultMetadata)
		return err
	})
	return a, err
}

// create makes a queue, or returns the one that has the name already: check
// its attributes.
func (c *client) create(ctx context.Context, name string, attrs map[string]string) (string, error) {
	var url string
	err := c.call(ctx, creating, name, c.timeout, func(ctx context.Context) error {
		out, err := c.sends.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: &name, Attributes: attrs})
		if err == nil {
			url = aws.ToString(out.QueueUrl)
		}
		return err
	})
	if hasCode(err, "QueueNameExists") {
		return c.resolve(ctx, name)
	}
	return url, err
}

// poll receives up to most messages, at most 10, and waits for the first. Wait
// and visibility are at least a second. It is tried once. On a FIFO queue a
// second poll of the same attempt brings what the first one brought, if its
// answer got lost; on others attempt is not used.
func (c *client) poll(ctx context.Context, q *queue, attempt string, most int, wait, visibility time.Duration) ([]record, error) {
	in := &awssqs.ReceiveMessageInput{
		QueueUrl:              &q.url,
		MaxNumberOfMessages:   int32(min(most, batchSize)),
		WaitTimeSeconds:       int32(max(wait/time.Second, 1)),
		VisibilityTimeout:     int32(max(wholeSeconds(visibility), 1)),
		MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameApproximateReceiveCount,
			types.MessageSystemAttributeNameSentTimestamp,
			types.MessageSystemAttributeNameMessageGroupId,
			types.MessageSystemAttributeNameAWSTraceHeader,
			types.MessageSystemAttributeNameDeadLetterQueueSourceArn,
			types.MessageSystemAttributeNameApproximateFirstReceiveTimestamp,
		},
	}
	if q.fifo {
		in.ReceiveRequestAttemptId = &attempt
	}
	var out *awssqs.ReceiveMessageOutput
	err := c.call(ctx, receiving, q.topic, wait+c.timeout, func(ctx context.Context) (err error) {
		out, err = c.polls.ReceiveMessage(ctx, in)
		return err
	})
	if err != nil {
		return nil, err
	}
	limits := wire.Limits{Now: time.Now(), MaxDelay: cmp.Or(q.maxDelay, retention)}
	records := make([]record, len(out.Messages))
	for i, m := range out.Messages {
		records[i] = parse(m, q, limits)
	}
	return records, nil
}

package sqs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
)

// Backlogs implements brokers.Source, by one call for each queue, which is not
// repeated. Retries that wait in place are among those taken. SQS does not tell how old
// a message is.
func (s *source) Backlogs(ctx context.Context) ([]brokers.Backlog, error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, brokers.ErrClosed
	}
	topics := slices.Sorted(slices.Values(s.sub.Topics))
	dead := slices.Compact(slices.Sorted(maps.Values(s.sub.DeadLetters)))
	asked := slices.Concat(topics, dead)
	all := make([]brokers.Backlog, len(asked))
	err := allOf(len(asked), func(i int) error {
		q, err := s.broker.queue(ctx, asked[i])
		if err != nil {
			return err
		}
		b, err := s.broker.client.count(ctx, q.url)
		if err == nil {
			b.Topic, b.DeadLetters = asked[i], i >= len(topics)
			all[i] = b
		}
		return err
	})
	return slices.DeleteFunc(all, func(b brokers.Backlog) bool { return b.Topic == "" }), err
}

// counts are the attributes that say how many messages a queue has.
var counts = []types.QueueAttributeName{
	types.QueueAttributeNameApproximateNumberOfMessages,
	types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
	types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
}

// count asks a queue how many messages it has.
func (c *client) count(ctx context.Context, url string) (b brokers.Backlog, err error) {
	err = c.call(ctx, inspecting, queueName(url), c.timeout, func(ctx context.Context) error {
		out, err := c.sends.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: counts},
			func(o *awssqs.Options) { o.Retryer = aws.NopRetryer{} }) // it is asked again soon
		if err != nil {
			return err
		}
		for i, to := range [...]**int64{&b.Ready, &b.Taken, &b.Delayed} {
			text, told := out.Attributes[string(counts[i])]
			if !told {
				continue
			}
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return fmt.Errorf("the attribute %s is %.40q, not a number", counts[i], text)
			}
			*to = &n
		}
		return nil
	})
	return b, err
}

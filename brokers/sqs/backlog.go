package sqs

import (
	"context"
	"maps"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

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
		attrs, err := s.broker.client.inspect(ctx, q.url, func(o *awssqs.Options) { o.Retryer = aws.NopRetryer{} }) // it is asked again soon
		if err == nil {
			all[i] = attrs.backlog
			all[i].Topic, all[i].DeadLetters = asked[i], i >= len(topics)
		}
		return err
	})
	return slices.DeleteFunc(all, func(b brokers.Backlog) bool { return b.Topic == "" }), err
}

package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// Backlogs implements brokers.Source, by one passive declaration for each queue: two
// for a topic, whose retries come back in a queue of their own. RabbitMQ tells this way
// what is ready. Retries that wait are in queues that topics share. A question without an
// answer, or whose ctx has ended, ends the connection of all questions.
func (s *source) Backlogs(ctx context.Context) ([]brokers.Backlog, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(brokers.ErrClosed) })()
	o, err := s.asker.connected(ctx)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { o.end(context.Cause(ctx)) })()
	queues := make(map[string][]string)
	for _, f := range s.feeds {
		queues[f.topic] = append(queues[f.topic], f.queue)
	}
	var all []brokers.Backlog
	var errs []error
	ask := func(topic string, dead bool, queues ...string) {
		n, err := o.count(queues)
		if err != nil {
			errs = append(errs, err)
			return
		}
		all = append(all, brokers.Backlog{Topic: topic, DeadLetters: dead, Ready: &n})
	}
	for _, topic := range slices.Sorted(maps.Keys(queues)) {
		ask(topic, false, queues[topic]...)
	}
	for _, topic := range slices.Compact(slices.Sorted(maps.Values(s.sub.DeadLetters))) {
		ask(topic, true, topic)
	}
	return all, errors.Join(errs...)
}

// count returns how many messages of queues are ready.
func (l *link) count(queues []string) (n int64, err error) {
	for _, name := range queues {
		if err := context.Cause(l.ctx); err != nil {
			return 0, err
		}
		var q amqp.Queue
		if err := l.request(passively(name, &q)); err != nil {
			return 0, fmt.Errorf("queue %q: %w", name, err)
		}
		n += int64(q.Messages)
	}
	return n, nil
}

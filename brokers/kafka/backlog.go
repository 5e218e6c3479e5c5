package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
)

const (
	// collector is the group that redrive serve reads dead letters with, unless its
	// configuration names another one.
	collector = "redrive-collect"

	// mostLooks is how many partitions of a topic are looked into for the oldest
	// record: those with the most to read.
	mostLooks = 4

	lookOneByte = 1 // the broker sends a whole batch nevertheless
)

// Backlogs implements brokers.Source. What is ready in a topic is its lag: the records
// that are not below what the group has committed. In a topic of dead letters they are
// those that the group of redrive serve has not committed, or all if it has none.
func (s *source) Backlogs(ctx context.Context) ([]brokers.Backlog, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(brokers.ErrClosed) })()
	states, err := s.broker.client.topics(ctx, slices.Concat(s.plan.topics, s.plan.dead)...)
	if err != nil {
		return nil, err
	}
	topics, err := s.backlogs(ctx, states, s.plan.topics, s.plan.group, false)
	letters, lettersErr := s.backlogs(ctx, states, s.plan.dead, collector, true)
	return append(topics, letters...), errors.Join(err, lettersErr)
}

// backlogs asks for what group has not read of topics.
func (s *source) backlogs(ctx context.Context, states map[string]topicState, topics []string, group string, dead bool) (found []brokers.Backlog, err error) {
	var all []partition
	for _, topic := range topics {
		for n := range states[topic].partitions {
			all = append(all, partition{topic, n})
		}
		if states[topic].partitions == 0 {
			err = errors.Join(err, fmt.Errorf("%w: the topic %q", brokers.ErrNotFound, topic))
		}
	}
	if len(all) == 0 {
		return nil, err
	}
	c := s.broker.client
	stored, storedErr := c.committed(ctx, group, all)
	if dead && errors.Is(storedErr, kafka.GroupAuthorizationFailed) { // it is not to be known what was collected
		return nil, err
	}
	if storedErr != nil {
		return nil, errors.Join(err, storedErr)
	}
	spans, spansErr := c.bounds(ctx, all)
	if spansErr != nil {
		return nil, errors.Join(err, spansErr)
	}
	for at, span := range spans {
		if from := stored[at].offset; from >= 0 || dead || s.broker.options.Start.kind == oldest {
			span.first = max(span.first, min(from, span.last))
		} else { // it will begin elsewhere
			span.first = span.last
		}
		spans[at] = span
	}
	for _, topic := range topics {
		if n := states[topic].partitions; n > 0 {
			mine := slices.DeleteFunc(slices.Clone(all), func(at partition) bool { return at.topic != topic })
			b := brokers.Backlog{Topic: topic, DeadLetters: dead, Ready: new(int64), Oldest: s.oldest(ctx, mine, spans)}
			for _, at := range mine {
				*b.Ready += spans[at].last - spans[at].first
			}
			found = append(found, b)
		}
	}
	return found, err
}

// oldest is when the oldest of the first records of spans was written, zero if that is
// not to be known.
func (s *source) oldest(ctx context.Context, ps []partition, spans map[partition]span) (oldest time.Time) {
	left := func(p partition) int64 { return spans[p].last - spans[p].first }
	ps = slices.DeleteFunc(ps, func(p partition) bool { return left(p) == 0 })
	slices.SortStableFunc(ps, func(a, b partition) int { return cmp.Compare(left(b), left(a)) })
	for _, p := range ps[:min(len(ps), mostLooks)] {
		got, err := s.broker.client.fetch(ctx, p, spans[p].first, lookOneByte, 0, room{batch: cmp.Or(s.decompressed, leastDecompressed), records: 1})
		if err != nil || len(got.records) == 0 {
			continue
		}
		if at := got.records[0].time; oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	return oldest
}

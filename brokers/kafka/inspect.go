package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
)

// checking is the page about what Inspect finds beyond Open.
const checking = "https://github.com/redrive-go/redrive/blob/main/docs/how-to/check-a-set-up.md#kafka"

// overdue is how much longer than the longest delay of its topic a retry may wait.
const overdue = 15 * time.Minute

// Inspect returns what Open would find of the topics that sub needs, and of the rights
// of the user, and changes nothing. What does not exist is noted where Open would
// create it, and blocking where it would not: with Options.Verify, or where the cluster
// says that it would not let it.
//
// It finds more than Open, all of it noted: delay topics with fewer partitions than
// Open gives them, unless the topics that are read have as few; and delay topics in
// which a retry waits for more than 15 minutes longer than any delay. With Options.Rack
// it finds why partitions are read from leaders elsewhere.
func (b *Broker) Inspect(ctx context.Context, sub brokers.Subscription) ([]inspect.Finding, error) {
	sub.Group = cmp.Or(sub.Group, b.options.Group)
	found, err := b.inspect(ctx, sub)
	if err != nil {
		return nil, fmt.Errorf("kafka: inspect %q: %w", sub.Topics, err)
	}
	return found, nil
}

func (b *Broker) inspect(ctx context.Context, sub brokers.Subscription) ([]inspect.Finding, error) {
	plan, err := b.options.plan(sub)
	if err != nil {
		return nil, err
	}
	s, err := b.survey(ctx, &plan)
	if err != nil {
		return nil, err
	}
	absent, err := b.absent(ctx, s.missing())
	if err != nil {
		return nil, err
	}
	found := append(s.findings, absent...)
	for _, q := range s.topics {
		if q.role != delays || !q.state.exists() {
			continue
		}
		found = append(found, q.hasFewPartitions(plan.known, b.options.DelayPartitions)...)
		waiting, err := b.waiting(ctx, plan, q)
		if err != nil {
			return nil, err
		}
		found = append(found, waiting...)
	}
	racks, err := b.racks(ctx)
	return append(found, racks...), err
}

// hasFewPartitions is about a delay topic with fewer partitions than the topics that
// are read, and than Open gives it.
func (q quality) hasFewPartitions(topics map[string]int, usual int) []inspect.Finding {
	most := 0
	for _, n := range topics {
		most = max(most, n)
	}
	want := strconv.Itoa(min(usual, most))
	if q.state.partitions >= min(usual, most) {
		return nil
	}
	return []inspect.Finding{{
		Severity: inspect.Noted, Topic: q.name, Setting: "partitions", Value: strconv.Itoa(q.state.partitions), Want: want, See: checking,
		Why: "retries go through fewer workers than the messages that come in, and wait for each other in their indexes",
		Fix: fmt.Sprintf("kafka-topics.sh --alter --topic %s --partitions %s", q.name, want),
	}}
}

// waiting looks at how long the oldest retry of a delay topic has waited.
func (b *Broker) waiting(ctx context.Context, p plan, q quality) ([]inspect.Finding, error) {
	var all []partition
	for n := range q.state.partitions {
		all = append(all, partition{q.name, n})
	}
	stored, err := b.client.committed(ctx, p.group, all)
	if isUncoordinated(err) || errors.Is(err, kafka.GroupAuthorizationFailed) { // there is no group yet, or it is told already
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	spans, err := b.client.bounds(ctx, all)
	if err != nil {
		return nil, err
	}
	lag, oldest := int64(0), time.Time{}
	for _, at := range all {
		from := max(stored[at].offset, spans[at].first)
		if from >= spans[at].last {
			continue
		}
		lag += spans[at].last - from
		began, err := b.oldest(ctx, at, readProgress(from, stored[at].metadata), b.options.decompressed(p.largest))
		if err != nil {
			return nil, err
		}
		if !began.IsZero() && (oldest.IsZero() || began.Before(oldest)) {
			oldest = began
		}
	}
	return q.late(p.group, lag, oldest, time.Now()), nil
}

// lookBytes are how much of a delay topic is read to find what waits.
const lookBytes = 1 << 20

// oldest is when the first record that is not done was written, zero if that is not to
// be known.
func (b *Broker) oldest(ctx context.Context, at partition, done *progress, batch int) (time.Time, error) {
	got, err := b.client.fetch(ctx, at, done.lowWater(), lookBytes, 0, room{batch: batch, records: lookBytes})
	if _, gone := errors.AsType[*rangeError](err); gone || errors.Is(err, kafka.TopicAuthorizationFailed) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	return firstWaiting(got.records, done), nil
}

// firstWaiting is when the first of records was written that neither done nor one of
// them calls done, zero if there is none.
func firstWaiting(records []*record, done *progress) time.Time {
	for _, r := range records {
		value, ok := isDoneRecord(r)
		if !ok {
			continue
		}
		offsets, _ := readDone(value, r.offset) // one that cannot be read names none
		for _, offset := range append(offsets, r.offset) {
			done.done(offset)
		}
	}
	for _, r := range records {
		if !done.isDone(r.offset) {
			return r.time
		}
	}
	return time.Time{}
}

// late finds that a retry waits for longer than any delay of its topic.
func (q quality) late(group string, lag int64, oldest, now time.Time) []inspect.Finding {
	most, age := q.longest+overdue, now.Sub(oldest).Truncate(time.Second)
	if oldest.IsZero() || age <= most {
		return nil
	}
	return []inspect.Finding{{
		Severity: inspect.Noted, Topic: q.name, Setting: "oldest waiting retry", Value: fmt.Sprintf("%v old (up to %d wait)", age, lag), Want: fmt.Sprintf("at most %v", most), See: checking,
		Why: fmt.Sprintf("it was due: no worker of the group %q runs, or its workers do not keep up, and what is older than the retention of the topic is lost", group),
		Fix: "kafka-consumer-groups.sh --describe --group " + shell(group),
	}}
}

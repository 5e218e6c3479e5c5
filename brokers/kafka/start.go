package kafka

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers/inspect"
)

// Start is where a group begins with a partition for which it has committed nothing:
// a new group with all, another one with those that it has never read. Where it has
// committed it goes on there. It holds for the topics that are read: delay topics are
// read from their oldest record, and so are partitions that are added, or made anew,
// while a worker runs. The zero value is the oldest record.
type Start struct {
	kind startKind
	at   time.Time
}

type startKind uint8

const (
	oldest startKind = iota
	newest
	fromTime
	committed
)

// StartNewest begins behind what is there when the worker gets the partition.
func StartNewest() Start { return Start{kind: newest} }

// StartAt begins with the first record whose timestamp is t or later, or behind what
// is there if there is none.
func StartAt(t time.Time) Start { return Start{kind: fromTime, at: t} }

// StartCommitted makes Open refuse a group that lacks a commit for a partition with
// records in it, and name these partitions.
func StartCommitted() Start { return Start{kind: committed} }

// String says where, in words.
func (s Start) String() string {
	switch s.kind {
	case newest:
		return "at the newest message"
	case fromTime:
		return "at " + s.at.UTC().Format(time.RFC3339)
	case committed:
		return "nowhere"
	}
	return "at the oldest message"
}

// surveyStart finds the partitions without a commit, where the group has others.
func (b *Broker) surveyStart(ctx context.Context, p plan) ([]inspect.Finding, error) {
	var all []partition
	for _, topic := range p.topics {
		for n := range p.known[topic] {
			all = append(all, partition{topic, n})
		}
	}
	var stored map[partition]commitment
	err := untilCoordinated(ctx, func() (err error) {
		stored, err = b.client.committed(ctx, p.group, all)
		return err
	})
	if err != nil {
		return nil, err
	}
	open := slices.DeleteFunc(slices.Clone(all), func(at partition) bool { return stored[at].offset >= 0 })
	start := b.options.Start
	if len(open) == 0 || len(open) == len(all) && start.kind != committed { // a new group
		return nil, nil
	}
	spans, err := b.client.bounds(ctx, open)
	if err != nil {
		return nil, err
	}
	open = slices.DeleteFunc(open, func(at partition) bool { return spans[at].first == spans[at].last })
	return start.judge(p.group, p.known, open), nil
}

// judge finds where a group begins with partitions that have records and no commit, of
// topics with so many partitions.
func (s Start) judge(group string, topics map[string]int, open []partition) (found []inspect.Finding) {
	for len(open) > 0 {
		topic := open[0].topic
		var numbers []string
		for ; len(open) > 0 && open[0].topic == topic; open = open[1:] {
			numbers = append(numbers, strconv.Itoa(open[0].number))
		}
		f := inspect.Finding{
			Severity: inspect.Noted, Topic: topic, See: setUp + "#where-a-group-begins",
			Why: fmt.Sprintf("%d of %d partitions with messages have no commit of the group %q: they begin %s (Options.Start)", len(numbers), topics[topic], group, s),
			Fix: fmt.Sprintf("kafka-consumer-groups.sh --group %s --topic %s:%s --reset-offsets --to-latest --execute, or --to-earliest, while no worker runs",
				shell(group), topic, strings.Join(numbers, ",")),
		}
		if s.kind == committed {
			f.Severity = inspect.Blocking
			f.Why = fmt.Sprintf("%d of %d partitions have messages and no commit of the group %q, and Options.Start is StartCommitted", len(numbers), topics[topic], group)
		}
		found = append(found, f)
	}
	return found
}

// begin sets in stored where the group begins with partitions of which there is no
// commit: those of topics that had so many when the worker was opened.
func (b *Broker) begin(ctx context.Context, known map[string]int, stored map[partition]commitment, spans map[partition]span) error {
	start := b.options.Start
	var open []partition
	for p, at := range stored {
		if at.offset < 0 && p.number < known[p.topic] {
			open = append(open, p)
		}
	}
	switch start.kind {
	case newest:
		for _, p := range open {
			stored[p] = commitment{offset: spans[p].last}
		}
	case fromTime:
		offsets, err := b.client.offsets(ctx, open, start.at.UnixMilli())
		if err != nil {
			return err
		}
		for _, p := range open {
			at := offsets[p]
			if at < 0 { // all are older
				at = spans[p].last
			}
			stored[p] = commitment{offset: at}
		}
	}
	return nil
}

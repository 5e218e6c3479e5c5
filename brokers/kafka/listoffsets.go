package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// Times that stand for the ends of a log where one is asked for an offset.
const (
	earliest = -2
	latest   = -1
)

var errNoAnswer = errors.New("the broker says nothing about it")

// span is what a partition has: from first up to, not including, last.
type span struct{ first, last int64 }

// bounds returns the spans of ps. Partitions that could not be asked about are
// missing, and in the error.
func (c *client) bounds(ctx context.Context, ps []partition) (map[partition]span, error) {
	first, err := c.offsets(ctx, ps, earliest)
	if len(first) == 0 {
		return nil, err
	}
	last, e := c.offsets(ctx, slices.DeleteFunc(slices.Clone(ps), func(p partition) bool { _, ok := first[p]; return !ok }), latest)
	all := make(map[partition]span, len(last))
	for p, end := range last {
		all[p] = span{first[p], end}
	}
	return all, errors.Join(err, e)
}

// offsets returns for each of ps the first offset whose record is of a time or later, in
// Unix milliseconds, -1 if there is none. Each leader is asked once for all that it
// leads. Partitions that could not be asked about are missing, and in the error.
func (c *client) offsets(ctx context.Context, ps []partition, at int64) (map[partition]int64, error) {
	found, failed := make(map[partition]int64, len(ps)), make(map[partition]error)
	err := retry(ctx, func() error {
		clear(failed)
		led, err := c.byLeader(ctx, ps, failed)
		if err != nil {
			return err
		}
		var mu sync.Mutex
		var work sync.WaitGroup
		for node, ps := range led {
			work.Go(func() {
				res, err := c.ask(ctx, node, offsetsRequest(ps, at))
				mu.Lock()
				defer mu.Unlock()
				for _, p := range ps {
					failed[p] = cmp.Or(err, errNoAnswer)
				}
				if err == nil {
					takeOffsets(res.(*kmsg.ListOffsetsResponse), found, failed)
				}
			})
		}
		work.Wait()
		return c.judge(ctx, failed)
	})
	if len(failed) == 0 && err != nil {
		return nil, explain(err, "read the offsets of %s", ps[0])
	}
	var errs []error
	for _, p := range ps {
		if err := failed[p]; err != nil {
			delete(found, p)
			errs = append(errs, explain(err, "read the offsets of %s", p))
		}
	}
	return found, errors.Join(errs...)
}

// judge has the layout of the cluster be read anew where an error asks for that. It
// returns one that may pass, if there is any.
func (c *client) judge(ctx context.Context, failed map[partition]error) (passing error) {
	for p, err := range failed {
		if err == nil {
			delete(failed, p)
			continue
		}
		if !errors.Is(err, cluster.ErrGone) {
			failed[p] = c.Reread(ctx, p.topic, err)
		}
		if isPassing(failed[p]) {
			passing = failed[p]
		}
	}
	return passing
}

// byLeader sorts ps by the nodes that lead them. Those that have no leader are in failed.
func (c *client) byLeader(ctx context.Context, ps []partition, failed map[partition]error) (map[int32][]partition, error) {
	type layout struct {
		leaders map[int32]int32
		err     error // that the topic is unknown
	}
	topics, led := make(map[string]layout), make(map[int32][]partition)
	for _, p := range ps {
		topic, seen := topics[p.topic]
		if !seen {
			topic.leaders, topic.err = c.Leaders(ctx, p.topic)
			if topic.err != nil && !cluster.IsUnknownTopic(topic.err) {
				return nil, topic.err
			}
			topics[p.topic] = topic
		}
		node, err := leading(topic.leaders, p)
		if err = cmp.Or(topic.err, err); err != nil {
			failed[p] = err
			continue
		}
		led[node] = append(led[node], p)
	}
	return led, nil
}

func offsetsRequest(ps []partition, at int64) kmsg.Request {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	var topics byTopic[kmsg.ListOffsetsRequestTopic]
	for _, p := range ps {
		one := kmsg.NewListOffsetsRequestTopicPartition()
		one.Partition, one.Timestamp = int32(p.number), at
		topic := topics.of(p.topic, kmsg.ListOffsetsRequestTopic{Topic: p.topic})
		topic.Partitions = append(topic.Partitions, one)
	}
	req.Topics = topics.list
	return req
}

// takeOffsets takes what an answer says of each partition that it was asked about.
func takeOffsets(res *kmsg.ListOffsetsResponse, found map[partition]int64, failed map[partition]error) {
	for _, topic := range res.Topics {
		for _, p := range topic.Partitions {
			at := partition{topic.Topic, int(p.Partition)}
			if _, asked := failed[at]; asked {
				found[at], failed[at] = p.Offset, codeError(p.ErrorCode)
			}
		}
	}
}

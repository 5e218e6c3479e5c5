package kafka

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Times that stand for the ends of a log where one is asked for an offset.
const (
	earliest = -2
	latest   = -1
)

var errNoAnswer = errors.New("the broker says nothing about it")

// span is what a partition has: from first up to, not including, last.
type span struct{ first, last int64 }

// bounds returns the spans of ps.
func (c *client) bounds(ctx context.Context, ps []partition) (map[partition]span, error) {
	first, err := c.offsets(ctx, ps, earliest)
	if err != nil {
		return nil, err
	}
	last, err := c.offsets(ctx, ps, latest)
	all := make(map[partition]span, len(last))
	for p, end := range last {
		all[p] = span{first[p], end}
	}
	return all, err
}

// offsets returns for each of ps the first offset whose record is of a time or later, in
// Unix milliseconds, -1 if there is none. Each leader is asked once for all that it
// leads.
func (c *client) offsets(ctx context.Context, ps []partition, at int64) (map[partition]int64, error) {
	found := make(map[partition]int64, len(ps))
	err := retry(ctx, func() error {
		led, err := c.byLeader(ctx, ps)
		if err != nil {
			return err
		}
		var mu sync.Mutex
		var errs []error
		var work sync.WaitGroup
		for node, ps := range led {
			work.Go(func() {
				res, err := c.ask(ctx, node, offsetsRequest(ps, at))
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, c.takeOffsets(ctx, ps, res, err, found))
			})
		}
		work.Wait()
		return errors.Join(errs...)
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// unread says that the offsets of p could not be read.
func (c *client) unread(ctx context.Context, p partition, err error) error {
	return explain(c.Reread(ctx, p.topic, err), "read the offsets of %s", p)
}

// byLeader sorts ps by the nodes that lead them.
func (c *client) byLeader(ctx context.Context, ps []partition) (map[int32][]partition, error) {
	topics, led := make(map[string]map[int32]int32), make(map[int32][]partition)
	for _, p := range ps {
		if _, asked := topics[p.topic]; !asked {
			leaders, err := c.Leaders(ctx, p.topic)
			if err != nil {
				return nil, explain(err, "read the offsets of %s", p)
			}
			topics[p.topic] = leaders
		}
		node, err := leading(topics[p.topic], p)
		if err != nil {
			return nil, c.unread(ctx, p, err)
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

// takeOffsets takes what an answer says of the partitions that were asked about. Its
// error is about the first of which it says nothing good.
func (c *client) takeOffsets(ctx context.Context, ps []partition, res kmsg.Response, err error, found map[partition]int64) error {
	said := make(map[partition]error)
	if err == nil {
		for _, topic := range res.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range topic.Partitions {
				at := partition{topic.Topic, int(p.Partition)}
				found[at], said[at] = p.Offset, codeError(p.ErrorCode)
			}
		}
	}
	for _, p := range ps {
		bad, answered := said[p]
		if !answered {
			bad = cmp.Or(err, errNoAnswer)
		}
		if bad != nil {
			return c.unread(ctx, p, bad)
		}
	}
	return nil
}

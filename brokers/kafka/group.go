package kafka

import (
	"context"
	"errors"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// commitment is what a group has stored for a partition.
type commitment struct {
	offset   int64 // of the next record to read, -1 if nothing is stored
	metadata string
}

// commit stores m for group, in the name of a member of a generation. The map
// has the partitions that failed, nil if none did; the error is for the call
// as a whole, after which all or some may be stored nevertheless. The broker
// does not check that the member owns the partitions, nor that offsets grow.
func (c *client) commit(ctx context.Context, group string, generation int32, member string, m map[partition]commitment) (map[partition]error, error) {
	if len(m) == 0 {
		return nil, nil
	}
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation, req.MemberID = group, generation, member
	var topics byTopic[kmsg.OffsetCommitRequestTopic]
	for p, at := range m {
		one := kmsg.NewOffsetCommitRequestTopicPartition()
		one.Partition, one.Offset, one.Metadata = int32(p.number), at.offset, &at.metadata
		topic := topics.of(p.topic, kmsg.OffsetCommitRequestTopic{Topic: p.topic})
		topic.Partitions = append(topic.Partitions, one)
	}
	req.Topics = topics.list
	var failed map[partition]error
	err := retry(ctx, func() (passing error) {
		failed = nil
		res, err := c.askGroup(ctx, c.options.CallTimeout, group, req)
		if err != nil {
			return err
		}
		for _, topic := range res.(*kmsg.OffsetCommitResponse).Topics {
			for _, p := range topic.Partitions {
				err := codeError(p.ErrorCode)
				if err == nil {
					continue
				}
				if failed == nil {
					failed = make(map[partition]error)
				}
				at := partition{topic.Topic, int(p.Partition)}
				failed[at] = explain(err, "commit offset %d of %s for group %q", m[at].offset, at, group)
				if isPassing(err) {
					passing = err
				}
			}
		}
		return passing
	})
	if failed != nil {
		err = nil
	}
	return failed, explain(err, "commit offsets of group %q", group)
}

// committed returns what group has stored for each of ps.
func (c *client) committed(ctx context.Context, group string, ps []partition) (map[partition]commitment, error) {
	if len(ps) == 0 {
		return nil, nil
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = group
	found := make(map[partition]commitment, len(ps))
	var topics byTopic[kmsg.OffsetFetchRequestTopic]
	for _, p := range ps {
		found[p] = commitment{offset: -1}
		topic := topics.of(p.topic, kmsg.OffsetFetchRequestTopic{Topic: p.topic})
		topic.Partitions = append(topic.Partitions, int32(p.number))
	}
	req.Topics = topics.list
	err := retry(ctx, func() error {
		answer, err := c.askGroup(ctx, c.options.CallTimeout, group, req)
		if err != nil {
			return err
		}
		res := answer.(*kmsg.OffsetFetchResponse)
		if err := codeError(res.ErrorCode); err != nil && !errors.Is(err, kafka.GroupIdNotFound) { // as some brokers say before the first commit
			return err
		}
		for _, topic := range res.Topics {
			for _, p := range topic.Partitions {
				at := partition{topic.Topic, int(p.Partition)}
				if err := codeError(p.ErrorCode); err != nil {
					return explain(err, "%s", at)
				}
				found[at] = commitment{offset: p.Offset}
				if p.Metadata != nil {
					found[at] = commitment{p.Offset, *p.Metadata}
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, explain(err, "read the committed offsets of group %q", group)
	}
	return found, nil
}

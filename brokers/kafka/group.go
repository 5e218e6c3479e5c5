package kafka

import (
	"context"
	"errors"
	"maps"

	"github.com/segmentio/kafka-go"
)

// longestMetadata is what brokers take by default. Of more than 32 kB the
// library sends a wrong length, and the broker stores what that leaves.
const longestMetadata = 4096

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
	req := &kafka.OffsetCommitRequest{
		GroupID: group, GenerationID: int(generation), MemberID: member,
		Topics: make(map[string][]kafka.OffsetCommit),
	}
	tooLong := make(map[partition]error)
	for p, at := range m {
		if len(at.metadata) > longestMetadata {
			tooLong[p] = explain(kafka.OffsetMetadataTooLarge, "commit offset %d of %s for group %q with %d bytes of metadata", at.offset, p, group, len(at.metadata))
			continue
		}
		req.Topics[p.topic] = append(req.Topics[p.topic], kafka.OffsetCommit{Partition: p.number, Offset: at.offset, Metadata: at.metadata})
	}
	if len(req.Topics) == 0 {
		return tooLong, nil
	}
	failed, err := c.commitTo(ctx, req, m)
	maps.Copy(failed, tooLong)
	if len(failed) == 0 {
		failed = nil
	}
	return failed, err
}

func (c *client) commitTo(ctx context.Context, req *kafka.OffsetCommitRequest, m map[partition]commitment) (map[partition]error, error) {
	failed := make(map[partition]error)
	err := retry(ctx, func() error {
		clear(failed)
		res, err := c.calls.OffsetCommit(ctx, req)
		if err != nil {
			return err
		}
		var passing error
		for topic, partitions := range res.Topics {
			for _, p := range partitions {
				if p.Error == nil {
					continue
				}
				at := partition{topic, p.Partition}
				failed[at] = explain(p.Error, "commit offset %d of %s for group %q", m[at].offset, at, req.GroupID)
				if isPassing(p.Error) {
					passing = p.Error
				}
			}
		}
		return passing
	})
	if len(failed) > 0 {
		err = nil
	}
	return failed, explain(err, "commit offsets of group %q", req.GroupID)
}

// committed returns what group has stored for each of ps.
func (c *client) committed(ctx context.Context, group string, ps []partition) (map[partition]commitment, error) {
	if len(ps) == 0 {
		return nil, nil
	}
	req := &kafka.OffsetFetchRequest{GroupID: group, Topics: make(map[string][]int)}
	for _, p := range ps {
		req.Topics[p.topic] = append(req.Topics[p.topic], p.number)
	}
	found := make(map[partition]commitment, len(ps))
	err := retry(ctx, func() error {
		res, err := c.calls.OffsetFetch(ctx, req)
		if err != nil {
			return err
		}
		if errors.Is(res.Error, kafka.GroupIdNotFound) { // as some brokers say before the first commit
			return nil
		}
		if res.Error != nil {
			return res.Error
		}
		for topic, partitions := range res.Topics {
			for _, p := range partitions {
				if p.Error != nil {
					return explain(p.Error, "%s", partition{topic, p.Partition})
				}
				found[partition{topic, p.Partition}] = commitment{offset: p.CommittedOffset, metadata: p.Metadata}
			}
		}
		return nil
	})
	if err != nil {
		return nil, explain(err, "read the committed offsets of group %q", group)
	}
	for _, p := range ps {
		if _, ok := found[p]; !ok {
			found[p] = commitment{offset: -1}
		}
	}
	return found, nil
}

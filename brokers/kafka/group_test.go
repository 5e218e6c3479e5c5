package kafka

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/segmentio/kafka-go/protocol/offsetfetch"

	"github.com/redrive-go/redrive/brokers"
)

func TestCommitErrors(t *testing.T) {
	for code, want := range map[int16]struct {
		kind  error
		calls int
	}{
		14: {kafka.GroupLoadInProgress, 7},
		16: {kafka.NotCoordinatorForGroup, 7},
		22: {brokers.ErrLeaseLost, 1},
		25: {brokers.ErrLeaseLost, 1},
		27: {brokers.ErrLeaseLost, 1},
		12: {brokers.ErrMisconfigured, 1},
		30: {brokers.ErrMisconfigured, 1},
	} {
		onStub(t, func(t *testing.T, s *stub, c *client) {
			s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
				commit, ok := req.(*offsetcommit.Request)
				if !ok {
					return nil, nil
				}
				if commit.GenerationID != 3 || commit.MemberID != "m" || commit.GroupID != "g" {
					t.Errorf("request %+v", commit)
				}
				return &offsetcommit.Response{Topics: []offsetcommit.ResponseTopic{{Name: "orders", Partitions: []offsetcommit.ResponsePartition{
					{PartitionIndex: 0, ErrorCode: code}, {PartitionIndex: 1},
				}}}}, nil
			}
			failed, err := c.commit(t.Context(), "g", 3, "m", map[partition]commitment{first: {17, "x"}, {"orders", 1}: {1, ""}})
			if err != nil || len(failed) != 1 || !errors.Is(failed[first], want.kind) || s.count(protocol.OffsetCommit) != want.calls {
				t.Errorf("code %d: %v, %v after %d requests; want %v after %d", code, failed, err, s.count(protocol.OffsetCommit), want.kind, want.calls)
			}
			if text := fmt.Sprint(failed[first]); !strings.Contains(text, `offset 17 of partition 0 of topic "orders" for group "g"`) {
				t.Errorf("code %d: %s", code, text)
			}
		})
	}
}

func TestCommittedErrors(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		code, partial := int16(30), int16(0)
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			if _, ok := req.(*offsetfetch.Request); !ok {
				return nil, nil
			}
			return &offsetfetch.Response{ErrorCode: code, Topics: []offsetfetch.ResponseTopic{{Name: "orders", Partitions: []offsetfetch.ResponsePartition{
				{PartitionIndex: 0, CommittedOffset: 5, Metadata: "m", ErrorCode: partial},
			}}}}, nil
		}
		ps := []partition{first, {"orders", 1}}
		if _, err := c.committed(t.Context(), "g", ps); !errors.Is(err, brokers.ErrMisconfigured) {
			t.Errorf("without the right to the group: %v", err)
		}
		code, partial = 0, 29
		if _, err := c.committed(t.Context(), "g", ps); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "partition 0") {
			t.Errorf("without the right to the topic: %v", err)
		}
		partial = 0
		got, err := c.committed(t.Context(), "g", ps)
		if err != nil || got[first] != (commitment{5, "m"}) || got[ps[1]] != (commitment{offset: -1}) {
			t.Errorf("committed: %+v, %v", got, err)
		}
		for _, err := range []error{
			second(c.committed(t.Context(), "g", nil)), second(c.commit(t.Context(), "g", 1, "m", nil)), second(c.topics(t.Context())),
			second(c.configs(t.Context())), second(c.bounds(t.Context(), nil)),
		} {
			if err != nil {
				t.Errorf("a call about nothing: %v", err)
			}
		}
	})
}

func TestBoundsOfMany(t *testing.T) {
	onStub(t, func(t *testing.T, s *stub, c *client) {
		s.topics["orders"] = 30
		s.start, s.log = 5, []rawBatch{{base: 5, last: 9}}
		var ps []partition
		for n := range 30 {
			ps = append(ps, partition{"orders", n})
		}
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			if list, ok := req.(*listoffsets.Request); ok && list.Topics[0].Partitions[0].Partition == 3 {
				return &listoffsets.Response{Topics: []listoffsets.ResponseTopic{{Topic: "orders", Partitions: []listoffsets.ResponsePartition{{Partition: 3, ErrorCode: 29}}}}}, nil
			}
			return nil, nil
		}
		got, err := c.bounds(t.Context(), ps)
		if !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "partition 3 of") || len(got) != 29 || got[ps[29]] != (span{5, 10}) {
			t.Errorf("%d bounds, the last is %v, %v", len(got), got[ps[29]], err)
		}
	})
}

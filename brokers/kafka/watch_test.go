package kafka

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
)

// What the leader spread over the group is what counts: a topic that was missing
// then, or that no broker told of, belongs to nobody, though it be there again at
// the first look.
func TestWatch(t *testing.T) {
	for _, tt := range []struct {
		name string
		led  map[string]int // nil for a member that does not lead
		seen map[string]topicState
		want string // why the generation ends; "" if it goes on
	}{
		{"nothing has changed", nil, map[string]topicState{"orders": {partitions: 4}}, ""},
		{"the topic has grown", nil, map[string]topicState{"orders": {partitions: 3}}, `"orders" has 4`},
		{"the leader knew all", map[string]int{"orders": 4, "of others": 2}, map[string]topicState{"orders": {partitions: 4}}, ""},
		{"the topic came back before the first look", map[string]int{"orders": 0}, map[string]topicState{"orders": {partitions: 4}}, `"orders" has 4`},
		{"that of another member came back", map[string]int{"orders": 4, "of others": 0}, map[string]topicState{"orders": {partitions: 4}}, `"of others" has 2`},
		{"and is away still", map[string]int{"orders": 4, "away": 0}, map[string]topicState{"orders": {partitions: 4}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStub(t)
				s.topics["of others"] = 2
				c := s.client()
				defer c.Close()
				src := &source{broker: &Broker{client: c}, plan: plan{topics: []string{"orders"}}, layout: tt.seen}
				ctx, cancel := context.WithTimeout(t.Context(), watchPace/2)
				defer cancel()
				g := new(generation)
				g.ctx, g.end = context.WithCancelCause(ctx)
				src.watch(g, tt.led)
				ended := ""
				if ctx.Err() == nil {
					ended = context.Cause(g.ctx).Error()
				}
				if ended == "" != (tt.want == "") || !strings.Contains(ended, tt.want) {
					t.Errorf("the generation ended with %q, want %q", ended, tt.want)
				}
			})
		})
	}
}

func TestLeaderRemembersWhatItSpread(t *testing.T) {
	var members []kmsg.JoinGroupResponseMember
	for id, topics := range map[string][]string{"a": {"orders"}, "b": {"orders", "of others"}} {
		members = append(members, kmsg.JoinGroupResponseMember{MemberID: id, ProtocolMetadata: subscriptionOf(claim{topics: topics})})
	}
	for name, silent := range map[string]bool{"a topic is missing": false, "no broker answers": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStub(t)
				c := s.client(func(o *Options) { o.CallTimeout = time.Second })
				defer c.Close()
				want := map[string]int{"orders": 4, "of others": 0}
				if silent {
					s.answer = func(protocol.Message, int) (protocol.Message, error) { return nil, errSilence }
					want["orders"] = 0
				}
				_, led, _ := (&member{client: c}).lead(t.Context(), members)
				if !maps.Equal(led, want) {
					t.Errorf("the leader remembers %v, want %v", led, want)
				}
			})
		})
	}
}

// Open of a reader waits for the group, and says what keeps it from it.
func TestReadOnlyAwaitsTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := withoutCoordinator(t)
		defer src.broker.Close(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := src.await(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `"g"`) {
			t.Errorf("within a second: %v, want that the time is over, and the group", err)
		}
		if err := src.await(t.Context()); !errors.Is(err, kafka.GroupCoordinatorNotAvailable) {
			t.Errorf("later: %v, want that there is no coordinator", err)
		}
		src.Close(t.Context())
		if err := src.await(t.Context()); !errors.Is(err, brokers.ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
	})
}

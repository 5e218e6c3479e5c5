package kafka_test

import (
	"context"
	"errors"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/offsetfetch"

	"github.com/redrive-go/redrive/brokers"
)

// backlogs asks a stub, which must answer about orders and their dead letters.
func (s *stub) backlogs() (orders, dead brokers.Backlog) {
	s.Helper()
	all, err := s.src.Backlogs(s.Context())
	if err != nil || len(all) != 2 || all[0].Topic != "orders" || all[1].Topic != "orders-dead" || all[0].DeadLetters || !all[1].DeadLetters {
		s.Fatalf("%v: %+v", err, all)
	}
	return all[0], all[1]
}

// withDead has a topic of dead letters with as much in it as orders.
func withDead(s *stub) {
	s.topics["orders"], s.topics["orders-dead"] = 2, 1
	s.next = []formed{{share: []int{0, 1}}}
	s.sub.DeadLetters = map[string]string{"orders": "orders-dead"}
}

// The lag of a topic is what the group has not committed, and dead letters are what
// redrive serve has not. A question costs a few calls, whatever there is.
func TestBacklogs(t *testing.T) {
	onStub(t, withDead, func(s *stub) {
		ds := s.take(20)
		orders, dead := s.backlogs()
		s.is("lag", *orders.Ready, int64(20))
		s.is("dead letters", *dead.Ready, int64(10))
		s.is("what is unknown", [...]*int64{orders.Taken, orders.Delayed, dead.Taken, dead.Delayed}, [4]*int64{})
		if want := time.UnixMilli(stubTime); !orders.Oldest.Equal(want) || !dead.Oldest.Equal(want) {
			s.Errorf("the oldest are of %v and %v, want %v", orders.Oldest, dead.Oldest, want)
		}
		s.ack(ds...)
		s.collect(time.Minute)
		s.change(func(s *stub) { s.owned[partition{"orders-dead", 0}] = commitment{offset: 7} })
		before := [...]int{s.count(protocol.OffsetFetch), s.count(protocol.ListOffsets)}
		orders, dead = s.backlogs()
		s.is("lag when all is done", *orders.Ready, int64(0))
		s.is("age when all is done", orders.Oldest, time.Time{})
		s.is("dead letters that are not collected", *dead.Ready, int64(3))
		after := [...]int{s.count(protocol.OffsetFetch), s.count(protocol.ListOffsets)}
		s.is("calls for offsets", [...]int{after[0] - before[0], after[1] - before[1]}, [...]int{2, 4})
	})
}

// What may not be known of dead letters is left out. A broker that does not answer delays
// neither the source, nor the question beyond its context.
func TestBacklogsOfABrokerThatHangs(t *testing.T) {
	onStub(t, withDead, func(s *stub) {
		s.says(answering(func(req *offsetfetch.Request) protocol.Message {
			if req.GroupID == "redrive-collect" {
				return &offsetfetch.Response{ErrorCode: int16(kafkago.GroupAuthorizationFailed)}
			}
			return nil
		}))
		if all, err := s.src.Backlogs(s.Context()); err != nil || len(all) != 1 || all[0].Topic != "orders" {
			s.Errorf("no right to see the group: %v, %+v", err, all)
		}
		s.ack(s.take(20)...)
		s.says(func(req protocol.Message, _ int) (protocol.Message, error) {
			if _, ok := req.(*listoffsets.Request); ok {
				return nil, errSilence
			}
			return nil, nil
		})
		ctx, cancel := context.WithTimeout(s.Context(), 5*time.Second)
		defer cancel()
		asked, start := make(chan error, 1), time.Now()
		go func() {
			_, err := s.src.Backlogs(ctx)
			asked <- err
		}()
		more := numbered(10, 10)
		for i := range more {
			more[i].offset += 10
		}
		s.change(func(s *stub) { s.log = append(s.log, batch{base: 10, records: more}) })
		s.ack(s.take(20)...)
		if took := time.Since(start); took > time.Second {
			s.Errorf("messages came after %v", took)
		}
		if err := <-asked; !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 5*time.Second {
			s.Errorf("asked for %v: %v", time.Since(start), err)
		}
	})
}

package kafka_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/segmentio/kafka-go/protocol/offsetfetch"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// A record is done when the copy of its retry is confirmed, and not before.
func TestUnconfirmedCopyKeepsTheOriginal(t *testing.T) {
	onStub(t, nil, func(s *stub) {
		ds, code := s.take(10), kafkago.RequestTimedOut
		s.says(answering(func(req *produce.Request) protocol.Message {
			s.committed(first, 0) // before the copy is confirmed
			return produced(req, code)
		}))
		if err := s.settle(brokers.Retry, ds[0]); !errors.Is(err, brokers.ErrUnknownOutcome) {
			s.Errorf("of unknown outcome: %v", err)
		}
		if s.committed(first, 0); s.Failed() {
			return
		}
		code = 0
		if err := s.settle(brokers.Retry, ds[0]); err != nil {
			s.Errorf("once more: %v", err)
		}
		s.committed(first, 1)
		sent := s.count(protocol.Produce)
		s.refuse(kafkago.UnknownMemberId)
		<-ds[1].Session.Done()
		for _, action := range []brokers.Action{brokers.Ack, brokers.Retry} {
			if err := s.settle(action, ds[1+int(action)]); !errors.Is(err, brokers.ErrLeaseLost) {
				s.Errorf("%s after the generation: %v", action, err)
			}
		}
		s.is("copies after the generation", s.count(protocol.Produce), sent)
		s.committed(first, 1)
	})
}

// What is rejected is done: the log keeps it. What is no action settles nothing.
func TestRejectLeavesItToTheLog(t *testing.T) {
	onStub(t, nil, func(s *stub) {
		ds := s.take(10)
		if err := s.settle(brokers.Reject, ds[0]); err != nil {
			s.Errorf("reject: %v", err)
		}
		s.committed(first, 1)
		if err := s.settle(brokers.Reject, ds[0]); !errors.Is(err, brokers.ErrSettled) {
			s.Errorf("reject once more: %v", err)
		}
		if err := s.settle(brokers.Reject+1, ds[1]); err == nil || !strings.Contains(err.Error(), "still held") {
			s.Errorf("no action: %v", err)
		}
		s.committed(first, 1)
		s.ack(ds[1:]...)
		s.is("copies", s.count(protocol.Produce), 0)
		if _, err := s.src.Receive(s.Context(), 0); err == nil || !strings.Contains(err.Error(), "the least is 1") {
			s.Errorf("Receive of 0 messages: %v", err)
		}
	})
}

// What is settled waits for the next commit, unless it is much. Where nothing has changed
// there is none, and no commit overtakes another one: what came last would be what the
// group has.
func TestCommitPace(t *testing.T) {
	onStub(t, func(s *stub) { s.log = []batch{{records: numbered(0, 3*kafka.CommitBatch)}} }, func(s *stub) {
		ds := s.take(3 * kafka.CommitBatch)
		time.Sleep(10*kafka.CommitPace - kafka.CommitPace/2)
		if n := s.count(protocol.OffsetCommit); n > 2 {
			s.Errorf("%d commits while nothing changes, want that of the state, and of the marks", n)
		}
		settle := func(from, to int) {
			s.ack(ds[from:to]...)
			synctest.Wait()
		}
		settle(0, kafka.CommitBatch-1)
		s.is("committed before it is time", s.at(first), 0)
		time.Sleep(kafka.CommitPace / 2)
		synctest.Wait()
		s.is("committed when it is time", s.at(first), kafka.CommitBatch-1)
		settle(kafka.CommitBatch-1, 2*kafka.CommitBatch-1)
		s.is("committed at once, as it is much", s.at(first), 2*kafka.CommitBatch-1)
		under := 0
		s.says(func(req protocol.Message, _ int) (protocol.Message, error) {
			if _, ok := req.(*offsetcommit.Request); !ok {
				return nil, nil
			}
			add := func(n int) {
				s.change(func(s *stub) {
					if under += n; under > 1 {
						s.Error("a commit begins while one is on its way")
					}
				})
			}
			add(1)
			time.Sleep(2 * kafka.CommitPace)
			add(-1)
			return nil, nil
		})
		settle(2*kafka.CommitBatch-1, 2*kafka.CommitBatch)
		time.Sleep(kafka.CommitPace)
		settle(2*kafka.CommitBatch, 3*kafka.CommitBatch)
		time.Sleep(4 * kafka.CommitPace)
		s.committed(first, 3*kafka.CommitBatch)
	})
}

// Nothing acks where only copies are late: commits do not wait for done records.
func TestCommitsDoNotWaitForDoneRecords(t *testing.T) {
	onStub(t, func(s *stub) {
		s.next, s.log = []formed{{share: []int{0}, also: []string{delayOfOrders}}}, logOf(retriesTo(10, 0, dueForLong)...)
		s.answer = func(req protocol.Message, _ int) (protocol.Message, error) {
			if _, ok := req.(*produce.Request); ok {
				return nil, errSilence
			}
			return nil, nil
		}
	}, func(s *stub) {
		var fresh []*brokers.Delivery
		for _, d := range s.take(20) {
			if d.Meta().Attempt == 0 {
				fresh = append(fresh, d)
			} else if d.Message.ID != "0" { // for the others done records are due
				s.ack(d)
			}
		}
		time.Sleep(2 * kafka.DonePace)
		s.ack(fresh...)
		s.committed(first, 10)
		s.is("committed of the delay topic", s.at(delayPartition), 0)
		if s.count(protocol.Produce) == 0 {
			s.Error("no done record is on its way")
		}
	})
}

// A commit that is on its way when the source is closed does not come after the last one.
func TestLastCommitIsTheLast(t *testing.T) {
	onStub(t, nil, func(s *stub) {
		ds := s.take(10)
		time.Sleep(time.Second)
		s.says(func(m protocol.Message, _ int) (protocol.Message, error) {
			if req, ok := m.(*offsetcommit.Request); ok && req.Topics[0].Partitions[0].CommittedOffset == 5 {
				time.Sleep(time.Second)
			}
			return nil, nil
		})
		s.ack(ds[:5]...)
		time.Sleep(kafka.CommitPace + time.Millisecond)
		s.ack(ds[5:]...)
		if err := s.src.Close(s.Context()); err != nil {
			s.Error(err)
		}
		time.Sleep(time.Minute)
		if at := s.owned[first]; at.offset != 10 || !strings.HasPrefix(at.metadata, kafka.OwnerClean) {
			s.Errorf("committed in the end: %v", at)
		}
	})
}

// What a coordinator has against a commit is told, but for what passes. It is lost
// only if its lease is.
func TestCommitErrors(t *testing.T) {
	for code, want := range map[kafkago.Error]struct {
		kind error  // of what Receive tells; nil if it tells nothing
		lost bool   // what is held
		text string // of what Receive tells
	}{
		kafkago.GroupLoadInProgress:          {},
		kafkago.NotCoordinatorForGroup:       {},
		kafkago.IllegalGeneration:            {lost: true},
		kafkago.UnknownMemberId:              {lost: true},
		kafkago.RebalanceInProgress:          {},
		kafkago.OffsetMetadataTooLarge:       {kind: brokers.ErrMisconfigured, text: "offset.metadata.max.bytes"},
		kafkago.GroupAuthorizationFailed:     {kind: brokers.ErrMisconfigured, text: `offset 1 of partition 0 of topic "orders" for group "g"`},
		kafkago.InvalidCommitOffsetSize:      {kind: kafkago.InvalidCommitOffsetSize},
		kafkago.TopicAuthorizationFailed:     {kind: brokers.ErrMisconfigured, text: "grant the user the rights"},
		kafkago.GroupCoordinatorNotAvailable: {},
	} {
		t.Run(code.Error(), func(t *testing.T) {
			onStub(t, nil, func(s *stub) {
				ds := s.take(10)
				time.Sleep(2 * kafka.CommitPace)
				failed := 0
				s.says(answering(func(*offsetcommit.Request) protocol.Message {
					if failed++; failed > 2 {
						return nil
					}
					return commitResponse(code)
				}))
				s.ack(ds[0])
				time.Sleep(kafka.CommitPace + kafka.CommitPace/2)
				if lost := ds[1].Session.Err() != nil; lost != want.lost {
					s.Errorf("the partition is lost: %v", lost)
				}
				time.Sleep(10 * time.Second)
				s.says(nil)
				s.src.Pause("orders") // what comes again
				_, errs := s.collect(time.Second)
				err := errors.Join(errs...)
				if (err != nil) != (want.kind != nil) || err != nil && !errors.Is(err, want.kind) || !strings.Contains(fmt.Sprint(err), want.text) {
					s.Errorf("told %v, want %v %s", err, want.kind, want.text)
				}
				if !want.lost {
					s.committed(first, 1)
				}
			})
		})
	}
}

// What the cluster has against telling what is committed ends Open.
func TestCommittedErrors(t *testing.T) {
	for _, tt := range []struct {
		code, partial kafkago.Error
		want          error
		text          string
	}{
		{kafkago.GroupAuthorizationFailed, 0, brokers.ErrMisconfigured, "Read on the group"},
		{0, kafkago.TopicAuthorizationFailed, brokers.ErrMisconfigured, "partition 0"},
		{0, 0, nil, ""},
	} {
		onBroker(t, func(s *stub) {
			s.says(answering(func(*offsetfetch.Request) protocol.Message {
				return &offsetfetch.Response{ErrorCode: int16(tt.code), Topics: []offsetfetch.ResponseTopic{{Name: "orders", Partitions: []offsetfetch.ResponsePartition{
					{PartitionIndex: 0, CommittedOffset: 5, Metadata: "m", ErrorCode: int16(tt.partial)},
				}}}}
			}))
			_, err := s.broker.Open(s.Context(), s.sub)
			if !errors.Is(err, tt.want) || err != nil && !strings.Contains(err.Error(), tt.text) {
				s.Errorf("codes %d, %d: %v, want %v", tt.code, tt.partial, err, tt.want)
			}
		})
	}
}

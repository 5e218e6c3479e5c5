package kafka_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// onGroup runs test on a member of a group and a topic of so many partitions with 10
// records each.
func onGroup(t *testing.T, partitions int, options kafka.Options, begin formed, test func(t *testing.T, s *stub)) {
	t.Helper()
	onStub(t, func(s *stub) {
		options.Brokers, options.Group = s.options.Brokers, s.options.Group
		s.options, s.next = options, []formed{begin}
		s.topics["orders"] = partitions
	}, func(s *stub) { test(s.T, s) })
}

// offered names the protocols that the last member to join has offered.
func (s *stub) offered() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.offers, " ")
}

// committedBy is the last commit of a partition: generation, offset, and how its owner
// left it.
func (s *stub) committedBy(number int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits[partition{"orders", number}]
}

// claims are what the member has said when it joined, since the n-th time.
func (s *stub) claims(n int) (all string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.joins[min(n, len(s.joins)):] {
		var numbers []int32
		for _, topic := range j.OwnedPartitions {
			numbers = append(numbers, topic.Partitions...)
		}
		all += fmt.Sprint(numbers, "@", j.Generation, " ")
	}
	return strings.TrimSpace(all)
}

// takeBy receives n deliveries, and returns them by partition.
func (s *stub) takeBy(n int) map[int][]*brokers.Delivery {
	s.Helper()
	by := make(map[int][]*brokers.Delivery)
	for _, d := range s.take(n) {
		number := partitionOf(d)
		by[number] = append(by[number], d)
	}
	return by
}

func partitionOf(d *brokers.Delivery) int {
	number, _ := strconv.Atoi(d.Meta().Origin.Get("partition"))
	return number
}

// sessions are those that go on of what is handed out.
func sessions(by map[int][]*brokers.Delivery) string {
	var alive []int
	for _, number := range slices.Sorted(maps.Keys(by)) {
		if by[number][0].Session.Err() == nil {
			alive = append(alive, number)
		}
	}
	return fmt.Sprint(alive)
}

// A join stops only what moves: handlers of what stays go on, before and after the group
// has formed, and are committed. What moves drains, is committed, and the member joins
// again without it.
func TestJoinStopsOnlyWhatMoves(t *testing.T) {
	onGroup(t, 3, kafka.Options{}, formed{share: []int{0, 1}}, func(t *testing.T, s *stub) {
		held := s.takeBy(20)
		fetched := s.count(protocol.OffsetFetch)
		s.rebalance(formed{share: []int{0}, join: 8 * time.Second, sync: 2 * time.Second}, formed{share: []int{0, 2}})
		s.sleep(5 * time.Second) // the others are waited for
		s.is("while the group forms, sessions", sessions(held), "[0 1]")
		s.ack(held[0][0], held[1][0])
		s.sleep(time.Second)
		s.is("committed while the group forms", s.committedBy(0)+", "+s.committedBy(1), "1 1o, 1 1o")
		beats := s.count(protocol.Heartbeat)
		s.sleep(8 * time.Second) // generation 2, partition 1 drains
		if n := s.count(protocol.Heartbeat) - beats; n < 2 {
			t.Errorf("%d heartbeats while handlers end", n)
		}
		s.is("claims", s.claims(1), "[0 1]@1")
		s.is("while partition 1 drains, sessions", sessions(held), "[0 1]")
		s.ack(held[1][1:]...)
		s.sleep(time.Second)
		s.is("partition 1 in the end", s.committedBy(1), "2 10c")
		s.is("claims then", s.claims(2), "[0]@2")
		s.is("sessions then", sessions(held), "[0]")
		if err := s.settle(brokers.Ack, held[1][9]); !errors.Is(err, brokers.ErrSettled) {
			t.Error(err)
		}
		s.takeBy(10) // of partition 2
		s.ack(held[0][1:]...)
		s.sleep(time.Second)
		s.is("partition 0 in the end", s.committedBy(0), "3 10o")
		s.quiet("all is done", time.Minute)
		s.is("partitions in the end", kafka.Owned(s.src), []string{first.String(), partition{"orders", 2}.String()})
		s.is("looks at commits, for the new partition", s.count(protocol.OffsetFetch), fetched+1)
	})
}

// A partition that moves ends after a third of RebalanceTimeout. What was handed out of
// it is no evidence.
func TestPartitionThatMovesIsCutOff(t *testing.T) {
	onGroup(t, 2, kafka.Options{RebalanceTimeout: 30 * time.Second}, formed{share: []int{0, 1}}, func(t *testing.T, s *stub) {
		held := s.takeBy(20)
		s.sleep(time.Second)
		s.rebalance(formed{share: []int{0}})
		s.sleep(11 * time.Second) // the next heartbeat is 2 s away
		s.is("sessions before the end", sessions(held), "[0 1]")
		s.sleep(4 * time.Second)
		s.is("sessions", sessions(held), "[0]")
		for _, action := range []brokers.Action{brokers.Ack, brokers.Retry, brokers.Release} {
			if err := s.settle(action, held[1][action]); !errors.Is(err, brokers.ErrLeaseLost) {
				t.Errorf("%s of what has moved: %v", action, err)
			}
		}
		if errs := s.src.Extend(t.Context(), 0, held[1]); len(errs) != 10 || !errors.Is(errs[9], brokers.ErrLeaseLost) {
			t.Errorf("extend of what has moved: %v", errs)
		}
		s.change(func(s *stub) {
			at := s.owned[partition{"orders", 1}]
			if is, clean := kafka.ReadCommitted(at.offset, at.metadata); at.offset != 0 || !clean || is.Abandoned(0) > 0 {
				s.Errorf("committed %v, want none done, and no marks", at)
			}
		})
	})
}

// Of a partition that moves nothing more is handed out, also where another one has
// messages.
func TestNothingMoreOfWhatMoves(t *testing.T) {
	onGroup(t, 2, kafka.Options{}, formed{share: []int{0, 1}}, func(t *testing.T, s *stub) {
		s.sleep(time.Second) // until both are read
		held := s.takeBy(2)
		s.is("partitions at first", len(held), 2)
		s.rebalance(formed{share: []int{0}})
		s.sleep(5 * time.Second) // until a heartbeat tells
		ds := s.ready(30)
		for _, d := range ds {
			s.is("of partition", partitionOf(d), 0)
		}
		s.is("messages that come meanwhile", len(ds), 9)
		s.is("sessions", sessions(held), "[0 1]")
	})
}

// A commit that is refused because the group forms is repeated in the next generation,
// and nobody hears of it.
func TestRefusedCommitIsRepeated(t *testing.T) {
	onGroup(t, 1, kafka.Options{}, formed{share: []int{0}}, func(t *testing.T, s *stub) {
		held := s.takeBy(10)
		s.rebalance(formed{share: []int{0}, join: time.Second, sync: 10 * time.Second})
		s.sleep(6 * time.Second) // the leader is waited for
		s.ack(held[0]...)
		s.sleep(3 * time.Second)
		s.is("while the leader is waited for, committed", s.committedBy(0), "1 0o")
		s.change(func(s *stub) {
			if s.refused == 0 {
				t.Error("no commit is refused")
			}
		})
		s.quiet("all is done", 10*time.Second)
		s.is("then", s.committedBy(0), "2 10o")
		s.is("claims", s.claims(1), "[0]@1")
	})
}

// A settlement that is on its way when its partition is given up says what became of it:
// an ack is lost, and of a retry both the copy and the original may come. Neither is
// held any more.
func TestSettlingWhileThePartitionIsGivenUp(t *testing.T) {
	onGroup(t, 1, kafka.Options{}, formed{share: []int{0}}, func(t *testing.T, s *stub) {
		held := s.takeBy(10)[0]
		s.says(answering(func(req *produce.Request) protocol.Message {
			s.refuse(kafkago.UnknownMemberId)
			s.sleep(4 * time.Second) // until a heartbeat tells
			return produced(req, 0)
		}))
		if err := s.settle(brokers.Retry, held[0]); !errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, brokers.ErrUnknownOutcome) {
			t.Errorf("a retry whose partition is given up meanwhile: %v, want ErrLeaseLost, which is final", err)
		}
		if err := s.settle(brokers.Retry, held[0]); !errors.Is(err, brokers.ErrSettled) {
			t.Errorf("the same retry once more: %v, want ErrSettled", err)
		}
		s.is("acks that are lost", kafka.FinishLate(held[1], held[2]), 2)
	})
}

// Closing while the leader is waited for commits in the new generation.
func TestCloseCommitsInTheGenerationThatForms(t *testing.T) {
	onGroup(t, 1, kafka.Options{}, formed{share: []int{0}}, func(t *testing.T, s *stub) {
		held := s.takeBy(10)
		s.sleep(time.Second)
		s.rebalance(formed{share: []int{0}, sync: 2 * time.Second})
		s.sleep(2500 * time.Millisecond)
		if err := errors.Join(s.settle(brokers.Ack, held[0][:5]...), s.src.Close(t.Context())); err != nil {
			t.Error(err)
		}
		s.is("committed", s.committedBy(0), "2 5c")
	})
}

// A member that closes while the others are waited for has left the group at once.
func TestCloseWhileTheGroupForms(t *testing.T) {
	onGroup(t, 1, kafka.Options{}, formed{share: []int{0}}, func(t *testing.T, s *stub) {
		s.rebalance(formed{join: 5 * time.Minute})
		s.sleep(5 * time.Second)
		start := time.Now()
		if err := s.src.Close(t.Context()); err != nil || time.Since(start) > 5*time.Second || s.count(protocol.LeaveGroup) != 1 {
			t.Errorf("closed after %v: %v", time.Since(start), err)
		}
	})
}

// As long as a member offers only the eager protocol, all stop before they join.
func TestEagerGroup(t *testing.T) {
	onGroup(t, 2, kafka.Options{}, formed{protocol: kafka.Eager, share: []int{0, 1}, heedless: true}, func(t *testing.T, s *stub) {
		held := s.takeBy(20)
		s.is("offers", s.offered(), kafka.Cooperative+" "+kafka.Eager)
		s.rebalance(formed{protocol: kafka.Eager, share: []int{0, 1}, heedless: true}, formed{share: []int{0}})
		s.sleep(5 * time.Second)
		s.ack(held[0]...)
		s.sleep(10 * time.Second)
		s.is("sessions", sessions(held), "[]")
		s.is("committed", s.committedBy(0)+", "+s.committedBy(1), "2 10o, 2 0o")
		s.is("claims", s.claims(0), "[]@-1 []@-1")
		again := s.takeBy(10)
		// The last member that knows only the eager protocol leaves: from the next
		// generation on what stays goes on.
		s.rebalance(formed{share: []int{0, 1}}, formed{share: []int{1}})
		s.sleep(20 * time.Second)
		s.is("sessions after the second time", sessions(again), "[]")
		last := s.takeBy(10)
		s.rebalance(formed{share: []int{1}})
		s.sleep(10 * time.Second)
		s.is("sessions in the cooperative group", sessions(last), "[1]")
		s.is("claims then", s.claims(2), "[]@-1 [0 1]@3 [1]@4")
	})
}

// While members come and go so fast that no plan is ready before the next one joins,
// a member goes on to commit, in the name of the generation that was cut short.
func TestGenerationsThatAreCutShort(t *testing.T) {
	onGroup(t, 2, kafka.Options{}, formed{share: []int{0, 1}}, func(t *testing.T, s *stub) {
		held := s.takeBy(20)
		s.rebalance(formed{cut: true}, formed{cut: true, join: 5 * time.Second}, formed{share: []int{0, 1}, join: 20 * time.Second})
		for i := range 2 {
			s.sleep(4 * time.Second)
			s.ack(held[i]...)
			s.sleep(time.Second)
			s.is("committed", s.committedBy(i), fmt.Sprintf("%d 10o", 2+i))
		}
		s.sleep(30 * time.Second)
		s.is("sessions", sessions(held), "[0 1]")
		s.is("claims", s.claims(1), "[0 1]@1 [0 1]@2 [0 1]@3")
	})
}

// A coordinator that does not know the member any more when it commits is not asked
// without a pause.
func TestCommitsThatAreRefusedForEver(t *testing.T) {
	onGroup(t, 1, kafka.Options{}, formed{share: []int{0}}, func(t *testing.T, s *stub) {
		s.takeBy(10)
		s.says(answering(func(req *offsetcommit.Request) protocol.Message {
			res := &offsetcommit.Response{}
			for _, topic := range req.Topics {
				out := offsetcommit.ResponseTopic{Name: topic.Name}
				for _, p := range topic.Partitions {
					out.Partitions = append(out.Partitions, offsetcommit.ResponsePartition{PartitionIndex: p.PartitionIndex, ErrorCode: int16(kafkago.UnknownMemberId)})
				}
				res.Topics = append(res.Topics, out)
			}
			return res
		}))
		s.rebalance(formed{share: []int{0}})
		before := s.count(protocol.JoinGroup)
		s.sleep(time.Minute)
		if n := s.count(protocol.JoinGroup) - before; n < 10 || n > 130 {
			t.Errorf("the member has joined %d times in a minute, want one or two a second", n)
		}
	})
}

// A worker that stops at such a time commits, too.
func TestCloseInAGenerationThatIsCutShort(t *testing.T) {
	onGroup(t, 1, kafka.Options{}, formed{share: []int{0}}, func(t *testing.T, s *stub) {
		held := s.takeBy(10)
		s.rebalance(formed{cut: true, sync: time.Second}, formed{share: []int{0}})
		s.sleep(4 * time.Second)
		s.ack(held[0]...)
		if err := s.src.Close(t.Context()); err != nil {
			t.Error(err)
		}
		s.is("committed", s.committedBy(0), "2 10c")
	})
}

// A leader of an old version that comes into a cooperative group has given away what it
// does not assign: it is lost at once, and nothing of it is committed any more.
func TestLeaderThatHeedsNoOwners(t *testing.T) {
	onGroup(t, 2, kafka.Options{}, formed{share: []int{0, 1}}, func(t *testing.T, s *stub) {
		held := s.takeBy(20)
		s.sleep(time.Second)
		s.rebalance(formed{protocol: kafka.Eager, share: []int{0}, heedless: true})
		s.sleep(4 * time.Second)
		s.is("sessions", sessions(held), "[0]")
		if err := s.settle(brokers.Ack, held[1]...); !errors.Is(err, brokers.ErrLeaseLost) {
			t.Errorf("ack of what is lost: %v", err)
		}
		s.ack(held[0]...)
		s.sleep(time.Second)
		s.is("committed", s.committedBy(0)+", "+s.committedBy(1), "2 10o, 1 0o")
		s.is("claims", s.claims(1), "[0 1]@1")
	})
}

// A member that the group has gone on without has lost all, whatever it is assigned.
func TestMissedGeneration(t *testing.T) {
	for name, tt := range map[string]struct {
		forget func(s *stub)
		claims string
	}{
		"a generation was formed without it": {func(s *stub) { s.rebalance(formed{share: []int{0}, skipped: 1}) }, "[0 1]@1 [0]@3"},
		"heartbeats are of an old generation": {func(s *stub) {
			s.rebalance(formed{share: []int{0}})
			s.refuse(kafkago.IllegalGeneration)
		}, "[]@-1"},
		"it is unknown": {func(s *stub) { s.rebalance(formed{share: []int{0}}); s.refuse(kafkago.UnknownMemberId) }, "[]@-1 []@-1"},
		"no broker answers": {func(s *stub) {
			s.says(func(protocol.Message, int) (protocol.Message, error) { return nil, errSilence })
			s.rebalance(formed{share: []int{0}})
			time.AfterFunc(40*time.Second, func() { s.says(nil) })
		}, "[]@-1"},
	} {
		t.Run(name, func(t *testing.T) {
			onGroup(t, 2, kafka.Options{}, formed{share: []int{0, 1}}, func(t *testing.T, s *stub) {
				held := s.takeBy(20)
				s.ack(held[0][:4]...)
				s.sleep(time.Second)
				tt.forget(s)
				s.sleep(2 * time.Minute)
				s.is("sessions", sessions(held), "[]")
				if err := s.settle(brokers.Ack, held[0][4]); !errors.Is(err, brokers.ErrLeaseLost) {
					t.Errorf("ack: %v", err)
				}
				s.is("claims", s.claims(1), tt.claims)
				if again, _ := s.collect(time.Minute); len(again) != 6 || partitionOf(again[0]) != 0 || again[0].Abandoned > 0 {
					t.Errorf("received %v again, want the 6 that are not acked, and nobody lost", bodies(again))
				}
			})
		})
	}
}

// 300 partitions move at once: each ends cleanly, and the member goes on.
func TestManyPartitionsMoveAtOnce(t *testing.T) {
	all := make([]int, 300)
	for i := range all {
		all[i] = i
	}
	onGroup(t, 301, kafka.Options{}, formed{share: append([]int{300}, all...)}, func(t *testing.T, s *stub) {
		held := s.takeBy(3010)
		kept := held[300]
		delete(held, 300)
		s.rebalance(formed{share: []int{300}})
		s.sleep(4 * time.Second)
		for number, ds := range held {
			if err := s.settle(brokers.Ack, ds[:5]...); err != nil {
				t.Errorf("partition %d: %v", number, err)
			}
		}
		s.sleep(15 * time.Second)
		s.is("sessions", sessions(held), "[]")
		for number := range all {
			if at := s.committedBy(number); at != "2 5c" {
				t.Errorf("partition %d: %q", number, at)
			}
		}
		s.is("partitions in the end", kafka.Owned(s.src), []string{partition{"orders", 300}.String()})
		s.ack(kept...)
		s.sleep(time.Second)
		s.is("what stays", s.committedBy(300), "3 10o")
		s.is("claims", s.claims(2), "[300]@2")
		most := int32(0)
		s.change(func(s *stub) {
			s.fetching = func(_ string, req *fetch.Request) kmsg.Response {
				most = max(most, req.Topics[0].Partitions[0].PartitionMaxBytes)
				return nil
			}
		})
		for i := range int64(25) {
			s.change(func(s *stub) { s.log = append(s.log, batch{base: 10 + i}) })
			s.sleep(time.Second)
		}
		s.change(func(*stub) { s.is("bytes that its fetches ask for", most, kafka.UsualLimits.Buffer) })
	})
}

// Another worker has come with the same InstanceID: all is lost at once, and the source
// ends.
func TestInstanceIDIsTakenOver(t *testing.T) {
	onGroup(t, 2, kafka.Options{InstanceID: "worker-0"}, formed{share: []int{0, 1}}, func(t *testing.T, s *stub) {
		held := s.takeBy(20)
		s.refuse(kafkago.FencedInstanceID)
		s.sleep(5 * time.Second)
		s.is("sessions", sessions(held), "[]")
		if _, err := s.src.Receive(t.Context(), 1); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "worker-0") {
			t.Errorf("Receive: %v", err)
		}
		s.refuse(0)
		s.sleep(time.Minute)
		s.is("claims", s.claims(1), "[]@-1")
	})
}

// A partition that breaks begins anew by itself: the others, and the group, go on.
func TestBrokenPartitionBeginsAnew(t *testing.T) {
	onGroup(t, 2, kafka.Options{}, formed{share: []int{0, 1}}, func(t *testing.T, s *stub) {
		held := s.takeBy(20)
		breaks := func(req protocol.Message, _ int) (protocol.Message, error) {
			if _, ok := req.(*listoffsets.Request); ok {
				return nil, io.EOF
			}
			return nil, nil
		}
		s.change(func(s *stub) {
			s.answer, s.fetching = breaks, func(_ string, req *fetch.Request) kmsg.Response {
				res := s.fetch(req).(*kmsg.FetchResponse)
				for i := range res.Topics[0].Partitions {
					if p := &res.Topics[0].Partitions[i]; p.Partition == 1 {
						p.ErrorCode = int16(kafkago.OffsetOutOfRange)
					}
				}
				return res
			}
		})
		s.sleep(4 * time.Second)
		s.change(func(s *stub) { s.answer, s.fetching = nil, nil })
		s.is("sessions while it drains", sessions(held), "[0 1]")
		s.ack(held[1][:9]...)
		s.sleep(20 * time.Second)
		s.is("sessions", sessions(held), "[0]")
		if again, errs := s.collect(time.Second); len(again) != 1 || partitionOf(again[0]) != 1 || string(again[0].Message.Body) != "9" || again[0].Abandoned > 0 || len(errs) == 0 {
			t.Errorf("received %v after the errors %v", bodies(again), errs)
		}
		s.is("claims", s.claims(1), "")
	})
}

// A member that does not know that it is to revoke a partition, such as a static one that
// was away, does not keep it from the others for ever: the leader has the group form
// again.
func TestPartitionThatNobodyRevokes(t *testing.T) {
	owns := func(generation int32, numbers ...int32) []byte {
		m := kmsg.NewConsumerMemberMetadata()
		m.Version, m.Topics, m.Generation = 2, []string{"orders", delayOfOrders}, generation
		for topic, numbers := range map[string][]int32{"orders": numbers, delayOfOrders: {0}} {
			m.OwnedPartitions = append(m.OwnedPartitions, kmsg.ConsumerMemberMetadataOwnedPartition{Topic: topic, Partitions: numbers})
		}
		return m.AppendTo(nil)
	}
	onGroup(t, 2, kafka.Options{RebalanceTimeout: 30 * time.Second}, formed{beside: owns(7, 0, 1)}, func(t *testing.T, s *stub) {
		s.sleep(29 * time.Second)
		if owned := kafka.Owned(s.src); len(owned) > 0 || s.claims(1) != "" {
			t.Errorf("%q are read, after %q", owned, s.claims(1))
		}
		s.rebalance(formed{beside: owns(8)})
		s.change(func(s *stub) { s.state = stable })
		if held := s.takeBy(10); len(held) != 1 {
			t.Errorf("received of %d partitions", len(held))
		}
	})
}

// The second step of an upgrade offers only the cooperative protocol.
func TestCooperativeOnly(t *testing.T) {
	onGroup(t, 1, kafka.Options{CooperativeOnly: true}, formed{share: []int{0}}, func(t *testing.T, s *stub) {
		s.takeBy(10)
		s.is("offers", s.offered(), kafka.Cooperative)
	})
}

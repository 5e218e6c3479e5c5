package kafka_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// lostAt is the commit of an owner that was lost, at offset 0, with what it suspects.
func lostAt(suspects map[int64]int) commitment {
	return commitment{metadata: kafka.MetadataOf(0, true, suspects)}
}

// ready is what a Receive returns after a second, nil if it returns nothing.
func (s *stub) ready(most int) []*brokers.Delivery {
	s.Helper()
	s.sleep(time.Second)
	ctx, cancel := context.WithTimeout(s.Context(), time.Millisecond)
	defer cancel()
	ds, err := s.src.Receive(ctx, most)
	if err != nil && ctx.Err() == nil {
		s.Error(err)
	}
	return ds
}

func offsetOf(d *brokers.Delivery) int64 {
	offset, _ := strconv.ParseInt(d.Meta().Origin.Get("offset"), 10, 64)
	return offset
}

// After a lost owner so many are handed out as can be marked, and the next follow when
// some of them are settled, not all: one may take long. A Receive that waits gets what
// came meanwhile.
func TestMarkedDeliveriesFollowEachOther(t *testing.T) {
	const records, some = 2 * kafka.MaxMarks, kafka.MaxMarks / 8
	onStub(t, func(s *stub) {
		lost := make(map[int64]int)
		for offset := range int64(20) {
			lost[offset] = 1
		}
		s.log, s.owned[first] = []batch{{records: numbered(0, records)}}, lostAt(lost)
	}, func(s *stub) {
		held := make(map[int64]*brokers.Delivery)
		comes := func(when string, from, to int64) {
			s.Helper()
			ds := s.ready(records)
			for i, d := range ds {
				if held[offsetOf(d)] = d; offsetOf(d) != from+int64(i) || d.Abandoned != map[bool]int{true: 1}[offsetOf(d) < 20] {
					s.Errorf("%s: offset %d, abandoned %d times, is number %d", when, offsetOf(d), d.Abandoned, i)
				}
			}
			s.is(when, len(ds), to-from)
		}
		settle := func(from, to int64) {
			for offset := from; offset < to; offset++ {
				s.ack(held[offset])
			}
		}
		comes("at first", 0, kafka.MaxMarks)
		comes("while they are handed out", 0, 0)
		began := time.Now()
		settle(1, 1+some) // the first one takes long
		s.is("the next of them", offsetOf(s.take(some)[0]), kafka.MaxMarks)
		if waited := time.Since(began); waited >= kafka.CommitPace/2 {
			s.Errorf("the next came after %v, with the usual commit", waited)
		}
		for offset := range int64(some) {
			held[kafka.MaxMarks+offset] = nil
		}
		settle(1+some, 20)
		s.sleep(kafka.Careful)
		comes("beside a suspect that is still there", kafka.MaxMarks+some, kafka.MaxMarks+19)
		go func() {
			s.sleep(time.Second)
			settle(0, 1)
		}()
		ctx, cancel := context.WithTimeout(s.Context(), kafka.Careful)
		defer cancel()
		ds, err := s.src.Receive(ctx, records)
		if len(ds) != records-kafka.MaxMarks-19 || err != nil {
			s.Errorf("received %d in the end, %v", len(ds), err)
		}
	})
}

// triedAt is the log of a delay topic: messages on trial that are due.
func triedAt(n int) (log []record) {
	for i := range n {
		log = append(log, copied(brokers.Message{ID: strconv.Itoa(i), Topic: "orders"}, brokers.Meta{Attempt: 1, Crashes: 1, DueAt: time.Now()}))
	}
	return log
}

// Messages on trial in two partitions were lost with an owner: one of them kills. Each
// runs alone in its worker, so that nothing beside it is charged.
func TestSuspectsRunAloneInTheirWorker(t *testing.T) {
	const other = "redrive.delay.v1.g.15m"
	second := partition{other, 0}
	onStub(t, func(s *stub) {
		s.topics[other], s.sub.MaxDelay, s.log = 1, 15*time.Minute, logOf(triedAt(10)...)
		s.next = []formed{{share: []int{0}}, {share: []int{0}, also: []string{delayOfOrders, other}}}
		s.owned[delayPartition], s.owned[second] = lostAt(map[int64]int{3: 1}), lostAt(map[int64]int{7: 2})
	}, func(s *stub) {
		before := s.take(2)
		s.rebalance(s.next[1])
		s.sleep(10 * time.Second)
		s.is("beside deliveries from before", len(s.ready(30)), 0)
		s.ack(before...)
		seen := make(map[partition]bool)
		for range 2 {
			ds := s.ready(30)
			if len(ds) != 1 {
				s.Fatalf("received %d, want one suspect alone", len(ds))
			}
			at := partition{ds[0].Meta().Origin.Get("topic"), 0}
			want, lost := int64(3), 1
			if at == second {
				want, lost = 7, 2
			}
			if offsetOf(ds[0]) != want || ds[0].Abandoned != lost || seen[at] {
				s.Errorf("offset %d of %s is tried, lost with %d", offsetOf(ds[0]), at, ds[0].Abandoned)
			}
			seen[at] = true
			s.change(func(s *stub) {
				for p, marks := range map[partition]int64{delayPartition: 3, second: 7} {
					c, _ := kafka.ReadCommitted(0, s.owned[p].metadata)
					if marked := c.Abandoned(marks) > map[bool]int{true: 1, false: 2}[p == delayPartition]; marked != (p == at) && !c.IsDone(marks) {
						s.Errorf("while one of %s is tried, that of %s is marked: %v", at, p, marked)
					}
				}
			})
			s.is("beside a suspect", len(s.ready(30)), 0)
			s.ack(ds...)
		}
		ds := s.comes(2 * kafka.Careful)
		s.is("messages in the end", len(ds), 30-4)
	})
}

// A worker that dies while a topic is paused does not die of its messages, and a suspect
// among them does not keep the others.
func TestSuspectsOfAPausedTopic(t *testing.T) {
	onDelays(t, kafka.UsualLimits, func(s *stub) []record {
		s.owned[delayPartition] = lostAt(map[int64]int{0: 1})
		return append(triedAt(1), retryTo("refunds", 1, time.Now(), 0))
	}, func(s *stub) {
		s.sleep(time.Second) // the suspect is marked
		s.src.Pause("orders")
		ds := s.ready(30)
		s.is("while orders is paused", ids(ds), []int{1})
		s.change(func(s *stub) {
			c, _ := kafka.ReadCommitted(0, s.owned[delayPartition].metadata)
			s.is("owners lost with the suspect, if this one dies now", c.Abandoned(0), 1)
		})
		s.ack(ds...)
		s.src.Pause()
		if ds = s.ready(30); len(ds) != 1 || offsetOf(ds[0]) != 0 || ds[0].Abandoned != 1 {
			s.Errorf("resumed: received %v", ids(ds))
		}
	})
}

// A message that kills every worker that receives it goes on trial before many have died.
// There it is found out, and no other message is blamed, though all of them are on trial.
func TestCrashLoopsEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		onTrial   bool
		end       int // it runs no more when so many owners were lost with it
		deaths    int
		blameless int // how many may have been lost with another one that still runs
	}{
		"before its trial": {end: 2, deaths: 3, blameless: 1}, // the first death leaves no mark
		"on trial":         {onTrial: true, end: 3, deaths: 3, blameless: 1},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(60) {
				random := rand.New(rand.NewPCG(seed, 1))
				n := 1 + random.Int64N(200)
				killer, inFlight := random.Int64N(n), 1+random.IntN(100)
				onStub(t, func(s *stub) {
					if s.log = []batch{{records: numbered(0, int(n))}}; tt.onTrial {
						s.log, s.next = logOf(triedAt(int(n))...), []formed{{also: []string{delayOfOrders}}}
					}
				}, func(s *stub) { endCrashLoop(s, random, n, killer, inFlight, tt.end, tt.deaths, tt.blameless) })
			}
		})
	}
}

// endCrashLoop lets workers die of a message until no other one is left, and it has run
// for the last time. What runs no more is on its way elsewhere, as the pipeline has it.
func endCrashLoop(s *stub, random *rand.Rand, n, killer int64, inFlight, end, most, blameless int) {
	worst, handled, found := 0, make(map[int64]bool), false
	isOver := func() bool { return found && int64(len(handled)) == n-1 }
	for deaths := 0; !isOver(); deaths++ {
		if deaths > most {
			s.Fatalf("offset %d of %d, %d in flight, has killed %d workers", killer, n, inFlight, deaths)
		}
		if deaths > 0 {
			s.crash()
			s.open()
		}
		for alive := true; alive && !isOver(); {
			ctx, cancel := context.WithTimeout(s.Context(), 50*time.Millisecond)
			ds, _ := s.src.Receive(ctx, inFlight)
			cancel()
			var received []*brokers.Delivery
			for _, d := range ds {
				switch {
				case offsetOf(d) == killer && d.Abandoned < end:
					alive = false
				case offsetOf(d) == killer:
					found = true
				case d.Abandoned < end:
					worst = max(worst, d.Abandoned)
				case end > 2: // on trial
					s.Errorf("offset %d is blamed for what %d did", offsetOf(d), killer)
				}
				if !alive {
					break
				}
				received = append(received, d)
			}
			if !alive && random.IntN(2) == 0 {
				s.sleep(2 * kafka.CommitPace)
			}
			if alive || random.IntN(2) == 0 {
				s.ack(received...)
				for _, d := range received {
					handled[offsetOf(d)] = offsetOf(d) != killer
				}
				delete(handled, killer)
			}
		}
	}
	if worst > blameless {
		s.Errorf("offset %d kills: another message that runs was lost with %d workers", killer, worst)
	}
}

// A reader is careful for some time after its first fetch, which pauses do not use up.
func TestWarinessEnds(t *testing.T) {
	for name, paused := range map[string]bool{"read all the time": false, "paused meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			const records = 500
			onStub(t, func(s *stub) {
				s.log, s.owned[first] = []batch{{records: numbered(0, records)}}, lostAt(nil)
				s.answer = answering(func(*fetch.Request) protocol.Message { return fetchError(kafkago.OffsetNotAvailable) })
			}, func(s *stub) {
				s.collect(2 * kafka.Careful) // errors: the time begins with the first answer
				s.says(nil)
				s.sleep(5 * time.Second)
				if paused {
					s.src.Pause("orders")
					s.sleep(10 * kafka.Careful)
					s.src.Pause()
				}
				ds, err := s.src.Receive(s.Context(), records)
				for err != nil {
					ds, err = s.src.Receive(s.Context(), records)
				}
				s.is("records at first: as many as can be marked", len(ds), kafka.MaxMarks)
				s.is("records beside them", len(s.ready(records)), 0)
				s.sleep(kafka.Careful)
				s.is("records in the end", len(s.ready(records)), records-kafka.MaxMarks)
			})
		})
	}
}

// Whatever commits fail: what is handed out after a lost owner is marked before, and
// nothing is lost.
func TestFailedCommitsWhileWaryLoseNothing(t *testing.T) {
	const records = 300
	onStub(t, func(s *stub) {
		s.log, s.owned[first] = []batch{{records: numbered(0, records)}}, lostAt(map[int64]int{3: 1, 4: 2, 5: 1})
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			if _, ok := req.(*offsetcommit.Request); ok && call%3 != 0 {
				return commitResponse(kafkago.InvalidCommitOffsetSize), nil // not one to repeat at once
			}
			return nil, nil
		}
	}, func(s *stub) {
		start, seen := time.Now(), make(map[int64]int)
		for time.Since(start) < 10*kafka.Careful {
			ctx, cancel := context.WithTimeout(s.Context(), 5*time.Second)
			ds, _ := s.src.Receive(ctx, 1000)
			cancel()
			for _, d := range ds {
				if time.Since(start) < kafka.Careful {
					s.change(func(s *stub) {
						at := s.owned[first]
						if c, _ := kafka.ReadCommitted(at.offset, at.metadata); c.Abandoned(offsetOf(d)) != d.Abandoned+1 {
							s.Errorf("offset %d is handed out without a mark", offsetOf(d))
						}
					})
				}
			}
			for _, d := range ds {
				action := brokers.Ack
				if seen[offsetOf(d)]++; seen[offsetOf(d)] == 1 && offsetOf(d)%10 == 0 {
					action = brokers.Release
				}
				if err := s.settle(action, d); err != nil {
					s.Error(err)
				}
			}
		}
		for offset := range int64(records) {
			if want := map[bool]int{true: 2, false: 1}[offset%10 == 0]; seen[offset] != want {
				s.Errorf("offset %d was handed out %d times, want %d", offset, seen[offset], want)
			}
		}
		s.committed(first, records)
	})
}

// After a lost owner what is due is taken out of the buffer by trials. That makes room
// for more, also when the index is full and nothing is read.
func TestTrialsOfABacklogMakeRoom(t *testing.T) {
	const backlog = 450 // more than is loaded at a time
	limits := kafka.UsualLimits
	limits.Waiting, limits.Bodies = 100, 0
	onDelays(t, limits, func(s *stub) []record {
		s.owned[delayPartition] = lostAt(nil)
		return retriesTo(backlog, 50_000, dueForLong)
	}, func(s *stub) { s.is("messages while it is wary", len(s.comes(kafka.Careful*9/10)), backlog) })
}

// commitResponse has the codes of the first partitions of orders.
func commitResponse(codes ...kafkago.Error) protocol.Message {
	topic := offsetcommit.ResponseTopic{Name: "orders"}
	for n, code := range codes {
		topic.Partitions = append(topic.Partitions, offsetcommit.ResponsePartition{PartitionIndex: int32(n), ErrorCode: int16(code)})
	}
	return &offsetcommit.Response{Topics: []offsetcommit.ResponseTopic{topic}}
}

// fetchError is an answer about the first partition of orders.
func fetchError(code kafkago.Error) protocol.Message {
	return &fetch.Response{Topics: []fetch.ResponseTopic{{Topic: "orders", Partitions: []fetch.ResponsePartition{{
		ErrorCode: int16(code), HighWatermark: -1, RecordSet: protocol.RecordSet{Version: 2, Records: kafkago.NewRecordReader(kafkago.Record{})},
	}}}}}
}

// That the partitions belong to another worker ends the generation, whatever else fails.
func TestCommitTellsOfTheLostLease(t *testing.T) {
	for name, codes := range map[string][]kafkago.Error{
		"first": {kafkago.UnknownMemberId, kafkago.GroupAuthorizationFailed},
		"last":  {kafkago.GroupAuthorizationFailed, kafkago.UnknownMemberId},
	} {
		t.Run(name, func(t *testing.T) {
			onGroup(t, 2, kafka.Options{}, formed{share: []int{0, 1}}, func(t *testing.T, s *stub) {
				held := s.takeBy(20)
				s.says(answering(func(*offsetcommit.Request) protocol.Message {
					s.says(nil)
					return commitResponse(codes...)
				}))
				s.ack(held[0][0], held[1][0])
				s.sleep(2 * kafka.CommitPace) // before a heartbeat
				s.is("sessions", sessions(held), "[]")
				if cause := context.Cause(held[0][1].Session); !errors.Is(cause, brokers.ErrLeaseLost) {
					s.Errorf("the sessions end with %v", cause)
				}
			})
		})
	}
}

// A message on trial runs only after a commit names it, so that the first worker that
// it kills there counts, too.
func TestTrialsAreMarkedBeforeTheyRun(t *testing.T) {
	onDelays(t, kafka.UsualLimits, func(*stub) []record {
		trial := copied(brokers.Message{ID: "1", Topic: "orders"}, brokers.Meta{Crashes: 2, DueAt: time.Now().Add(5 * time.Second)})
		return []record{retryTo("orders", 0, time.Now(), 0), trial}
	}, func(s *stub) {
		s.is("the retry beside it", offsetOf(s.take(1)[0]), 0)
		s.is("the message on trial", offsetOf(s.take(1)[0]), 1)
		s.change(func(s *stub) {
			c, _ := kafka.ReadCommitted(0, s.owned[delayPartition].metadata)
			s.is("lost owners of the message on trial, if its worker dies now", c.Abandoned(1), 1)
		})
	})
}

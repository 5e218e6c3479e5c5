package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

var delayPartition = partition{delayOfOrders, 0}

// retryTo is a record of a delay topic, of which the ID is its offset.
func retryTo(topic string, offset int, due time.Time, size int) record {
	return copied(brokers.Message{ID: fmt.Sprint(offset), Topic: topic, Body: make([]byte, size)}, brokers.Meta{Attempt: 1, DueAt: due})
}

// retriesTo are n retries of orders.
func retriesTo(n, size int, due func(i int) time.Time) (log []record) {
	for i := range n {
		log = append(log, retryTo("orders", i, due(i), size))
	}
	return log
}

func dueForLong(int) time.Time { return time.Time{} }

// onDelays runs test on a worker of orders and refunds that has the partition of their
// delay topic.
func onDelays(t *testing.T, limits kafka.Limits, log func(s *stub) []record, test func(s *stub)) {
	t.Helper()
	onStub(t, func(s *stub) {
		s.limits, s.sub.Topics, s.topics["refunds"] = &limits, []string{"orders", "refunds"}, 1
		s.next, s.log = []formed{{also: []string{delayOfOrders}}}, logOf(log(s)...)
	}, test)
}

// What waits may be named by a done record that is not read yet.
func TestNothingIsHandedOutBeforeTheEndIsReached(t *testing.T) {
	onDelays(t, kafka.UsualLimits, func(s *stub) []record {
		s.stable = 10
		return append(retriesTo(10, 0, dueForLong), done(delayPartition, kafka.DoneValue(1, 2, 3, 4, 5, 6, 7, 8)))
	}, func(s *stub) {
		s.quiet("before the end of the partition is read", 3*time.Second)
		s.change(func(s *stub) { s.stable = 0 })
		s.is("handed out", ids(s.comes(3*time.Second)), []int{0, 9})
		s.committed(delayPartition, 11)
	})
}

// done is a done record for a partition.
func done(p partition, value []byte, secret ...[]byte) record {
	r := kafka.DoneRecord(p.topic, p.number, value, secret...)
	return record{value: r.Value, headers: r.Headers}
}

func TestHostileDoneRecords(t *testing.T) {
	good := kafka.DoneValue(1)
	values := [][]byte{nil, {}, {0}, {99}, {good[0], 0xff, 0xff}, kafka.DoneValue(0, 1, 500), append(good, 0)}
	onDelays(t, kafka.UsualLimits, func(*stub) []record {
		log := retriesTo(3, 0, dueForLong)
		for _, value := range values {
			log = append(log, done(delayPartition, value))
		}
		return log
	}, func(s *stub) {
		ds, errs := s.collect(3 * time.Second)
		if len(ds) != 3 || len(errs) == 0 || !errors.Is(errs[0], kafka.ErrDoneRecord) {
			s.Errorf("%d were handed out, want 3; errors: %v", len(ds), errs)
		}
		s.committed(delayPartition, int64(3+len(values)))
	})
}

// Neither what is fetched ahead, nor a backlog, nor an index that is full takes more
// memory than its limit, and all of it comes.
func TestMemoryIsBounded(t *testing.T) {
	usual := kafka.UsualLimits
	for name, tt := range map[string]struct {
		limits  kafka.Limits
		records int
		due     func(i int) time.Time
		within  func(h kafka.Held) bool
	}{
		"a backlog": {usual, 400, dueForLong, func(h kafka.Held) bool { return h.Buffered+h.Delayed <= 20<<20 }},
		"a full index": {kafka.Limits{Buffer: usual.Buffer, Waiting: 15, Soon: usual.Soon}, 100, func(i int) time.Time {
			return time.Now().Add(10*time.Second + time.Duration(i)*time.Millisecond)
		}, func(h kafka.Held) bool { return h.Waiting >= 15 && h.Waiting <= 35 }}, // with 10 more in a fetch
	} {
		t.Run(name, func(t *testing.T) {
			onDelays(t, tt.limits, func(*stub) []record { return retriesTo(tt.records, 100_000, tt.due) }, func(s *stub) {
				for range 20 {
					s.sleep(200 * time.Millisecond)
					if held := kafka.Holds(s.src); !tt.within(held) {
						s.Fatalf("%+v is held", held)
					}
				}
				s.is("records in the end", len(s.comes(20*time.Second)), tt.records)
			})
		})
	}
	t.Run("fetched ahead", func(t *testing.T) {
		onStub(t, func(s *stub) { s.log = logOf(slices.Repeat([]record{{value: make([]byte, 100_000)}}, 200)...) }, func(s *stub) {
			s.sleep(time.Minute)
			if held := kafka.Holds(s.src).Buffered; held < usual.Buffer || held > 2*usual.Buffer {
				s.Errorf("%d bytes are fetched ahead, want %d and at most one more fetch of as much", held, usual.Buffer)
			}
			s.is("records in the end", len(s.comes(10*time.Second)), 200)
		})
	})
}

// What is fetched again for its due time may be in trouble by then.
func TestFetchedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		change   func(s *stub)
		restored bool // the trouble is over some time
		want     string
		alarm    string
	}{
		"a new leader does not show all yet": {func(s *stub) { s.stable = 4 }, true, "0 1 2 3 4 5 6 7 8 9", ""},
		"one is gone from the middle": {func(s *stub) { s.log = slices.Delete(slices.Clone(s.log), 3, 4) }, false,
			"0 1 2 4 5 6 7 8 9", "1 of the retries that waited in partition 0 of topic \"" + delayOfOrders + "\" are not there any more, and are lost"},
		"retention was faster":    {func(s *stub) { s.start, s.log = 5, s.log[5:] }, false, "5 6 7 8 9", "retention.ms"},
		"the topic was made anew": {func(s *stub) { s.log = nil }, false, "", "made anew"},
	} {
		t.Run(name, func(t *testing.T) {
			limits := kafka.UsualLimits
			limits.Bodies = 0
			onDelays(t, limits, func(*stub) []record {
				due := time.Now().Add(kafka.Ahead + 2*time.Second)
				return retriesTo(10, 10, func(int) time.Time { return due })
			}, func(s *stub) {
				s.sleep(kafka.Ahead / 2)
				s.change(tt.change)
				s.sleep(kafka.Ahead/2 + 3*time.Second)
				if tt.restored {
					s.change(func(s *stub) { s.stable = 0 })
				}
				ds, errs := s.collect(10 * time.Second)
				if anyContains(errs, tt.alarm) != (tt.alarm != "") || len(errs) > 1 {
					s.Errorf("errors: %v, want %q", errs, tt.alarm)
				}
				got := ids(ds)
				if slices.Sort(got); strings.Join(got, " ") != tt.want {
					s.Errorf("handed out %q, want %s", got, tt.want)
				}
				if s.committed(delayPartition, int64(map[bool]int{true: 10}[tt.want != ""])); tt.want == "" {
					return
				}
				if held := kafka.Holds(s.src); held != (kafka.Held{}) {
					s.Errorf("%+v is still held", held)
				}
			})
		})
	}
}

// The retries of several topics share a delay partition. Those of a paused one wait, and
// the others are neither early nor late, whatever their order.
func TestDelaysAreExact(t *testing.T) {
	usual := kafka.UsualLimits
	for name, limits := range map[string]kafka.Limits{
		"in memory":     usual,
		"fetched again": {Buffer: usual.Buffer, Waiting: usual.Waiting, Soon: usual.Soon},
		"half and half": {Buffer: usual.Buffer, Waiting: usual.Waiting, Bodies: 50_000, Soon: usual.Soon},
		"little memory": {Buffer: kafka.LeastBuffer, Waiting: usual.Waiting, Bodies: 1000, Soon: 20_000},
	} {
		t.Run(name, func(t *testing.T) {
			const each = 200
			dues := make(map[string]time.Time)
			topics := [2]string{"orders", "refunds"}
			onDelays(t, limits, func(*stub) (log []record) {
				for i := range 2 * each {
					due := time.Now().Add(time.Second + time.Duration(i*7919%(2*each))*10*time.Millisecond)
					dues[fmt.Sprint(i)] = due
					log = append(log, retryTo(topics[i%2], i, due, 100))
				}
				return log
			}, func(s *stub) {
				s.sleep(500 * time.Millisecond)
				s.src.Pause("orders")
				seen := make(map[string]bool)
				for _, d := range s.comes(10 * time.Second) {
					if late := d.ReceivedAt.Sub(dues[d.Message.ID]); d.Message.Topic != "refunds" || seen[d.Message.ID] || late < 0 || late > 2*time.Millisecond {
						s.Errorf("message %s of %q is %v late, or came twice", d.Message.ID, d.Message.Topic, late)
					}
					seen[d.Message.ID] = true
				}
				s.is("messages of refunds", len(seen), each)
				before := s.count(protocol.Fetch)
				s.quiet("only orders is left", 10*time.Second)
				if n := s.count(protocol.Fetch) - before; n > 21 {
					s.Errorf("%d fetches while nothing happens, want 2 in a second", n)
				}
				s.src.Pause()
				start := time.Now()
				for _, d := range s.comes(5 * time.Second) {
					if seen[d.Message.ID] || d.Message.Topic != "orders" || d.ReceivedAt.Sub(start) > time.Second {
						s.Errorf("message %s of %q after %v", d.Message.ID, d.Message.Topic, d.ReceivedAt.Sub(start))
					}
					seen[d.Message.ID] = true
				}
				if held := kafka.Holds(s.src); len(seen) != 2*each || held != (kafka.Held{}) {
					s.Errorf("received %d in the end; %+v is left", len(seen), held)
				}
				s.committed(delayPartition, 2*each)
			})
		})
	}
}

// Delay topics are not read while all topics are paused.
func TestAllArePaused(t *testing.T) {
	onDelays(t, kafka.UsualLimits, func(*stub) []record {
		return []record{retryTo("orders", 0, time.Now().Add(time.Second), 10)}
	}, func(s *stub) {
		s.sleep(100 * time.Millisecond)
		s.src.Pause("orders", "refunds")
		s.sleep(kafka.LongestWait)
		before := s.count(protocol.Fetch)
		s.quiet("all are paused", time.Hour)
		s.is("fetches while all are paused", s.count(protocol.Fetch), before)
		s.src.Pause("refunds")
		s.is("messages when resumed", len(s.comes(time.Second)), 1)
	})
}

// What a paused topic has in the index does not keep others from being read.
func TestFullIndexOfAPausedTopic(t *testing.T) {
	const limit = 40
	limits := kafka.UsualLimits
	limits.Waiting, limits.Bodies = limit, 0
	onDelays(t, limits, func(*stub) []record {
		log := retriesTo(limit, 10, func(int) time.Time { return time.Now().Add(time.Second) })
		for i := range 100 {
			log = append(log, retryTo("refunds", limit+i, time.Now().Add(2*time.Second), 100_000))
		}
		return log
	}, func(s *stub) {
		s.src.Pause("orders")
		s.is("messages of the other topic", len(s.comes(4*time.Second)), 100)
		s.is("records that wait", kafka.Holds(s.src).Waiting, limit)
		s.src.Pause()
		s.is("messages when resumed", len(s.comes(4*time.Second)), limit)
	})
}

// Nothing is handed out before the end of a partition is read, unless the index is full:
// it may be full when a topic is resumed.
func TestIndexIsFullAfterAPause(t *testing.T) {
	const limit = 40
	limits := kafka.UsualLimits
	limits.Waiting, limits.Bodies = limit, 0
	onDelays(t, limits, func(s *stub) []record {
		s.stable = limit + 5
		return retriesTo(2*limit, 50_000, func(int) time.Time { return time.Now() })
	}, func(s *stub) {
		s.src.Pause("orders")
		s.quiet("before the end is read", 2*time.Second)
		s.src.Pause("orders", "refunds")
		s.quiet("while all are paused", 2*time.Second)
		s.src.Pause()
		s.change(func(s *stub) { s.stable = 0 })
		s.is("messages when resumed", len(s.comes(2*time.Second)), 2*limit)
	})
}

// What was fetched of a paused topic stays in memory, but not all of it.
func TestPausedTopicTakesLittleMemory(t *testing.T) {
	const each = 100
	limits := kafka.UsualLimits
	limits.Bodies, limits.Soon = 0, 2<<20
	onDelays(t, limits, func(*stub) (log []record) {
		for i := range each {
			due := time.Now().Add(5*time.Second + time.Duration(i)*time.Millisecond)
			log = append(log, retryTo("orders", 2*i, due, 50_000), retryTo("refunds", 2*i+1, due, 50_000))
		}
		return log
	}, func(s *stub) {
		most := 0
		for step := range 20 { // before they are due, and after
			for _, paused := range [][]string{{"orders"}, {"refunds"}, {"orders", "refunds"}, nil} {
				s.sleep(100 * time.Millisecond)
				s.src.Pause(paused...)
				held := kafka.Holds(s.src).Aside
				if most = max(most, held); held > limits.Soon/2 || paused == nil && held > 0 {
					s.Fatalf("%d bytes of %q are held in step %d", held, paused, step)
				}
			}
		}
		if most < limits.Soon/4 {
			s.Errorf("at most %d bytes were held", most)
		}
		got := ids(s.comes(5 * time.Second))
		slices.Sort(got)
		s.is("messages, each once", len(slices.Compact(got)), 2*each)
	})
}

// Whatever is paused when: nothing of it is handed out, and all is once.
func TestRandomPauses(t *testing.T) {
	usual := kafka.UsualLimits
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 2))
		limits := []kafka.Limits{usual, {Buffer: kafka.LeastBuffer, Waiting: 50, Bodies: 1000, Soon: 20_000}, {Buffer: kafka.LeastBuffer, Waiting: usual.Waiting, Soon: usual.Soon}}[random.IntN(3)]
		const records = 300
		topics := []string{"orders", "refunds"}
		onDelays(t, limits, func(*stub) (log []record) {
			for i := range records {
				log = append(log, retryTo(topics[random.IntN(2)], i, time.Now().Add(time.Duration(random.Int64N(int64(20*time.Second)))), random.IntN(2000)))
			}
			return log
		}, func(s *stub) {
			seen := make(map[string]int)
			for end := time.Now().Add(40 * time.Second); time.Now().Before(end); {
				paused := topics[:random.IntN(3)]
				if random.IntN(2) == 0 {
					paused = topics[random.IntN(2):]
				}
				s.src.Pause(paused...)
				ctx, cancel := context.WithTimeout(s.Context(), time.Duration(random.Int64N(int64(300*time.Millisecond))))
				for ctx.Err() == nil {
					ds, _ := s.src.Receive(ctx, 1+random.IntN(20))
					for _, d := range ds {
						if slices.Contains(paused, d.Message.Topic) {
							s.Errorf("seed %d: received %s of %q, which is paused", seed, d.Message.ID, d.Message.Topic)
						}
						action := brokers.Ack
						if random.IntN(10) == 0 {
							action = brokers.Release
						} else {
							seen[d.Message.ID]++
						}
						if err := s.settle(action, d); err != nil {
							s.Error(err)
						}
					}
				}
				cancel()
			}
			s.src.Pause()
			for _, id := range ids(s.comes(10 * time.Second)) {
				seen[id]++
			}
			for i := range records {
				if n := seen[fmt.Sprint(i)]; n != 1 {
					s.Errorf("seed %d: offset %d was settled %d times", seed, i, n)
				}
			}
		})
	}
}

// A retry of a topic that the worker does not subscribe to goes back as it was, and the
// worker tells of it.
func TestRetryOfSomebodyElsesTopic(t *testing.T) {
	const other = "redrive-topic-of-others"
	onDelays(t, kafka.UsualLimits, func(*stub) []record {
		return []record{copied(brokers.Message{ID: "foreign", Topic: other, Key: "k", Body: []byte("0")}, brokers.Meta{Attempt: 1, DueAt: time.Now()})}
	}, func(s *stub) {
		s.says(answering(func(req *produce.Request) protocol.Message {
			r, err := req.Topics[0].Partitions[0].RecordSet.Records.ReadRecord()
			if err != nil {
				s.Error(err)
				return produced(req, 0)
			}
			var key, value bytes.Buffer
			key.ReadFrom(r.Key)
			value.ReadFrom(r.Value)
			again := record{key: key.Bytes(), value: value.Bytes(), headers: r.Headers}
			s.change(func(s *stub) { s.topics[other], s.log = 1, append(s.log, logOf(record{}, again)[1]) })
			return produced(req, 0)
		}))
		ds, errs := s.collect(5 * time.Second)
		if len(ds) > 0 || !anyContains(errs, fmt.Sprintf("%q, which this worker does not subscribe to", other)) || !anyContains(errs, "same topics") {
			s.Errorf("received %v, errors %v", ids(ds), errs)
		}
		s.committed(delayPartition, 1)
		s.sub.Topics = []string{other}
		s.open()
		ds = s.take(1)
		if m := ds[0].Message; m.ID != "foreign" || m.Topic != other || m.Key != "k" || string(m.Body) != "0" || ds[0].Meta().Attempt != 1 {
			s.Errorf("gone back: %+v, %+v", m, ds[0].Meta())
		}
	})
}

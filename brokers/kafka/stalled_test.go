package kafka_test

import (
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/health"
)

// stalledFor says for how long each partition has stood, as the status has it.
func (s *stub) stalledFor() (all []time.Duration) {
	for _, p := range s.src.(health.Connected).Connection().Partitions {
		var since time.Duration
		if !p.StalledSince.IsZero() {
			since = time.Since(p.StalledSince)
		}
		all = append(all, since)
	}
	return all
}

// A partition whose leader is away stalls while the other one goes on, and no longer when
// it is back. One at its end, and one that is paused, do not.
func TestStalledPartition(t *testing.T) {
	away := false
	onStub(t, func(s *stub) {
		s.topics["orders"], s.next = 2, []formed{{share: []int{0, 1}}}
		s.fetching = func(_ string, req *fetch.Request) kmsg.Response {
			res := s.fetch(req).(*kmsg.FetchResponse)
			for _, topic := range res.Topics {
				for i := range topic.Partitions {
					if p := &topic.Partitions[i]; away && topic.Topic == "orders" && p.Partition == 0 {
						p.ErrorCode, p.RecordBatches = int16(kafkago.LeaderNotAvailable), nil
					}
				}
			}
			return res
		}
	}, func(s *stub) {
		s.ack(s.take(20)...)
		s.collect(10 * time.Minute)
		stands := func(when string, first bool) {
			t.Helper()
			all := s.stalledFor()
			if len(all) != 2 || first != (all[0] > 4*time.Minute) || all[1] != 0 {
				t.Errorf("%s: stalled for %v", when, all)
			}
		}
		stands("both are at their end", false)
		s.change(func(s *stub) {
			more := numbered(10, 10)
			for i := range more {
				more[i].offset += 10
			}
			away, s.log = true, append(s.log, batch{base: 10, records: more})
		})
		got, _ := s.collect(5 * time.Minute)
		s.is("records of the other partition", len(got), 10)
		stands("the leader of the first one is away", true)
		s.src.Pause("orders")
		s.sleep(5 * time.Minute)
		stands("the topic is paused", false)
		s.src.Pause()
		s.collect(5 * time.Minute)
		stands("it goes on", true)
		s.change(func(*stub) { away = false })
		got, _ = s.collect(5 * time.Minute)
		s.is("records of the first partition", len(got), 10)
		stands("the leader is back", false)
	})
}

// A partition of which nothing is taken stalls when no more fits its buffer, whatever
// the last fetch said of its end. When all is taken, it stalls no longer, though no
// further record comes.
func TestFullPartitionIsStalled(t *testing.T) {
	for name, most := range map[string]int{"its end is read": 1, "there is more": 100} {
		t.Run(name, func(t *testing.T) {
			onStub(t, func(s *stub) {
				limits := kafka.UsualLimits
				limits.Buffer = 1 // one record fills it
				s.limits = &limits
				s.log = []batch{{records: numbered(0, most)}}
			}, func(s *stub) {
				s.sleep(5 * time.Minute)
				if all := s.stalledFor(); len(all) != 1 || all[0] < 4*time.Minute {
					t.Errorf("nothing is taken: stalled for %v", all)
				}
				s.ack(s.take(most)...)
				s.collect(time.Minute)
				if all := s.stalledFor(); len(all) != 1 || all[0] != 0 {
					t.Errorf("all is taken: stalled for %v", all)
				}
			})
		})
	}
}

package kafka_test

import (
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

func TestPausedTopicIsNotFetched(t *testing.T) {
	onStub(t, func(s *stub) { s.topics["orders"], s.log = 2, []batch{{records: numbered(0, 100)}} }, func(s *stub) {
		ds := s.take(10)
		s.src.Pause("unknown", "orders", "orders")
		if err := s.settle(brokers.Release, ds[3]); err != nil {
			s.Error(err)
		}
		s.sleep(kafka.LongestWait) // of the fetch that is on its way
		before := s.count(protocol.Fetch)
		more := numbered(100, 20)
		for i := range more {
			more[i].offset += 100
		}
		s.change(func(s *stub) { s.log = append(s.log, batch{base: 100, records: more}) })
		for range 100 {
			s.src.Pause("orders")
			s.quiet("paused", time.Minute)
			s.rebalance(formed{share: []int{0, 1}}) // which brings a partition
		}
		s.is("fetches during the pause", s.count(protocol.Fetch), before)
		s.src.Pause()
		start := time.Now()
		got, err := s.src.Receive(s.Context(), 200)
		if err != nil || len(got) == 0 || time.Since(start) > 0 || string(got[0].Message.Body) != "3" {
			s.Errorf("resumed: %v after %v, %v; want that which came back first, and at once", texts(got), time.Since(start), err)
		}
		s.ack(got...)
		if all := append(got, s.comes(time.Second)...); len(all) != 111+120 || s.count(protocol.Fetch) == before {
			s.Errorf("received %d in the end, want 231 and by fetches", len(all))
		}
	})
}

// A pause of moments costs no requests and no connections, and a reader goes on as if
// there had been none.
func TestShortPausesCostNothing(t *testing.T) {
	onStub(t, nil, func(s *stub) {
		s.is("records", len(s.comes(time.Second)), 10)
		before, dials := s.count(protocol.Fetch), s.dials
		for range 1000 {
			s.src.Pause("orders")
			s.sleep(5 * time.Millisecond)
			s.src.Pause()
			s.sleep(5 * time.Millisecond)
		}
		if n := s.count(protocol.Fetch) - before; n > 21 || s.dials > dials+1 {
			s.Errorf("%d fetches in 10 s, want 2 in a second; %d connections", n, s.dials-dials)
		}
	})
}

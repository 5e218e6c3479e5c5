package sqs

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

var errStop = errors.New("the worker stops")

// TestNobodyReceives sees that no poll is started while nobody calls Receive.
func TestNobodyReceives(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		s.demand("ReceiveMessage", 0)
		s.nothing(src, time.Second)
		time.Sleep(time.Hour)
		s.demand("ReceiveMessage", 1)
	})
}

// TestCloseWaitsForPolls closes a source with an open poll, to which a message
// comes: it is given back when the poll ends.
func TestCloseWaitsForPolls(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		s.nothing(src, 5*time.Second)
		time.AfterFunc(5*time.Second, func() { s.publish("a") })
		begun := time.Now()
		s.leave(src)
		s.took(begun, 5*time.Second)
		s.state(sqstest.Queue{Visible: 1})
	})
}

// TestCloseGivesBackInOrder gives back what is buffered and what is handed out,
// of a FIFO queue the last message first, and nothing that is settled.
func TestCloseGivesBackInOrder(t *testing.T) {
	play(t, "jobs.fifo", Options{}, func(s *scene) {
		src := s.open()
		s.buffer(src, fill("a/%02d", 8)...)
		s.settle(src, ack(s.receive(src, 5)[0]))
		handles := handlesOf(src)
		s.leave(src)
		s.state(sqstest.Queue{Visible: 7})
		if calls := s.visibilities(); len(calls) != 1 || len(calls[0]) != 7 {
			s.Fatalf("visibility timeouts were changed to %v, want seven in one call", calls)
		}
		s.movedBack(handles, fill("a/%02d", 8)[1:]...)
		s.expect(s.open(), fill("a/%02d", 8)[1:]...)
	})
}

// TestBuffered gives back what nobody receives, when half of the lease is over,
// and hands out nothing with less.
func TestBuffered(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		polled := time.Now()
		s.buffer(src, fill("%d", 8)...)
		s.one(src)
		s.state(sqstest.Queue{InFlight: 8})
		time.Sleep(30 * time.Second) // a lease of 30 s after a poll of 20 s: its half is over at 35 s
		s.state(sqstest.Queue{InFlight: 8})
		if lease := s.one(src).LeaseUntil.Sub(polled); lease != 50*time.Second {
			s.Errorf("after 30 s in the buffer the lease ends %v after the poll began, want 50 s: 20 s are left", lease)
		}
		time.Sleep(10 * time.Second)
		s.state(sqstest.Queue{Visible: 6, InFlight: 2})
		for _, d := range s.receive(src, 6) {
			s.counts(d, 0, 0)
		}
	})
}

// TestReceiveGoesOn has a Receive wait for buffered messages that it cannot have,
// and takes them away: it polls again, and gets them when they are back.
func TestReceiveGoesOn(t *testing.T) {
	for name, test := range map[string]struct {
		topic   string
		begin   time.Duration // of the Receive
		retried bool          // the message before
	}{
		"too little is left of their leases":      {topic: "jobs", begin: 36 * time.Second},
		"the lease of the message before is over": {topic: "jobs.fifo", begin: 29 * time.Second},
		"the message before is retried":           {topic: "jobs.fifo", begin: time.Second, retried: true},
	} {
		playAs(t, name, test.topic, Options{}, func(s *scene) {
			src := s.open()
			s.buffer(src, fill("a/%d", 8)...)
			first := s.one(src)
			time.Sleep(test.begin)
			begun := time.Now()
			received := make(chan error, 1)
			go func() {
				_, err := src.Receive(s.Context(), 1)
				received <- err
			}()
			synctest.Wait()
			if polls := s.server.Queue(s.topic).Polls; polls != 0 {
				s.Fatalf("%d polls are open, want none: the buffer is full", polls)
			}
			if test.retried {
				s.settle(src, again(first, 5*time.Second))
			}
			select {
			case err := <-received:
				if took := time.Since(begun); err != nil || took > 25*time.Second {
					s.Errorf("Receive took %v (%v), want 25 s at most", took, err)
				}
			case <-time.After(time.Hour):
				s.Error("Receive got nothing for an hour, while its queue was full")
			}
		})
	}
}

// TestInFlight keeps to the bound of the subscription, but for one of each queue.
func TestInFlight(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.InFlight = 12
		src := s.open()
		s.publish(fill("%d", 40)...)
		s.receive(src, 12)
		s.state(sqstest.Queue{Visible: 28, InFlight: 12})
		s.one(src)
		s.state(sqstest.Queue{Visible: 27, InFlight: 13})
	})
}

// TestTopicsShareTheRoom opens a poll on each of many queues, with few slots,
// and lets a busy one be fast.
func TestTopicsShareTheRoom(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.Topics = append(fill("idle-%d", 30), "jobs")
		s.sub.InFlight = 200
		src := s.open()
		s.nothing(src, time.Second)
		for _, topic := range s.sub.Topics {
			if polls := s.server.Queue(topic).Polls; polls != 1 {
				s.Errorf("%d polls of %q are open, want 1", polls, topic)
			}
		}
		s.publish(fill("%d", 200)...)
		begun := time.Now()
		s.costs("ReceiveMessage", 1, 60, func() {
			for range 10 {
				s.drain(src, 20)
			}
		})
		s.within(begun, time.Second)
	})
}

// TestCalls counts what messages cost when nothing goes wrong.
func TestCalls(t *testing.T) {
	t.Parallel()
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		const n = 1000
		s.publish(fill("%d", n)...)
		s.costs("", 1, n/4, func() {
			for range n / 20 {
				s.drain(src, 20)
			}
		})
	})
}

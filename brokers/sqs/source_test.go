package sqs

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

var errStop = errors.New("the worker stops")

// TestPollOutlivesReceive ends the context of a Receive: the poll goes on, and
// what it brings is there for the next Receive.
func TestPollOutlivesReceive(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		ctx, cancel := context.WithCancelCause(s.Context())
		time.AfterFunc(time.Second, func() { cancel(errStop) })
		begun := time.Now()
		if _, err := src.Receive(ctx, 10); err != errStop || time.Since(begun) != time.Second {
			s.Errorf("Receive returned %v after %v, want the cause of its context at once", err, time.Since(begun))
		}
		synctest.Wait()
		if polls := s.server.Queue(s.topic).Polls; polls != 1 {
			s.Fatalf("%d polls are open after the end of Receive, want 1", polls)
		}
		s.publish("a")
		synctest.Wait()
		s.state(sqstest.Queue{InFlight: 1})
		d := s.one(src)
		if time.Since(begun) != time.Second {
			s.Errorf("the message came after %v, and was there before", time.Since(begun))
		}
		s.settle(src, ack(d))
	})
}

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
		if err := src.Close(s.Context()); err != nil {
			s.Errorf("Close: %v", err)
		}
		if waited := time.Since(begun); waited != 5*time.Second {
			s.Errorf("Close took %v, want 5 s: until its poll had ended", waited)
		}
		s.state(sqstest.Queue{Visible: 1})
		if _, err := src.Receive(s.Context(), 1); !errors.Is(err, brokers.ErrClosed) {
			s.Errorf("Receive after Close: %v", err)
		}
		if err := src.Close(s.Context()); err != nil {
			s.Errorf("the second Close: %v", err)
		}
	})
}

// TestCloseGivesBackInOrder gives back what is buffered and what is handed out,
// of a FIFO queue the last message first, and nothing that is settled.
func TestCloseGivesBackInOrder(t *testing.T) {
	play(t, "jobs.fifo", Options{}, func(s *scene) {
		src := s.open()
		s.buffer(src, fill("a/%02d", 8)...)
		ds := s.receive(src, 5)
		s.settle(src, ack(ds[0]))
		handles := handlesOf(src)
		if err := src.Close(s.Context()); err != nil {
			s.Errorf("Close: %v", err)
		}
		s.state(sqstest.Queue{Visible: 7})
		if calls := s.visibilities(); len(calls) != 1 || len(calls[0]) != 7 {
			s.Fatalf("visibility timeouts were changed to %v, want seven in one call", calls)
		}
		want := fill("a/%02d", 8)[1:]
		if slices.Reverse(want); !slices.Equal(s.moved(handles), want) {
			s.Errorf("given back in the order %q, want %q: the last one first", s.moved(handles), want)
		}
		for _, d := range ds[1:] {
			if err := s.errorOf(src, ack(d)); !errors.Is(err, brokers.ErrClosed) && !errors.Is(err, brokers.ErrLeaseLost) {
				s.Errorf("Settle after Close: %v", err)
			}
		}
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
			if d.Meta().Attempt != 0 || d.Abandoned != 0 {
				s.Errorf("%q was given back unstarted, and has attempt %d and was abandoned %d times", d.Message.Body, d.Meta().Attempt, d.Abandoned)
			}
		}
	})
}

// TestReceiveGoesOn has a Receive wait for buffered messages that it cannot have,
// and takes them away: it polls again, and gets them when they are back.
func TestReceiveGoesOn(t *testing.T) {
	nothing := func(*scene, *source, *brokers.Delivery) {}
	for name, test := range map[string]struct {
		topic string
		begin time.Duration // of the Receive
		away  func(s *scene, src *source, first *brokers.Delivery)
	}{
		"too little is left of their leases":      {"jobs", 36 * time.Second, nothing},
		"the lease of the message before is over": {"jobs.fifo", 29 * time.Second, nothing},
		"the message before is retried": {"jobs.fifo", time.Second, func(s *scene, src *source, first *brokers.Delivery) {
			s.settle(src, again(first, 5*time.Second))
		}},
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
			test.away(s, src, first)
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
		calls := s.count("ReceiveMessage", func() {
			for range 10 {
				for _, d := range s.receive(src, 20) {
					s.settle(src, ack(d))
				}
			}
		})
		if took := time.Since(begun); took > time.Second {
			s.Errorf("200 messages took %v while other topics are idle", took)
		}
		if calls > 60 {
			s.Errorf("%d polls for 200 messages, want 60 at most", calls)
		}
	})
}

// TestCalls counts what messages cost when nothing goes wrong.
func TestCalls(t *testing.T) {
	t.Parallel()
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		const n = 1000
		s.publish(fill("%d", n)...)
		before := s.server.Count("")
		for done := 0; done < n; {
			ds := s.receive(src, 20)
			var batch []brokers.Settlement
			for _, d := range ds {
				batch = append(batch, ack(d))
			}
			s.settle(src, batch...)
			done += len(ds)
		}
		if calls := s.server.Count("") - before; calls > n/4 {
			s.Errorf("%d calls for %d messages, want a quarter at most", calls, n)
		}
	})
}

package sqs

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// fetch has src poll, and buffer what that brings.
func (s *scene) fetch(src *source, most int) {
	s.Helper()
	if ds, _, err := src.step(s.Context(), most); len(ds) > 0 || err != nil {
		s.Fatalf("there was something to receive: %q, %v", bodiesOf(ds), err)
	}
	synctest.Wait()
}

// TestPause hands out nothing of one topic, and the others as if it was not
// there: in as many polls as they take alone.
func TestPause(t *testing.T) {
	polls := func(paused ...string) (n int) {
		play(t, "jobs", Options{}, func(s *scene) {
			s.sub.Topics = append(paused, "jobs")
			s.sub.InFlight = 10
			src := s.open()
			if len(paused) > 0 {
				s.publishTo(paused[0], fill("paused/%d", 10)...)
				src.Pause(append(paused[1:], "jobs")...)
				s.fetch(src, 10)
				src.Pause(append(paused, "unknown")...)
			}
			before := s.countCalls("ReceiveMessage", "jobs")
			s.publish(fill("%d", 200)...)
			begun := time.Now()
			for range 20 {
				s.drain(src, 10)
			}
			n = s.countCalls("ReceiveMessage", "jobs") - before
			s.state(sqstest.Queue{})
			s.within(begun, time.Second)
		})
		return n
	}
	if alone, beside := polls(), polls(fill("paused-%d", 9)...); beside > alone+1 {
		t.Errorf("%d polls beside paused topics, and %d without", beside, alone)
	}
}

// TestPausedTopicCostsNothing makes no requests for a topic that is paused for
// an hour, but to give back what an open poll brought.
func TestPausedTopicCostsNothing(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.Topics = []string{"jobs", "other"}
		src := s.open()
		s.nothing(src, time.Second)
		calls := s.countCalls("", "jobs")
		src.Pause("jobs")
		s.publish("a") // comes with the open poll
		for range 3600 {
			s.nothing(src, time.Second)
			src.Pause("jobs")
		}
		s.publish("b")
		s.nothing(src, time.Minute)
		s.state(sqstest.Queue{Visible: 2})
		s.demand(changeBatch, 1)
		const sends = 2
		if got := s.countCalls("", "jobs") - calls - sends; got != 1 {
			s.Errorf("%d calls while the topic was paused, want the one that gave the message back", got)
		}
	})
}

// TestLongPauseRestartsPolls begins with one poll after a pause of an hour.
func TestLongPauseRestartsPolls(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		src.feeds[0].pace.polls = 5
		src.Pause("jobs")
		time.Sleep(time.Hour)
		src.Pause()
		s.fetch(src, 50)
		if polls := s.server.Queue(s.topic).Polls; polls != 1 {
			s.Errorf("%d polls are open, want 1", polls)
		}
	})
}

// TestPauseGivesBack gives back what is buffered after a second or two, of a
// FIFO queue the last message first, and another worker gets it.
func TestPauseGivesBack(t *testing.T) {
	for _, topic := range []string{"jobs", "jobs.fifo"} {
		playAs(t, topic, topic, Options{}, func(s *scene) {
			src := s.open()
			bodies := fill("a/%d", 8)
			s.publish(bodies...)
			s.fetch(src, 8)
			handles := handlesOf(src)
			pause := func(d time.Duration) {
				for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(d / 10) {
					src.Pause(topic) // again and again, as callers do
				}
			}
			pause(leastKept * 9 / 10)
			s.state(sqstest.Queue{InFlight: 8})
			pause(sweepPace + leastKept/10)
			s.state(sqstest.Queue{Visible: 8})
			s.movedBack(handles, bodies...)
			ds := s.receive(s.openOn(s.start(Options{})), 8)
			if got := bodiesOf(ds); topic == "jobs.fifo" && !slices.Equal(got, bodies) {
				s.Errorf("the other worker received %q, want %q", got, bodies)
			}
		})
	}
}

// TestPauseWaitsForPolls gives nothing back while a poll of this source is open,
// which would receive it once more.
func TestPauseWaitsForPolls(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		src.feeds[0].pace.polls = 2
		s.fetch(src, 20)
		s.publish(fill("%d", 5)...)
		synctest.Wait()
		if polls := s.server.Queue(s.topic).Polls; polls != 1 {
			s.Fatalf("%d polls are open, want the second of two", polls)
		}
		src.Pause("jobs")
		time.Sleep(15 * time.Second)
		s.state(sqstest.Queue{InFlight: 5})
		time.Sleep(7 * time.Second)
		s.state(sqstest.Queue{Visible: 5})
		s.onceReceived(s.server.Messages(s.topic))
	})
}

// TestPauseOfMoments receives with a pause of milliseconds after each call: no
// message is given back, and there are no more polls than without.
func TestPauseOfMoments(t *testing.T) {
	t.Parallel()
	polls := func(topics ...string) (n int) {
		play(t, "jobs", Options{}, func(s *scene) {
			src := s.open()
			s.publish(fill("%d", 500)...)
			for range 50 {
				s.drain(src, 10)
				src.Pause(topics...)
				time.Sleep(5 * time.Millisecond)
				src.Pause()
			}
			n = s.countCalls("ReceiveMessage", "jobs")
			s.demand(changeBatch, 0)
		})
		return n
	}
	if without, with := polls(), polls("jobs"); with > without {
		t.Errorf("%d polls with pauses, and %d without", with, without)
	}
}

// TestPauseOfSeconds has a topic without room for three seconds of four: what is
// buffered goes back once, and then waits for its turn.
func TestPauseOfSeconds(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		s.publish(fill("%d", 100)...)
		src.feeds[0].pace.polls = 3
		s.fetch(src, 30)
		for range 20 {
			src.Pause("jobs")
			time.Sleep(3 * time.Second)
			src.Pause()
			s.drain(src, 5)
			time.Sleep(time.Second)
		}
		if back := len(slices.Concat(s.visibilities()...)); back != 30 {
			s.Errorf("%d messages were given back, want 30: those of the first pause", back)
		}
	})
}

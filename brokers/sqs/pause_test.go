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
			s.publish(fill("%d", 200)...)
			begun := time.Now()
			n = s.countOn("jobs", func() {
				for done := 0; done < 200; {
					ds, err := src.Receive(s.Context(), 10)
					if err != nil {
						s.Fatal(err)
					}
					for _, d := range ds {
						if d.Message.Topic != "jobs" {
							s.Fatalf("received %q of %q, which is paused", d.Message.Body, d.Message.Topic)
						}
						s.settle(src, ack(d))
					}
					done += len(ds)
				}
			})
			if took := time.Since(begun); took > time.Second {
				s.Errorf("200 messages took %v", took)
			}
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
		calls := len(s.server.Calls())
		src.Pause("jobs")
		s.publish("a") // comes with the open poll
		for range 3600 {
			s.nothing(src, time.Second)
			src.Pause("jobs")
		}
		s.publish("b")
		s.nothing(src, time.Minute)
		s.state(sqstest.Queue{Visible: 2})
		var got []string
		for _, c := range s.server.Calls()[calls:] {
			if c.Queue == "jobs" && c.Operation != sendBatch {
				got = append(got, c.Operation)
			}
		}
		if want := []string{changeBatch}; !slices.Equal(got, want) {
			s.Errorf("%d calls while the topic was paused, want %q: %q", len(got), want, got[:min(len(got), 10)])
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
			want := slices.Clone(bodies)
			slices.Reverse(want)
			if got := s.moved(handles); !slices.Equal(got, want) {
				s.Errorf("given back in the order %q, want %q: the last one first", got, want)
			}
			ds := s.receive(s.openOn(s.start(Options{})), 8)
			if got := bodiesOf(ds); topic == "jobs.fifo" && !slices.Equal(got, bodies) {
				s.Errorf("the other worker received %q, want %q", got, bodies)
			}
			for _, d := range ds {
				if d.Abandoned != 0 {
					s.Errorf("%q was abandoned %d times, want 0", d.Message.Body, d.Abandoned)
				}
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
		for _, m := range s.server.Messages(s.topic) {
			if m.Receives != 1 {
				s.Errorf("%q was received %d times, want once", m.Body, m.Receives)
			}
		}
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
			n = s.countOn("jobs", func() {
				for range 50 {
					for _, d := range s.receive(src, 10) {
						s.settle(src, ack(d))
					}
					src.Pause(topics...)
					time.Sleep(5 * time.Millisecond)
					src.Pause()
				}
			})
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
			for _, d := range s.receive(src, 5) {
				s.settle(src, ack(d))
			}
			time.Sleep(time.Second)
		}
		back := 0
		for _, call := range s.visibilities() {
			back += len(call)
		}
		if back != 30 {
			s.Errorf("%d messages were given back, want 30: those of the first pause", back)
		}
	})
}

// TestResume hands out at once what is there after a pause, buffered or given
// back, also to a Receive that waits.
func TestResume(t *testing.T) {
	for _, pause := range []time.Duration{time.Millisecond, 3 * time.Second, time.Hour} {
		play(t, "jobs.fifo", Options{}, func(s *scene) {
			src := s.open()
			s.buffer(src, "a/0", "a/1")
			src.Pause(s.topic)
			time.AfterFunc(pause, func() { src.Pause() })
			begun := time.Now()
			s.expect(src, "a/0", "a/1")
			if took := time.Since(begun); took != pause {
				s.Errorf("after a pause of %v, they came after %v, want at once", pause, took)
			}
		})
	}
}

package sqs

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// TestFailingQueueRestsAtOnce has polls fail while many are open: after the
// first failure there is no second of which two begin, however many there were.
func TestFailingQueueRestsAtOnce(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]sqstest.Fault{
		"throttled":           {Code: "RequestThrottled"},
		"unavailable":         {Status: 503},
		"cut":                 {Cut: true},
		"slow to fail":        {Status: 500, Latency: 300 * time.Millisecond},
		"expired credentials": {Code: "ExpiredToken", Status: 403},
		"full":                {Code: "OverLimit"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, "jobs", Options{PollWait: 20 * time.Second}, func(s *scene) {
				s.sub.InFlight = 200
				src := s.open()
				s.publish(fill("%d", 1000)...)
				for range 10 {
					for _, d := range s.receive(src, 100) {
						s.settle(src, ack(d))
					}
				}
				src.mu.Lock() // how many the backlog led to is a matter of luck
				src.feeds[0].pace.polls = 8
				src.mu.Unlock()
				s.nothing(src, time.Second)
				synctest.Wait() // the polls have reached the server
				fault.Operation = "ReceiveMessage"
				defer s.server.Inject(fault)()
				begun, calls := time.Now(), len(s.server.Calls())
				if open := s.server.Queue("jobs").Polls; open < 8 {
					s.Fatalf("%d polls are open, want 8", open)
				}
				s.nothingBut(src, time.Minute)
				var failed []time.Time // begun after the first answer
				for _, c := range s.server.Calls()[calls:] {
					if c.Operation == fault.Operation && !c.Time.Before(begun) {
						failed = append(failed, c.Time)
					}
				}
				if len(failed) < 3 {
					s.Fatalf("%d polls in a minute", len(failed))
				}
				known := failed[0].Add(fault.Latency)
				failed = slices.DeleteFunc(failed, func(at time.Time) bool { return !at.After(known) })
				for i := range failed {
					before := known
					if i > 0 {
						before = failed[i-1]
					}
					if pause := failed[i].Sub(before); pause < time.Second {
						s.Errorf("poll %d begins %v after the one before", i, pause)
					}
				}
			})
		})
	}
}

// TestUnheardPollOfFIFO has answers get lost: the messages come with the next
// poll, and not when their visibility timeout is over.
func TestUnheardPollOfFIFO(t *testing.T) {
	for name, fault := range map[string]sqstest.Fault{
		"never received": {Cut: true, Times: 1},
		"received":       {Cut: true, AfterEffect: true, Times: 1},
		"twice":          {Cut: true, AfterEffect: true, Times: 2},
		"no answer":      {Status: 502, AfterEffect: true, Times: 1},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, "jobs.fifo", Options{}, func(s *scene) {
				src := s.open()
				s.publish("a/0", "a/1", "b/0")
				fault.Operation = "ReceiveMessage"
				s.server.Inject(fault)
				begun := time.Now()
				var ds []*brokers.Delivery
				for len(ds) < 3 {
					more, err := src.Receive(s.Context(), 10)
					if err != nil && time.Since(begun) > time.Minute || errors.Is(err, brokers.ErrMisconfigured) {
						s.Fatalf("after %v: %v", time.Since(begun), err)
					}
					ds = append(ds, more...)
					for _, d := range more {
						s.settle(src, ack(d))
					}
				}
				if got := bodiesOf(ds); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"a/0", "a/1", "b/0"}) {
					s.Errorf("received %q", got)
				}
				if took := time.Since(begun); took > 10*time.Second {
					s.Errorf("it took %v, as if nobody had asked again for what was in flight", took)
				}
			})
		})
	}
}

// TestUnheardPollThatIsTooOld is not asked for again: too little would be left
// of the time for which its messages are held.
func TestUnheardPollThatIsTooOld(t *testing.T) {
	f := &feed{source: &source{terms: terms{lease: 30 * time.Second, wait: 20 * time.Second, margin: 2 * time.Second}}}
	now := time.Now()
	young, old := newRequest(3, now.Add(-30*time.Second)), newRequest(4, now.Add(-40*time.Second))
	f.unheard = []request{old, young}
	if got := f.next(7, now); got != young {
		t.Errorf("next = %+v, want the younger one", got)
	}
	if got := f.next(7, now); got.attempt == old.attempt || got.attempt == young.attempt || got.most != 7 || !got.begun.Equal(now) {
		t.Errorf("next = %+v, want a new one", got)
	}
}

package sqs

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

const (
	changeBatch = "ChangeMessageVisibilityBatch"
	deleteBatch = "DeleteMessageBatch"
	sendBatch   = "SendMessageBatch"
)

// TestRetryInPlace changes the visibility only, and has the exact Meta for the
// worker that did it.
func TestRetryInPlace(t *testing.T) {
	hold(t, "jobs", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		sent := s.server.Count(sendBatch)
		for n := 1; n <= 9; n++ {
			st := again(d, 1500*time.Millisecond)
			begun := time.Now()
			s.settle(src, st)
			d = s.one(src)
			if !reflect.DeepEqual(d.Meta(), st.Meta) {
				s.Errorf("the Meta is\n%+v, want\n%+v", d.Meta(), st.Meta)
			}
			s.counts(d, n, 0)
			s.took(begun, 2*time.Second)
		}
		s.settle(src, ack(d))
		s.demand(sendBatch, sent)
		s.demand(changeBatch, 9)
		s.state(sqstest.Queue{})
		if n := len(src.notes.entries); n != 0 {
			s.Errorf("%d notes are left about messages that are acked", n)
		}
	})
}

// TestOtherWorkersEstimate lets another worker receive what was retried in
// place: it knows the attempt, as an upper bound.
func TestOtherWorkersEstimate(t *testing.T) {
	hold(t, "jobs", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		s.settle(src, again(d, time.Second))
		d = s.one(src)
		s.settle(src, again(d, 30*time.Second)) // longer than the open polls
		other := s.relieve(src, Options{})
		for range 2 { // the worker that released it knows that it was no attempt
			d = s.one(other)
			s.counts(d, 2, 0)
			s.settle(other, release(d))
		}
		third := s.relieve(other, Options{})
		if d = s.one(third); d.Meta().Attempt < 4 {
			s.Errorf("after two releases by another worker it has attempt %d, want 4 at least: each may have been one", d.Meta().Attempt)
		}
	})
}

// TestEstimateEndsBeforeTheLastAttempt of the topic, of which others may have
// more.
func TestEstimateEndsBeforeTheLastAttempt(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.Attempts = map[string]int{"jobs": 3}
		src := s.open()
		s.publish("a")
		for range 5 {
			s.settle(src, release(s.one(src)))
		}
		if d := s.one(s.relieve(src, Options{})); d.Meta().Attempt != 2 {
			s.Errorf("after six receives or more another worker has attempt %d, want 2: the third is the last", d.Meta().Attempt)
		}
	})
}

// TestNoteAfterAnotherWorker keeps the attempt an upper bound when another
// worker had the message since it was noted.
func TestNoteAfterAnotherWorker(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		first, second := s.open(), s.openOn(s.start(Options{}))
		s.publish("a")
		d := s.one(first)
		s.settle(first, again(d, 30*time.Second)) // while the poll of first ends
		s.pass(25 * time.Second)
		d = s.one(second)
		s.settle(second, again(d, 30*time.Second))
		s.pass(25 * time.Second)
		d = s.one(first)
		s.counts(d, 2, 0) // of which one is the other worker's
		if class := d.Meta().Class; class != "transient" {
			s.Errorf("class %q, want the one that this worker noted", class)
		}
		s.settle(first, ack(d))
	})
}

// TestWhenARetryIsACopy lists what SQS's count of receives would not tell, or
// cannot hold.
func TestWhenARetryIsACopy(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		options Options
		delay   time.Duration // 0 means 3 s
		change  func(*brokers.Meta)
		full    bool // there is no room for a note
		copied  bool
	}{
		"in place":                        {},
		"without a delay":                 {delay: -time.Second},
		"12 h less a margin":              {delay: 12*time.Hour - 2*time.Minute},
		"longer than 12 h":                {delay: 12*time.Hour - 30*time.Second, copied: true},
		"Options.Copies":                  {options: Options{Copies: true}, copied: true},
		"no room for a note":              {full: true, copied: true},
		"a throttle, which is no attempt": {change: func(m *brokers.Meta) { m.Attempt--; m.Throttles++ }, copied: true},
		"two attempts at once":            {change: func(m *brokers.Meta) { m.Attempt++ }, copied: true},
		"due after its delay":             {change: func(m *brokers.Meta) { m.DueAt = m.DueAt.Add(time.Minute) }, copied: true},
	} {
		playAs(t, name, "jobs", tt.options, func(s *scene) {
			s.sub.MaxDelay = 20 * time.Hour
			src := s.open()
			s.publish("a")
			st := again(s.one(src), cmp.Or(tt.delay, 3*time.Second))
			if tt.change != nil {
				tt.change(&st.Meta)
			}
			if tt.full {
				src.notes = newNotes(0)
			}
			before := s.server.Calls()
			s.settle(src, st)
			want := []string{changeBatch}
			if tt.copied {
				want = []string{sendBatch, deleteBatch}
			}
			if got := s.batches(before); !slices.Equal(got, want) {
				s.Errorf("the calls were %q, want %q", got, want)
			}
			if n := len(s.server.Messages(s.topic)); n != 1 {
				s.Errorf("the queue has %d messages, want one", n)
			}
			s.pass(st.Delay - time.Minute) // without polls, where that is long
			d := s.one(src)
			s.counts(d, st.Meta.Attempt, 0)
			if want := st.Meta.DueAt.Truncate(time.Millisecond); !d.Meta().DueAt.Equal(want) {
				s.Errorf("it came due at %v, want %v", d.Meta().DueAt, want)
			}
			s.settle(src, ack(d))
		})
	}
}

// TestLongDelay hops: a copy for 15 minutes, and the rest in place, as often
// as SQS makes it necessary. No hop is an attempt, for any worker.
func TestLongDelay(t *testing.T) {
	t.Parallel()
	for _, options := range []Options{{}, {Copies: true}} {
		play(t, "jobs", options, func(s *scene) {
			s.sub.MaxDelay, s.sub.MaxAge = 30*time.Hour, 48*time.Hour
			src := s.open()
			s.publish("a")
			d := s.one(src)
			st := again(d, 30*time.Hour)
			due := st.Meta.DueAt
			s.settle(src, st)
			hops := 0
			for ; ; hops++ {
				src = s.relieve(src, options)
				if hops > 0 {
					s.pass(min(time.Until(due)-time.Minute, 11*time.Hour)) // without polls
				}
				d = s.one(src)
				if got, want := fmt.Sprintf("%+v", d.Meta()), fmt.Sprintf("%+v", st.Meta); got != want || d.Abandoned != 0 {
					s.Errorf("after %d hops, abandoned %d:\n%s, want\n%s", hops, d.Abandoned, got, want)
				}
				left := time.Until(due)
				if left <= 0 || hops > 10 {
					break
				}
				s.settle(src, brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: left, Meta: d.Meta()})
			}
			if late := time.Since(due); late < 0 || late > 2*time.Second || hops != 3 {
				s.Errorf("it came %v late after %d hops, want 3: after 15 min, and twice after nearly 12 h", late, hops)
			}
			s.settle(src, ack(d))
			s.state(sqstest.Queue{})
		})
	}
}

// TestPastTotal switches to a copy when SQS says that 12 h would be exceeded.
func TestPastTotal(t *testing.T) {
	past := sqstest.Fault{
		Operation: changeBatch, Entries: []int{0}, Code: "InvalidParameterValue",
		Message: "Value 60 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds].",
	}
	play(t, "jobs", Options{}, func(s *scene) {
		src, ds := s.held("a", "b")
		s.server.Inject(past)
		s.settle(src, again(ds[0], time.Minute), again(ds[1], time.Minute))
		s.state(sqstest.Queue{Delayed: 1, InFlight: 1})
		for _, d := range s.receive(src, 2) {
			s.counts(d, 1, 0)
		}
	})
	hold(t, "jobs.fifo", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		s.server.Inject(past)
		s.fails(src, again(d, time.Minute), brokers.ErrRefused) // a FIFO queue has no other way
		s.settle(src, ack(d))
	})
}

// TestFailedEntriesAloneAreRepeated repeats alone what failed alone.
func TestFailedEntriesAloneAreRepeated(t *testing.T) {
	for operation, settle := range map[string]func(*brokers.Delivery) brokers.Settlement{
		deleteBatch: ack,
		changeBatch: func(d *brokers.Delivery) brokers.Settlement { return again(d, time.Minute) },
		sendBatch:   func(d *brokers.Delivery) brokers.Settlement { return again(d, 13*time.Hour) },
	} {
		playAs(t, operation, "jobs", Options{}, func(s *scene) {
			src, ds := s.held(fill("%d", 12)...)
			var batch []brokers.Settlement
			for _, d := range ds {
				batch = append(batch, settle(d))
			}
			before := s.server.Count(operation)
			s.server.Inject(sqstest.Fault{Operation: operation, Entries: []int{1}, Times: 2})
			errs := src.Settle(s.Context(), batch)
			var rest []brokers.Settlement
			for i, err := range errs {
				if err != nil {
					rest = append(rest, batch[i])
					if errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, brokers.ErrSettled) {
						s.Errorf("an entry that failed returned %v, which is final", err)
					}
				}
			}
			if len(rest) != 2 {
				s.Fatalf("%d entries failed, want 2, one of each call: %v", len(rest), errs)
			}
			s.settle(src, rest...)
			if calls := s.server.Count(operation) - before; calls != 3 {
				s.Errorf("%d calls, want 3: two with all, one with what failed", calls)
			}
			for _, err := range src.Settle(s.Context(), batch) {
				if !errors.Is(err, brokers.ErrSettled) {
					s.Errorf("a third Settle returned %v, want ErrSettled", err)
				}
			}
		})
	}
}

// TestCopyIsNotRepeated fails the removal after a confirmed copy: the next Settle
// removes only. When it is too late for that, or the lease of the original is lost,
// the retry is done.
func TestCopyIsNotRepeated(t *testing.T) {
	for _, tt := range []struct {
		code     string        // of the first removal
		wait     time.Duration // until the second Settle
		removals int           // by that
	}{
		{wait: 0, removals: 1},
		{wait: 31 * time.Second},
		{code: "ReceiptHandleIsInvalid"},
	} {
		hold(t, "jobs", Options{Copies: true}, func(s *scene, src *source, d *brokers.Delivery) {
			st := again(d, time.Hour)
			sent := s.server.Count(sendBatch)
			heal := s.server.Inject(sqstest.Fault{Operation: deleteBatch, Entries: []int{0}, Code: tt.code})
			if tt.code != "" {
				s.settle(src, st)
			} else {
				s.failsForNow(src, st)
				heal()
				s.pass(tt.wait)
				s.costs(deleteBatch, tt.removals, tt.removals, func() { s.settle(src, st) })
			}
			s.fails(src, st, brokers.ErrSettled)
			s.demand(sendBatch, sent+1)
		})
	}
}

// TestAcksDoNotWaitForCopies sees the order of one Settle.
func TestAcksDoNotWaitForCopies(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src, ds := s.held("copied", "acked", "released", "moved")
		before := s.server.Calls()
		s.settle(src, again(ds[0], 13*time.Hour), ack(ds[1]), release(ds[2]), again(ds[3], time.Minute))
		if got, want := s.batches(before), []string{deleteBatch, changeBatch, sendBatch, deleteBatch}; !slices.Equal(got, want) {
			s.Errorf("the calls came as %q, want %q", got, want)
		}
	})
}

// batches are the calls with batches since before.
func (s *scene) batches(before []sqstest.Call) (operations []string) {
	for _, c := range s.server.Calls()[len(before):] {
		if strings.HasSuffix(c.Operation, "Batch") {
			operations = append(operations, c.Operation)
		}
	}
	return operations
}

// TestManyQueuesSettleAtOnce settles deliveries of several queues in the time
// of one. What is wrong with one queue is not the fault of the others.
func TestManyQueuesSettleAtOnce(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.Topics = []string{"jobs", "more", "most"}
		src := s.open()
		for _, topic := range s.sub.Topics {
			s.publishTo(topic, topic)
		}
		batch := acks(s.receive(src, 3))
		heal := s.server.Inject(sqstest.Fault{Operation: deleteBatch, Queue: "more", Code: "AccessDenied", Latency: time.Second})
		s.server.Inject(sqstest.Fault{Operation: deleteBatch, Latency: time.Second})
		begun := time.Now()
		errs := src.Settle(s.Context(), batch)
		s.took(begun, time.Second) // as one queue does
		for i, st := range batch {
			denied := errors.Is(errorAt(errs, i), brokers.ErrMisconfigured)
			if topic := st.Delivery.Message.Topic; denied != (topic == "more") || !denied && errorAt(errs, i) != nil {
				s.Errorf("Settle on %q returned %v, want ErrMisconfigured on \"more\" alone", topic, errorAt(errs, i))
			}
			if denied {
				heal()
				s.settle(src, st)
			}
		}
	})
}

// TestBadSettlements are refused, and the delivery is still held.
func TestBadSettlements(t *testing.T) {
	hold(t, "jobs", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		if err := s.errorOf(src, brokers.Settlement{Delivery: d, Action: 7}); err == nil {
			s.Error("an action that is none was settled")
		}
		other := s.openOn(s.start(Options{}))
		for _, err := range []error{s.errorOf(src, ack(nil)), s.errorOf(src, ack(&brokers.Delivery{})), s.errorOf(other, ack(d))} {
			if !errors.Is(err, brokers.ErrLeaseLost) {
				s.Errorf("Settle of what the source does not hold returned %v, want ErrLeaseLost", err)
			}
		}
		s.settle(src, ack(d))
	})
}

// TestRetryThatSQSRefuses as a copy stays in place, with what this worker knows.
func TestRetryThatSQSRefuses(t *testing.T) {
	hold(t, "jobs", Options{Copies: true}, func(s *scene, src *source, d *brokers.Delivery) {
		s.server.Inject(sqstest.Fault{Operation: sendBatch, Entries: []int{0}, Code: "InvalidParameterValue"})
		for range 3 {
			st := again(d, time.Minute)
			begun := time.Now()
			s.settle(src, st)
			s.fails(src, st, brokers.ErrSettled)
			s.state(sqstest.Queue{InFlight: 1})
			d = s.one(src)
			s.took(begun, time.Minute)
			if !reflect.DeepEqual(d.Meta(), st.Meta) {
				s.Errorf("it came with %+v, want %+v", d.Meta(), st.Meta)
			}
		}
		s.settle(src, ack(d))
		s.state(sqstest.Queue{})
	})
}

// TestRetryInPlaceForWhatIsLeft hides what is too large for a copy for as long as
// SQS allows, and knows when it is due.
func TestRetryInPlaceForWhatIsLeft(t *testing.T) {
	t.Parallel()
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.MaxDelay = 20 * time.Hour
		src := s.open()
		src.feeds[0].limit = 100
		s.publish("a")
		st := again(s.one(src), 15*time.Hour)
		begun := time.Now()
		s.settle(src, st)
		s.pass(11 * time.Hour) // without polls
		d := s.one(src)
		s.counts(d, 1, 0)
		if waited := time.Since(begun); waited > 12*time.Hour || !d.Meta().DueAt.Equal(st.Meta.DueAt) {
			s.Errorf("after %v it came due at %v, want within the 12 h and %v", waited, d.Meta().DueAt, st.Meta.DueAt)
		}
		s.settle(src, brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: time.Until(d.Meta().DueAt), Meta: d.Meta()})
		s.pass(time.Until(st.Meta.DueAt) - time.Minute)
		d = s.one(src)
		s.counts(d, 1, 0)
		if late := time.Since(st.Meta.DueAt); late < 0 || late > 2*time.Second {
			s.Errorf("it came %v late, want 2 s at most", late)
		}
		s.settle(src, ack(d))
	})
}

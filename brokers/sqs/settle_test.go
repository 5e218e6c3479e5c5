package sqs

import (
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
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		s.publish("a")
		sent := s.server.Count(sendBatch)
		d := s.one(src)
		for n := 1; n <= 9; n++ {
			st := again(d, 1500*time.Millisecond)
			begun := time.Now()
			s.settle(src, st)
			d = s.one(src)
			if !reflect.DeepEqual(d.Meta(), st.Meta) {
				s.Errorf("after %d retries the Meta is\n%+v, want\n%+v", n, d.Meta(), st.Meta)
			}
			if d.Abandoned != 0 {
				s.Errorf("after %d retries it was abandoned %d times", n, d.Abandoned)
			}
			if waited := time.Since(begun); waited != 2*time.Second {
				s.Errorf("a retry in 1.5 s came after %v, want 2 s", waited)
			}
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
		if err := src.Close(s.Context()); err != nil {
			s.Error(err)
		}
		other := s.openOn(s.start(Options{}))
		d = s.one(other)
		if d.Meta().Attempt != 2 || d.Abandoned != 0 {
			s.Errorf("another worker received attempt %d, abandoned %d; want 2 and 0", d.Meta().Attempt, d.Abandoned)
		}
		s.settle(other, release(d))
		if d = s.one(other); d.Meta().Attempt != 2 {
			s.Errorf("after a release the worker that released it has attempt %d, want 2", d.Meta().Attempt)
		}
		s.settle(other, release(d))
		third := s.openOn(s.start(Options{}))
		if err := other.Close(s.Context()); err != nil {
			s.Error(err)
		}
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
		if err := src.Close(s.Context()); err != nil {
			s.Error(err)
		}
		if d := s.one(s.openOn(s.start(Options{}))); d.Meta().Attempt != 2 {
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
		time.Sleep(25 * time.Second)
		d = s.one(second)
		s.settle(second, again(d, 30*time.Second))
		time.Sleep(25 * time.Second)
		d = s.one(first)
		if d.Meta().Attempt != 2 || d.Meta().Class != "transient" || d.Abandoned != 0 {
			s.Errorf("attempt %d, class %q, abandoned %d; want 2, of which one is the other worker's, and the class that this one noted",
				d.Meta().Attempt, d.Meta().Class, d.Abandoned)
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
		change  func(src *source, st *brokers.Settlement)
		copied  bool
	}{
		"in place": {},
		"Options.Copies": {
			options: Options{Copies: true}, copied: true,
		},
		"a throttle, which is no attempt": {
			change: func(_ *source, st *brokers.Settlement) { st.Meta.Attempt--; st.Meta.Throttles++ }, copied: true,
		},
		"two attempts at once": {
			change: func(_ *source, st *brokers.Settlement) { st.Meta.Attempt++ }, copied: true,
		},
		"due after its delay": {
			change: func(_ *source, st *brokers.Settlement) { st.Meta.DueAt = st.Meta.DueAt.Add(time.Minute) }, copied: true,
		},
		"longer than 12 h": {
			change: func(_ *source, st *brokers.Settlement) {
				st.Delay = 12*time.Hour - 30*time.Second
				st.Meta.DueAt = time.Now().Add(st.Delay)
			},
			copied: true,
		},
		"12 h less a margin": {
			change: func(_ *source, st *brokers.Settlement) {
				st.Delay = 12*time.Hour - 2*time.Minute
				st.Meta.DueAt = time.Now().Add(st.Delay)
			},
		},
		"no room for a note": {
			change: func(src *source, _ *brokers.Settlement) { src.notes = newNotes(0) }, copied: true,
		},
		"too much in flight": {
			change: func(src *source, _ *brokers.Settlement) {
				src.feeds[0].pressure = pressure{weighed: time.Now(), heavy: true}
			},
			copied: true,
		},
		"without a delay": {
			change: func(_ *source, st *brokers.Settlement) { st.Delay, st.Meta.DueAt = -time.Second, time.Now() },
		},
	} {
		playAs(t, name, "jobs", tt.options, func(s *scene) {
			s.sub.MaxDelay = 20 * time.Hour
			src := s.open()
			s.publish("a")
			st := again(s.one(src), 3*time.Second)
			if tt.change != nil {
				tt.change(src, &st)
			}
			sent, hidden := s.server.Count(sendBatch), s.server.Count(changeBatch)
			s.settle(src, st)
			sent, hidden = s.server.Count(sendBatch)-sent, s.server.Count(changeBatch)-hidden
			if copied := sent == 1 && hidden == 0; copied != tt.copied || sent+hidden != 1 {
				s.Errorf("%d copies and %d changes of visibility; copied is to be %t", sent, hidden, tt.copied)
			}
			if n := len(s.server.Messages(s.topic)); n != 1 {
				s.Errorf("the queue has %d messages, want one", n)
			}
			time.Sleep(st.Delay - time.Minute) // without polls, where that is long
			d := s.one(src)
			if !d.Meta().DueAt.Equal(st.Meta.DueAt.Truncate(time.Millisecond)) || d.Meta().Attempt != st.Meta.Attempt || d.Abandoned != 0 {
				s.Errorf("it came with attempt %d due at %v, want %d and %v", d.Meta().Attempt, d.Meta().DueAt, st.Meta.Attempt, st.Meta.DueAt)
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
				if err := src.Close(s.Context()); err != nil {
					s.Error(err)
				}
				src = s.openOn(s.start(options))
				if hops > 0 {
					time.Sleep(min(time.Until(due)-time.Minute, 11*time.Hour)) // without polls
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
		src := s.open()
		s.publish("a", "b")
		ds := s.receive(src, 2)
		s.server.Inject(past)
		sts := []brokers.Settlement{again(ds[0], time.Minute), again(ds[1], time.Minute)}
		s.settle(src, sts...)
		s.state(sqstest.Queue{Delayed: 1, InFlight: 1})
		got := s.receive(src, 2)
		for _, d := range got {
			if d.Meta().Attempt != 1 {
				s.Errorf("%q has attempt %d, want 1", d.Message.Body, d.Meta().Attempt)
			}
		}
	})
	play(t, "jobs.fifo", Options{}, func(s *scene) {
		src := s.open()
		s.publish("a/b")
		d := s.one(src)
		s.server.Inject(past)
		if err := s.errorOf(src, again(d, time.Minute)); !errors.Is(err, brokers.ErrRefused) {
			s.Errorf("Settle returned %v, want ErrRefused: a FIFO queue has no other way", err)
		}
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
			src := s.open()
			s.publish(fill("%d", 12)...)
			ds := s.receive(src, 12)
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

// TestCopyIsNotRepeated fails the removal after a confirmed copy: the next
// Settle removes only, and when it is too late for that, the retry is done.
func TestCopyIsNotRepeated(t *testing.T) {
	for name, late := range map[string]bool{"in time": false, "too late": true} {
		playAs(t, name, "jobs", Options{Copies: true}, func(s *scene) {
			src := s.open()
			s.publish("a")
			st := again(s.one(src), time.Hour)
			sent := s.server.Count(sendBatch)
			heal := s.server.Inject(sqstest.Fault{Operation: deleteBatch, Entries: []int{0}})
			if err := s.errorOf(src, st); err == nil || errors.Is(err, brokers.ErrLeaseLost) {
				s.Errorf("Settle returned %v, want an error to try again after", err)
			}
			heal()
			removals := 1
			if late {
				time.Sleep(31 * time.Second)
				removals = 0
			}
			calls := s.count(deleteBatch, func() { s.settle(src, st) })
			if calls != removals {
				s.Errorf("%d deletions, want %d", calls, removals)
			}
			if err := s.errorOf(src, st); !errors.Is(err, brokers.ErrSettled) {
				s.Errorf("another Settle returned %v, want ErrSettled", err)
			}
			s.demand(sendBatch, sent+1)
		})
	}
}

// TestCopyWithALostOriginal finds the lease of the original lost after the copy
// was confirmed: the retry is durable.
func TestCopyWithALostOriginal(t *testing.T) {
	play(t, "jobs", Options{Copies: true}, func(s *scene) {
		src := s.open()
		s.publish("a")
		st := again(s.one(src), time.Hour)
		s.server.Inject(sqstest.Fault{Operation: deleteBatch, Entries: []int{0}, Code: "ReceiptHandleIsInvalid"})
		s.settle(src, st)
	})
}

// TestAcksDoNotWaitForCopies sees the order of one Settle.
func TestAcksDoNotWaitForCopies(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		s.publish("copied", "acked", "released", "moved")
		ds := s.receive(src, 4)
		before := len(s.server.Calls())
		s.settle(src, again(ds[0], 13*time.Hour), ack(ds[1]), release(ds[2]), again(ds[3], time.Minute))
		var order []string
		for _, c := range s.server.Calls()[before:] {
			if strings.HasSuffix(c.Operation, "Batch") {
				order = append(order, c.Operation)
			}
		}
		if want := []string{deleteBatch, changeBatch, sendBatch, deleteBatch}; !slices.Equal(order, want) {
			s.Errorf("the calls came as %q, want %q", order, want)
		}
	})
}

// TestManyQueuesSettleAtOnce settles deliveries of several queues in the time
// of one. What is wrong with one queue is not the fault of the others.
func TestManyQueuesSettleAtOnce(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.Topics = []string{"jobs", "more", "most"}
		src := s.open()
		var batch []brokers.Settlement
		for _, topic := range s.sub.Topics {
			if err := s.broker.Publish(s.Context(), topic, brokers.Message{Body: []byte(topic)}); err != nil {
				s.Fatal(err)
			}
		}
		for _, d := range s.receive(src, 3) {
			batch = append(batch, ack(d))
		}
		heal := s.server.Inject(sqstest.Fault{Operation: deleteBatch, Queue: "more", Code: "AccessDenied", Latency: time.Second})
		s.server.Inject(sqstest.Fault{Operation: deleteBatch, Latency: time.Second})
		begun := time.Now()
		errs := src.Settle(s.Context(), batch)
		if took := time.Since(begun); took != time.Second {
			s.Errorf("Settle on three queues took %v, want the second of one", took)
		}
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
		calls := s.count("", func() {
			if err := s.errorOf(src, brokers.Settlement{Delivery: d, Action: brokers.Reject}); !errors.Is(err, brokers.ErrRefused) {
				s.Errorf("Reject returned %v, want ErrRefused", err)
			}
		})
		if calls != 0 {
			s.Errorf("%d calls for what SQS cannot do", calls)
		}
		other := s.openOn(s.start(Options{}))
		for _, err := range []error{s.errorOf(src, ack(nil)), s.errorOf(src, ack(&brokers.Delivery{})), s.errorOf(other, ack(d))} {
			if !errors.Is(err, brokers.ErrLeaseLost) {
				s.Errorf("Settle of what the source does not hold returned %v, want ErrLeaseLost", err)
			}
		}
		s.settle(src, ack(d))
		if errs := src.Settle(s.Context(), nil); errs != nil {
			s.Errorf("Settle of nothing returned %v", errs)
		}
	})
}

// TestRetryThatSQSRefuses as a copy stays in place, with what this worker knows.
func TestRetryThatSQSRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		fault  sqstest.Fault
		change func(src *source)
	}{
		"too large": {change: func(src *source) { src.feeds[0].limit = 100 }},
		"refused":   {fault: sqstest.Fault{Operation: sendBatch, Entries: []int{0}, Code: "InvalidParameterValue"}},
	} {
		playAs(t, name, "jobs", Options{Copies: true}, func(s *scene) {
			src := s.open()
			s.publish("a")
			d := s.one(src)
			if tt.change != nil {
				tt.change(src)
			} else {
				defer s.server.Inject(tt.fault)()
			}
			for range 3 {
				st := again(d, time.Minute)
				begun := time.Now()
				s.settle(src, st)
				if err := s.errorOf(src, st); !errors.Is(err, brokers.ErrSettled) {
					s.Errorf("another Settle returned %v, want ErrSettled", err)
				}
				s.state(sqstest.Queue{InFlight: 1})
				d = s.one(src)
				if waited := time.Since(begun); !reflect.DeepEqual(d.Meta(), st.Meta) || waited != time.Minute {
					s.Errorf("after %v it came with %+v, want after a minute %+v", waited, d.Meta(), st.Meta)
				}
			}
			s.settle(src, ack(d))
			s.state(sqstest.Queue{})
		})
	}
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
		time.Sleep(11 * time.Hour) // without polls
		d := s.one(src)
		if waited := time.Since(begun); waited > 12*time.Hour || !d.Meta().DueAt.Equal(st.Meta.DueAt) || d.Meta().Attempt != 1 {
			s.Errorf("after %v it came with %+v, want within the 12 h and due at %v", waited, d.Meta(), st.Meta.DueAt)
		}
		s.settle(src, brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: time.Until(d.Meta().DueAt), Meta: d.Meta()})
		time.Sleep(time.Until(st.Meta.DueAt) - time.Minute)
		d = s.one(src)
		if late := time.Since(st.Meta.DueAt); late < 0 || late > 2*time.Second || d.Meta().Attempt != 1 || d.Abandoned != 0 {
			s.Errorf("it came %v late with %+v", late, d.Meta())
		}
		s.settle(src, ack(d))
	})
}

package sqs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// TestFailingQueueRests has polls fail while many are open: after the first
// failure there is no second of which two begin, however many there were, Receive
// tells of it, and the queue is asked again within 20 s. Another goes on.
func TestFailingQueueRests(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]sqstest.Fault{
		"throttled":           {Code: "RequestThrottled"},
		"unavailable":         {Status: 503},
		"cut":                 {Cut: true},
		"slow to fail":        {Status: 500, Latency: 300 * time.Millisecond},
		"no answer":           {Latency: time.Hour},
		"expired credentials": {Code: "ExpiredToken", Status: 403},
		"full":                {Code: "OverLimit"},
	} {
		playAs(t, name, "jobs", Options{CallTimeout: 5 * time.Second}, func(s *scene) {
			s.sub.Topics, s.sub.InFlight = []string{"jobs", "other"}, 200
			src := s.open()
			s.publish(fill("%d", 300)...)
			for range 3 {
				s.drain(src, 100)
			}
			src.mu.Lock() // how many the backlog led to is a matter of luck
			src.feeds[0].pace.polls = 8
			src.mu.Unlock()
			s.nothing(src, time.Second)
			synctest.Wait() // the polls have reached the server
			fault.Operation, fault.Queue = "ReceiveMessage", "jobs"
			heal := s.server.Inject(fault)
			begun := time.Now()
			if open := s.server.Queue("jobs").Polls; open < 8 {
				s.Fatalf("%d polls are open, want 8", open)
			}
			s.publishTo("other", "b")
			s.awaits(src, "b", fmt.Sprintf("%q", "jobs"))
			s.nothingBut(src, 3*time.Minute)
			known := time.Time{}
			for _, c := range s.server.Calls() {
				if c.Operation != fault.Operation || c.Queue != "jobs" || c.Time.Before(begun) {
					continue
				}
				pause := c.Time.Sub(known)
				switch took := min(fault.Latency, 25*time.Second); {
				case known.IsZero():
					known = c.Time.Add(took)
				case !c.Time.After(known): // begun before the first answer
				case pause < time.Second || pause > 20*time.Second+took:
					s.Errorf("a poll begins %v after the one before", pause)
					fallthrough
				default:
					known = c.Time
				}
			}
			heal()
			s.nothingBut(src, 45*time.Second) // the last call that fails may be open
			s.publish("a")
			s.receive(src, 1)
		})
	}
}

// nothingBut receives for a time, during which only temporary errors may come.
func (s *scene) nothingBut(src brokers.Source, d time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), d)
	defer cancel()
	for tries := 0; ; tries++ {
		ds, err := src.Receive(ctx, 10)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || errors.Is(err, brokers.ErrMisconfigured) || tries > 1000:
			s.Fatalf("Receive returned %q and %v", bodiesOf(ds), err)
		}
	}
}

// TestUnknownIdentity checks that the source stops, because it can receive from no
// queue, and that it touches no message.
func TestUnknownIdentity(t *testing.T) {
	hold(t, "jobs", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		s.publish("b")
		s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Code: "UnrecognizedClientException"})
		settled := s.server.Count(changeBatch) + s.server.Count(deleteBatch)
		var err error
		for err == nil {
			_, err = src.Receive(s.Context(), 1)
		}
		if !errors.Is(err, brokers.ErrMisconfigured) || errors.Is(err, brokers.ErrNotFound) {
			s.Fatalf("Receive returned %v, want ErrMisconfigured", err)
		}
		s.costs("ReceiveMessage", 0, 0, func() {
			if _, again := src.Receive(s.Context(), 1); !errors.Is(again, brokers.ErrMisconfigured) {
				s.Errorf("another Receive returned %v", again)
			}
		})
		if n := s.server.Count(changeBatch) + s.server.Count(deleteBatch) - settled; n != 0 {
			s.Errorf("%d calls touched messages", n)
		}
		s.settle(src, ack(d)) // the worker may still settle the messages that it holds
	})
}

// TestLostQueue takes one of two queues away: the queue is deleted, the worker loses its
// rights, or KMS disables the key. The other queue flows. The source reports the lost
// queue and looks for it a few times a minute, and receives from it when it is back.
func TestLostQueue(t *testing.T) {
	for name, tt := range map[string]struct {
		code string
		says []string
	}{
		"gone":   {"AWS.SimpleQueueService.NonExistentQueue", []string{`"jobs"`, "the messages that were in it are lost", "create"}},
		"denied": {"AccessDenied", []string{`"jobs"`, "its messages stay in it", "grant the identity"}},
		"key":    {"KMS.DisabledException", []string{`"jobs"`, "its messages stay in it", "restore the key"}},
	} {
		playAs(t, name, "jobs", Options{}, func(s *scene) {
			s.sub.Topics = []string{"jobs", "other"}
			src := s.open()
			s.broker.options.Create = false
			cured := s.server.Inject(sqstest.Fault{Queue: "jobs", Code: tt.code})
			begun, losses, got := time.Now(), 0, 0
			for time.Since(begun) < 10*time.Minute {
				time.Sleep(2 * time.Second)
				s.publishTo("other", "beside")
				ctx, cancel := context.WithTimeout(s.Context(), 5*time.Second)
				ds, err := src.Receive(ctx, 10)
				cancel()
				got += len(ds)
				s.settle(src, acks(ds)...)
				if err == nil || errors.Is(err, context.DeadlineExceeded) {
					continue
				}
				losses++
				lost, ok := errors.AsType[*brokers.TopicError](err)
				for _, part := range tt.says {
					if !ok || lost.Topic != "jobs" || !strings.Contains(err.Error(), part) {
						s.Fatalf("Receive returned %v, want the topic jobs and %q", err, part)
					}
				}
			}
			if perMinute := float64(losses) / time.Since(begun).Minutes(); perMinute < 2 || perMinute > 6 || got < 100 {
				s.Errorf("%.1f reports a minute, and %d messages of the other queue; want 2 to 6, and 100 messages or more", perMinute, got)
			}
			if calls := s.countCalls("", "jobs"); calls > 20*10 {
				s.Errorf("%d calls about the queue in ten minutes, want a few for each look", calls)
			}
			cured()
			s.publish("again")
			back := time.Now()
			s.awaits(src, "again", "")
			s.within(back, time.Minute)
		})
	}
}

// countCalls returns the number of calls about a queue; "" is any operation.
func (s *scene) countCalls(operation, queue string) (n int) {
	for _, c := range s.server.Calls() {
		if c.Queue == queue && (operation == "" || c.Operation == operation) {
			n++
		}
	}
	return n
}

// TestQueueBackWithOtherSettings creates a deleted queue again, with less retention than
// its retries take. The source refuses this queue, and no other.
func TestQueueBackWithOtherSettings(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.Topics, s.sub.MaxAge = []string{"jobs", "other"}, 3*24*time.Hour
		src := s.open()
		s.broker.options.Create = false
		s.remake(src, "jobs", map[string]string{nameRetention: "3600"})
		s.publish("kept")
		s.publishTo("other", "beside")
		s.awaits(src, "beside", "MessageRetentionPeriod is 3600")
		if q := s.server.Queue("jobs"); q.Visible != 1 || q.InFlight != 0 {
			s.Errorf("the queue has %+v, want the message untouched", q)
		}
		s.remake(src, "jobs", map[string]string{nameRetention: "604800"})
		s.publish("again")
		s.awaits(src, "again", "")
	})
}

// remake deletes a queue, waits until src has noticed, and creates it with attributes.
func (s *scene) remake(src *source, queue string, attributes map[string]string) {
	s.Helper()
	client := s.broker.client
	if err := client.drop(s.Context(), queue); err != nil {
		s.Fatal(err)
	}
	s.publishTo("other", "meanwhile")
	s.awaits(src, "meanwhile", "no such queue")
	if err := createAnew(s.Context(), client, queue, attributes); err != nil {
		s.Fatal(err)
	}
}

// awaits receives until a message with this body has come, and an error that contains
// part.
func (s *scene) awaits(src *source, body, part string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 10*time.Minute)
	defer cancel()
	heard := part == ""
	got := false
	for tries := 0; !got || !heard; tries++ {
		ds, err := src.Receive(ctx, 10)
		if errors.Is(err, brokers.ErrMisconfigured) || ctx.Err() != nil || tries > 1000 {
			s.Fatalf("Receive returned %v; message %q came: %t, error %q came: %t", err, body, got, part, heard)
		}
		if err != nil {
			heard = heard || strings.Contains(err.Error(), part)
			time.Sleep(100 * time.Millisecond)
		}
		for _, d := range ds {
			got = got || string(d.Message.Body) == body
			s.settle(src, ack(d))
		}
	}
}

// TestOverLimit lets retries be copies for a minute.
func TestOverLimit(t *testing.T) {
	hold(t, "jobs", Options{}, func(s *scene, src *source, d *brokers.Delivery) {
		s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Code: "OverLimit", Times: 1})
		time.Sleep(20 * time.Second) // an open poll ends
		s.tells(src, "OverLimit")
		sent := s.server.Count(sendBatch)
		s.settle(src, again(d, time.Hour))
		s.demand(sendBatch, sent+1)
	})
}

// TestDamagedMessage gives back a message that did not arrive whole, and hands
// out the others of its batch. On a FIFO queue its group waits for it.
func TestDamagedMessage(t *testing.T) {
	for _, topic := range []string{"jobs", "jobs.fifo"} {
		playAs(t, topic, topic, Options{}, func(s *scene) {
			src := s.open()
			s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Corrupt: true, Entries: []int{1}, Times: 1})
			s.buffer(src, "a/0", "b/0", "c/0", "b/1")
			begun := time.Now()
			want := []string{"a/0", "c/0"}
			if !src.Capabilities().Ordered {
				want = append(want, "b/1")
			}
			s.finish(src, want...)
			s.tells(src, "damaged")
			s.finish(src, "b/0")
			s.took(begun, damagedPause)
			if src.Capabilities().Ordered {
				s.finish(src, "b/1")
			}
			s.state(sqstest.Queue{})
		})
	}
}

// tells demands an error of the next Receive that contains part.
func (s *scene) tells(src brokers.Source, part string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	if ds, err := src.Receive(ctx, 10); err == nil || !strings.Contains(err.Error(), part) {
		s.Errorf("Receive returned %q and %v, want an error that says %q", bodiesOf(ds), err, part)
	}
}

// TestLatePoll gives back what an answer brings too late to be handed out, and
// says so.
func TestLatePoll(t *testing.T) {
	for _, topic := range []string{"jobs", "jobs.fifo"} {
		playAs(t, topic, topic, Options{PollWait: time.Second}, func(s *scene) {
			s.sub.Lease = 8 * time.Second // with the poll, of which half must be left
			src := s.open()
			s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", AfterEffect: true, Latency: 5500 * time.Millisecond, Times: 1})
			s.publish("a/0", "a/1")
			begun := time.Now()
			s.tells(src, "2 messages: they are given back")
			if src.Capabilities().Ordered {
				s.finish(src, "a/0", "a/1")
			} else {
				s.drain(src, 2)
			}
			s.within(begun, 6*time.Second) // at once after the poll
			s.state(sqstest.Queue{})
		})
	}
}

// TestPollsThatDoNotWait asks a server at most once a second that answers at
// once that it has nothing.
func TestPollsThatDoNotWait(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		var polls atomic.Int32
		b := s.answer(".ReceiveMessage", func() string {
			polls.Add(1)
			return "{}"
		})
		s.nothing(s.openOn(b), time.Minute)
		if n := polls.Load(); n > 61 || n < 30 {
			s.Errorf("%d polls in a minute, want one a second at most", n)
		}
	})
}

// TestPollsAdapt opens more polls for a backlog, and one when it is gone.
func TestPollsAdapt(t *testing.T) {
	t.Parallel()
	play(t, "jobs", Options{Polls: 4}, func(s *scene) {
		s.sub.InFlight = 1000
		src := s.open()
		s.publish(fill("%d", 2000)...)
		s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Latency: 20 * time.Millisecond})
		begun := time.Now()
		for range 100 {
			s.drain(src, 20)
		}
		s.within(begun, 1500*time.Millisecond) // 4 polls of 20 ms each take 1 s, one 4 s
		idle := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(s.Context(), d)
			defer cancel()
			if ds, err := src.Receive(ctx, 100); err == nil { // there would be room for all polls
				s.Errorf("received %q, want nothing", bodiesOf(ds))
			}
		}
		idle(61 * time.Second)
		s.costs("ReceiveMessage", 1, 35, func() { idle(10 * time.Minute) }) // one in 20 s
	})
}

// TestPollsGather has a trickle of messages share polls, and delays none of them
// for long.
func TestPollsGather(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		s.publish("first")
		s.drain(src, 1)
		const messages, apart = 200, 4 * time.Millisecond
		sent := make(chan time.Time, messages)
		go func() {
			for i := range messages {
				time.Sleep(apart)
				sent <- time.Now()
				s.publish(strconv.Itoa(i))
			}
		}()
		slowest := time.Duration(0)
		s.costs("ReceiveMessage", 1, messages/2, func() {
			for range messages {
				d := s.one(src)
				slowest = max(slowest, time.Since(<-sent))
				s.settle(src, ack(d))
			}
		})
		if slowest > gather {
			s.Errorf("a message waited for %v to be polled for, want %v at most", slowest, gather)
		}
	})
}

// TestNoMoreThanWillBeTaken has a slow worker: nothing is fetched that could
// not be started within its lease.
func TestNoMoreThanWillBeTaken(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.InFlight = 1000
		src := s.open()
		s.publish(fill("%d", 300)...)
		for range 100 { // a worker with one slot that needs 5 s
			d := s.one(src)
			synctest.Wait()
			if n := s.server.Queue(s.topic).InFlight; n > 5 {
				s.Fatalf("%d messages are in flight for a worker that takes one in 5 s", n)
			}
			time.Sleep(5 * time.Second)
			s.settle(src, ack(d))
		}
		s.onceReceived(s.server.Messages(s.topic))
	})
}

// onceReceived demands that SQS has counted no second receive of a message.
func (s *scene) onceReceived(ms []sqstest.Message) {
	s.Helper()
	for _, m := range ms {
		if m.Receives > 1 {
			s.Errorf("%q was received %d times, want once", m.Body, m.Receives)
		}
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
		playAs(t, name, "jobs.fifo", Options{}, func(s *scene) {
			src := s.open()
			s.publish("b/0", "a/0", "a/1")
			fault.Operation = "ReceiveMessage"
			s.server.Inject(fault)
			begun := time.Now()
			s.awaits(src, "a/1", "")
			s.state(sqstest.Queue{})
			s.within(begun, 10*time.Second)
		})
	}
}

// TestUnheardPollThatIsTooOld is not asked for again: too little would be left
// of the time for which its messages are held.
func TestUnheardPollThatIsTooOld(t *testing.T) {
	f := &feed{source: &source{terms: terms{lease: 30 * time.Second, wait: 20 * time.Second, margin: 2 * time.Second}}}
	now := time.Now()
	young, old := request{"young", 3, now.Add(-30 * time.Second)}, request{"old", 4, now.Add(-40 * time.Second)}
	f.unheard = []request{old, young}
	if got := f.next(7, now); got != young {
		t.Errorf("next = %+v, want the younger one", got)
	}
	if got := f.next(7, now); got.attempt == old.attempt || got.attempt == young.attempt || got.most != 7 || !got.begun.Equal(now) {
		t.Errorf("next = %+v, want a new one", got)
	}
}

// TestDamagedForLong has what is behind a message that arrives damaged for hours not
// be received with it each time.
func TestDamagedForLong(t *testing.T) {
	play(t, "jobs.fifo", Options{}, func(s *scene) {
		src := s.open()
		heal := s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Entries: []int{0}, Corrupt: true})
		s.publish(fill("a/%d", 5)...)
		s.nothingBut(src, 3*time.Hour)
		s.onceReceived(s.server.Messages(s.topic)[1:])
		heal()
		s.awaits(src, "a/4", "")
	})
}

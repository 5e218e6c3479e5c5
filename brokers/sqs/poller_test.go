package sqs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// TestFailingQueueRests has every poll fail: no more than one call a second,
// and Receive tells of it.
func TestFailingQueueRests(t *testing.T) {
	for name, fault := range map[string]sqstest.Fault{
		"throttled":           {Code: "RequestThrottled"},
		"unavailable":         {Status: 503},
		"cut":                 {Cut: true},
		"expired credentials": {Code: "ExpiredToken", Status: 403},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, "jobs", Options{}, func(s *scene) {
				s.sub.Topics = []string{"jobs", "other"}
				src := s.open()
				s.publish(fill("%d", 100)...)
				for range 10 {
					for _, d := range s.receive(src, 10) { // so that many polls are open
						s.settle(src, ack(d))
					}
				}
				fault.Operation, fault.Queue = "ReceiveMessage", "jobs"
				heal := s.server.Inject(fault)
				s.nothingBut(src, 20*time.Second) // open polls end
				begun := time.Now()
				calls := s.countOn("jobs", func() {
					if s.nothingBut(src, 5*time.Minute) == 0 {
						s.Error("Receive returned no error")
					}
				})
				if calls > int(time.Since(begun)/time.Second) || calls < 15 {
					s.Errorf("%d polls in %v, want at most one a second, and at least one in 20 s", calls, time.Since(begun))
				}
				heal()
				s.publish("a")
				begun = time.Now()
				s.one(src)
				if took := time.Since(begun); took > 20*time.Second {
					s.Errorf("it took %v to notice that the queue is well again", took)
				}
			})
		})
	}
}

// nothingBut receives for a time, during which only temporary errors may come,
// and returns how many there were.
func (s *scene) nothingBut(src brokers.Source, d time.Duration) (failures int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), d)
	defer cancel()
	for {
		ds, err := src.Receive(ctx, 10)
		switch {
		case ctx.Err() != nil:
			return failures
		case err == nil || errors.Is(err, brokers.ErrMisconfigured):
			s.Fatalf("Receive returned %q and %v", bodiesOf(ds), err)
		}
		failures++
	}
}

// countOn is how many polls of a queue run makes.
func (s *scene) countOn(queue string, run func()) int {
	polls := func() (n int) {
		for _, c := range s.server.Calls() {
			if c.Operation == "ReceiveMessage" && c.Queue == queue {
				n++
			}
		}
		return n
	}
	before := polls()
	run()
	return polls() - before
}

// TestOneQueueFails goes on with the others.
func TestOneQueueFails(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.sub.Topics = []string{"bad", "jobs"}
		src := s.open()
		s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Queue: "bad", Code: "RequestThrottled"})
		s.publish(fill("%d", 20)...)
		for got := 0; got < 20; {
			ds, err := src.Receive(s.Context(), 10)
			if err != nil && !strings.Contains(err.Error(), `"bad"`) {
				s.Fatalf("Receive: %v", err)
			}
			for _, d := range ds {
				s.settle(src, ack(d))
				got++
			}
		}
	})
}

// TestMisconfiguredQueue stops the source and touches no message.
func TestMisconfiguredQueue(t *testing.T) {
	for name, fault := range map[string]sqstest.Fault{
		"gone":    {Code: "AWS.SimpleQueueService.NonExistentQueue"},
		"denied":  {Code: "AccessDenied"},
		"key":     {Code: "KMS.DisabledException"},
		"unknown": {Code: "UnrecognizedClientException"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, "jobs", Options{}, func(s *scene) {
				src := s.open()
				s.publish("a", "b")
				d := s.one(src)
				fault.Operation = "ReceiveMessage"
				s.server.Inject(fault)
				settled := s.server.Count(changeBatch) + s.server.Count(deleteBatch)
				var err error
				for err == nil {
					_, err = src.Receive(s.Context(), 1)
				}
				if !errors.Is(err, brokers.ErrMisconfigured) {
					s.Fatalf("Receive returned %v, want ErrMisconfigured", err)
				}
				polls := s.server.Count("ReceiveMessage")
				for range 3 {
					if _, again := src.Receive(s.Context(), 1); !errors.Is(again, brokers.ErrMisconfigured) {
						s.Errorf("another Receive returned %v", again)
					}
				}
				s.demand("ReceiveMessage", polls)
				if n := s.server.Count(changeBatch) + s.server.Count(deleteBatch) - settled; n != 0 {
					s.Errorf("%d calls touched messages", n)
				}
				s.settle(src, ack(d)) // what the worker holds it may settle
			})
		})
	}
}

// TestOverLimit lets retries be copies for a minute.
func TestOverLimit(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		s.publish("a")
		d := s.one(src)
		s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Code: "OverLimit", Times: 1})
		time.Sleep(20 * time.Second) // an open poll ends
		ctx, cancel := context.WithTimeout(s.Context(), time.Second)
		defer cancel()
		if _, err := src.Receive(ctx, 1); err == nil || errors.Is(err, context.DeadlineExceeded) {
			s.Errorf("Receive returned %v, want OverLimit", err)
		}
		sent := s.server.Count(sendBatch)
		s.settle(src, again(d, time.Hour))
		s.demand(sendBatch, sent+1)
	})
}

// TestDamagedMessage gives back a message that did not arrive whole, and hands
// out the others of its batch. On a FIFO queue its group waits for it.
func TestDamagedMessage(t *testing.T) {
	for _, topic := range []string{"jobs", "jobs.fifo"} {
		t.Run(topic, func(t *testing.T) {
			play(t, topic, Options{}, func(s *scene) {
				src := s.open()
				s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Corrupt: true, Entries: []int{1}, Times: 1})
				s.buffer(src, "a/0", "b/0", "c/0", "b/1")
				begun := time.Now()
				want := []string{"a/0", "c/0"}
				if !src.Capabilities().Ordered {
					want = append(want, "b/1")
				}
				for _, d := range s.expect(src, want...) {
					s.settle(src, ack(d))
				}
				if _, err := src.Receive(s.Context(), 1); err == nil || !strings.Contains(err.Error(), "damaged") {
					s.Errorf("Receive returned %v, want what is wrong with the message", err)
				}
				d := s.one(src)
				if waited := time.Since(begun); string(d.Message.Body) != "b/0" || waited != damagedPause {
					s.Errorf("received %q after %v, want b/0 after %v", d.Message.Body, waited, damagedPause)
				}
				s.settle(src, ack(d))
				if src.Capabilities().Ordered {
					s.settle(src, ack(s.expect(src, "b/1")[0]))
				}
				s.state(sqstest.Queue{})
			})
		})
	}
}

// TestLatePoll gives back what an answer brings too late to be handed out, and
// says so.
func TestLatePoll(t *testing.T) {
	for _, topic := range []string{"jobs", "jobs.fifo"} {
		t.Run(topic, func(t *testing.T) {
			play(t, topic, Options{PollWait: time.Second}, func(s *scene) {
				s.sub.Lease = 8 * time.Second // with the poll, of which half must be left
				src := s.open()
				s.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", AfterEffect: true, Latency: 5500 * time.Millisecond, Times: 1})
				s.publish("a/0", "a/1")
				begun := time.Now()
				if _, err := src.Receive(s.Context(), 2); err == nil || !strings.Contains(err.Error(), "2 messages: they are given back") {
					s.Errorf("Receive returned %v, want that two messages came too late", err)
				}
				again := s.receive(src, 2)
				got := bodiesOf(again)
				if !src.Capabilities().Ordered {
					slices.Sort(got)
				}
				if want := []string{"a/0", "a/1"}; !slices.Equal(got, want) {
					s.Errorf("received %q, want %q", got, want)
				}
				for _, d := range again {
					s.settle(src, ack(d))
				}
				if took := time.Since(begun); took > 6*time.Second {
					s.Errorf("they came again after %v, want at once after the poll", took)
				}
				s.state(sqstest.Queue{})
			})
		})
	}
}

// TestPollsThatDoNotWait asks a server at most once a second that answers at
// once that it has nothing.
func TestPollsThatDoNotWait(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		config := s.server.Config()
		next := config.HTTPClient
		var polls atomic.Int32
		config.HTTPClient = doer(func(r *http.Request) (*http.Response, error) {
			if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".ReceiveMessage") {
				return next.Do(r)
			}
			polls.Add(1)
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
		})
		b, err := New(Options{Config: config, Create: true})
		if err != nil {
			s.Fatal(err)
		}
		s.started = append(s.started, b)
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
		for done := 0; done < 2000; {
			ds := s.receive(src, 20)
			var batch []brokers.Settlement
			for _, d := range ds {
				batch = append(batch, ack(d))
			}
			s.settle(src, batch...)
			done += len(ds)
		}
		if took := time.Since(begun); took > 1500*time.Millisecond {
			s.Errorf("2000 messages took %v; 4 polls of 20 ms each take 1 s, one 4 s", took)
		}
		s.nothing(src, 21*time.Second)
		calls := s.count("ReceiveMessage", func() { s.nothing(src, 10*time.Minute) })
		if calls > 35 {
			s.Errorf("%d polls of an empty queue in 10 min, want one in 20 s", calls)
		}
	})
}

// TestPollsGather has a trickle of messages share polls, and delays none of them
// for long.
func TestPollsGather(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		s.publish("first")
		s.settle(src, ack(s.one(src)))
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
		calls := s.count("ReceiveMessage", func() {
			for range messages {
				d := s.one(src)
				slowest = max(slowest, time.Since(<-sent))
				s.settle(src, ack(d))
			}
		})
		if calls > messages/2 {
			s.Errorf("%d polls for %d messages that came one by one, want half as many at most", calls, messages)
		}
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
		for _, m := range s.server.Messages(s.topic) {
			if m.Receives > 1 {
				s.Errorf("%q was received %d times", m.Body, m.Receives)
			}
		}
	})
}

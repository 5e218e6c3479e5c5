package sqs

import (
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// TestFIFORetryBlocksTheGroup retries the first message of a group: those after
// it, handed out or not, are given back, the last one first, and come after it
// with the attempts that they had.
func TestFIFORetryBlocksTheGroup(t *testing.T) {
	play(t, "jobs.fifo", Options{}, func(s *scene) {
		src := s.open()
		s.buffer(src, "a/0", "a/1", "a/2", "b/0", "a/3", "a/4")
		ds := s.expect(src, "a/0", "a/1", "a/2") // "a/3" and "a/4" are buffered
		handles := handlesOf(src)
		begun := time.Now()
		st := again(ds[0], 40*time.Second)
		s.settle(src, st, release(ds[1]), release(ds[2]))
		s.movedBack(handles, fill("a/%d", 5)...)
		s.finish(src, "b/0")
		for n := 1; n <= 3; n++ {
			d := s.expect(src, "a/0")[0]
			s.took(begun, time.Duration(n)*40*time.Second)
			s.counts(d, n, 0)
			if n == 1 && !reflect.DeepEqual(d.Meta(), st.Meta) {
				s.Errorf("after a retry its Meta is %+v, want %+v", d.Meta(), st.Meta)
			}
			if n < 3 {
				s.settle(src, again(d, 40*time.Second))
			} else {
				s.settle(src, ack(d))
			}
		}
		for n := 1; n <= 4; n++ { // which were never run
			d := s.expect(src, fmt.Sprint("a/", n))[0]
			s.counts(d, 0, 0)
			s.settle(src, ack(d))
		}
	})
}

// TestFIFORetryDoesNotCountForTheRest retries one message again and again. Those
// behind it come with it once, and then no more: SQS counts each time, and other
// workers would take that for attempts.
func TestFIFORetryDoesNotCountForTheRest(t *testing.T) {
	play(t, "jobs.fifo", Options{}, func(s *scene) {
		src := s.open()
		come := func() []*brokers.Delivery {
			s.Helper()
			ds, err := src.Receive(s.Context(), 10) // there is room for all
			if err != nil || string(ds[0].Message.Body) != "a/0" {
				s.Fatalf("received %q, %v; want a/0 first", bodiesOf(ds), err)
			}
			return ds
		}
		s.publish(fill("a/%d", 8)...)
		ds := come()
		for range 9 {
			for _, d := range ds[1:] { // as the pipeline does, before it retries the first
				s.settle(src, release(d))
			}
			s.settle(src, again(ds[0], 3*time.Minute)) // longer than a poll that is open
			ds = come()
		}
		s.onceReceived(s.server.Messages(s.topic)[1:])
		s.settle(src, acks(ds)...)
		time.Sleep(singly)
		s.publish(fill("b/%d", 8)...)
		s.costs("ReceiveMessage", 1, 3, func() { s.receive(src, 8) })
	})
}

// TestFIFOKeepsTheRestOfAGroup does not hand out in a later Receive what
// follows a message that is with the worker.
func TestFIFOKeepsTheRestOfAGroup(t *testing.T) {
	play(t, "jobs.fifo", Options{}, func(s *scene) {
		src := s.open()
		s.buffer(src, "a/0", "a/1", "b/0", "a/2")
		first := s.expect(src, "a/0")[0]
		s.finish(src, "b/0")
		s.nothing(src, time.Second)
		s.settle(src, ack(first))
		s.expect(src, "a/1", "a/2")
	})
}

// TestFIFOLostLease gives back what follows a message whose lease was lost,
// so that it comes first again.
func TestFIFOLostLease(t *testing.T) {
	for name, lose := range map[string]func(s *scene, src *source, d *brokers.Delivery){
		"expired": func(*scene, *source, *brokers.Delivery) { time.Sleep(36 * time.Second) },
		"refused": func(s *scene, src *source, d *brokers.Delivery) {
			defer s.server.Inject(sqstest.Fault{Operation: deleteBatch, Entries: []int{0}, Code: "ReceiptHandleIsInvalid"})()
			s.fails(src, ack(d), brokers.ErrLeaseLost)
		},
	} {
		playAs(t, name, "jobs.fifo", Options{}, func(s *scene) {
			src := s.open()
			s.buffer(src, "a/0", "a/1")
			d := s.expect(src, "a/0")[0]
			lose(s, src, d)
			s.state(sqstest.Queue{InFlight: 1, Visible: 1})
			s.finish(src, "a/0", "a/1")
		})
	}
}

// TestFIFODelayThatDoesNotFit refuses a delay that is too long for what is left
// of the 12 h.
func TestFIFODelayThatDoesNotFit(t *testing.T) {
	t.Parallel()
	play(t, "jobs.fifo", Options{}, func(s *scene) {
		s.sub.MaxDelay = longestBlock
		src := s.open()
		s.publish("a/0")
		d := s.one(src)
		for range 3 {
			s.extend(src, time.Hour, d)
			time.Sleep(40 * time.Minute)
		}
		s.costs("", 0, 0, func() { s.fails(src, again(d, longestBlock), brokers.ErrRefused) })
		s.settle(src, again(d, 9*time.Hour))
		begun := time.Now()
		time.Sleep(8 * time.Hour) // without polls
		s.drain(src, 1)
		s.took(begun, 9*time.Hour)
	})
}

// TestRepeatedSendIsOneMessage loses the answer to a send, which is sent again.
func TestRepeatedSendIsOneMessage(t *testing.T) {
	play(t, "jobs.fifo", Options{}, func(s *scene) {
		src := s.open()
		s.server.Inject(sqstest.Fault{Operation: "SendMessageBatch", Cut: true, AfterEffect: true, Times: 1})
		s.publish("a/0", "a/1")
		if q := s.server.Queue(s.topic); q.Sent != 2 || q.Deduplicated != 2 {
			s.Errorf("%d messages, %d dropped as repeats; want 2 of each", q.Sent, q.Deduplicated)
		}
		s.expect(src, "a/0", "a/1")
	})
}

// TestFairQueues keeps the key of a standard queue as its group over copies.
func TestFairQueues(t *testing.T) {
	play(t, "jobs", Options{Copies: true}, func(s *scene) {
		src := s.open()
		s.publish("a/0")
		for range 3 {
			if group := s.server.Messages(s.topic)[0].Group; group != "a" {
				s.Errorf("the group is %q, want the key of the message", group)
			}
			s.settle(src, again(s.one(src), time.Second))
			synctest.Wait()
		}
	})
}

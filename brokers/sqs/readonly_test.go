package sqs

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// reads makes the subscription of a scene one that only reads.
func (s *scene) reads(topics ...string) {
	s.sub = brokers.Subscription{Topics: topics, InFlight: 50}
}

// TestReader takes messages out of a queue whose settings no worker would accept,
// and which it may not look at, and makes nothing.
func TestReader(t *testing.T) {
	play(t, "letters", Options{}, func(s *scene) {
		s.create("last", nil)
		s.create("letters", map[string]string{
			"MessageRetentionPeriod": "600", "MaximumMessageSize": "1024", "VisibilityTimeout": "5",
			"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:123456789012:last","maxReceiveCount":"4"}`,
		})
		s.publish("acked", "released", "postponed")
		s.server.Inject(sqstest.Fault{Operation: "GetQueueAttributes", Code: "AccessDenied"})
		s.reads("letters")
		begun := len(s.server.Calls())
		src := s.open()
		ds := s.expect(src, "acked", "released", "postponed")
		s.settle(src, ack(ds[0]), release(ds[1]))
		if err := s.errorOf(src, again(ds[2], time.Minute)); !errors.Is(err, brokers.ErrRefused) || !strings.Contains(err.Error(), "only reads") {
			s.Errorf("Retry with another Meta: %v, want ErrRefused and why", err)
		}
		s.settle(src, brokers.Settlement{Delivery: ds[2], Action: brokers.Retry, Delay: time.Minute, Meta: ds[2].Meta()})
		s.finish(src, "released")
		s.nothing(src, 59*time.Second)
		s.finish(src, "postponed")
		s.leave(src)
		allowed := []string{"GetQueueUrl", "GetQueueAttributes", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"}
		for _, c := range s.server.Calls()[begun:] {
			if !slices.Contains(allowed, c.Operation) || c.Queue != "letters" {
				s.Errorf("a reader calls %s on %q", c.Operation, c.Queue)
			}
		}
	})
}

// TestReaderTakesWhatCannotBeRead at once: for whoever stores it as it is, no other
// worker need try.
func TestReaderTakesWhatCannotBeRead(t *testing.T) {
	play(t, "letters", Options{}, func(s *scene) {
		s.create("letters", nil)
		if err := (&fleet{Broker: s.broker}).sendNewer(s.Context(), "letters"); err != nil {
			s.Fatal(err)
		}
		s.reads("letters")
		src := s.open()
		d := s.one(src)
		if d.Unreadable == nil || string(d.Message.Body) != newerEnvelope || s.server.Messages("letters")[0].Receives != 1 {
			s.Errorf("at first %q came, unreadable: %v", d.Message.Body, d.Unreadable)
		}
		s.settle(src, ack(d))
	})
}

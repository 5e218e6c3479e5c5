package sqs

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/integration/livetest"
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
		for _, d := range s.receive(src, 3) {
			switch string(d.Message.Body) {
			case "acked":
				s.settle(src, ack(d))
			case "released":
				s.settle(src, release(d))
			case "postponed":
				if err := s.errorOf(src, again(d, time.Minute)); !errors.Is(err, brokers.ErrRefused) || !strings.Contains(err.Error(), "only reads") {
					s.Errorf("Retry with another Meta: %v, want ErrRefused and why", err)
				}
				s.settle(src, brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: time.Minute, Meta: d.Meta()})
			}
		}
		s.settle(src, ack(s.expect(src, "released")[0]))
		s.nothing(src, 59*time.Second)
		s.settle(src, ack(s.expect(src, "postponed")[0]))
		if err := src.Close(s.Context()); err != nil {
			s.Fatal(err)
		}
		allowed := []string{"GetQueueUrl", "GetQueueAttributes", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"}
		for _, c := range s.server.Calls()[begun:] {
			if !slices.Contains(allowed, c.Operation) || c.Queue != "letters" {
				s.Errorf("a reader calls %s on %q", c.Operation, c.Queue)
			}
		}
	})
}

// TestReaderOfFIFO has every retry done in place.
func TestReaderOfFIFO(t *testing.T) {
	play(t, "letters.fifo", Options{}, func(s *scene) {
		s.create("letters.fifo", map[string]string{"MessageRetentionPeriod": "600"})
		s.publish("k/a", "k/b")
		s.reads("letters.fifo")
		src := s.open()
		ds := s.expect(src, "k/a", "k/b")
		s.settle(src, again(ds[0], time.Minute), release(ds[1]))
		s.nothing(src, 59*time.Second)
		for _, body := range []string{"k/a", "k/b"} {
			s.settle(src, ack(s.expect(src, body)[0]))
		}
	})
}

// TestReaderFindsNothing where there is no queue, and makes none.
func TestReaderFindsNothing(t *testing.T) {
	play(t, "letters", Options{}, func(s *scene) { // in which Options.Create is set
		s.create("letters", nil)
		for _, missing := range []string{"gone", s.url("gone")} {
			s.reads("letters", missing)
			if _, err := s.broker.Open(s.Context(), s.sub); !errors.Is(err, brokers.ErrMisconfigured) || !errors.Is(err, brokers.ErrNotFound) || !strings.Contains(err.Error(), `gone"`) {
				s.Errorf("Open of %q: %v, want ErrMisconfigured with the name", missing, err)
			}
		}
		s.demand("CreateQueue", 1)
	})
}

// url is that of a queue, there or not.
func (s *scene) url(name string) string {
	s.Helper()
	there, err := s.broker.client.resolve(s.Context(), s.topic)
	if err != nil {
		s.Fatal(err)
	}
	return strings.TrimSuffix(there, s.topic) + name
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

// TestReaderOnServers reads a queue with the settings that a server gives it.
func TestReaderOnServers(t *testing.T) {
	t.Parallel()
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		name := "letters-" + rand.Text()
		b, err := New(Options{
			Config: aws.Config{Region: "us-east-1", Credentials: anyCredentials()}, Endpoint: target.URL,
			Create: true, PollWait: time.Second, CallTimeout: time.Minute, // for a busy machine
		})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close(context.WithoutCancel(ctx))
		sub := brokers.Subscription{Topics: []string{name}, InFlight: 50}
		if _, err := b.Open(ctx, sub); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), name) {
			t.Fatalf("Open of a queue that is missing: %v", err)
		}
		client := b.client.sends
		made, err := client.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: &name})
		if err != nil {
			t.Fatal(err)
		}
		defer client.DeleteQueue(context.WithoutCancel(ctx), &awssqs.DeleteQueueInput{QueueUrl: made.QueueUrl})
		if err := b.Publish(ctx, name, brokers.Message{ID: "a", Body: []byte("a")}); err != nil {
			t.Fatal(err)
		}
		src, err := b.Open(ctx, sub)
		if err != nil {
			t.Fatal(err)
		}
		for _, end := range []brokers.Settlement{
			{Action: brokers.Release},
			{Action: brokers.Retry, Delay: time.Second},
			{Action: brokers.Ack},
		} {
			for {
				ds, err := src.Receive(ctx, 10)
				if err != nil || len(ds) != 1 || string(ds[0].Message.Body) != "a" {
					t.Fatalf("Receive before %s: %v, %v", end.Action, bodiesOf(ds), err)
				}
				end.Delivery, end.Meta = ds[0], ds[0].Meta()
				errs := src.Settle(ctx, []brokers.Settlement{end})
				if errs == nil {
					break
				}
				if !errors.Is(errs[0], brokers.ErrUnknownOutcome) { // the answer took longer than the delay
					t.Fatal(errs)
				}
			}
		}
		queues, err := client.ListQueues(ctx, &awssqs.ListQueuesInput{QueueNamePrefix: &name})
		if err != nil || len(queues.QueueUrls) != 1 {
			t.Errorf("queues that begin with %s: %v, %v", name, queues.QueueUrls, err)
		}
	})
}

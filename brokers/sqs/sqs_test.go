package sqs

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

func TestNewNamesEveryFault(t *testing.T) {
	_, err := New(Options{PollWait: 1500 * time.Millisecond, Polls: -1, CallTimeout: -1, Secret: [][]byte{[]byte("hunter2")}})
	if !errors.Is(err, brokers.ErrMisconfigured) {
		t.Fatalf("New returned %v, want ErrMisconfigured", err)
	}
	for _, fault := range []string{"region", "credentials", "PollWait", "Polls", "CallTimeout", "Options.Secret[0]"} {
		if !strings.Contains(err.Error(), fault) {
			t.Errorf("New returned %q, which does not name %s", err, fault)
		}
	}
	config := aws.Config{Region: "eu-central-1", Credentials: anyCredentials()}
	for wait, ok := range map[time.Duration]bool{
		0: true, time.Second: true, 20 * time.Second: true, time.Second / 2: false, 21 * time.Second: false, -time.Second: false,
	} {
		if _, err := New(Options{Config: config, PollWait: wait}); (err == nil) != ok {
			t.Errorf("New with a PollWait of %v returned %v", wait, err)
		}
	}
}

// TestStoringWhereNothingCanBe has Publish and SendBack name each message and the cause.
func TestStoringWhereNothingCanBe(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		for _, topic := range []string{"no/queue", "missing"} {
			published := s.broker.Publish(s.Context(), topic, brokers.Message{}, brokers.Message{})
			returned := s.broker.SendBack(s.Context(), "", topic, dead("a"), dead("b"))
			for _, err := range []error{published, returned} {
				perr, ok := errors.AsType[*brokers.PublishError](err)
				if !ok || len(perr.Failed) != 2 || !errors.Is(err, brokers.ErrMisconfigured) {
					s.Errorf("to %q: %v, want a *PublishError for two messages that is ErrMisconfigured", topic, err)
				}
			}
		}
	})
}

// TestPublishLooksUpOnce asks for the URL of a queue once.
func TestPublishLooksUpOnce(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.open()
		s.broker = s.start(Options{})
		s.costs("GetQueueUrl", 1, 1, func() {
			s.publish("a")
			s.publish("b")
		})
	})
}

// TestBrokerClose tells that polls are open, and gives back what is held when they are not.
func TestBrokerClose(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src, other := s.open(), s.open()
		s.publish("a")
		s.one(src)
		s.nothing(other, time.Second)
		ctx, cancel := context.WithTimeoutCause(s.Context(), time.Second, errStop)
		defer cancel()
		if err := s.broker.Close(ctx); !errors.Is(err, errStop) {
			s.Errorf("Close returned %v although polls are open, want the cause of its context", err)
		}
		if err := s.broker.Close(s.Context()); err != nil {
			s.Errorf("the second Close: %v", err)
		}
		s.state(sqstest.Queue{Visible: 1})
	})
}

// TestEndpoint is checked, and not printed: it may have a password.
func TestEndpoint(t *testing.T) {
	config := aws.Config{Region: "eu-central-1", Credentials: anyCredentials()}
	for address, ok := range map[string]bool{
		"": true, "http://localhost:9324": true, "https://sqs.example.org/base": true,
		"localhost:9324": false, "http://me:hunter2@localhost:9324": false, "http://me:hunter2@localhost:93 24": false,
		"http://me:hunter2%zz@host": false, "ftp://hunter2": false, "hunter2": false, "http://": false,
	} {
		based := config
		based.BaseEndpoint = aws.String(address)
		for _, o := range []Options{{Config: config, Endpoint: address}, {Config: based}} {
			_, err := New(o)
			if (err == nil) != ok || err != nil && (!errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "ndpoint")) {
				t.Errorf("New with the address %q returned %v", address, err)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("New prints the password: %v", err)
			}
		}
	}
}

// TestPublishBare sends a dead letter without its story to a queue that turns out
// to be smaller than it seems.
func TestPublishBare(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		s.create("dead", map[string]string{"MaximumMessageSize": "1024"})
		b := s.start(Options{})
		letter := brokers.Message{Body: []byte(strings.Repeat("x", 1024-len("aString1"))), Headers: append(deadLetter(9), brokers.Header{Name: "a", Value: "1"})}
		other := brokers.Message{Body: letter.Body}
		err := b.Publish(s.Context(), "dead", letter, other, brokers.Message{Body: []byte("small")})
		perr, ok := errors.AsType[*brokers.PublishError](err)
		if !ok || len(perr.Failed) != 1 || !errors.Is(perr.Failed[1], brokers.ErrRefused) {
			s.Fatalf("Publish returned %v, want that the one is refused that is no dead letter", err)
		}
		for _, m := range s.server.Messages("dead") {
			if m.Body != "small" && (m.Body != string(letter.Body) || len(m.Attributes) != 1 || m.Attributes["a"] != "1") {
				s.Errorf("stored: %.20q with %v, want the body and its own attribute", m.Body, m.Attributes)
			}
		}
	})
}

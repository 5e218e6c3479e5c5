package kafka_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// dead is a message as its dead letter has it.
func dead(body string) brokers.Item {
	return brokers.Item{
		Message: &brokers.Message{ID: body, Key: "k", Body: []byte(body)},
		Meta: brokers.Meta{
			Attempt: 10, DueAt: time.Now().Add(years), IdempotencyKey: "once", Send: "1.1.token",
			History: []brokers.Failure{{Attempt: 10, Class: "transient"}},
		},
	}
}

// sendBack sends letters back as the tool of an operator does, which opens nothing.
func (s *scene) sendBack(group, topic string, letters ...brokers.Item) error {
	s.Helper()
	tool, _ := s.broker()
	return tool.SendBack(kafka.WithinTime(s.T), group, topic, letters...)
}

// fault demands an error of all of n messages, that says every part.
func fault(t *testing.T, err error, n int, parts ...string) {
	t.Helper()
	perr, ok := errors.AsType[*brokers.PublishError](err)
	if !ok || len(perr.Failed) != n || !errors.Is(err, brokers.ErrMisconfigured) {
		t.Fatalf("error %v, want a *PublishError about %d messages that is ErrMisconfigured", err, n)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

// What is returned goes where one group reads, and nobody is taken for another one.
func TestReturnRefuses(t *testing.T) {
	b, err := kafka.New(kafka.Options{Brokers: []string{"localhost:1"}, Group: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		group, topic string
		parts        []string
	}{
		"no group":       {"", "orders", []string{"no group", `publish to "orders"`, "every group"}},
		"group's name":   {"a b", "orders", []string{`"a b"`}},
		"group too long": {strings.Repeat("g", kafka.LongestName), "orders", []string{"redrive.delay.v1.g"}},
		"topic's name":   {"g", "a/b", []string{`"a/b"`}},
	} {
		t.Run(name, func(t *testing.T) {
			fault(t, b.SendBack(t.Context(), tt.group, tt.topic, dead("a"), dead("b")), 2, tt.parts...)
		})
	}
}

// What is returned to a group goes where that group reads, and no other.
func TestReturnTopic(t *testing.T) {
	onBroker(t, func(s *stub) {
		if err := s.broker.SendBack(s.Context(), "g", "orders", dead("a")); err != nil {
			s.Error(err)
		}
		s.is("records by topic", s.stored, map[string]int{delayOfOrders: 1})
	})
}

// A group that has never had a worker has nowhere for it, and nothing is made.
func TestReturnToAGroupThatWasNeverThere(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		fault(s.T, s.sendBack(s.group, s.topic, dead("a"), dead("b")), 2, s.delayTopic(), s.group, "start a worker", `publish to "`+s.topic)
		if n := s.partitions(s.delayTopic()); n != 0 {
			s.Errorf("the delay topic has %d partitions, want that it is not there", n)
		}
		s.open().close()
		if err := s.sendBack(s.group, s.topic, dead("a")); err != nil {
			s.Errorf("after a worker was there: %v", err)
		}
		w := s.open()
		ds, _ := w.receive(1)
		s.sameBodies("returned", ds, []string{"a"})
		w.close()
	})
}

// Workers that share a secret believe the story of what a tool with the secret puts
// back. What another one sends back is no less handled, as what it is.
func TestReturnIsSigned(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.Secret = [][]byte{kafka.KeyOf(1)}
		w := s.open()
		if err := s.sendBack(s.group, s.topic, dead("signed")); err != nil {
			s.Fatal(err)
		}
		s.options.Secret = [][]byte{kafka.KeyOf(2)}
		if err := s.sendBack(s.group, s.topic, dead("not signed")); err != nil {
			s.Fatal(err)
		}
		ds, _ := w.receive(2)
		s.sameBodies("returned", ds, []string{"signed", "not signed"})
		for _, d := range ds {
			m, stories := d.Meta(), map[string]int{"signed": 1}[string(d.Message.Body)]
			if m.Attempt != 0 || m.RedriveCount != 1 || m.Send != "1.1.token" || m.IdempotencyKey != "once" || len(m.History) != stories {
				s.Errorf("%s has %+v, want what identifies it, and %d failures", d.Message.Body, m, stories)
			}
		}
		w.ack(ds...)
		w.close()
	})
}

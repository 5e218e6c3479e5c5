package sqs

import (
	"bytes"
	"testing"

	"github.com/redrive-go/redrive/brokers"
)

// dead is a message as its dead letter has it.
func dead(body string) brokers.Item {
	return brokers.Item{
		Message: &brokers.Message{ID: body, Key: "k", Body: []byte(body), Headers: brokers.Headers{{Name: "tenant", Value: "acme"}}},
		Meta: brokers.Meta{
			Attempt: 10, Class: "transient", IdempotencyKey: "once", Send: "1.1.token",
			History: []brokers.Failure{{Attempt: 10, Class: "transient"}},
		},
	}
}

// TestReturnToForeignConsumers stores what they know how to read: the body and
// their attributes, and one of ours.
func TestReturnToForeignConsumers(t *testing.T) {
	for _, topic := range []string{"jobs", "jobs.fifo"} {
		playAs(t, topic, topic, Options{}, func(s *scene) {
			attributes := map[string]string{}
			if isFIFO(topic) {
				attributes = map[string]string{"FifoQueue": "true", "ContentBasedDeduplication": "true"}
			}
			s.create(topic, attributes)
			for range 2 { // alike in all but the deduplication id
				if err := s.start(Options{}).SendBack(s.Context(), "", topic, dead("a")); err != nil {
					s.Fatal(err)
				}
			}
			stored := s.server.Messages(topic)
			if len(stored) != 2 {
				s.Fatalf("%d messages are stored, want two", len(stored))
			}
			for _, m := range stored {
				if m.Body != "a" || m.Group != "k" || m.Attributes["tenant"] != "acme" || len(m.Attributes) != 2 {
					s.Errorf("stored: %+v", m)
				}
			}
		})
	}
}

// TestReturnIsSigned sends back with the secret of the workers, who believe the
// story then, and with another one: that is no less handled, as what it is.
func TestReturnIsSigned(t *testing.T) {
	for _, topic := range []string{"jobs", "jobs.fifo"} {
		playAs(t, topic, topic, Options{Secret: secret}, func(s *scene) {
			src := s.open()
			for _, tt := range []struct {
				secret  [][]byte
				stories int
			}{{secret, 1}, {[][]byte{bytes.Repeat([]byte{2}, 32)}, 0}} {
				if err := s.start(Options{Secret: tt.secret}).SendBack(s.Context(), "", topic, dead("a")); err != nil {
					s.Fatal(err)
				}
				d := s.one(src)
				if m := d.Meta(); m.Attempt != 0 || m.RedriveCount != 1 || m.Send != "1.1.token" || m.IdempotencyKey != "once" || len(m.History) != tt.stories {
					s.Errorf("it came with %+v, want what identifies it, and %d failures", m, tt.stories)
				}
				s.settle(src, ack(d))
			}
		})
	}
}

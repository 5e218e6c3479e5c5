package kafka_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// reads makes a subscription one that only reads.
func reads(group string, topics ...string) func(*brokers.Subscription) {
	return func(sub *brokers.Subscription) {
		*sub = brokers.Subscription{Topics: topics, Group: group, InFlight: 10}
	}
}

// A group that only reads takes a topic as it is, from its oldest record on, and
// leaves nothing behind but its offsets.
func TestReadOnly(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		letters, group := s.topic+"-letters", s.group+" of readers" // which can be part of no topic's name
		s.create(letters, 2, map[string]string{"cleanup.policy": "compact", "max.message.bytes": "2000"})
		for n, value := range []string{"acked", "released"} {
			s.store(partition{letters, n}, 0, record{key: []byte(value), value: []byte(value)})
		}
		w := s.open(reads(group, letters))
		if !w.isIn() {
			s.Error("Open returned before messages are on their way")
		}
		ds, _ := w.receive(2)
		for _, d := range ds {
			err := w.Settle(s.Context(), []brokers.Settlement{{Delivery: d, Action: brokers.Retry, Delay: time.Minute}})[0]
			if !errors.Is(err, brokers.ErrRefused) || !strings.Contains(err.Error(), "only reads") {
				s.Errorf("Retry: %v, want ErrRefused and why", err)
			}
			number, action := "0", brokers.Ack
			if string(d.Message.Body) == "released" {
				number, action = "1", brokers.Release
			}
			if o := d.Meta().Origin; o.Get("topic") != letters || o.Get("partition") != number || o.Get("offset") != "0" {
				s.Errorf("%s has the origin %v", d.Message.Body, o)
			}
			w.settle(action, 0, d)
		}
		if ds, _ = w.receive(1); string(ds[0].Message.Body) != "released" {
			s.Errorf("%q came, want what was released", ds[0].Message.Body)
		}
		w.ack(ds...)
		w.close()
		if ds, _ = s.open(reads(group, letters)).drain(time.Second); len(ds) > 0 {
			s.Errorf("after a restart %q came again", bodies(ds))
		}
		s.open(reads(group+" too", letters)).receive(2) // they stay for others

		missing := letters + "-gone"
		b, _ := s.broker()
		var sub brokers.Subscription
		reads(group, letters, missing)(&sub)
		if _, err := b.Open(kafka.WithinTime(s.T), sub); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), `"`+missing+`"`) {
			s.Errorf("Open of a topic that is missing: %v", err)
		}
		if n := s.partitions(missing); n != 0 {
			s.Errorf("a topic of %d partitions was made", n)
		}
	})
}

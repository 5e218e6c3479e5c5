package kafka_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// noted is a record of a delay topic that claims a fourth attempt.
func noted(topic, body string, due time.Time, secret ...[]byte) record {
	return copied(brokers.Message{ID: body, Topic: topic, Body: []byte(body)}, brokers.Meta{Attempt: 4, DueAt: due}, secret...)
}

// Who may write to a delay topic cannot keep its partition for years, as if a retry were
// due then: after a day the offsets go on. What is good is on time.
func TestAttackForgedDelay(t *testing.T) {
	onDelays(t, kafka.UsualLimits, func(s *stub) []record {
		s.slow = 9 * time.Second // of a day only a few fetches
		now := time.Now()
		late := noted("orders", "made in years", now.Add(years))
		late.time = now.Add(years)
		return []record{
			noted("orders", "due in years", now.Add(years)),
			noted("orders", "good", now.Add(time.Minute)),
			late,
			noted("orders", "good, too", now.Add(30*time.Second)),
		}
	}, func(s *stub) {
		start := time.Now()
		var got []string
		note := func(ds []*brokers.Delivery) {
			for _, d := range ds {
				at := d.ReceivedAt.Sub(start).Round(time.Second)
				if got = append(got, fmt.Sprintf("%s after %v", d.Message.Body, at)); d.Meta().DueAt.After(d.ReceivedAt) {
					s.Errorf("%s is handed out at %v, due at %v", d.Message.Body, d.ReceivedAt, d.Meta().DueAt)
				}
			}
		}
		note(s.comes(2 * time.Minute))
		s.committed(delayPartition, 0) // what waits still is not done
		note(s.comes(24 * time.Hour))
		innocents(s.T, got, "good, too after 30s", "good after 1m0s")
		s.is("handed out", got, []string{"made in years after 0s", "good, too after 30s", "good after 1m0s", "due in years after 24h0m0s"})
		s.committed(delayPartition, 4)
	})
}

// With a secret, nothing in a delay topic that others wrote counts for how far a message
// has come, when it is due, or what is done.
func TestAttackForgedDelayUnderSecret(t *testing.T) {
	ours, older := kafka.KeyOf(2), kafka.KeyOf(1)
	onDelays(t, kafka.UsualLimits, func(s *stub) []record {
		s.options.Secret = [][]byte{ours, older}
		now := time.Now()
		changed := noted("orders", "changed", now.Add(time.Minute), ours)
		changed.value = []byte("changed, indeed")
		moved := noted("orders", "moved", now.Add(time.Minute), ours)
		moved.headers = append(slices.Clone(moved.headers), kafkago.Header{Key: kafka.TopicHeader, Value: []byte("refunds")})
		return []record{
			noted("orders", "good", now.Add(time.Minute), ours),
			noted("orders", "signed with the key before", now.Add(time.Minute), older),
			noted("orders", "of before", now.Add(time.Second)),
			noted("orders", "forged", now.Add(years)),
			noted("refunds", "signed by somebody", now.Add(years), kafka.KeyOf(3)),
			changed, moved,
			noted("elsewhere", "of no topic", now.Add(years)),
			noted("orders", "done", now.Add(time.Minute), ours),
			done(delayPartition, kafka.DoneValue(0, 1)),
			done(partition{delayOfOrders, 1}, kafka.DoneValue(0, 1), ours),
			done(delayPartition, kafka.DoneValue(8), ours),
		}
	}, func(s *stub) {
		start := time.Now()
		ds, errs := s.collect(2 * time.Minute)
		if err := errors.Join(errs...); strings.Count(fmt.Sprint(err), kafka.ErrDoneRecord.Error()) != 2 {
			s.Errorf("two done records are forged, and it says %v", err)
		}
		var got []string
		for _, d := range ds {
			text := fmt.Sprintf("%s: %s, attempt %d after %v", d.Message.Topic, d.Message.Body, d.Meta().Attempt, d.ReceivedAt.Sub(start).Round(time.Second))
			if d.Unreadable != nil {
				text += ", unreadable"
			}
			got = append(got, text)
		}
		want := []string{
			"orders: of before, attempt 0 after 0s", "orders: forged, attempt 0 after 0s", "refunds: signed by somebody, attempt 0 after 0s",
			"orders: changed, indeed, attempt 0 after 0s", "orders: moved, attempt 0 after 0s", "orders: of no topic, attempt 0 after 0s, unreadable",
			"orders: good, attempt 4 after 1m0s", "orders: signed with the key before, attempt 4 after 1m0s",
		}
		innocents(s.T, got, want[6:]...)
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			s.Errorf("handed out\n %q\nwant\n %q", got, want)
		}
		s.committed(delayPartition, 12)
	})
}

// What nobody signed, and is of no topic, is not signed by us: a retry of it is refused.
func TestUnsignedIsNotCopied(t *testing.T) {
	onDelays(t, kafka.UsualLimits, func(s *stub) []record {
		s.options.Secret = [][]byte{kafka.KeyOf(1)}
		return []record{noted("elsewhere", "b", time.Time{})}
	}, func(s *stub) {
		if err := s.settle(brokers.Retry, s.take(1)...); !errors.Is(err, brokers.ErrRefused) || !strings.Contains(err.Error(), "Options.Secret") {
			s.Errorf("retry: %v", err)
		}
	})
}

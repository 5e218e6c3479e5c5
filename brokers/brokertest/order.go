package brokertest

import (
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

func orderClauses() []clause {
	needs := []string{"ack-removes", "key-intact"}
	return []clause{
		{
			name:  "order-kept",
			rule:  "Where Capabilities.Ordered is set, the messages of one key must be delivered in the order of their publication.",
			needs: needs,
			check: orderKept,
		},
		{
			name:  "order-waits-for-holder",
			rule:  "Where Capabilities.Ordered is set, no later message of a key must be handed out while an earlier one is unsettled, and those of other keys must.",
			needs: append(needs, "receive-max"),
			check: orderWaitsForHolder,
		},
		{
			name:  "order-waits-for-retry",
			rule:  "Where Capabilities.Ordered is set, no later message of a key must be handed out while an earlier one waits for its retry, and those of other keys must.",
			needs: append(needs, "retry-returns", "release-returns", "order-kept"),
			check: orderWaitsForRetry,
		},
	}
}

// ordered opens a worker and publishes a message for every body, whose key is
// its first letter.
func (tr *trial) ordered(bodies ...string) (*worker, error) {
	topic := tr.Topic("orders")
	w, err := tr.open(topic)
	if err != nil {
		return nil, err
	}
	if !w.caps.Ordered {
		return nil, skip("Capabilities.Ordered is not set")
	}
	msgs := text(bodies...)
	for i := range msgs {
		msgs[i].Key = bodies[i][:1]
	}
	return w, tr.publish(topic, msgs...)
}

func orderKept(tr *trial) error {
	bodies := []string{"a0", "b0", "a1", "a2", "b1", "c0", "a3", "b2", "b3", "a4", "c1"}
	w, err := tr.ordered(bodies...)
	if err != nil {
		return err
	}
	next := make(map[string]int)
	for seen := 0; seen < len(bodies); {
		a, err := w.next(deadline(tr.patience))
		if err != nil {
			return err
		}
		if a == nil {
			return fmt.Errorf("from %q: %d of %d messages came within %v", w.sub.Topics, seen, len(bodies), tr.patience)
		}
		key := a.Message.Key
		switch want := fmt.Sprintf("%s%d", key, next[key]); {
		case a.body() == want:
			next[key]++
			seen++
		case a.body() > want:
			return fmt.Errorf("%s came before message %q of the same key", a, want)
		case tr.Virtual:
			return fmt.Errorf("%s came twice", a)
		}
		if err := w.ack(a); err != nil {
			return err
		}
	}
	return nil
}

func orderWaitsForHolder(tr *trial) error {
	w, err := tr.ordered("a0", "a1")
	if err != nil {
		return err
	}
	w.max = 1
	if _, err := w.expect(tr.patience, "a0"); err != nil {
		return err
	}
	other, err := tr.ordered("b0")
	if err != nil {
		return err
	}
	got, err := other.expect(tr.patience, "b0")
	if err != nil {
		return fmt.Errorf("while another source holds message \"a0\" of another key: %w", err)
	}
	if err := other.ack(got...); err != nil {
		return err
	}
	if err := other.quiet(2 * tr.Unit); err != nil {
		return fmt.Errorf("while another source holds message \"a0\" of the same key: %w", err)
	}
	return nil
}

// orderWaitsForRetry retries the first message of a key, and releases those of
// the key that came with it.
func orderWaitsForRetry(tr *trial) error {
	w, err := tr.ordered("a0", "a1", "a2", "b0", "b1")
	if err != nil {
		return err
	}
	delay := 3 * tr.Unit
	var came []string
	var due time.Time // of the retry
	for len(came) < 5 {
		a, err := w.next(deadline(delay + tr.patience))
		if err != nil {
			return err
		}
		if a == nil {
			return fmt.Errorf("%d of 5 messages came in the end: %q", len(came), came)
		}
		if a.body() == "a0" && due.IsZero() {
			due = deadline(delay)
			if err := w.retryAndRelease(a, delay); err != nil {
				return err
			}
			continue
		}
		if a.Message.Key == "a" && a.at.Before(due) {
			return duplicate{fmt.Errorf("%s came %v before message \"a0\" of its key was due again; so far: %q", a, due.Sub(a.at), came)}
		}
		if a.Message.Key == "b" && !due.IsZero() && !a.at.Before(due) {
			return fmt.Errorf("%s came only when message \"a0\" of another key was due; so far: %q", a, came)
		}
		if !slices.Contains(came, a.body()) {
			came = append(came, a.body())
		}
		if err := w.ack(a); err != nil {
			return err
		}
	}
	came = slices.DeleteFunc(came, func(body string) bool { return body[0] != 'a' })
	if want := []string{"a0", "a1", "a2"}; !slices.Equal(came, want) {
		return fmt.Errorf("the messages of key \"a\" came as %q, want %q", came, want)
	}
	return nil
}

// retryAndRelease settles a and, in the same call, what its Receive returned
// of the same key, the way the contract asks for.
func (w *worker) retryAndRelease(a *arrival, delay time.Duration) error {
	batch := []brokers.Settlement{{
		Delivery: a.Delivery, Action: brokers.Retry, Delay: delay, Meta: failed(a.Delivery, delay),
	}}
	kept := w.inbox[:0]
	for _, later := range w.inbox {
		if later.Message.Key == a.Message.Key {
			batch = append(batch, later.back())
		} else {
			kept = append(kept, later)
		}
	}
	w.inbox = kept
	for i, err := range w.settle(batch...) {
		if err != nil {
			return fmt.Errorf("source.Settle(%s) of %s: %w", batch[i].Action, describe(batch[i].Delivery), err)
		}
	}
	return nil
}

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
			name:  "order-published",
			rule:  "With Subscription.Ordered, a single source must hand out the messages of one key in the order of their publication, as long as none of them fails.",
			needs: append(needs, "topics-all", "order-kept"),
			check: orderPublished,
		},
		{
			name:  "pause-keeps-order",
			rule:  "With Subscription.Ordered, the messages of one key must come in the order of their publication over pauses, too.",
			long:  true,
			needs: []string{"order-published", "pause-not-counted"},
			check: pauseKeepsOrder,
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

// ordered opens a worker and publishes a message for every body, as keyed does.
func (tr *trial) ordered(bodies ...string) (*worker, error) {
	topic := tr.Topic("orders")
	w, err := tr.open(topic)
	if err != nil {
		return nil, err
	}
	if !w.caps.Ordered {
		return nil, skip("Capabilities.Ordered is not set")
	}
	return w, tr.publish(topic, keyed(bodies...)...)
}

// keyed is text, with the first letter as the key.
func keyed(bodies ...string) []brokers.Message {
	msgs := text(bodies...)
	for i := range msgs {
		msgs[i].Key = bodies[i][:1]
	}
	return msgs
}

func orderKept(tr *trial) error {
	bodies := []string{"a0", "b0", "a1", "a2", "b1", "c0", "a3", "b2", "b3", "a4", "c1"}
	w, err := tr.ordered(bodies...)
	if err != nil {
		return err
	}
	return w.inOrder(bodies, nil)
}

// inOrder acks every body, and demands that those of a key, which is the first
// letter, come in this order. It calls between, if that is not nil, whenever
// all that was received is acked.
func (w *worker) inOrder(bodies []string, between func(seen int) error) error {
	tr := w.tr
	missing := make(map[string][]string) // by key
	for _, body := range bodies {
		missing[body[:1]] = append(missing[body[:1]], body)
	}
	for seen := 0; seen < len(bodies); {
		a, err := w.next(deadline(tr.patience))
		if err != nil {
			return err
		}
		if a == nil {
			return fmt.Errorf("from %q: %d of %d messages came within %v", w.sub.Topics, seen, len(bodies), tr.patience)
		}
		key := a.Message.Key
		switch i := slices.Index(missing[key], a.body()); {
		case i == 0:
			missing[key] = missing[key][1:]
			seen++
		case i > 0:
			return fmt.Errorf("%s came before message %q of the same key", a, missing[key][0])
		case tr.Virtual:
			return fmt.Errorf("%s came twice", a)
		}
		if err := w.ack(a); err != nil {
			return err
		}
		if between != nil && len(w.inbox) == 0 {
			if err := between(seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// inSequence opens a worker that keeps the order of keys, and publishes n
// messages for each of two keys to each of two topics.
func (tr *trial) inSequence(n int) (*worker, []string, error) {
	if tr.Unordered {
		return nil, nil, skip("Harness.Unordered is set: the broker promises no order")
	}
	topics := []string{tr.Topic("orders"), tr.Topic("refunds")}
	sub := tr.subscription(topics...)
	sub.Ordered = true
	w, err := tr.subscribe(sub)
	if err != nil {
		return nil, nil, err
	}
	var all []string
	for i, keys := range []string{"ab", "cd"} {
		var bodies []string
		for n := range n {
			bodies = append(bodies, fmt.Sprintf("%c%d", keys[0], n), fmt.Sprintf("%c%d", keys[1], n))
		}
		if err := tr.publish(topics[i], keyed(bodies...)...); err != nil {
			return nil, nil, err
		}
		all = append(all, bodies...)
	}
	return w, all, nil
}

// orderPublished takes more than a worker may hold.
func orderPublished(tr *trial) error {
	w, bodies, err := tr.inSequence(150)
	if err != nil {
		return err
	}
	return w.inOrder(bodies, nil)
}

func pauseKeepsOrder(tr *trial) error {
	const long = 40 // the number of messages before a long pause
	w, bodies, err := tr.inSequence(20)
	if err != nil {
		return err
	}
	w.max = 3
	waited := false
	return w.inOrder(bodies, func(seen int) error {
		if seen >= long && !waited {
			waited = true
			return w.interrupt(5 * tr.Unit)
		}
		return w.interrupt(tr.Unit / 10)
	})
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

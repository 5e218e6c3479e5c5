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
func (tr *trial) ordered(bodies ...string) *worker {
	w, topic := tr.empty()
	if !w.caps.Ordered {
		tr.skip("Capabilities.Ordered is not set")
	}
	tr.publish(topic, keyed(bodies...)...)
	return w
}

// keyed is text, with the first letter as the key.
func keyed(bodies ...string) []brokers.Message {
	msgs := text(bodies...)
	for i := range msgs {
		msgs[i].Key = bodies[i][:1]
	}
	return msgs
}

func orderKept(tr *trial) {
	bodies := []string{"a0", "b0", "a1", "a2", "b1", "c0", "a3", "b2", "b3", "a4", "c1"}
	w := tr.ordered(bodies...)
	w.inOrder(bodies, nil)
}

// inOrder acks every body, and demands that those of a key, which is the first
// letter, come in this order. It calls between, if that is not nil, whenever
// all that was received is acked.
func (w *worker) inOrder(bodies []string, between func(seen int)) {
	tr := w.tr
	missing := make(map[string][]string) // by key
	for _, body := range bodies {
		missing[body[:1]] = append(missing[body[:1]], body)
	}
	for seen := 0; seen < len(bodies); {
		tr.note("after %d of %d messages", seen, len(bodies))
		a := w.some()
		key := a.Message.Key
		switch i := slices.Index(missing[key], a.body()); {
		case i == 0:
			missing[key] = missing[key][1:]
			seen++
		case i > 0:
			tr.failf("%s came before message %q of the same key", a, missing[key][0])
		case tr.Virtual:
			tr.failf("%s came twice", a)
		}
		w.ack(a)
		if between != nil && len(w.inbox) == 0 {
			between(seen)
		}
	}
}

// inSequence opens a worker that keeps the order of keys, and publishes n
// messages for each of two keys to each of two topics.
func (tr *trial) inSequence(n int) (*worker, []string) {
	if tr.Unordered {
		tr.skip("Harness.Unordered is set: the broker promises no order")
	}
	topics := []string{tr.Topic("orders"), tr.Topic("refunds")}
	sub := tr.subscription(topics...)
	sub.Ordered = true
	w := tr.subscribe(sub)
	var all []string
	for i, keys := range []string{"ab", "cd"} {
		var bodies []string
		for n := range n {
			bodies = append(bodies, fmt.Sprintf("%c%d", keys[0], n), fmt.Sprintf("%c%d", keys[1], n))
		}
		tr.publish(topics[i], keyed(bodies...)...)
		all = append(all, bodies...)
	}
	return w, all
}

// orderPublished takes more than a worker may hold.
func orderPublished(tr *trial) {
	w, bodies := tr.inSequence(150)
	w.inOrder(bodies, nil)
}

func pauseKeepsOrder(tr *trial) {
	const long = 40 // the number of messages before a long pause
	w, bodies := tr.inSequence(20)
	w.max = 3
	waited := false
	w.inOrder(bodies, func(seen int) {
		length := tr.Unit / 10
		if seen >= long && !waited {
			waited = true
			length = 5 * tr.Unit
		}
		w.interrupt(length)
	})
}

func orderWaitsForHolder(tr *trial) {
	w := tr.ordered("a0", "a1")
	w.max = 1
	w.expect(tr.patience, "a0")
	other := tr.ordered("b0")
	tr.note("while another source holds message \"a0\" of another key")
	other.ack(other.expect(tr.patience, "b0")...)
	tr.note("while another source holds message \"a0\" of the same key")
	other.quiet(2 * tr.Unit)
}

// orderWaitsForRetry retries the first message of a key, and releases those of
// the key that came with it.
func orderWaitsForRetry(tr *trial) {
	w := tr.ordered("a0", "a1", "a2", "b0", "b1")
	delay := 3 * tr.Unit
	var came []string
	var due time.Time // of the retry
	for len(came) < 5 {
		a := w.next(deadline(delay + tr.patience))
		if a == nil {
			tr.failf("%d of 5 messages came in the end: %q", len(came), came)
		}
		if a.body() == "a0" && due.IsZero() {
			due = deadline(delay)
			w.retryAndRelease(a, delay)
			continue
		}
		if a.Message.Key == "a" && a.at.Before(due) {
			tr.must(duplicate{fmt.Errorf("%s came %v before message \"a0\" of its key was due again; so far: %q", a, due.Sub(a.at), came)})
		}
		if a.Message.Key == "b" && !due.IsZero() && !a.at.Before(due) {
			tr.failf("%s came only when message \"a0\" of another key was due; so far: %q", a, came)
		}
		if !slices.Contains(came, a.body()) {
			came = append(came, a.body())
		}
		w.ack(a)
	}
	came = slices.DeleteFunc(came, func(body string) bool { return body[0] != 'a' })
	if want := []string{"a0", "a1", "a2"}; !slices.Equal(came, want) {
		tr.failf("the messages of key \"a\" came as %q, want %q", came, want)
	}
}

// retryAndRelease settles a and, in the same call, what its Receive returned
// of the same key, the way the contract asks for.
func (w *worker) retryAndRelease(a *arrival, delay time.Duration) {
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
			w.tr.failf("source.Settle(%s) of %s: %w", batch[i].Action, describe(batch[i].Delivery), err)
		}
	}
}

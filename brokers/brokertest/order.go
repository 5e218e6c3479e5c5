package brokertest

import (
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

var orderClauses = []clause{
	{name: "order-kept", needs: "ack-removes key-intact",
		rule:  "Where Capabilities.Ordered is set, the messages of one key must be delivered in the order of their publication.",
		check: steps(ordered("a0", "b0", "a1", "a2", "b1", "c0", "a3", "b2", "b3", "a4", "c1"), inOrder(0))},
	{name: "order-published", needs: "ack-removes key-intact topics-all order-kept", not: "Unordered",
		rule:  "With Subscription.Ordered, a single source must hand out the messages of one key in the order of their publication, as long as none of them fails.",
		check: steps(inSequence(150), inOrder(0))}, // more than a worker may hold
	{name: "pause-keeps-order", needs: "order-published pause-not-counted", not: "Unordered", long: true,
		rule:  "With Subscription.Ordered, the messages of one key must come in the order of their publication over pauses, too.",
		check: steps(inSequence(20), most(3), inOrder(40))},
	{name: "order-waits-for-holder", needs: "ack-removes key-intact receive-max",
		rule:  "Where Capabilities.Ordered is set, no later message of a key must be handed out while an earlier one is unsettled, and those of other keys must.",
		check: steps(ordered("a0", "a1"), most(1), expect("a0"), ordered("b0"), consume("b0"), quiet(2))},
	{name: "order-waits-for-retry", needs: "ack-removes key-intact retry-returns release-returns order-kept",
		rule:  "Where Capabilities.Ordered is set, no later message of a key must be handed out while an earlier one waits for its retry, and those of other keys must.",
		check: steps(ordered("a0", "a1", "a2", "b0", "b1"), on(orderWaitsForRetry))},
}

// ordered opens a worker, and publishes a message for every body, whose first
// letter is its key.
func ordered(bodies ...string) step {
	return func(tr *trial) {
		w := tr.open("orders")
		if !w.caps.Ordered {
			tr.skip("Capabilities.Ordered is not set")
		}
		tr.publish(w.topic(), withKeys(bodies)...)
	}
}

func withKeys(bodies []string) []brokers.Message {
	msgs := text(bodies...)
	for i := range msgs {
		msgs[i].Key = bodies[i][:1]
	}
	return msgs
}

// inSequence opens a worker that keeps the order of keys, and publishes n
// messages for each of two keys to each of two topics.
func inSequence(n int) step {
	return func(tr *trial) {
		sub := tr.subscription(tr.Topic("orders"), tr.Topic("refunds"))
		sub.Ordered = true
		tr.subscribe(sub)
		for i, keys := range []string{"ab", "cd"} {
			var bodies []string
			for n := range n {
				bodies = append(bodies, fmt.Sprintf("%c%d", keys[0], n), fmt.Sprintf("%c%d", keys[1], n))
			}
			tr.publish(sub.Topics[i], withKeys(bodies)...)
		}
	}
}

// inOrder acks all that is published, and demands that the messages of a key come
// in this order. Unless it is 0, a long pause comes after so many messages, and a
// short one whenever all that was received is acked.
func inOrder(long int) step {
	return on(func(w *worker) {
		tr, bodies := w.tr, w.tr.rest()
		missing := make(map[string][]string) // by key
		for _, body := range bodies {
			missing[body[:1]] = append(missing[body[:1]], body)
		}
		pauses, longPause := long > 0, long
		for seen := 0; seen < len(bodies); {
			a := w.some()
			key := a.Message.Key
			switch i := slices.Index(missing[key], a.body()); {
			case i == 0:
				missing[key] = missing[key][1:]
				seen++
			case i > 0:
				tr.failf("%s came before message %q of the same key, after %d of %d messages", a, missing[key][0], seen, len(bodies))
			case tr.Virtual:
				tr.failf("%s came twice", a)
			}
			w.ack(a)
			switch {
			case !pauses || len(w.inbox) > 0:
			case longPause > 0 && seen >= longPause:
				longPause = 0
				w.interrupt(5 * tr.Unit)
			default:
				w.interrupt(tr.Unit / 10)
			}
		}
	})
}

// orderWaitsForRetry retries the first message of a key, and releases those of
// the key that came with it.
func orderWaitsForRetry(w *worker) {
	tr, delay := w.tr, 3*w.tr.Unit
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
	w.inbox = slices.DeleteFunc(w.inbox, func(later *arrival) bool {
		same := later.Message.Key == a.Message.Key
		if same {
			batch = append(batch, w.to(brokers.Release, later))
		}
		return same
	})
	for i, err := range w.settle(batch...) {
		w.tr.mustSettle(batch[i], err)
	}
}

package brokertest

import (
	"context"
	"slices"

	"github.com/redrive-go/redrive/brokers"
)

func unreadableClauses() []clause {
	return []clause{{
		name:  "unreadable-delivered",
		rule:  "A message that the adapter cannot read must come, whenever it comes, with Delivery.Unreadable, hold up and change none of its neighbours, and end like any other: by a release that returns it, by a dead letter and an Ack.",
		long:  true,
		needs: []string{"ack-removes", "release-returns", "headers-intact", "dead-letter-topics"},
		check: unreadableDelivered,
	}}
}

// unreadableDelivered does what the pipeline does: it publishes what could be read
// as a dead letter, and acks the original. Before that a worker gives it back.
func unreadableDelivered(tr *trial) {
	if tr.PublishUnreadable == nil {
		tr.skip("Harness.PublishUnreadable is nil")
	}
	topic, dead := tr.Topic("orders"), tr.Topic("orders-dead")
	sub := tr.subscription(topic)
	sub.DeadLetters = map[string]string{topic: dead}
	w := tr.subscribe(sub)
	good := brokers.Message{Body: []byte("before"), Headers: brokers.Headers{{Name: "tenant", Value: "acme"}}}
	tr.publish(topic, good)
	tr.must(tr.try("Harness.PublishUnreadable", func(ctx context.Context) error {
		return tr.PublishUnreadable(ctx, tr.broker, topic)
	}))
	behind := good
	behind.Body = []byte("behind")
	tr.publish(topic, behind)

	bad := w.unreadable(good, behind)
	tr.note("after the release of %s", bad)
	w.release(bad)
	bad = w.unreadable()
	letter := bad.Message
	if len(letter.Body) == 0 {
		letter.Body = []byte("a stub")
	}
	tr.note("after the dead letter of %s", bad)
	tr.publish(dead, letter)
	w.ack(bad)
	w.quiet(2 * tr.Unit)
	w = w.reopen()
	w.quiet(2 * tr.Unit)
}

// unreadable receives the message that cannot be read, and acks its neighbours,
// which come as they were published.
func (w *worker) unreadable(neighbours ...brokers.Message) (bad *arrival) {
	tr := w.tr
	missing := slices.Clone(neighbours)
	for until := deadline(tr.patience); bad == nil || len(missing) > 0; {
		a := w.next(until)
		if a == nil {
			tr.failf("from %q: within %v came the message that cannot be read: %t, of its %d neighbours all but %d; Receive says %v",
				w.sub.Topics, tr.patience, bad != nil, len(neighbours), len(missing), w.failure)
		}
		i := slices.IndexFunc(missing, func(m brokers.Message) bool { return string(m.Body) == a.body() })
		switch fate := tr.fateOf(a.body(), nil); {
		case i >= 0:
			if a.Unreadable != nil {
				tr.failf("%s can be read, and has Unreadable: %v", a, a.Unreadable)
			}
			tr.must(tr.sameHeaders(a, missing[i].Headers))
			missing = slices.Delete(missing, i, i+1)
			w.ack(a)
		case a.Unreadable != nil:
			bad = a // of duplicates the latest holds the lease
			tr.announce(a.Message)
		case fate.published && fate.acks > 0:
			w.stray(a)
		default:
			tr.failf("%s cannot be read, and came without Unreadable", a)
		}
	}
	return bad
}

package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/redrive-go/redrive/brokers"
)

func publishClauses() []clause {
	return []clause{
		{
			name:  "close-leaves-nothing",
			rule:  "No goroutine of a source or a broker may outlive its Close.",
			check: closeLeavesNothing,
		},
		{
			name:  "publish-delivers",
			rule:  "What Publish reports as stored must be delivered.",
			needs: []string{"close-leaves-nothing"},
			check: publishDelivers,
		},
		{
			name:  "publish-stores",
			rule:  "What is published while no source is open must wait for the next one.",
			needs: []string{"publish-delivers"},
			check: publishStores,
		},
		{
			name:  "open-context",
			rule:  "The context of Open bounds the call, not the life of the source.",
			needs: []string{"publish-delivers"},
			check: openContext,
		},
		{
			name:  "publish-fills-in",
			rule:  "Publish must set the ID and the PublishedAt that it chose in the caller's messages, so that a repeat keeps them.",
			needs: []string{"publish-delivers"},
			check: publishFillsIn,
		},
		{
			name:  "publish-repeated",
			rule:  "Two calls of Publish must store two messages, also for equal IDs.",
			needs: []string{"publish-delivers"},
			check: publishRepeated,
		},
		{
			name:  "publish-concurrent",
			rule:  "The methods of a Broker must be safe for concurrent use.",
			needs: []string{"publish-delivers"},
			check: publishConcurrent,
		},
		{
			name:  "publish-refused",
			rule:  "Publish must name the messages that it refused in a *PublishError, with the reason, and store the others.",
			needs: []string{"publish-delivers"},
			check: publishRefused,
		},
		{
			name:  "publish-interrupted",
			rule:  "If the context of Publish ends, its *PublishError must name every message that is not known to be stored.",
			needs: []string{"publish-delivers"},
			check: publishInterrupted,
		},
		{
			name:  "publish-unsent",
			rule:  "What did not reach the broker must be reported as not stored.",
			needs: []string{"publish-delivers"},
			check: func(tr *trial) { tr.storeDuring(tr.publishing(), "LoseRequests", tr.LoseRequests) },
		},
		{
			name:  "publish-unconfirmed",
			rule:  "What the broker did not confirm must be reported as not stored, also if it is.",
			needs: []string{"publish-delivers"},
			check: func(tr *trial) { tr.storeDuring(tr.publishing(), "LoseConfirms", tr.LoseConfirms) },
		},
		{
			name:  "dead-letter-topics",
			rule:  "Open must make sure that the dead-letter topics of the subscription exist.",
			needs: []string{"publish-delivers"},
			check: deadLetterTopics,
		},
		{
			name:  "receipts-topic",
			rule:  "Open must make sure that the topic for receipts exists.",
			needs: []string{"publish-delivers"},
			check: receiptsTopic,
		},
	}
}

// closeLeavesNothing leaves the verdict to the bubble.
func closeLeavesNothing(tr *trial) {
	if !tr.Virtual {
		tr.skip("goroutines are counted only where Harness.Virtual is set")
	}
	w := tr.stocked("left behind")
	w.next(deadline(tr.Unit))
	w.next(deadline(tr.Unit)) // one Receive that finds nothing
}

func publishDelivers(tr *trial) {
	w, got := tr.deliver("one", "two", "three")
	w.settle(acks(got...)...) // what this does is the matter of other clauses
}

func publishStores(tr *trial) {
	w, topic := tr.empty()
	w.close()
	tr.publish(topic, text("one", "two")...)
	w = tr.subscribe(w.sub)
	w.expect(tr.patience, "one", "two")
}

func openContext(tr *trial) {
	topic := tr.Topic("orders")
	sub := tr.subscription(topic)
	ctx, cancel := context.WithCancel(tr.ctx)
	defer cancel()
	w := tr.subscribeWith(ctx, sub)
	cancel()
	tr.pause(tr.Unit)
	tr.publish(topic, text("later")...)
	tr.note("the context of Open ended before the message was published")
	w.expect(tr.patience, "later")
}

func publishFillsIn(tr *trial) {
	w, topic := tr.empty()
	msgs := text("one", "two")
	tr.publish(topic, msgs...)
	got := w.expect(tr.patience, "one", "two")
	for i, a := range got {
		if sent := msgs[i]; sent.ID == "" || sent.ID != a.Message.ID || !sameTime(sent.PublishedAt, a.Message.PublishedAt) {
			tr.failf("%s, published at %v: after Publish the caller's message has the ID %q and PublishedAt %v",
				a, a.Message.PublishedAt, sent.ID, sent.PublishedAt)
		}
	}
}

// publishRepeated tells the messages of one ID apart by their bodies.
func publishRepeated(tr *trial) {
	w, topic := tr.empty()
	for _, body := range []string{"a dead letter", "the same one, dead again"} {
		tr.publish(topic, brokers.Message{ID: "order-7", Body: []byte(body)})
	}
	w.expect(tr.patience, "a dead letter", "the same one, dead again")
}

func publishConcurrent(tr *trial) {
	const publishers, each = 3, 3
	w, topic := tr.empty()
	var bodies []string
	var running []func()
	for p := range publishers {
		var own []string
		for m := range each {
			own = append(own, fmt.Sprintf("publisher %d, message %d", p, m))
		}
		bodies = append(bodies, own...)
		running = append(running, func() {
			for _, body := range own {
				tr.publish(topic, text(body)...)
			}
		})
	}
	tr.together(running...)
	w.expect(tr.patience, bodies...)
}

// storing is Publish or Return.
type storing struct {
	name string
	call func(ctx context.Context, topic string, msgs []brokers.Message) error
}

func (tr *trial) publishing() storing {
	return storing{"broker.Publish", func(ctx context.Context, topic string, msgs []brokers.Message) error {
		return tr.broker.Publish(ctx, topic, msgs...)
	}}
}

func publishRefused(tr *trial) {
	w, topic := tr.empty()
	tr.storeRefused(tr.publishing(), w, topic)
}

// storeRefused stores a message that cannot be stored between two that can, and
// demands these of w.
func (tr *trial) storeRefused(how storing, w *worker, topic string) {
	refused := brokers.Message{Body: bytes.Repeat([]byte("x"), w.caps.MessageLimit+1)}
	switch {
	case tr.Refused != nil:
		refused = tr.Refused()
	case w.caps.MessageLimit == 0:
		tr.skip("the broker states no MessageLimit, and Harness.Refused is nil")
	}
	msgs := []brokers.Message{text("before")[0], refused, text("after")[0]}
	tr.announce(msgs...)
	err := tr.try(how.name, func(ctx context.Context) error { return how.call(ctx, topic, msgs) })
	perr, ok := errors.AsType[*brokers.PublishError](err)
	if !ok {
		tr.failf("%s of a message that cannot be stored, between two that can, to %q: error %v, want a *PublishError", how.name, topic, err)
	}
	if len(perr.Failed) != 1 || perr.Failed[1] == nil {
		tr.failf("%s to %q: only message 1 of 0 to 2 cannot be stored, yet the error is: %w", how.name, topic, err)
	}
	if !errors.Is(err, brokers.ErrRefused) {
		tr.failf("%s to %q of %d bytes (MessageLimit is %d): the error is not ErrRefused: %w",
			how.name, topic, len(refused.Body), w.caps.MessageLimit, err)
	}
	w.expect(tr.patience, "before", "after")
}

func publishInterrupted(tr *trial) {
	how := tr.publishing()
	tr.unreliable(how.name, "with its context ended", func(topic string, msgs []brokers.Message) error {
		ctx, cancel := context.WithCancel(tr.ctx)
		cancel()
		return how.call(ctx, topic, msgs)
	})
}

// storeDuring stores while the hook of this name is at work.
func (tr *trial) storeDuring(how storing, name string, fail func(brokers.Broker) (heal func())) {
	if fail == nil {
		tr.skip("Harness.%s is nil", name)
	}
	tr.unreliable(how.name, "during Harness."+name, func(topic string, msgs []brokers.Message) error {
		heal := fail(tr.broker)
		defer heal()
		ctx, cancel := context.WithTimeout(tr.ctx, 2*tr.Unit)
		defer cancel()
		err := how.call(ctx, topic, msgs)
		if err == nil {
			return fmt.Errorf("%s returned nil although nothing was confirmed", how.name)
		}
		return err
	})
}

// unreliable stores three messages in a call that may go wrong, and demands those
// that it did not report.
func (tr *trial) unreliable(what, how string, store func(string, []brokers.Message) error) {
	w, topic := tr.empty()
	bodies := []string{"one", "two", "three"}
	msgs := text(bodies...)
	tr.announce(msgs...)
	err, hung := call(tr, what, tr.patience, func(context.Context) error { return store(topic, msgs) })
	tr.must(hung)
	var stored []string
	perr, ok := errors.AsType[*brokers.PublishError](err)
	if err != nil && (!ok || len(perr.Failed) == 0) {
		tr.failf("%s to %q %s: error %q, want a *PublishError that names messages", what, topic, how, err)
	}
	for i, body := range bodies {
		if perr == nil || perr.Failed[i] == nil {
			stored = append(stored, body)
		}
	}
	tr.note("%s to %q %s reported %d of %d messages as stored, but", what, topic, how, len(stored), len(msgs))
	w.expect(tr.patience, stored...)
}

func deadLetterTopics(tr *trial) {
	dead := tr.Topic("orders-dead")
	tr.provided(dead, func(sub *brokers.Subscription) { sub.DeadLetters = map[string]string{sub.Topics[0]: dead} })
}

func receiptsTopic(tr *trial) {
	receipts := tr.Topic("receipts")
	tr.provided(receipts, func(sub *brokers.Subscription) { sub.Receipts = receipts })
}

// provided demands a topic that Open is to make sure of, as a subscription names it.
func (tr *trial) provided(topic string, name func(*brokers.Subscription)) {
	sub := tr.subscription(tr.Topic("orders"))
	name(&sub)
	tr.subscribe(sub)
	tr.publish(topic, text("for people")...)
	w := tr.open(topic)
	w.expect(tr.patience, "for people")
}

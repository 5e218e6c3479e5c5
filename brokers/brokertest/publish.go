package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

var publishClauses = []clause{
	{name: "close-leaves-nothing", with: "Virtual", check: closeLeavesNothing,
		rule: "No goroutine of a source or a broker may outlive its Close."},
	{name: "publish-delivers", needs: "close-leaves-nothing",
		rule:  "What Publish reports as stored must be delivered.",
		check: steps(deliver("one", "two", "three"))},
	{name: "publish-stores", needs: "publish-delivers",
		rule:  "What is published while no source is open must wait for the next one.",
		check: steps(open("orders"), shut, publish("one", "two"), reopen, expect("one", "two"))},
	{name: "open-context", needs: "publish-delivers", check: openContext,
		rule: "The context of Open bounds the call, not the life of the source."},
	{name: "publish-fills-in", needs: "publish-delivers", check: publishFillsIn,
		rule: "Publish must set the ID and the PublishedAt that it chose in the caller's messages, so that a repeat keeps them."},
	{name: "publish-repeated", needs: "publish-delivers",
		rule: "Two calls of Publish must store two messages, also for equal IDs.",
		check: steps(open("orders"), // their bodies tell them apart
			send(brokers.Message{ID: "order-7", Body: []byte("a dead letter")}),
			send(brokers.Message{ID: "order-7", Body: []byte("the same one, dead again")}),
			expect("a dead letter", "the same one, dead again"))},
	{name: "publish-concurrent", needs: "publish-delivers", check: publishConcurrent,
		rule: "The methods of a Broker must be safe for concurrent use."},
	{name: "publish-refused", needs: "publish-delivers", check: refusedBy(byPublish),
		rule: "Publish must name the messages that it refused in a *PublishError, with the reason, and store the others."},
	{name: "publish-interrupted", needs: "publish-delivers", check: reports(byPublish),
		rule: "If the context of Publish ends, its *PublishError must name every message that is not known to be stored."},
	{name: "publish-unsent", needs: "publish-delivers", with: "LoseRequests", check: reports(byPublish),
		rule: "What did not reach the broker must be reported as not stored."},
	{name: "publish-unconfirmed", needs: "publish-delivers", with: "LoseConfirms", check: reports(byPublish),
		rule: "What the broker did not confirm must be reported as not stored, also if it is."},
	{name: "dead-letter-topics", needs: "publish-delivers",
		rule:  "Open must make sure that the dead-letter topics of the subscription exist.",
		check: steps(openWith(deadLetters), publishTo("orders-dead", "for people"), open("orders-dead"), expect("for people"))},
	{name: "receipts-topic", needs: "publish-delivers",
		rule: "Open must make sure that the topic for receipts exists.",
		check: steps(openWith(func(tr *trial, sub *brokers.Subscription) { sub.Receipts = tr.Topic("receipts") }),
			publishTo("receipts", "for people"), open("receipts"), expect("for people"))},
}

// closeLeavesNothing leaves the verdict to the bubble.
func closeLeavesNothing(tr *trial) {
	w := tr.open("orders")
	w.publish("left behind")
	w.next(deadline(tr.Unit))
	w.next(deadline(tr.Unit)) // one Receive that finds nothing
}

func openContext(tr *trial) {
	ctx, cancel := context.WithCancel(tr.ctx)
	defer cancel()
	tr.subscribeWith(ctx, tr.subscription(tr.Topic("orders")))
	cancel()
	tr.did("the context of Open ends")
	steps(wait(1), publish("later"), expect("later"))(tr)
}

func publishFillsIn(tr *trial) {
	msgs := text("one", "two")
	_, got := tr.deliver(msgs...)
	for i, a := range got {
		if sent := msgs[i]; sent.ID == "" || sent.ID != a.Message.ID || !sameTime(sent.PublishedAt, a.Message.PublishedAt) {
			tr.failf("%s, published at %v: after Publish the caller's message has the ID %q and PublishedAt %v",
				a, a.Message.PublishedAt, sent.ID, sent.PublishedAt)
		}
	}
}

func publishConcurrent(tr *trial) {
	const publishers, each = 3, 3
	w := tr.open("orders")
	var running []func()
	for p := range publishers {
		running = append(running, func() {
			for _, body := range numbered(fmt.Sprintf("publisher %d, message", p), each) {
				w.publish(body)
			}
		})
	}
	tr.together(running...)
	w.expect(tr.rest()...)
}

// deadLetters names a dead-letter topic.
func deadLetters(tr *trial, sub *brokers.Subscription) {
	sub.DeadLetters = map[string]string{sub.Topics[0]: tr.Topic("orders-dead")}
}

// storing is Publish or SendBack.
type storing func(ctx context.Context, tr *trial, topic string, msgs []brokers.Message) error

func byPublish(ctx context.Context, tr *trial, topic string, msgs []brokers.Message) error {
	return tr.broker.Publish(ctx, topic, msgs...)
}

// refusedBy stores a message that cannot be stored between two that can.
func refusedBy(store storing) func(*trial) {
	return func(tr *trial) {
		w := tr.open("orders")
		refused := brokers.Message{Body: bytes.Repeat([]byte("x"), w.caps.MessageLimit+1)}
		switch {
		case tr.Refused != nil:
			refused = tr.Refused()
		case w.caps.MessageLimit == 0:
			tr.skip("the broker states no MessageLimit, and Harness.Refused is nil")
		}
		failed, err := tr.attempted(w, "of which one cannot be stored", slices.Insert(text("before", "after"), 1, refused), store)
		if len(failed) != 1 || failed[1] == nil || !errors.Is(err, brokers.ErrRefused) {
			tr.failf("message 1 of 0 to 2 cannot be stored, with %d bytes (MessageLimit is %d), and it alone is to be ErrRefused: %v",
				len(refused.Body), w.caps.MessageLimit, err)
		}
		w.expect("before", "after")
	}
}

// reports stores three messages in a call that goes wrong, with its context ended or
// while the hook of the clause is at work, and demands those that it did not report.
func reports(store storing) func(*trial) {
	return func(tr *trial) {
		w := tr.open("orders")
		bodies := []string{"one", "two", "three"}
		failed, _ := tr.attempted(w, "while it cannot succeed", text(bodies...), func(ctx context.Context, tr *trial, topic string, msgs []brokers.Message) error {
			ctx, cancel := context.WithTimeout(ctx, 2*tr.Unit)
			defer cancel()
			if tr.fail == nil {
				cancel()
			} else {
				defer tr.fail(tr.broker)()
			}
			return store(ctx, tr, topic, msgs)
		})
		if tr.fail != nil && len(failed) == 0 {
			tr.failf("nothing was confirmed, and the error is nil")
		}
		stored := slices.DeleteFunc(slices.Clone(bodies), func(body string) bool { return failed[slices.Index(bodies, body)] != nil })
		tr.did("it reported %d messages as stored", len(stored))
		w.expect(stored...)
	}
}

// attempted stores messages in one call, and returns which failed. An error must
// be a *PublishError that says it.
func (tr *trial) attempted(w *worker, how string, msgs []brokers.Message, store storing) (failed map[int]error, err error) {
	tr.announce(w.topic(), msgs...)
	what := fmt.Sprintf("storing %d messages in %q %s", len(msgs), w.topic(), how)
	err, hung := call(tr, what, tr.patience, func(ctx context.Context) error { return store(ctx, tr, w.topic(), msgs) })
	tr.must(hung)
	if err == nil {
		return nil, nil
	}
	perr, ok := errors.AsType[*brokers.PublishError](err)
	if !ok || len(perr.Failed) == 0 {
		tr.failf("%s: error %q, want a *PublishError that names messages", what, err)
	}
	return perr.Failed, err
}

var returnClauses = []clause{
	{name: "return-delivers", needs: "ack-removes body-intact headers-intact key-intact id-set topic-named published-at-set",
		rule:  "What SendBack reports as stored must be delivered as the message that it was: ID, body, headers, key, topic and PublishedAt.",
		check: steps(open("orders"), sendBack("not UTF-8: \xff\xfe\x00"), expect("not UTF-8: \xff\xfe\x00"), each(sameID, sameMessage))},
	{name: "return-starts-over", needs: "return-delivers meta-fresh",
		rule:  "What was returned must have come back once more and keep idempotency key, Send, history, origin and trace, and start over in the rest of its Meta.",
		check: steps(open("orders"), sendBack("returned"), expect("returned"), each(equalMeta))},
	{name: "return-survives", needs: "return-delivers return-starts-over retry-keeps-meta retry-keeps-id",
		rule: "What a returned message is known by must survive its retries, also where nothing else of its Meta does: ID, idempotency key, redrive count and Send.",
		check: steps(open("orders"), sendBack("returned"), expect("returned"), each(identified),
			times(2, retry(1), expect("returned"), each(identified)))},
	{name: "return-stores", needs: "return-delivers publish-stores",
		rule:  "What is returned while no source is open must wait for the next one.",
		check: steps(open("orders"), shut, sendBack("one", "two"), reopen, consume("one", "two"))},
	{name: "group-named", needs: "close-leaves-nothing", check: groupNamed,
		rule: "Capabilities must name the group that a source receives for, where the broker has groups."},
	{name: "return-alone", needs: "return-delivers return-stores group-named", with: "Groups",
		rule: "What is returned to a group must reach no other group.",
		check: steps(open("orders"), shut, openWith(othersGroup), publish("before"), consume("before"), sendBack("returned"),
			quiet(2), publish("after"), consume("after"), shut, open("orders"), consume("returned"))},
	{name: "return-repeated", needs: "return-delivers return-starts-over", check: returnRepeated,
		rule: "Two calls of SendBack must store two messages, also for equal IDs and bodies."},
	{name: "return-refused", needs: "return-delivers publish-refused", check: refusedBy(byReturn),
		rule: "SendBack must name the messages that it refused in a *PublishError, with the reason, and store the others."},
	{name: "return-unsent", needs: "return-delivers publish-unsent", with: "LoseRequests", check: reports(byReturn),
		rule: "What did not reach the broker on its way back must be reported as not stored."},
	{name: "return-unconfirmed", needs: "return-delivers publish-unconfirmed", with: "LoseConfirms", check: reports(byReturn),
		rule: "What the broker did not confirm on its way back must be reported as not stored, also if it is."},
}

// byReturn returns messages without a story.
func byReturn(ctx context.Context, tr *trial, topic string, msgs []brokers.Message) error {
	letters := make([]brokers.Item, len(msgs))
	for i := range msgs {
		letters[i].Message = &msgs[i]
	}
	return tr.broker.SendBack(ctx, tr.group(topic), topic, letters...)
}

// sendBack sends dead messages back to the workers of the topic.
func sendBack(bodies ...string) step {
	return on(func(w *worker) {
		letters := make([]brokers.Item, len(bodies))
		for i, body := range bodies {
			letters[i] = w.tr.letter(body)
		}
		w.sendBack(letters...)
	})
}

func (w *worker) sendBack(letters ...brokers.Item) {
	tr, topic := w.tr, w.topic()
	for _, l := range letters {
		tr.announce(topic, *l.Message)
		tr.fateOf(string(l.Message.Body), func(f *fate) { f.meta, f.known = l.Meta.Restart(), true })
	}
	what := fmt.Sprintf("broker.SendBack of %d messages to %q", len(letters), topic)
	tr.must(tr.try(what, func(ctx context.Context) error { return tr.broker.SendBack(ctx, tr.group(topic), topic, letters...) }))
}

// letter is a dead message with every field in use.
func (tr *trial) letter(body string) brokers.Item {
	origin := brokers.Headers{{Name: "place", Value: "before it died"}, {Name: "row", Value: "42"}}
	return brokers.Item{
		Message: &brokers.Message{
			ID:          "order:7 é",
			Topic:       "elsewhere",
			Key:         "customer-7 / Łódź",
			Body:        []byte(body),
			Headers:     tr.headers(),
			PublishedAt: time.Now().Add(-40 * time.Hour),
		},
		Meta: tr.story(brokers.Meta{Attempt: 10, Origin: origin}, 2),
	}
}

func identified(w *worker, a *arrival) error {
	letter := w.tr.letter(a.body())
	return errors.Join(sameID(w, a), sameIdentity(a, letter.Meta.Restart()))
}

func groupNamed(tr *trial) {
	w := tr.open("orders")
	want := ""
	if tr.Groups {
		want = w.sub.Group
	}
	if got := w.caps.Group; got != want {
		tr.failf("a source of the group %q has the Capabilities.Group %q, want %q", w.sub.Group, got, want)
	}
}

func othersGroup(_ *trial, sub *brokers.Subscription) { sub.Group += "-others" }

// returnRepeated tells the messages apart by the tokens of their sendings.
func returnRepeated(tr *trial) {
	w := tr.open("orders")
	missing := []string{"first", "second"}
	for _, send := range missing {
		letter := tr.letter("dead twice")
		letter.Meta.Send = send
		w.sendBack(letter)
	}
	for until := deadline(tr.patience); len(missing) > 0; {
		a := w.next(until)
		if a == nil {
			tr.failf("from %q: of two messages with one ID and body, the sendings %q did not come within %v", w.topic(), missing, tr.patience)
		}
		w.ack(a)
		missing = slices.DeleteFunc(missing, func(send string) bool { return send == a.Meta().Send })
	}
}

package brokertest

import (
	"context"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

func returnClauses() []clause {
	needs := []string{"return-delivers"}
	return []clause{
		{
			name:  "return-delivers",
			rule:  "What Return reports as stored must be delivered as the message that it was: ID, body, headers, key, topic and PublishedAt.",
			needs: []string{"ack-removes", "body-intact", "headers-intact", "key-intact", "id-set", "topic-named", "published-at-set"},
			check: returnDelivers,
		},
		{
			name:  "return-starts-over",
			rule:  "What was returned must have come back once more and keep idempotency key, Send, history and origin, and start over in the rest of its Meta.",
			needs: append(needs, "meta-fresh"),
			check: returnStartsOver,
		},
		{
			name:  "return-survives",
			rule:  "What a returned message is known by must survive its retries, also where nothing else of its Meta does: ID, idempotency key, redrive count and Send.",
			needs: append(needs, "return-starts-over", "retry-keeps-meta", "retry-keeps-id"),
			check: returnSurvives,
		},
		{
			name:  "return-stores",
			rule:  "What is returned while no source is open must wait for the next one.",
			needs: append(needs, "publish-stores"),
			check: returnStores,
		},
		{
			name:  "group-named",
			rule:  "Capabilities must name the group that a source receives for, where the broker has groups.",
			needs: []string{"close-leaves-nothing"},
			check: groupNamed,
		},
		{
			name:  "return-alone",
			rule:  "What is returned to a group must reach no other group.",
			needs: append(needs, "return-stores", "group-named"),
			check: returnAlone,
		},
		{
			name:  "return-repeated",
			rule:  "Two calls of Return must store two messages, also for equal IDs and bodies.",
			needs: append(needs, "return-starts-over"),
			check: returnRepeated,
		},
		{
			name:  "return-refused",
			rule:  "Return must name the messages that it refused in a *PublishError, with the reason, and store the others.",
			needs: append(needs, "publish-refused"),
			check: returnRefused,
		},
		{
			name:  "return-unsent",
			rule:  "What did not reach the broker on its way back must be reported as not stored.",
			needs: append(needs, "publish-unsent"),
			check: func(tr *trial) { tr.storeDuring(tr.returning(), "LoseRequests", tr.LoseRequests) },
		},
		{
			name:  "return-unconfirmed",
			rule:  "What the broker did not confirm on its way back must be reported as not stored, also if it is.",
			needs: append(needs, "publish-unconfirmed"),
			check: func(tr *trial) { tr.storeDuring(tr.returning(), "LoseConfirms", tr.LoseConfirms) },
		},
	}
}

// returning is Return of messages without a story.
func (tr *trial) returning() storing {
	return storing{"broker.Return", func(ctx context.Context, topic string, msgs []brokers.Message) error {
		letters := make([]brokers.Returned, len(msgs))
		for i, m := range msgs {
			letters[i].Message = m
		}
		return tr.broker.Return(ctx, tr.group(topic), topic, letters...)
	}}
}

// putBack returns letters, whose bodies tell them apart, to the workers of topic.
func (tr *trial) putBack(topic string, letters ...brokers.Returned) {
	for _, l := range letters {
		tr.announce(l.Message)
	}
	what := fmt.Sprintf("broker.Return of %d messages to %q", len(letters), topic)
	tr.must(tr.try(what, func(ctx context.Context) error { return tr.broker.Return(ctx, tr.group(topic), topic, letters...) }))
}

// letter is a dead message with every field in use.
func (tr *trial) letter(body string) brokers.Returned {
	now := time.Now()
	return brokers.Returned{
		Message: brokers.Message{
			ID:          "order:7 é",
			Topic:       "elsewhere",
			Key:         "customer-7 / Łódź",
			Body:        []byte(body),
			Headers:     tr.headers(),
			PublishedAt: now.Add(-40 * time.Hour),
		},
		Meta: brokers.Meta{
			Attempt:       10,
			Throttles:     2,
			FirstFailedAt: now.Add(-30 * time.Hour),
			LastFailedAt:  now.Add(-29 * time.Hour),
			DueAt:         now.Add(time.Hour),
			Delay:         time.Hour,
			Class:         "transient",
			History: []brokers.Failure{
				{Attempt: 9, At: now.Add(-30 * time.Hour), Class: "throttled", Fingerprint: "9f86d081884c7d65", Delay: tr.Unit},
				{Attempt: 10, At: now.Add(-29 * time.Hour), Class: "transient", Ambiguous: true},
			},
			IdempotencyKey: "clé of order 7",
			RedriveCount:   1,
			Send:           "12.3.f00d",
			Origin:         brokers.Headers{{Name: "place", Value: "before it died"}, {Name: "row", Value: "42"}},
		},
	}
}

func returnDelivers(tr *trial) {
	w, topic := tr.empty()
	want := tr.letter("not UTF-8: \xff\xfe\x00").Message
	tr.putBack(topic, tr.letter(string(want.Body)))
	a := w.expect(tr.patience, string(want.Body))[0]
	if a.Message.ID != want.ID {
		tr.failf("%s had the ID %q", a, want.ID)
	}
	want.Topic = topic
	tr.must(tr.sameMessage(a, want))
}

func returnStartsOver(tr *trial) {
	w, topic := tr.empty()
	letter := tr.letter("returned")
	tr.putBack(topic, letter)
	got := w.expect(tr.patience, "returned")[0]
	tr.must(tr.equalMeta(got, letter.Meta.Restart()))
}

func returnSurvives(tr *trial) {
	w, topic := tr.empty()
	letter := tr.letter("returned")
	tr.putBack(topic, letter)
	want := letter.Meta.Restart()
	for retries := range 3 {
		tr.note("after %d retries", retries)
		a := w.expect(tr.Unit+tr.patience, "returned")[0]
		if m := a.Meta(); a.Message.ID != letter.Message.ID || m.IdempotencyKey != want.IdempotencyKey || m.RedriveCount != want.RedriveCount || m.Send != want.Send {
			tr.failf("%s has the idempotency key %q, the redrive count %d and the Send %q, want the ID %q, %q, %d and %q", a,
				m.IdempotencyKey, m.RedriveCount, m.Send, letter.Message.ID, want.IdempotencyKey, want.RedriveCount, want.Send)
		}
		w.retry(a, tr.Unit)
	}
}

func returnStores(tr *trial) {
	w, topic := tr.empty()
	w.close()
	tr.putBack(topic, tr.letter("one"), tr.letter("two"))
	w = tr.subscribe(w.sub)
	w.consume(tr.patience, "one", "two")
}

func groupNamed(tr *trial) {
	w, _ := tr.empty()
	want := ""
	if tr.Groups {
		want = w.sub.Group
	}
	if got := w.caps.Group; got != want {
		tr.failf("a source of the group %q has the Capabilities.Group %q, want %q", w.sub.Group, got, want)
	}
}

// returnAlone has another group at work, as messages before and after show.
func returnAlone(tr *trial) {
	if !tr.Groups {
		tr.skip("Harness.Groups is not set: whoever receives from a topic is of one group")
	}
	w, topic := tr.empty()
	w.close()
	sub := tr.subscription(topic)
	sub.Group += "-others"
	other := tr.subscribe(sub)
	tr.publish(topic, text("before")...)
	other.consume(tr.patience, "before")
	tr.putBack(topic, tr.letter("returned"))
	tr.note("in a group that nothing was returned to")
	other.quiet(2 * tr.Unit)
	tr.publish(topic, text("after")...)
	other.consume(tr.patience, "after")
	tr.note("in the group that it was returned to")
	tr.subscribe(w.sub).consume(tr.patience, "returned")
}

// returnRepeated tells the messages apart by the tokens of their sendings.
func returnRepeated(tr *trial) {
	w, topic := tr.empty()
	missing := make(map[string]bool)
	for _, send := range []string{"first", "second"} {
		letter := tr.letter("dead twice")
		letter.Meta.Send = send
		tr.putBack(topic, letter)
		missing[send] = true
	}
	for until := deadline(tr.patience); len(missing) > 0; {
		a := w.next(until)
		if a == nil {
			tr.failf("from %q: of two messages with one ID and body, returned in two calls, %d did not come within %v", topic, len(missing), tr.patience)
		}
		w.ack(a)
		delete(missing, a.Meta().Send)
	}
}

func returnRefused(tr *trial) {
	w, topic := tr.empty()
	tr.storeRefused(tr.returning(), w, topic)
}

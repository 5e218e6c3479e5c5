package brokertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

var retryClauses = []clause{
	{name: "retry-not-early", needs: "retry-returns", check: retryNotEarly,
		rule: "Retry must not redeliver before its delay has passed; a broker that can only come close comes before, with Meta.DueAt, but not in the first half of a delay of four units."},
	{name: "retry-not-late", needs: "retry-returns", check: retryNotLate,
		rule: "Retry must redeliver when its delay has passed, up to Granularity and Harness.Slack later. A message that is published at that time tells how long any message takes."},
	{name: "retry-at-once", needs: "retry-returns",
		rule: "Retry with a delay of zero or less must redeliver as soon as possible, not when the lease ends.",
		check: steps(deliver("no delay", "a negative delay"), retry(0, "no delay"), retry(-1, "a negative delay"),
			soon("no delay", "a negative delay"), ack())},
	{name: "retry-longest", needs: "retry-not-early retry-not-late", check: retryLongest,
		rule: "What Open accepted as Subscription.MaxDelay must be kept: such a Retry is neither refused nor cut short."},
	{name: "retry-durable", needs: "retry-not-early retry-keeps-meta",
		rule:  "When Settle has returned, a Retry must outlive the source, with its delay and its Meta.",
		check: steps(deliver("retried"), retry(3), reopen, expect("retried"), each(notEarly, sameMeta), ack())},
	{name: "retry-policy-changes", needs: "retry-durable retry-longest",
		rule: "A Retry must be kept when the next subscription asks for shorter delays, or for longer ones: it comes back, and not before its delay has passed.",
		check: steps(openWith(longDelays), publish("moved"), expect("moved"), on(retryLong), shut,
			openWith(shortDelays), expect("moved"), each(notEarly), retry(1), shut,
			openWith(longDelays), expect("moved"), each(notEarly), ack())},
	{name: "retry-refused", needs: "retry-keeps-meta release-returns", check: retryRefused,
		rule: "A Retry that would make the message larger than the broker takes must be done all the same or be ErrRefused, and then the delivery is still held."},
	{name: "retry-repeated", needs: "retry-returns retry-at-once",
		rule:  "Retries of one message must all be done, also with an equal Meta, as after throttling or on the way to a far due time: the broker's deduplication must not swallow a copy.",
		check: steps(deliver("throttled"), on(repeatRetry), ack())},
	{name: "retry-keeps-death", needs: "retry-durable retry-repeated", not: "EstimatesMeta",
		rule: "A message that waits for its dead letter must carry its Death, through several Retries and the end of its source. A Retry whose Meta has no Death must remove it.",
		check: steps(deliver("dead"), times(2, retryAs(dies), expect("dead"), each(sameDeath)),
			retryAs(dies), reopen, expect("dead"), each(sameDeath), retryAs(lives), expect("dead"), each(sameDeath), ack())},
	{name: "retry-unsent", needs: "retry-returns close-releases", with: "LoseRequests", check: retryUnconfirmed,
		rule: "A Retry that did not reach the broker must leave the original where it is: nothing is acked before its copy is durable."},
	{name: "retry-unconfirmed", needs: "retry-returns close-releases", with: "LoseConfirms", check: retryUnconfirmed,
		rule: "A Retry that the broker did not confirm must be reported as not done, also if it is, and the message must come back."},
}

// delayed retries three messages with different delays. When one may come at the
// latest, when its delay and Granularity have passed, a control is published.
func (tr *trial) delayed() (w *worker, retried, controls []*arrival) {
	bodies := []string{"a short delay", "a long delay", "a crooked delay"}
	delays := []time.Duration{tr.Unit, 4 * tr.Unit, 2*tr.Unit + tr.Unit/3}
	w, got := tr.delivered(bodies...)
	var work []func()
	for i, a := range got {
		w.retry(a, delays[i])
		latest := deadline(delays[i] + w.caps.Granularity)
		control := "control of " + bodies[i]
		bodies = append(bodies, control)
		work = append(work, func() {
			tr.pause(time.Until(latest))
			w.publish(control)
		})
	}
	tr.owes(4*tr.Unit + w.caps.Granularity)
	tr.together(append(work, func() { got = w.consume(bodies...) })...)
	return w, got[:len(delays)], got[len(delays):]
}

func retryNotEarly(tr *trial) {
	w, retried, _ := tr.delayed()
	for _, a := range retried {
		tr.must(notEarly(w, a))
	}
	long := retried[1]
	if left := tr.fateOf(long.body(), nil).due.Sub(long.raw); left > 2*tr.Unit {
		tr.must(duplicate{fmt.Errorf("%s was retried in %v and came %v too early, which is not close; its Meta.DueAt cannot excuse that",
			long, 4*tr.Unit, left)})
	}
}

func retryNotLate(tr *trial) {
	_, retried, controls := tr.delayed()
	for i, a := range retried {
		if late := a.at.Sub(controls[i].at); late > tr.Slack {
			tr.failf("%s came %v after one that was published when its delay had passed, and Granularity (slack %v)", a, late, tr.Slack)
		}
	}
}

func longDelays(_ *trial, sub *brokers.Subscription) {
	sub.MaxDelay, sub.MaxAge = 3*time.Hour, 6*time.Hour
}

func shortDelays(tr *trial, sub *brokers.Subscription) {
	longDelays(tr, sub)
	sub.MaxDelay = tr.Unit
}

// retryLong delays the last message by far more than a short policy allows.
func retryLong(w *worker) {
	w.retry(w.last[0], by(w.tr, 2*time.Hour, 4*w.tr.Unit))
}

// longestDelays asks for a day in virtual time.
func longestDelays(tr *trial, sub *brokers.Subscription) {
	sub.MaxDelay = by(tr, 24*time.Hour, 3*time.Hour)
	sub.MaxAge = 2 * sub.MaxDelay
}

// retryLongest sees in real time only that the delay does not begin with a delivery.
func retryLongest(tr *trial) {
	steps(openWith(longestDelays), publish("far away"), expect("far away"))(tr)
	w := tr.worker()
	due := deadline(w.sub.MaxDelay)
	w.retry(w.last[0], w.sub.MaxDelay)
	if !tr.Virtual {
		w.quiet(4 * tr.Unit)
		return
	}
	w.quiet(time.Until(due) - precision)
	w.expectEach(precision+w.caps.Granularity+tr.Slack, func(*arrival) {}, []string{"far away"})
}

func repeatRetry(w *worker) {
	const retries = 4
	meta := failed(w.last[0].Delivery, 0)
	for range retries {
		w.retryWith(w.last[0], 0, meta)
		w.expectSoon("throttled")
	}
}

// dies is the Meta of the pipeline while it cannot publish the dead letter: with
// no attempt left.
func dies(w *worker, m *brokers.Meta) {
	m.Attempt = w.sub.MaxAttempts
	m.Death = &brokers.Death{
		Reason: "undecodable", At: time.Now(), By: "worker-1/4711", Abandoned: 2, Attempt: 1, DueAt: m.DueAt.Add(-time.Minute),
		ErrorType: "*json.SyntaxError", ErrorCode: "E7", ErrorText: `invalid character '}' after "żółw" \n`, Stack: "main.decode(…)\n\t/src/main.go:7", Fingerprint: "9f86d081884c7d65", Rule: "decode",
		Truncated: []string{"error-stack", "rule"},
	}
}

func lives(_ *worker, m *brokers.Meta) { m.Death = nil }

// retryRefused retries a message that leaves no room for a long Meta.
func retryRefused(tr *trial) {
	const most, margin = 4 << 20, 256
	w := tr.open("orders")
	limit := w.caps.MessageLimit
	if limit <= margin || limit > most {
		tr.skip("Capabilities.MessageLimit is %d: this needs one between %d and %d", limit, margin, most)
	}
	body := noise(limit - margin)
	steps(publish(body), expect(body))(tr)
	if tr.refused(func() { retryAs(full)(tr) }) {
		release()(tr)
	}
	steps(expect(body), each(sameMeta))(tr)
}

// retryUnconfirmed has two retries fail while the hook of the clause is at work. One is
// tried again, as the contract allows after any error that is not final. The other is
// left to Close. Both messages must come back; duplicates are the price.
func retryUnconfirmed(tr *trial) {
	w, got := tr.delivered("tried again", "given up")
	heal := tr.fail(tr.broker)
	errs, hung := call(tr, "source.Settle(retry) of both, which nothing confirms,", tr.Unit, func(ctx context.Context) []error {
		return w.src.Settle(ctx, w.all(brokers.Retry, got...))
	})
	heal()
	tr.must(hung)
	errs = padded(errs, nil, 2)
	for i, a := range got {
		if errs[i] == nil {
			tr.failf("source.Settle(retry) of %s returned nil although the broker confirmed nothing", a)
		}
	}
	if !final(errs[0]) {
		if err := w.settle(w.to(brokers.Retry, got[0]))[0]; !final(err) {
			tr.must(err)
		}
	}
	tr.did("the Retry had failed: %v", errors.Join(errs...))
	steps(reopen, on(owesLease), expect("tried again", "given up"))(tr)
}

// historyLimit bounds the failures in a Meta.
const historyLimit = 10

var carryClauses = []clause{
	{name: "retry-keeps-meta", needs: "retry-returns meta-fresh",
		rule: "A retried message must carry exactly the Meta of its Settlement, times and delays to the millisecond, and nothing of an older one.",
		check: steps(deliver("retried"), retryAs(full), expect("retried"), each(sameMeta),
			retryAs(short), expect("retried"), each(sameMeta))},
	{name: "retry-keeps-id", needs: "retry-returns id-set", long: true,
		rule: "The ID of a message must stay the same over all of its hops.",
		check: steps(deliverMessages(brokers.Message{Body: []byte("with an ID"), ID: "order-7"}, brokers.Message{Body: []byte("without an ID")}),
			hopping(sameID))},
	{name: "retry-keeps-message", needs: "retry-returns body-intact headers-intact key-intact topic-named published-at-set",
		rule:  "Body, headers, key, topic and PublishedAt must be the same after any number of retries that the subscription allows.",
		check: steps(deliverRich, hopping(sameMessage))},
}

// story fills every field of a Meta but Death, with so many failures.
func (tr *trial) story(m brokers.Meta, failures int) brokers.Meta {
	now := time.Now()
	m.Throttles, m.Excused, m.Crashes = 2, time.Hour, 2
	m.FirstFailedAt, m.LastFailedAt = now.Add(-90*time.Minute), now.Add(-123456*time.Microsecond)
	m.DueAt, m.Delay, m.Class = now.Add(tr.Unit), 1234567*time.Microsecond, "throttled"
	m.IdempotencyKey, m.RedriveCount, m.Send = "clé of order 7, \"quoted\"", 3, "7.2.c0ffee"
	m.Trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01,00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	m.History = nil
	for n := range failures {
		m.History = append(m.History, brokers.Failure{
			Attempt:     n + 1,
			At:          now.Add(time.Duration(n-20) * time.Minute),
			Class:       "transient",
			Ambiguous:   n%3 == 0,
			TimedOut:    n%2 == 0,
			Fingerprint: fmt.Sprintf("%016x", n*n),
			Delay:       time.Duration(n) * 1500 * time.Millisecond,
		})
	}
	return m
}

// full is a story as long as the broker has room for. Where a counter is all that
// it has, that knows of one more Retry.
func full(w *worker, m *brokers.Meta) {
	const failure, rest = 160, 1024 // bytes, about
	room := w.caps.HeaderLimit
	if room == 0 {
		room = 16 << 10
	}
	if !w.tr.EstimatesMeta {
		m.Attempt = 7
	}
	*m = w.tr.story(*m, max(0, min(historyLimit, (room-rest)/failure)))
}

// short says nothing of what full does.
func short(w *worker, m *brokers.Meta) {
	*m = brokers.Meta{Attempt: m.Attempt, DueAt: deadline(3 * w.tr.Unit), Origin: m.Origin}
}

// hopping sends what the worker holds over as many hops as the subscription
// allows, with and without a delay, and demands something of each delivery.
func hopping(has property) step {
	return on(func(w *worker) {
		bodies := w.tr.rest()
		for hop := range w.sub.MaxAttempts - 1 {
			steps(each(has), retry(hop%2), expect(bodies...))(w.tr)
		}
		steps(each(has), ack())(w.tr)
	})
}

func deliverRich(tr *trial) {
	tr.deliver(brokers.Message{
		Body:        []byte("not UTF-8: \xff\xfe\x00"),
		Key:         "customer-7",
		Headers:     tr.headers(),
		PublishedAt: time.Now().Add(-time.Hour),
	})
}

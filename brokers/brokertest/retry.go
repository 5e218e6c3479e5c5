package brokertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

func retryClauses() []clause {
	needs := []string{"retry-returns"}
	return []clause{
		{
			name:  "retry-not-early",
			rule:  "Retry must not redeliver before its delay has passed; a broker that can only come close comes before, with Meta.DueAt, but not in the first half of a delay of four units.",
			needs: needs,
			check: retryNotEarly,
		},
		{
			name:  "retry-not-late",
			rule:  "Retry must redeliver when its delay has passed, up to Granularity and Harness.Slack later. A message that is published at that time tells how long any message takes.",
			needs: needs,
			check: retryNotLate,
		},
		{
			name:  "retry-at-once",
			rule:  "Retry with a delay of zero or less must redeliver as soon as possible, not when the lease ends.",
			needs: needs,
			check: retryAtOnce,
		},
		{
			name:  "retry-longest",
			rule:  "What Open accepted as Subscription.MaxDelay must be kept: such a Retry is neither refused nor cut short.",
			needs: []string{"retry-not-early", "retry-not-late"},
			check: retryLongest,
		},
		{
			name:  "retry-durable",
			rule:  "When Settle has returned, a Retry must outlive the source, with its delay and its Meta.",
			needs: []string{"retry-not-early", "retry-keeps-meta"},
			check: retryDurable,
		},
		{
			name:  "retry-policy-changes",
			rule:  "A Retry must be kept when the next subscription asks for shorter delays, or for longer ones: it comes back, and not before its delay has passed.",
			needs: []string{"retry-durable", "retry-longest"},
			check: retryPolicyChanges,
		},
		{
			name:  "retry-refused",
			rule:  "A Retry that would make the message larger than the broker takes must be done all the same or be ErrRefused, and then the delivery is still held.",
			needs: []string{"retry-keeps-meta", "release-returns"},
			check: retryRefused,
		},
		{
			name:  "retry-repeated",
			rule:  "Retries of one message must all be done, also with an equal Meta, as after throttling or on the way to a far due time: the broker's deduplication must not swallow a copy.",
			needs: append(needs, "retry-at-once"),
			check: retryRepeated,
		},
		{
			name:  "retry-keeps-death",
			rule:  "A message that waits for its dead letter must carry its Death, through several Retries and the end of its source. A Retry whose Meta has no Death must remove it.",
			needs: []string{"retry-durable", "retry-repeated"},
			check: retryKeepsDeath,
		},
		{
			name:  "retry-unsent",
			rule:  "A Retry that did not reach the broker must leave the original where it is: nothing is acked before its copy is durable.",
			needs: append(needs, "close-releases"),
			check: func(tr *trial) { tr.retryDuring("LoseRequests", tr.LoseRequests) },
		},
		{
			name:  "retry-unconfirmed",
			rule:  "A Retry that the broker did not confirm must be reported as not done, also if it is, and the message must come back.",
			needs: append(needs, "close-releases"),
			check: func(tr *trial) { tr.retryDuring("LoseConfirms", tr.LoseConfirms) },
		},
	}
}

func retryReturns(tr *trial) {
	w, got := tr.deliver("retried")
	w.retry(got[0], tr.Unit)
	tr.note("after Retry in %v", tr.Unit)
	w.ack(w.expect(tr.Unit+tr.patience, "retried")...)
	w.quiet(2 * tr.Unit)
}

// hop is one Retry and the delivery that followed.
type hop struct {
	*arrival
	control *arrival // published when the delay had passed, and Granularity
	delay   time.Duration
	before  time.Time // the call of Settle
}

// hops retries three messages with different delays. When one may come at the
// latest, a control is published.
func (tr *trial) hops() []hop {
	bodies := []string{"a short delay", "a long delay", "a crooked delay"}
	delays := []time.Duration{tr.Unit, 4 * tr.Unit, 2*tr.Unit + tr.Unit/3}
	w, got := tr.deliver(bodies...)
	out := make([]hop, len(got))
	work := []func(){nil}
	for i, a := range got {
		out[i] = hop{delay: delays[i], before: time.Now()}
		w.retry(a, delays[i])
		latest := deadline(delays[i] + w.caps.Granularity)
		control := "control of " + bodies[i]
		bodies = append(bodies, control)
		work = append(work, func() {
			tr.pause(time.Until(latest))
			tr.publish(w.sub.Topics[0], text(control)...)
		})
	}
	work[0] = func() { got = w.consume(4*tr.Unit+w.caps.Granularity+tr.patience, bodies...) }
	tr.together(work...)
	for i := range out {
		out[i].arrival, out[i].control = got[i], got[len(out)+i]
	}
	return out
}

func retryNotEarly(tr *trial) {
	hops := tr.hops()
	for _, h := range hops {
		if waited := h.at.Sub(h.before); waited < h.delay-precision {
			tr.must(duplicate{fmt.Errorf("%s was retried in %v and came after %v (Meta.DueAt %v)", h, h.delay, waited, h.Meta().DueAt)})
		} else if waited := h.raw.Sub(h.before); h.delay == 4*tr.Unit && waited < h.delay/2 {
			tr.must(duplicate{fmt.Errorf("%s was retried in %v and came after %v, which is not close; its Meta.DueAt cannot excuse that",
				h, h.delay, waited)})
		}
	}
}

func retryNotLate(tr *trial) {
	var errs []error
	for _, h := range tr.hops() {
		if late := h.at.Sub(h.control.at); late > tr.Slack {
			errs = append(errs, fmt.Errorf("%s was retried in %v and came %v after one that was published when the delay had passed, and Granularity (slack %v)",
				h, h.delay, late, tr.Slack))
		}
	}
	tr.must(errors.Join(errs...))
}

func retryAtOnce(tr *trial) {
	w, got := tr.deliver("no delay", "a negative delay")
	for i, delay := range []time.Duration{0, -tr.Unit} {
		w.retry(got[i], delay)
	}
	tr.note("after Retry without delay")
	w.ack(w.expectSoon("no delay", "a negative delay")...)
}

// retryLongest asks for a day in virtual time. In real time it asks for three
// hours and only sees that they do not begin with a delivery.
func retryLongest(tr *trial) {
	topic := tr.Topic("orders")
	sub := tr.subscription(topic)
	sub.MaxDelay = 3 * time.Hour
	if tr.Virtual {
		sub.MaxDelay = 24 * time.Hour
	}
	sub.MaxAge = 2 * sub.MaxDelay
	w := tr.subscribe(sub)
	tr.publish(topic, text("far away")...)
	got := w.expect(tr.patience, "far away")
	due := deadline(sub.MaxDelay)
	w.retry(got[0], sub.MaxDelay)
	if !tr.Virtual {
		w.quiet(4 * tr.Unit)
		return
	}
	tr.note("retried in %v", sub.MaxDelay)
	w.quiet(time.Until(due) - precision)
	w.expect(precision+w.caps.Granularity+tr.Slack, "far away")
}

func retryDurable(tr *trial) {
	w, got := tr.deliver("retried")
	const units = 3
	want := failed(got[0].Delivery, units*tr.Unit)
	before := time.Now()
	w.retryWith(got[0], units*tr.Unit, want)
	w = w.reopen()
	tr.note("after Retry and Close")
	got = w.expect(units*tr.Unit+tr.patience, "retried")
	if waited := got[0].at.Sub(before); waited < units*tr.Unit-precision {
		tr.must(duplicate{fmt.Errorf("%s was retried in %v, then its source was closed, and it came after %v", got[0], units*tr.Unit, waited)})
	}
	tr.must(tr.sameMeta(got[0], want))
	w.ack(got...)
}

// retryKeepsDeath retries a dead message as the pipeline does while it cannot
// publish the dead letter: with no attempt left.
func retryKeepsDeath(tr *trial) {
	if tr.EstimatesMeta {
		tr.skip("Harness.EstimatesMeta: such a broker does not store a Death either")
	}
	w, got := tr.deliver("dead")
	meta := failed(got[0].Delivery, tr.Unit)
	meta.Attempt = w.sub.MaxAttempts
	meta.Death = &brokers.Death{
		Reason: "undecodable", At: time.Now(), By: "worker-1/4711", Abandoned: 2, Attempt: 1, DueAt: meta.DueAt.Add(-time.Minute),
		ErrorType: "*json.SyntaxError", ErrorCode: "E7", ErrorText: `invalid character '}' after "żółw" \n`, Stack: "main.decode(…)\n\t/src/main.go:7", Fingerprint: "9f86d081884c7d65", Rule: "decode",
		Truncated: []string{"error-stack", "rule"},
	}
	again := func(what string) {
		w.retryWith(got[0], tr.Unit, meta)
		tr.note("%s", what)
		if what == "after Retry and Close" {
			w = w.reopen()
		}
		got = w.expect(tr.Unit+tr.patience, "dead")
		if !sameDeath(got[0].Meta().Death, meta.Death) {
			tr.failf("%s: Meta.Death is %+v, want %+v", got[0], got[0].Meta().Death, meta.Death)
		}
	}
	again("after Retry")
	meta.DueAt = time.Now().Add(tr.Unit)
	again("after another Retry")
	again("after Retry and Close")
	meta.Death = nil
	again("after Retry without Death")
	w.ack(got...)
}

// retryPolicyChanges deploys a policy with shorter delays than that under which a
// message waits, and then the other way round.
func retryPolicyChanges(tr *trial) {
	topic := tr.Topic("orders")
	long, short := tr.subscription(topic), tr.subscription(topic)
	short.MaxDelay = tr.Unit
	long.MaxDelay, long.MaxAge = 3*time.Hour, 6*time.Hour
	short.MaxAge = long.MaxAge
	delay := 4 * tr.Unit
	if tr.Virtual {
		delay = 2 * time.Hour
	}
	w := tr.subscribe(long)
	tr.publish(topic, text("moved")...)
	got := w.expect(tr.patience, "moved")
	for _, next := range []struct {
		sub   brokers.Subscription
		delay time.Duration
	}{{short, delay}, {long, tr.Unit}} {
		before, was := time.Now(), w.sub.MaxDelay
		w.retry(got[0], next.delay)
		w.close()
		w = tr.subscribe(next.sub)
		tr.note("retried in %v by a policy of up to %v, and opened with one of up to %v", next.delay, was, next.sub.MaxDelay)
		got = w.expect(next.delay+tr.patience, "moved")
		if waited := got[0].at.Sub(before); waited < next.delay-precision {
			tr.must(duplicate{fmt.Errorf("%s was retried in %v and came after %v, under another policy", got[0], next.delay, waited)})
		}
	}
	w.ack(got...)
}

// retryRefused retries a message that leaves no room for a long Meta.
func retryRefused(tr *trial) {
	const most, margin = 4 << 20, 256
	w, topic := tr.empty()
	if limit := w.caps.MessageLimit; limit <= margin || limit > most {
		tr.skip("Capabilities.MessageLimit is %d: this needs one between %d and %d", limit, margin, most)
	}
	body := noise(w.caps.MessageLimit - margin)
	tr.publish(topic, text(body)...)
	got := w.expect(tr.patience, body)
	want := tr.story(w, got[0].Delivery)
	if err := caught(func() { w.retryWith(got[0], tr.Unit, want) }); errors.Is(err, brokers.ErrRefused) {
		want = got[0].Meta()
		tr.note("after ErrRefused")
		w.release(got[0])
	} else {
		tr.must(err)
	}
	got = w.expect(tr.Unit+tr.patience, body)
	tr.must(tr.sameMeta(got[0], want))
}

func retryRepeated(tr *trial) {
	const retries = 4
	w, got := tr.deliver("throttled")
	meta := failed(got[0].Delivery, 0)
	for n := range retries {
		w.retryWith(got[0], 0, meta)
		tr.note("after %d retries with the same Meta", n+1)
		got = w.expectSoon("throttled")
	}
	w.ack(got...)
}

// retryDuring has two retries fail while the hook of this name is at work. One is
// tried again, as the contract allows after any error that is not final. The
// other is left to Close. Both messages must come back; duplicates are the price.
func (tr *trial) retryDuring(name string, fail func(brokers.Broker) (heal func())) {
	if fail == nil {
		tr.skip("Harness.%s is nil", name)
	}
	w, got := tr.deliver("tried again", "given up")
	heal := fail(tr.broker)
	errs, hung := call(tr, "source.Settle", tr.Unit, func(ctx context.Context) []error {
		return w.src.Settle(ctx, []brokers.Settlement{got[0].again(tr), got[1].again(tr)})
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
		if err := w.settle(got[0].again(tr))[0]; !final(err) {
			tr.must(err)
		}
	}
	w = w.reopen()
	tr.note("the Retry failed (%v), and then a message was gone", errors.Join(errs...))
	w.expect(w.caps.Lease+tr.patience, "tried again", "given up")
}

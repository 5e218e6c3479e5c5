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
			rule:  "Retry must redeliver when its delay has passed, up to Granularity and Harness.Slack later.",
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
			name:  "retry-unsent",
			rule:  "A Retry that did not reach the broker must leave the original where it is: nothing is acked before its copy is durable.",
			needs: append(needs, "close-releases"),
			check: retryUnsent,
		},
		{
			name:  "retry-unconfirmed",
			rule:  "A Retry that the broker did not confirm must be reported as not done, also if it is, and the message must come back.",
			needs: append(needs, "close-releases"),
			check: retryUnconfirmed,
		},
	}
}

func retryReturns(tr *trial) error {
	w, got, err := tr.deliver("retried")
	if err != nil {
		return err
	}
	if err := w.retry(got[0], tr.Unit); err != nil {
		return err
	}
	if got, err = w.expect(tr.Unit+tr.patience, "retried"); err != nil {
		return fmt.Errorf("after Retry in %v: %w", tr.Unit, err)
	}
	if err := w.ack(got...); err != nil {
		return err
	}
	return w.quiet(2 * tr.Unit)
}

// hop is one Retry and the delivery that followed.
type hop struct {
	*arrival
	delay         time.Duration
	before, after time.Time // the call of Settle
}

// hops retries three messages with different delays.
func (tr *trial) hops() (*worker, []hop, error) {
	bodies := []string{"a short delay", "a long delay", "a crooked delay"}
	delays := []time.Duration{tr.Unit, 4 * tr.Unit, 2*tr.Unit + tr.Unit/3}
	w, got, err := tr.deliver(bodies...)
	if err != nil {
		return nil, nil, err
	}
	out := make([]hop, len(got))
	for i, a := range got {
		out[i] = hop{delay: delays[i], before: time.Now()}
		if err := w.retry(a, delays[i]); err != nil {
			return nil, nil, err
		}
		out[i].after = time.Now()
	}
	if got, err = w.consume(4*tr.Unit+tr.patience, bodies...); err != nil {
		return nil, nil, err
	}
	for i, a := range got {
		out[i].arrival = a
	}
	return w, out, nil
}

func retryNotEarly(tr *trial) error {
	_, hops, err := tr.hops()
	if err != nil {
		return err
	}
	for _, h := range hops {
		if waited := h.at.Sub(h.before); waited < h.delay-precision {
			return duplicate{fmt.Errorf("%s was retried in %v and came after %v (Meta.DueAt %v)", h, h.delay, waited, h.Meta.DueAt)}
		} else if waited := h.raw.Sub(h.before); h.delay == 4*tr.Unit && waited < h.delay/2 {
			return duplicate{fmt.Errorf("%s was retried in %v and came after %v, which is not close; its Meta.DueAt cannot excuse that",
				h, h.delay, waited)}
		}
	}
	return nil
}

func retryNotLate(tr *trial) error {
	w, hops, err := tr.hops()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range hops {
		if waited := h.at.Sub(h.after); waited > h.delay+w.caps.Granularity+tr.Slack {
			errs = append(errs, fmt.Errorf("%s was retried in %v and came after %v (granularity %v, slack %v)",
				h, h.delay, waited, w.caps.Granularity, tr.Slack))
		}
	}
	return errors.Join(errs...)
}

func retryAtOnce(tr *trial) error {
	w, got, err := tr.deliver("no delay", "a negative delay")
	if err != nil {
		return err
	}
	for i, delay := range []time.Duration{0, -tr.Unit} {
		if err := w.retry(got[i], delay); err != nil {
			return err
		}
	}
	got, err = w.expect(w.soon(), "no delay", "a negative delay")
	if err != nil {
		return fmt.Errorf("after Retry without delay: %w", err)
	}
	return w.ack(got...)
}

// retryLongest asks for a day in virtual time. In real time it asks for three
// hours and only sees that they do not begin with a delivery.
func retryLongest(tr *trial) error {
	topic := tr.Topic("orders")
	sub := tr.subscription(topic)
	sub.MaxDelay = 3 * time.Hour
	if tr.Virtual {
		sub.MaxDelay = 24 * time.Hour
	}
	sub.MaxAge = 2 * sub.MaxDelay
	w, err := tr.subscribe(sub)
	if err != nil {
		return err
	}
	if err := tr.publish(topic, text("far away")...); err != nil {
		return err
	}
	got, err := w.expect(tr.patience, "far away")
	if err != nil {
		return err
	}
	due := deadline(sub.MaxDelay)
	if err := w.retry(got[0], sub.MaxDelay); err != nil {
		return err
	}
	if !tr.Virtual {
		return w.quiet(4 * tr.Unit)
	}
	if err := w.quiet(time.Until(due) - precision); err != nil {
		return fmt.Errorf("retried in %v: %w", sub.MaxDelay, err)
	}
	_, err = w.expect(precision+w.caps.Granularity+tr.Slack, "far away")
	return err
}

func retryDurable(tr *trial) error {
	w, got, err := tr.deliver("retried")
	if err != nil {
		return err
	}
	const units = 3
	want := failed(got[0].Delivery, units*tr.Unit)
	before := time.Now()
	if err := w.retryWith(got[0], units*tr.Unit, want); err != nil {
		return err
	}
	if w, err = w.reopen(); err != nil {
		return err
	}
	if got, err = w.expect(units*tr.Unit+tr.patience, "retried"); err != nil {
		return fmt.Errorf("after Retry and Close: %w", err)
	}
	if waited := got[0].at.Sub(before); waited < units*tr.Unit-precision {
		return duplicate{fmt.Errorf("%s was retried in %v, then its source was closed, and it came after %v", got[0], units*tr.Unit, waited)}
	}
	if err := tr.sameMeta(got[0], want); err != nil {
		return err
	}
	return w.ack(got...)
}

// retryRefused retries a message that leaves no room for a long Meta.
func retryRefused(tr *trial) error {
	const most, margin = 4 << 20, 256
	topic := tr.Topic("orders")
	w, err := tr.open(topic)
	if err != nil {
		return err
	}
	if limit := w.caps.MessageLimit; limit <= margin || limit > most {
		return skip(fmt.Sprintf("Capabilities.MessageLimit is %d: this needs one between %d and %d", limit, margin, most))
	}
	body := noise(w.caps.MessageLimit - margin)
	if err := tr.publish(topic, text(body)...); err != nil {
		return err
	}
	got, err := w.expect(tr.patience, body)
	if err != nil {
		return err
	}
	want := tr.story(w, got[0].Delivery)
	err = w.retryWith(got[0], tr.Unit, want)
	switch {
	case errors.Is(err, brokers.ErrRefused):
		want = got[0].Meta
		if err := w.release(got[0]); err != nil {
			return fmt.Errorf("after ErrRefused: %w", err)
		}
	case err != nil:
		return err
	}
	if got, err = w.expect(tr.Unit+tr.patience, body); err != nil {
		return err
	}
	return tr.sameMeta(got[0], want)
}

func retryRepeated(tr *trial) error {
	const retries = 4
	w, got, err := tr.deliver("throttled")
	if err != nil {
		return err
	}
	meta := failed(got[0].Delivery, 0)
	for n := range retries {
		if err := w.retryWith(got[0], 0, meta); err != nil {
			return err
		}
		if got, err = w.expect(w.soon(), "throttled"); err != nil {
			return fmt.Errorf("after %d retries with the same Meta: %w", n+1, err)
		}
	}
	return w.ack(got...)
}

func retryUnsent(tr *trial) error {
	return tr.retryDuring("LoseRequests", tr.LoseRequests)
}

func retryUnconfirmed(tr *trial) error {
	return tr.retryDuring("LoseConfirms", tr.LoseConfirms)
}

// retryDuring has two retries fail while the hook of this name is at work. One is tried again, as the contract
// allows after any error that is not final. The other is left to Close. Both
// messages must come back; duplicates are the price.
func (tr *trial) retryDuring(name string, fail func(brokers.Broker) (heal func())) error {
	if fail == nil {
		return skip("Harness." + name + " is nil")
	}
	w, got, err := tr.deliver("tried again", "given up")
	if err != nil {
		return err
	}
	heal := fail(tr.broker)
	errs, hung := call(tr, "source.Settle", tr.Unit, func(ctx context.Context) []error {
		return w.src.Settle(ctx, []brokers.Settlement{got[0].again(tr), got[1].again(tr)})
	})
	heal()
	if hung != nil {
		return hung
	}
	errs = padded(errs, nil, 2)
	for i, a := range got {
		if errs[i] == nil {
			return fmt.Errorf("source.Settle(retry) of %s returned nil although the broker confirmed nothing", a)
		}
	}
	if !final(errs[0]) {
		if err := w.end(got[0].again(tr)); err != nil && !final(err) {
			return err
		}
	}
	if w, err = w.reopen(); err != nil {
		return err
	}
	if _, err = w.expect(w.caps.Lease+tr.patience, "tried again", "given up"); err != nil {
		return fmt.Errorf("the Retry failed (%w), and then a message was gone: %w", errors.Join(errs...), err)
	}
	return nil
}

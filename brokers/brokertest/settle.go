package brokertest

import (
	"context"
	"errors"
	"fmt"

	"github.com/redrive-go/redrive/brokers"
)

// endClauses are the three ways in which a delivery ends, on which nearly all
// other clauses rest.
func endClauses() []clause {
	return []clause{
		{
			name:  "ack-removes",
			rule:  "Ack must remove the message: it is not delivered again, neither to this source nor to the next.",
			long:  true,
			needs: []string{"publish-delivers"},
			check: ackRemoves,
		},
		{
			name:  "release-returns",
			rule:  "Release must make the message available again as soon as the broker can, not when its lease ends, and ignore Delay.",
			needs: []string{"ack-removes"},
			check: releaseReturns,
		},
		{
			name:  "retry-returns",
			rule:  "Retry must deliver the message again, once.",
			needs: []string{"ack-removes"},
			check: retryReturns,
		},
		{
			name:  "settle-answers",
			rule:  "Settle and Extend must return nil or one error per entry.",
			needs: []string{"publish-delivers"},
			check: settleAnswers,
		},
	}
}

func settleClauses() []clause {
	return []clause{
		{
			name:  "release-keeps-meta",
			rule:  "A released message must come back with the Meta that it was received with.",
			needs: []string{"release-returns", "retry-keeps-meta"},
			check: releaseKeepsMeta,
		},
		{
			name:  "release-repeated",
			rule:  "A message must survive any number of releases, by Release and by Close, and none must count in Abandoned, whatever the broker counts.",
			needs: []string{"release-returns", "close-releases"},
			check: releaseRepeated,
		},
		{
			name:  "settle-once",
			rule:  "A second settlement of one delivery must be ErrSettled (or ErrLeaseLost), and the first must stand.",
			needs: []string{"settle-answers", "release-returns", "retry-returns"},
			check: settleOnce,
		},
		{
			name:  "settle-partial",
			rule:  "An entry that cannot be settled must not keep the others of its batch from being settled.",
			needs: []string{"settle-once"},
			check: settlePartial,
		},
		{
			name:  "reject-kept",
			rule:  "A rejected message must be kept, as it was, where the broker keeps what it gives up, and not be delivered again; or Reject must be ErrRefused, and then the delivery is still held.",
			needs: []string{"ack-removes", "release-returns", "retry-returns"},
			check: rejectKept,
		},
		{
			name:  "reject-discarded",
			rule:  "Without a dead-letter topic, Reject must be ErrRefused, or keep the message all the same.",
			needs: []string{"reject-kept"},
			check: rejectDiscarded,
		},
		{
			name:  "settle-forgets-batch",
			rule:  "Settle must not use the batch after it has returned.",
			needs: []string{"retry-keeps-meta"},
			check: settleForgetsBatch,
		},
		{
			name:  "settle-interrupted",
			rule:  "After an error that is not final, such as that of an ended context, the delivery must still be held and can be settled.",
			needs: []string{"retry-keeps-meta"},
			check: settleInterrupted,
		},
	}
}

func acks(as ...*arrival) []brokers.Settlement {
	batch := make([]brokers.Settlement, len(as))
	for i, a := range as {
		batch[i] = brokers.Settlement{Delivery: a.Delivery, Action: brokers.Ack}
	}
	return batch
}

func (a *arrival) again(tr *trial) brokers.Settlement {
	return brokers.Settlement{Delivery: a.Delivery, Action: brokers.Retry, Delay: tr.Unit, Meta: failed(a.Delivery, tr.Unit)}
}

func (a *arrival) back() brokers.Settlement {
	return brokers.Settlement{Delivery: a.Delivery, Action: brokers.Release}
}

func ackRemoves(tr *trial) {
	w, got := tr.deliver("one", "two")
	w.ack(got...)
	wait := 2 * tr.Unit
	if tr.affords(w.caps.Lease) {
		wait += w.caps.Lease
	}
	w.quiet(wait)
	for range 1 + tolerated { // a source that is closed gives back what is not really acked
		w = w.reopen()
		w.quiet(2 * tr.Unit)
	}
}

func settleAnswers(tr *trial) {
	w, got := tr.deliver("one", "two", "three", "four")
	settle := func(batch ...brokers.Settlement) ([]error, error) {
		return call(tr, "source.Settle", tr.patience, func(ctx context.Context) []error { return w.src.Settle(ctx, batch) })
	}
	demand := func(what string, n int, errs []error, hung error) {
		tr.must(hung)
		if len(errs) != 0 && len(errs) != n {
			tr.failf("%s returned %d errors, want none or %d: %v", what, len(errs), n, errs)
		}
	}
	none, hung := settle()
	demand("Settle of an empty batch", 0, none, hung)
	if w.caps.Lease > 0 {
		ds := []*brokers.Delivery{got[0].Delivery, got[1].Delivery, got[2].Delivery}
		errs, hung := call(tr, "source.Extend", tr.patience, func(ctx context.Context) []error {
			return w.src.Extend(ctx, w.caps.Lease, ds)
		})
		demand("Extend of three deliveries", 3, errs, hung)
	}
	errs, hung := settle(acks(got[0], got[1])...)
	demand("Settle of two deliveries", 2, errs, hung)
	errs, hung = settle(acks(got[2], got[0], got[3])...)
	demand("Settle of three deliveries, the second settled before,", 3, errs, hung)
}

func releaseReturns(tr *trial) {
	w, got := tr.deliver("released")
	s := got[0].back()
	s.Delay = 20 * tr.Unit
	w.do(s)
	tr.note("after Release")
	w.ack(w.expectSoon("released")...)
}

func releaseKeepsMeta(tr *trial) {
	w, got := tr.deliver("fresh", "retried")
	want := failed(got[1].Delivery, tr.Unit)
	want.IdempotencyKey = "key of the message"
	w.retryWith(got[1], tr.Unit, want)
	again := w.expect(tr.patience, "retried")
	for _, a := range []*arrival{got[0], again[0]} {
		s := a.back()
		s.Meta = brokers.Meta{Attempt: 9, Class: "not of a retry"}
		w.do(s)
	}
	fresh := got[0].Meta()
	got = w.expect(tr.patience, "fresh", "retried")
	tr.must(errors.Join(tr.sameMeta(got[0], fresh), tr.sameMeta(got[1], want)))
}

// releaseRepeated gives a message back more often than an adapter may forgive.
func releaseRepeated(tr *trial) {
	const releases = 20
	w, got := tr.deliver("released")
	for n := range releases {
		if n%6 < 5 {
			w.release(got[0])
		} else {
			w = w.reopen()
		}
		tr.note("after %d releases", n+1)
		got = w.expectSoon("released")
		if got[0].Abandoned != 0 {
			tr.failf("%s: Abandoned is %d after %d releases, want 0", got[0], got[0].Abandoned, n+1)
		}
	}
	w.ack(got...)
}

// settleOnce settles five deliveries twice each, and one twice in one batch.
func settleOnce(tr *trial) {
	w, got := tr.deliver("ack, ack", "ack, retry", "ack, release", "retry, ack", "release, ack", "ack and retry")
	ack := func(a *arrival) brokers.Settlement { return acks(a)[0] }
	firsts := []brokers.Settlement{ack(got[0]), ack(got[1]), ack(got[2]), got[3].again(tr), got[4].back()}
	seconds := []brokers.Settlement{ack(got[0]), got[1].again(tr), got[2].back(), ack(got[3]), ack(got[4])}
	w.do(firsts...)
	var errs []error
	for _, s := range seconds {
		errs = append(errs, second(s, w.settle(s)[0]))
	}
	back := []string{"retry, ack", "release, ack"}
	both := w.settle(ack(got[5]), got[5].again(tr))
	switch {
	case both[0] == nil:
		tr.countAck(got[5])
		errs = append(errs, second(got[5].again(tr), both[1]))
	case both[1] == nil: // the first had a temporary error
		back = append(back, got[5].body())
		errs = append(errs, second(ack(got[5]), both[0]))
	default:
		errs = append(errs, fmt.Errorf("source.Settle of %s, twice in one batch: neither was done: %w", got[5], errors.Join(both...)))
	}
	tr.must(errors.Join(errs...))
	tr.note("the first settlement did not stand")
	w.ack(w.expect(tr.patience, back...)...)
	w.quiet(2 * tr.Unit)
}

// second demands that a delivery which is settled cannot be settled again.
func second(s brokers.Settlement, err error) error {
	if final(err) {
		return nil
	}
	return fmt.Errorf("%s was settled before, yet Settle(%s) returned %v", describe(s.Delivery), s.Action, err)
}

func settlePartial(tr *trial) {
	w, got := tr.deliver("settled", "acked", "retried")
	w.ack(got[0])
	tr.countAck(got[1])
	errs := w.settle(acks(got[1])[0], acks(got[0])[0], got[2].again(tr))
	if !final(errs[1]) || errs[0] != nil || errs[2] != nil {
		tr.failf("source.Settle of %s, of %s, which was settled before, and of %s: errors %v, want one for the second only",
			got[1], got[0], got[2], errs)
	}
	w.ack(w.expect(tr.patience, "retried")...)
	w = w.reopen()
	w.quiet(2 * tr.Unit)
}

func settleForgetsBatch(tr *trial) {
	w, got := tr.deliver("retried", "other")
	batch := []brokers.Settlement{got[0].again(tr)}
	want := batch[0].Meta
	tr.note("source.Settle(retry) of %s", got[0])
	tr.must(w.settle(batch...)[0])
	batch[0] = brokers.Settlement{Delivery: got[1].Delivery, Action: brokers.Release, Meta: brokers.Meta{Attempt: 9}}
	again := w.expect(tr.patience, "retried")
	tr.must(tr.sameMeta(again[0], want))
}

// settleInterrupted calls Settle with an ended context, and takes no for an
// answer: then the same must succeed with a live one. Where it took effect all
// the same, the second call may find it settled.
func settleInterrupted(tr *trial) {
	w, got := tr.deliver("acked", "retried")
	again := got[1].again(tr)
	for _, s := range []brokers.Settlement{acks(got[0])[0], again} {
		ended, cancel := context.WithCancel(tr.ctx)
		cancel()
		errs, hung := call(tr, "source.Settle", tr.patience, func(context.Context) []error {
			return w.src.Settle(ended, []brokers.Settlement{s})
		})
		first := padded(errs, hung, 1)[0]
		if final(first) || hung != nil {
			tr.failf("source.Settle(%s) of %s with an ended context, nothing else being wrong: %w", s.Action, describe(s.Delivery), first)
		}
		if first == nil {
			continue
		}
		if err := w.settle(s)[0]; err != nil && !errors.Is(err, brokers.ErrSettled) {
			tr.failf("after the error %q, which is not final: %w", first, err)
		}
	}
	tr.countAck(got[0])
	got = w.expect(tr.patience, "retried")
	tr.must(tr.sameMeta(got[0], again.Meta))
	w.ack(got...)
	w = w.reopen()
	w.quiet(2 * tr.Unit)
}

func (a *arrival) rejected() brokers.Settlement {
	return brokers.Settlement{Delivery: a.Delivery, Action: brokers.Reject}
}

// rejectKept rejects one of two messages, and looks for it.
func rejectKept(tr *trial) {
	topic, dead := tr.Topic("orders"), tr.Topic("orders-dead")
	sub := tr.subscription(topic)
	sub.DeadLetters = map[string]string{topic: dead}
	w := tr.subscribe(sub)
	sent := brokers.Message{Key: "customer", Body: []byte("rejected"), Headers: brokers.Headers{{Name: "tenant", Value: "a"}}}
	tr.publish(topic, sent, text("other")[0])
	got := w.expect(tr.patience, "rejected", "other")
	tr.note("after Reject of %s", got[0])
	if w.refuses(got[0]) {
		w.ack(got[1])
		w.reopen().quiet(2 * tr.Unit)
		return
	}
	w.ack(got[1])
	w.quiet(2 * tr.Unit)
	w = w.reopen()
	w.quiet(2 * tr.Unit)
	if tr.Rejected != nil {
		dead = tr.Rejected(topic, dead)
	}
	if dead == "" {
		return
	}
	w.close()
	tr.must(tr.asReceived(tr.open(dead).consume(tr.patience, "rejected")[0], got[0].Message))
}

// asReceived demands what every broker keeps of a message that it moves by
// itself, which may add headers of its own.
func (tr *trial) asReceived(a *arrival, before brokers.Message) error {
	var errs []error
	if a.Message.Key != before.Key {
		errs = append(errs, fmt.Errorf("%s: the key was %q and is %q", a, before.Key, a.Message.Key))
	}
	for _, h := range before.Headers {
		if a.Message.Headers.Get(h.Name) != h.Value {
			errs = append(errs, fmt.Errorf("%s: the header %s was %q and is %q", a, h.Name, h.Value, a.Message.Headers.Get(h.Name)))
		}
	}
	return errors.Join(errs...)
}

// rejectDiscarded rejects where nothing was asked for.
func rejectDiscarded(tr *trial) {
	w, got := tr.deliver("rejected")
	tr.note("after Reject of %s, without a dead-letter topic", got[0])
	if w.refuses(got[0]) {
		return
	}
	if tr.Rejected == nil || tr.Rejected(w.sub.Topics[0], "") != "" {
		tr.failf("it was done, and Harness.Rejected does not say where the message is kept")
	}
}

// refuses rejects a. If the broker refuses that, a must still be held: it comes
// back when it is retried, and is acked then.
func (w *worker) refuses(a *arrival) bool {
	err := w.settle(a.rejected())[0]
	if err == nil {
		w.tr.countAck(a)
		return false
	}
	if !errors.Is(err, brokers.ErrRefused) {
		w.tr.failf("source.Settle(reject) of %s: %w", a, err)
	}
	w.tr.note("%s, which was refused", w.tr.when)
	w.retry(a, w.tr.Unit)
	w.ack(w.expect(w.tr.patience, a.body())...)
	return true
}

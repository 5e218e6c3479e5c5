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

func ackRemoves(tr *trial) error {
	w, got, err := tr.deliver("one", "two")
	if err != nil {
		return err
	}
	if err := w.ack(got...); err != nil {
		return err
	}
	wait := 2 * tr.Unit
	if tr.affordable(w.caps.Lease, "a lease") == nil {
		wait += w.caps.Lease
	}
	if err := w.quiet(wait); err != nil {
		return err
	}
	for range 1 + tolerated { // a source that is closed gives back what is not really acked
		if w, err = w.reopen(); err != nil {
			return err
		}
		if err := w.quiet(2 * tr.Unit); err != nil {
			return err
		}
	}
	return nil
}

func settleAnswers(tr *trial) error {
	w, got, err := tr.deliver("one", "two", "three", "four")
	if err != nil {
		return err
	}
	settle := func(batch ...brokers.Settlement) ([]error, error) {
		return call(tr, "source.Settle", tr.patience, func(ctx context.Context) []error { return w.src.Settle(ctx, batch) })
	}
	demand := func(what string, n int, errs []error, hung error) error {
		if hung == nil && len(errs) != 0 && len(errs) != n {
			return fmt.Errorf("%s returned %d errors, want none or %d: %v", what, len(errs), n, errs)
		}
		return hung
	}
	none, hung := settle()
	if err := demand("Settle of an empty batch", 0, none, hung); err != nil {
		return err
	}
	if w.caps.Lease > 0 {
		ds := []*brokers.Delivery{got[0].Delivery, got[1].Delivery, got[2].Delivery}
		errs, hung := call(tr, "source.Extend", tr.patience, func(ctx context.Context) []error {
			return w.src.Extend(ctx, w.caps.Lease, ds)
		})
		if err := demand("Extend of three deliveries", 3, errs, hung); err != nil {
			return err
		}
	}
	errs, hung := settle(acks(got[0], got[1])...)
	if err := demand("Settle of two deliveries", 2, errs, hung); err != nil {
		return err
	}
	errs, hung = settle(acks(got[2], got[0], got[3])...)
	return demand("Settle of three deliveries, the second settled before,", 3, errs, hung)
}

func releaseReturns(tr *trial) error {
	w, got, err := tr.deliver("released")
	if err != nil {
		return err
	}
	s := got[0].back()
	s.Delay = 20 * tr.Unit
	if err := w.end(s); err != nil {
		return err
	}
	if got, err = w.expect(w.soon(), "released"); err != nil {
		return fmt.Errorf("after Release: %w", err)
	}
	return w.ack(got...)
}

func releaseKeepsMeta(tr *trial) error {
	w, got, err := tr.deliver("fresh", "retried")
	if err != nil {
		return err
	}
	want := failed(got[1].Delivery, tr.Unit)
	want.IdempotencyKey = "key of the message"
	if err := w.retryWith(got[1], tr.Unit, want); err != nil {
		return err
	}
	again, err := w.expect(tr.patience, "retried")
	if err != nil {
		return err
	}
	for _, a := range []*arrival{got[0], again[0]} {
		s := a.back()
		s.Meta = brokers.Meta{Attempt: 9, Class: "not of a retry"}
		if err := w.end(s); err != nil {
			return err
		}
	}
	fresh := got[0].Meta
	if got, err = w.expect(tr.patience, "fresh", "retried"); err != nil {
		return err
	}
	return errors.Join(tr.sameMeta(got[0], fresh), tr.sameMeta(got[1], want))
}

// releaseRepeated stays below the ten that an adapter may have to forgive.
func releaseRepeated(tr *trial) error {
	const releases = 8
	w, got, err := tr.deliver("released")
	if err != nil {
		return err
	}
	for n := range releases {
		if n%3 < 2 {
			err = w.release(got[0])
		} else {
			w, err = w.reopen()
		}
		if err != nil {
			return err
		}
		if got, err = w.expect(w.soon(), "released"); err != nil {
			return fmt.Errorf("after %d releases: %w", n+1, err)
		}
		if got[0].Abandoned != 0 {
			return fmt.Errorf("%s: Abandoned is %d after %d releases, want 0", got[0], got[0].Abandoned, n+1)
		}
	}
	return w.ack(got...)
}

// settleOnce settles five deliveries twice each, and one twice in one batch.
func settleOnce(tr *trial) error {
	w, got, err := tr.deliver("ack, ack", "ack, retry", "ack, release", "retry, ack", "release, ack", "ack and retry")
	if err != nil {
		return err
	}
	ack := func(a *arrival) brokers.Settlement { return acks(a)[0] }
	firsts := []brokers.Settlement{ack(got[0]), ack(got[1]), ack(got[2]), got[3].again(tr), got[4].back()}
	seconds := []brokers.Settlement{ack(got[0]), got[1].again(tr), got[2].back(), ack(got[3]), ack(got[4])}
	for _, s := range firsts {
		if err := w.end(s); err != nil {
			return err
		}
	}
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
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if got, err = w.expect(tr.patience, back...); err != nil {
		return fmt.Errorf("the first settlement did not stand: %w", err)
	}
	if err := w.ack(got...); err != nil {
		return err
	}
	return w.quiet(2 * tr.Unit)
}

// second demands that a delivery which is settled cannot be settled again.
func second(s brokers.Settlement, err error) error {
	if final(err) {
		return nil
	}
	return fmt.Errorf("%s was settled before, yet Settle(%s) returned %v", describe(s.Delivery), s.Action, err)
}

func settlePartial(tr *trial) error {
	w, got, err := tr.deliver("settled", "acked", "retried")
	if err != nil {
		return err
	}
	if err := w.ack(got[0]); err != nil {
		return err
	}
	tr.countAck(got[1])
	errs := w.settle(acks(got[1])[0], acks(got[0])[0], got[2].again(tr))
	if !final(errs[1]) || errs[0] != nil || errs[2] != nil {
		return fmt.Errorf("source.Settle of %s, of %s, which was settled before, and of %s: errors %v, want one for the second only",
			got[1], got[0], got[2], errs)
	}
	again, err := w.expect(tr.patience, "retried")
	if err != nil {
		return err
	}
	if err := w.ack(again...); err != nil {
		return err
	}
	if w, err = w.reopen(); err != nil {
		return err
	}
	return w.quiet(2 * tr.Unit)
}

func settleForgetsBatch(tr *trial) error {
	w, got, err := tr.deliver("retried", "other")
	if err != nil {
		return err
	}
	batch := []brokers.Settlement{got[0].again(tr)}
	want := batch[0].Meta
	if err := w.settle(batch...)[0]; err != nil {
		return fmt.Errorf("source.Settle(retry) of %s: %w", got[0], err)
	}
	batch[0] = brokers.Settlement{Delivery: got[1].Delivery, Action: brokers.Release, Meta: brokers.Meta{Attempt: 9}}
	again, err := w.expect(tr.patience, "retried")
	if err != nil {
		return err
	}
	return tr.sameMeta(again[0], want)
}

// settleInterrupted calls Settle with an ended context, and takes no for an
// answer: then the same must succeed with a live one. Where it took effect all
// the same, the second call may find it settled.
func settleInterrupted(tr *trial) error {
	w, got, err := tr.deliver("acked", "retried")
	if err != nil {
		return err
	}
	again := got[1].again(tr)
	for _, s := range []brokers.Settlement{acks(got[0])[0], again} {
		ended, cancel := context.WithCancel(tr.ctx)
		cancel()
		errs, hung := call(tr, "source.Settle", tr.patience, func(context.Context) []error {
			return w.src.Settle(ended, []brokers.Settlement{s})
		})
		first := padded(errs, hung, 1)[0]
		if final(first) || hung != nil {
			return fmt.Errorf("source.Settle(%s) of %s with an ended context, nothing else being wrong: %w", s.Action, describe(s.Delivery), first)
		}
		if first == nil {
			continue
		}
		if err := w.end(s); err != nil && !errors.Is(err, brokers.ErrSettled) {
			return fmt.Errorf("after the error %q, which is not final: %w", first, err)
		}
	}
	tr.countAck(got[0])
	if got, err = w.expect(tr.patience, "retried"); err != nil {
		return err
	}
	if err := tr.sameMeta(got[0], again.Meta); err != nil {
		return err
	}
	if err := w.ack(got...); err != nil {
		return err
	}
	if w, err = w.reopen(); err != nil {
		return err
	}
	return w.quiet(2 * tr.Unit)
}

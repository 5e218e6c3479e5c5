package brokertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// endClauses are the three ways in which a delivery ends, on which nearly all
// other clauses rest.
var endClauses = []clause{
	{name: "ack-removes", needs: "publish-delivers", long: true,
		rule:  "Ack must remove the message: it is not delivered again, neither to this source nor to the next.",
		check: steps(deliver("one", "two"), ack(), on(quietLease), gone)},
	{name: "release-returns", needs: "ack-removes",
		rule:  "Release must make the message available again as soon as the broker can, not when its lease ends, and ignore Delay.",
		check: steps(deliver("released"), end(brokers.Settlement{Action: brokers.Release, Delay: time.Hour}), soon("released"), ack())},
	{name: "retry-returns", needs: "ack-removes",
		rule:  "Retry must deliver the message again, once.",
		check: steps(deliver("retried"), retry(1), expect("retried"), ack(), quiet(2))},
	{name: "settle-answers", needs: "publish-delivers", check: settleAnswers,
		rule: "Settle and Extend must return nil or one error per entry."},
}

var settleClauses = []clause{
	{name: "release-keeps-meta", needs: "release-returns retry-keeps-meta",
		rule: "A released message must come back with the Meta that it was received with.",
		check: steps(deliver("fresh", "retried"), retryAs(withKey, "retried"), expect("retried"),
			end(brokers.Settlement{Action: brokers.Release, Meta: brokers.Meta{Attempt: 9, Class: "not of a retry"}}, "fresh", "retried"),
			expect("fresh", "retried"), each(sameMeta))},
	{name: "release-repeated", needs: "release-returns close-releases",
		rule: "A message must survive any number of releases, by Release and by Close, and none must count in Abandoned, whatever the broker counts.",
		check: steps(deliver("released"), // more often than an adapter may forgive
			times(4, times(5, release(), soon("released"), each(notAbandoned)), reopen, soon("released"), each(notAbandoned)), ack())},
	{name: "settle-once", needs: "settle-answers release-returns retry-returns", check: settleOnce,
		rule: "A second settlement of one delivery must be ErrSettled (or ErrLeaseLost), and the first must stand."},
	{name: "settle-partial", needs: "settle-once", check: settlePartial,
		rule: "An entry that cannot be settled must not keep the others of its batch from being settled."},
	{name: "reject-kept", needs: "ack-removes release-returns retry-returns", check: rejectKept,
		rule: "A rejected message must be kept, as it was, where the broker keeps what it gives up, and not be delivered again; or Reject must be ErrRefused, and then the delivery is still held."},
	{name: "reject-discarded", needs: "reject-kept", check: rejectDiscarded,
		rule: "Without a dead-letter topic, Reject must be ErrRefused, or keep the message all the same."},
	{name: "settle-forgets-batch", needs: "retry-keeps-meta", check: settleForgetsBatch,
		rule: "Settle must not use the batch after it has returned."},
	{name: "settle-interrupted", needs: "retry-keeps-meta", check: settleInterrupted,
		rule: "After an error that is not final, such as that of an ended context, the delivery must still be held and can be settled."},
}

// quietLease expects nothing until all leases have ended.
func quietLease(w *worker) {
	wait := 2 * w.tr.Unit
	if w.tr.affords(w.caps.Lease) {
		wait += w.caps.Lease
	}
	w.quiet(wait)
}

func withKey(_ *worker, m *brokers.Meta) { m.IdempotencyKey = "key of the message" }

func notAbandoned(_ *worker, a *arrival) error { return equal(a, "Abandoned", a.Abandoned, 0) }

func settleAnswers(tr *trial) {
	w, got := tr.delivered("one", "two", "three", "four")
	answers := func(what string, n int, f func(context.Context) []error) {
		errs, hung := call(tr, what, tr.patience, f)
		tr.must(hung)
		if len(errs) != 0 && len(errs) != n {
			tr.failf("%s returned %d errors, want none or %d: %v", what, len(errs), n, errs)
		}
	}
	settle := func(what string, as ...*arrival) {
		answers(what, len(as), func(ctx context.Context) []error { return w.src.Settle(ctx, w.all(brokers.Ack, as...)) })
	}
	settle("Settle of an empty batch")
	if w.caps.Lease > 0 {
		ds := []*brokers.Delivery{got[0].Delivery, got[1].Delivery, got[2].Delivery}
		answers("Extend of three deliveries", 3, func(ctx context.Context) []error { return w.src.Extend(ctx, w.caps.Lease, ds) })
	}
	settle("Settle of two deliveries", got[0], got[1])
	settle("Settle of three deliveries, the second settled before,", got[2], got[0], got[3])
}

// settleOnce settles deliveries twice each, and one twice in one batch.
func settleOnce(tr *trial) {
	pairs := map[string][2]brokers.Action{ // the first action and the second
		"ack, ack":     {brokers.Ack, brokers.Ack},
		"ack, retry":   {brokers.Ack, brokers.Retry},
		"ack, release": {brokers.Ack, brokers.Release},
		"retry, ack":   {brokers.Retry, brokers.Ack},
		"release, ack": {brokers.Release, brokers.Ack},
	}
	w, got := tr.delivered(append(slices.Sorted(maps.Keys(pairs)), "ack and retry")...)
	for i := range 2 {
		for body, actions := range pairs {
			s := w.to(actions[i], w.held[body])
			if i == 0 {
				w.do(s)
			} else {
				w.refusesSecond(s, w.settle(s)[0])
			}
		}
	}
	last := got[len(pairs)]
	batch := []brokers.Settlement{w.to(brokers.Ack, last), w.to(brokers.Retry, last)}
	both := w.settle(batch...)
	done := slices.Index(both, nil) // the second if the first had a temporary error
	if done < 0 {
		tr.failf("source.Settle of %s, twice in one batch: neither was done: %w", last, errors.Join(both...))
	}
	tr.settled(batch[done], time.Now())
	w.refusesSecond(batch[1-done], both[1-done])
	w.consume(tr.rest()...)
	w.quiet(2 * tr.Unit)
}

// refusesSecond demands that a delivery which is settled cannot be settled again.
func (w *worker) refusesSecond(s brokers.Settlement, err error) {
	if !final(err) {
		w.tr.failf("%s, which was settled before, returned %v", settleCall(s), err)
	}
}

func settlePartial(tr *trial) {
	w, got := tr.delivered("settled", "acked", "retried")
	w.ack(got[0])
	batch := []brokers.Settlement{w.to(brokers.Ack, got[1]), w.to(brokers.Ack, got[0]), w.to(brokers.Retry, got[2])}
	tr.settled(batch[0], time.Now())
	if errs := w.settle(batch...); !final(errs[1]) || errs[0] != nil || errs[2] != nil {
		tr.failf("source.Settle of %s, of %s, which was settled before, and of %s: errors %v, want one for the second only",
			got[1], got[0], got[2], errs)
	}
	steps(consume("retried"), reopen, quiet(2))(tr)
}

func settleForgetsBatch(tr *trial) {
	w, got := tr.delivered("retried", "other")
	batch := []brokers.Settlement{w.to(brokers.Retry, got[0])}
	tr.settled(batch[0], time.Now())
	tr.mustSettle(batch[0], w.settle(batch...)[0])
	batch[0] = brokers.Settlement{Delivery: got[1].Delivery, Action: brokers.Release, Meta: brokers.Meta{Attempt: 9}}
	steps(expect("retried"), each(sameMeta))(tr)
}

// settleInterrupted calls Settle with an ended context, and takes no for an
// answer: then the same must succeed with a live one. Where it took effect all
// the same, the second call may find it settled.
func settleInterrupted(tr *trial) {
	w, got := tr.delivered("acked", "retried")
	for _, s := range []brokers.Settlement{w.to(brokers.Ack, got[0]), w.to(brokers.Retry, got[1])} {
		tr.settled(s, time.Now())
		ended, cancel := context.WithCancel(tr.ctx)
		cancel()
		what := settleCall(s) + " with an ended context"
		errs, hung := call(tr, what, tr.patience, func(context.Context) []error {
			return w.src.Settle(ended, []brokers.Settlement{s})
		})
		first := padded(errs, hung, 1)[0]
		if final(first) || hung != nil {
			tr.failf("%s, nothing else being wrong: %w", what, first)
		}
		if first == nil {
			continue
		}
		if err := w.settle(s)[0]; err != nil && !errors.Is(err, brokers.ErrSettled) {
			tr.failf("after the error %q, which is not final: %w", first, err)
		}
	}
	steps(expect("retried"), each(sameMeta), ack(), reopen, quiet(2))(tr)
}

// rejectKept rejects one of two messages, and looks for it.
func rejectKept(tr *trial) {
	openWith(deadLetters)(tr)
	w := tr.worker()
	sent := brokers.Message{Key: "customer", Body: []byte("rejected"), Headers: brokers.Headers{{Name: "tenant", Value: "a"}}}
	tr.publish(w.topic(), sent, text("other")[0])
	got := w.expect("rejected", "other")
	refused := w.refuses(got[0])
	w.ack(got[1])
	steps(quiet(2), reopen, quiet(2), shut)(tr)
	dead := tr.Topic("orders-dead")
	if tr.Rejected != nil {
		dead = tr.Rejected(w.topic(), dead)
	}
	if refused || dead == "" {
		return
	}
	// The broker moves it by itself, and may add headers of its own.
	a := tr.subscribe(tr.subscription(dead)).consume("rejected")[0]
	tr.must(errors.Join(equal(a, "Key", a.Message.Key, got[0].Message.Key), keeps(a, got[0].Message.Headers)))
}

// rejectDiscarded rejects where nothing was asked for.
func rejectDiscarded(tr *trial) {
	w, got := tr.delivered("rejected")
	if w.refuses(got[0]) {
		return
	}
	if tr.Rejected == nil || tr.Rejected(w.topic(), "") != "" {
		tr.failf("it was done, and Harness.Rejected does not say where the message is kept")
	}
}

// refuses rejects a. If the broker refuses that, a must still be held: it comes
// back when it is retried, and is acked then.
func (w *worker) refuses(a *arrival) bool {
	if !w.tr.refused(func() { w.do(w.to(brokers.Reject, a)) }) {
		return false
	}
	w.retry(a, w.tr.Unit)
	w.consume(a.body())
	return true
}

package brokertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

var leaseClauses = []clause{
	{name: "lease-holds", needs: "lease-until",
		rule:  "While a delivery is held, its message must not be delivered to anybody.",
		check: steps(deliver("held"), on(leaseHolds))},
	{name: "lease-ends", needs: "lease-holds",
		rule:  "When a lease has run out, the message must be delivered again, the same as before.",
		check: steps(leased("abandoned"), taken("abandoned"), each(sameMeta), ack())},
	{name: "abandoned-counted", needs: "lease-ends release-repeated", long: true, check: abandonedCounted,
		rule: "Abandoned must count the deliveries that ended without a settlement, less Harness.AbandonedMargin, and no others."},
	{name: "settle-expired", needs: "lease-ends ack-removes",
		rule:  "A settlement after the lease has run out must be ErrLeaseLost and remove nothing, even before somebody else has the message.",
		check: steps(leased(endings[:]...), on(expire), stale, expect(endings[:]...), each(sameMeta), ack())},
	{name: "settle-stale", needs: "lease-ends ack-removes", long: true,
		rule:  "A settlement by an earlier holder must be ErrLeaseLost and leave the delivery of the present one alone.",
		check: steps(leased(endings[:]...), taken(endings[:]...), stale, quiet(1), ack(), quiet(2))},
}

func owesLease(w *worker) { w.tr.owes(w.caps.Lease) }

// taken opens another worker, which receives what the first holds when its leases
// end.
func taken(bodies ...string) step { return steps(another, on(owesLease), expect(bodies...)) }

// expire waits until the leases of what came last have run out.
func expire(w *worker) {
	for _, a := range w.last {
		w.tr.pause(time.Until(a.LeaseUntil))
	}
	w.tr.pause(w.tr.Slack)
	w.tr.did("the leases have run out")
}

func leaseHolds(holder *worker) {
	other, wait := holder.another(), 3*holder.tr.Unit
	if until := holder.last[0].LeaseUntil; !until.IsZero() { // some of it has passed by now
		wait = min(time.Until(until)-holder.tr.Slack, holder.tr.patience)
	}
	other.quiet(wait)
}

// abandonedCounted lets one lease after another run out.
func abandonedCounted(tr *trial) {
	leased("abandoned")(tr)
	tr.affordable(time.Duration(tr.losses())*tr.worker().caps.Lease, "to let so many leases run out")
	tr.losesAgain(0, on(expire))
	if tr.AbandonedMargin == 0 && !tr.EstimatesMeta { // elsewhere a release may be a copy, which begins anew
		steps(release(), soon("abandoned"), abandoned(tr.losses()))(tr)
	}
	ack()(tr)
}

// losesAgain has the message that came last get lost until it must be counted, and
// demands that it is. It has been lost before so many times.
func (tr *trial) losesAgain(before int, lose step) {
	body := tr.worker().last[0].body()
	for n := before; n < tr.losses(); n++ {
		steps(abandoned(n), lose, expect(body))(tr)
	}
	abandoned(tr.losses())(tr)
}

// losses is how often a delivery must get lost to be counted at least twice.
func (tr *trial) losses() int { return max(0, tr.AbandonedMargin) + 2 }

// abandoned demands that the last deliveries tell of so many lost ones.
func abandoned(lost int) step {
	return each(func(w *worker, a *arrival) error {
		least, count := max(0, lost-w.tr.AbandonedMargin), a.Abandoned
		if w.tr.AbandonedMargin < 0 {
			least = 0
		}
		if w.tr.EstimatesMeta {
			count += a.Meta().Attempt
		}
		return same(a, "Abandoned", least <= count && count <= lost, count,
			fmt.Sprintf("%d, less Harness.AbandonedMargin", lost))
	})
}

// endings are bodies of deliveries that end each in another way, by action.
var endings = [...]string{brokers.Ack: "to ack", brokers.Retry: "to retry", brokers.Release: "to release"}

// stale demands that the first worker, which has lost all that it holds, cannot
// settle it.
func stale(tr *trial) {
	w := tr.workers[0]
	for action, body := range endings {
		s := w.to(brokers.Action(action), w.held[body])
		if s.Action == brokers.Retry {
			tr.fateOf(body, func(f *fate) { f.mayCopy = true })
		}
		if err := w.settle(s)[0]; !lost(err) {
			tr.failf("%s, which its worker has lost, returned %v, want ErrLeaseLost", settleCall(s), err)
		}
	}
}

var extendClauses = []clause{
	{name: "extend-holds", needs: "lease-holds", long: true,
		rule:  "A delivery whose lease is extended in time must stay held, however long.",
		check: steps(extensible("held"), on(extendHolds))},
	{name: "extend-sets-until", needs: "lease-until",
		rule:  "Extend must set LeaseUntil to at least the time asked for from now, or to the end of MaxLease.",
		check: steps(extensible("extended"), on(extendSetsUntil))},
	{name: "extend-partial", needs: "settle-answers ack-removes extend-holds extend-sets-until",
		rule:  "An entry that cannot be extended must report it and keep its LeaseUntil, and the others must be extended.",
		check: steps(extensible("one", "settled", "two"), ack("settled"), wait(1), on(extendPartial))},
	{name: "extend-lost", needs: "lease-ends",
		rule:  "Extend of a delivery that somebody else has by now must be ErrLeaseLost, and leave it to them.",
		check: steps(leased("lost"), taken("lost"), extendLost, ack())},
	{name: "lease-limit", needs: "extend-sets-until lease-ends",
		rule:  "No delivery must be held for longer than Capabilities.MaxLease, and Extend must not promise it.",
		check: steps(leased("held too long"), on(extendToLimit), another, consume("held too long"))},
}

// extensible is leased where leases can be extended.
func extensible(bodies ...string) step {
	return func(tr *trial) {
		leased(bodies...)(tr)
		if w := tr.worker(); w.caps.MaxLease == w.caps.Lease {
			tr.skip("Capabilities.MaxLease equals Lease: leases cannot be extended")
		}
	}
}

func extendHolds(w *worker) {
	tr, lease := w.tr, w.caps.Lease
	if limit := w.caps.MaxLease; limit > 0 && limit < 4*lease {
		tr.skip("MaxLease is %v, less than four leases of %v", limit, lease)
	}
	other := w.another()
	for range 5 { // in steps of half a lease
		tr.must(w.extend(lease, w.last...)[0])
		other.quiet(lease / 2)
	}
	w.ack(w.last...)
}

func extendSetsUntil(w *worker) {
	a, lease := w.last[0], w.caps.Lease
	w.tr.pause(lease / 3)
	want := deadline(lease)
	if limit := w.caps.MaxLease; limit > 0 {
		want = earlier(want, a.ReceivedAt.Add(limit))
	}
	want = want.Add(-w.tr.Slack) // the adapter's margin
	w.tr.must(w.extend(lease, a)[0])
	w.tr.must(same(a, "LeaseUntil", !a.LeaseUntil.Before(want), a.LeaseUntil, want))
}

func extendPartial(w *worker) {
	settled := w.last[1]
	before := settled.LeaseUntil
	if errs := w.extend(w.caps.Lease, w.last...); errs[0] != nil || !final(errs[1]) || errs[2] != nil {
		w.tr.failf("source.Extend of %s, of %s, which is settled, and of %s: errors %v, want ErrSettled for the second only",
			w.last[0], settled, w.last[2], errs)
	}
	w.tr.must(same(settled, "LeaseUntil", settled.LeaseUntil.Equal(before), settled.LeaseUntil, before))
}

// extendLost extends what the first worker has lost.
func extendLost(tr *trial) {
	w := tr.workers[0]
	if err := w.extend(w.caps.Lease, w.last...)[0]; !errors.Is(err, brokers.ErrLeaseLost) {
		tr.failf("source.Extend of %s, which another source has received, returned %v, want ErrLeaseLost", w.last[0], err)
	}
}

// extendToLimit extends a lease for as long as the broker lets it.
func extendToLimit(w *worker) {
	tr, a, lease, limit := w.tr, w.last[0], w.caps.Lease, w.caps.MaxLease
	if limit == 0 {
		tr.skip("Capabilities.MaxLease is 0: there is no limit")
	}
	tr.affordable(limit, "MaxLease")
	end := a.ReceivedAt.Add(limit)
	lease = max(lease, limit/100) // or hours would need thousands of calls
	for lease < limit && time.Until(end) > 0 {
		if err := w.extend(lease, a)[0]; err != nil {
			break
		}
		if a.LeaseUntil.After(end.Add(tr.Slack)) {
			tr.failf("%s: MaxLease ends at %v, and Extend promised it until %v", a, end, a.LeaseUntil)
		}
		tr.pause(min(lease/3, time.Until(end)+precision))
	}
	tr.pause(time.Until(end))
	tr.did("MaxLease is over")
}

var crashClauses = []clause{
	{name: "crash-loses-nothing", needs: "retry-durable lease-ends", with: "Crash", long: true,
		rule:  "When a worker dies, everything that it had not acked must be delivered to another one.",
		check: steps(crashed, consume("retried", "held", "waiting"), each(retryCounted), quiet(2))},
	{name: "crash-counted", needs: "crash-loses-nothing abandoned-counted", with: "Crash", long: true, check: crashCounted,
		rule: "Abandoned must count the deliveries that dead workers held, less Harness.AbandonedMargin, and no others."},
}

// crashed opens a worker on four messages, of which it acks the first, retries
// the second, holds the third and does not receive the fourth, and kills it. Then
// it opens another one.
func crashed(tr *trial) {
	deliver("acked", "retried", "held")(tr)
	tr.affordable(tr.worker().caps.Lease, "a lease")
	steps(ack("acked"), retry(1, "retried"), publish("waiting"), on((*worker).crash))(tr)
}

func retryCounted(_ *worker, a *arrival) error {
	if attempt := a.Meta().Attempt; a.body() == "retried" && attempt < 1 {
		return duplicate{fmt.Errorf("%s was retried with attempt 1 before the crash, and has attempt %d", a, attempt)}
	}
	return nil
}

// crashCounted looks at what is not the dead worker's, and lets one worker after
// another die with what is.
func crashCounted(tr *trial) {
	crashed(tr)
	w := tr.worker()
	w.expectEach(tr.within(), func(a *arrival) {
		if a.body() != "held" {
			tr.must(notAbandoned(w, a))
			w.ack(a)
		}
	}, tr.rest())
	w.last = w.these([]string{"held"})
	if w.last[0].Session == nil { // nothing but the end of the lease gives it back
		tr.affordable(time.Duration(tr.losses())*w.caps.Lease, "to let so many workers crash")
	}
	tr.losesAgain(1, on((*worker).crash))
	ack()(tr)
}

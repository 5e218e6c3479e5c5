package brokertest

import (
	"errors"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

func extendClauses() []clause {
	return []clause{
		{
			name:  "extend-holds",
			rule:  "A delivery whose lease is extended in time must stay held, however long.",
			long:  true,
			needs: []string{"lease-holds"},
			check: extendHolds,
		},
		{
			name:  "extend-sets-until",
			rule:  "Extend must set LeaseUntil to at least the time asked for from now, or to the end of MaxLease.",
			needs: []string{"lease-until"},
			check: extendSetsUntil,
		},
		{
			name:  "extend-partial",
			rule:  "An entry that cannot be extended must report it and keep its LeaseUntil, and the others must be extended.",
			needs: []string{"settle-answers", "ack-removes", "extend-holds", "extend-sets-until"},
			check: extendPartial,
		},
		{
			name:  "extend-lost",
			rule:  "Extend of a delivery that somebody else has by now must be ErrLeaseLost, and leave it to them.",
			needs: []string{"lease-ends"},
			check: extendLost,
		},
		{
			name:  "lease-limit",
			rule:  "No delivery must be held for longer than Capabilities.MaxLease, and Extend must not promise it.",
			needs: []string{"extend-sets-until", "lease-ends"},
			check: leaseLimit,
		},
	}
}

// extensible is leased where leases can be extended.
func (tr *trial) extensible(bodies ...string) (*worker, []*arrival) {
	w, got := tr.leased(bodies...)
	if w.caps.MaxLease == w.caps.Lease {
		tr.skip("Capabilities.MaxLease equals Lease: leases cannot be extended")
	}
	return w, got
}

func extendHolds(tr *trial) {
	w, got := tr.extensible("held")
	lease := w.caps.Lease
	if limit := w.caps.MaxLease; limit > 0 && limit < 4*lease {
		tr.skip("MaxLease is %v, less than four leases of %v", limit, lease)
	}
	other := tr.open(w.sub.Topics...)
	for range 5 { // in steps of half a lease
		tr.note("source.Extend of %s", got[0])
		tr.must(w.extend(lease, got[0].Delivery)[0])
		tr.note("while another source extends its lease of %v every %v", lease, lease/2)
		other.quiet(lease / 2)
	}
	w.ack(got...)
}

func extendSetsUntil(tr *trial) {
	w, got := tr.extensible("extended")
	lease := w.caps.Lease
	tr.pause(lease / 3)
	want := deadline(lease)
	if limit := w.caps.MaxLease; limit > 0 {
		want = earlier(want, got[0].ReceivedAt.Add(limit))
	}
	want = want.Add(-tr.Slack) // the adapter's margin
	tr.note("source.Extend of %s", got[0])
	tr.must(w.extend(lease, got[0].Delivery)[0])
	if until := got[0].LeaseUntil; until.Before(want) {
		tr.failf("%s was extended by %v from now: LeaseUntil is %v, want %v or later", got[0], lease, until, want)
	}
}

func extendPartial(tr *trial) {
	w, got := tr.extensible("one", "settled", "two")
	w.ack(got[1])
	before := got[1].LeaseUntil
	tr.pause(tr.Unit)
	errs := w.extend(w.caps.Lease, got[0].Delivery, got[1].Delivery, got[2].Delivery)
	if errs[0] != nil || !final(errs[1]) || errs[2] != nil {
		tr.failf("source.Extend of %s, of %s, which is settled, and of %s: errors %v, want ErrSettled for the second only",
			got[0], got[1], got[2], errs)
	}
	if !got[1].LeaseUntil.Equal(before) {
		tr.failf("%s was not extended, yet its LeaseUntil went from %v to %v", got[1], before, got[1].LeaseUntil)
	}
}

func extendLost(tr *trial) {
	w, got := tr.leased("lost")
	other := tr.open(w.sub.Topics...)
	again := other.expect(w.caps.Lease+tr.patience, "lost")
	if err := w.extend(w.caps.Lease, got[0].Delivery)[0]; !errors.Is(err, brokers.ErrLeaseLost) {
		tr.failf("source.Extend of %s, which another source has received, returned %v, want ErrLeaseLost", got[0], err)
	}
	other.ack(again...)
}

// leaseLimit extends a lease for as long as the broker lets it, and sees that
// another source has the message when MaxLease is over.
func leaseLimit(tr *trial) {
	w, got := tr.leased("held too long")
	lease, limit := w.caps.Lease, w.caps.MaxLease
	if limit == 0 {
		tr.skip("Capabilities.MaxLease is 0: there is no limit")
	}
	tr.affordable(limit, "MaxLease")
	a := got[0]
	end := a.ReceivedAt.Add(limit)
	lease = max(lease, limit/100) // or hours would need thousands of calls
	for lease < limit && time.Until(end) > 0 {
		if err := w.extend(lease, a.Delivery)[0]; err != nil {
			break
		}
		if a.LeaseUntil.After(end.Add(tr.Slack)) {
			tr.failf("%s: MaxLease ends at %v, and Extend promised it until %v", a, end, a.LeaseUntil)
		}
		tr.pause(min(lease/3, time.Until(end)+precision))
	}
	tr.pause(time.Until(end))
	other := tr.open(w.sub.Topics...)
	tr.note("its MaxLease of %v is over", limit)
	other.ack(other.expect(tr.patience, a.body())...)
}

package brokertest

import (
	"time"

	"github.com/redrive-go/redrive/brokers"
)

func leaseClauses() []clause {
	return []clause{
		{
			name:  "lease-holds",
			rule:  "While a delivery is held, its message must not be delivered to anybody.",
			needs: []string{"lease-until"},
			check: leaseHolds,
		},
		{
			name:  "lease-ends",
			rule:  "When a lease has run out, the message must be delivered again, the same as before.",
			needs: []string{"lease-holds"},
			check: leaseEnds,
		},
		{
			name:  "abandoned-counted",
			rule:  "Abandoned must count the deliveries that ended without a settlement, less Harness.AbandonedMargin, and no others.",
			long:  true,
			needs: []string{"lease-ends", "release-repeated"},
			check: abandonedCounted,
		},
		{
			name:  "settle-expired",
			rule:  "A settlement after the lease has run out must be ErrLeaseLost and remove nothing, even before somebody else has the message.",
			needs: []string{"lease-ends", "ack-removes"},
			check: settleExpired,
		},
		{
			name:  "settle-stale",
			rule:  "A settlement by an earlier holder must be ErrLeaseLost and leave the delivery of the present one alone.",
			long:  true,
			needs: []string{"lease-ends", "ack-removes"},
			check: settleStale,
		},
	}
}

// leased opens a worker that holds a delivery of every body, whose leases end
// at about the same time and soon enough to wait for.
func (tr *trial) leased(bodies ...string) (*worker, []*arrival) {
	w, got := tr.deliver(bodies...)
	if w.caps.Lease == 0 {
		tr.skip("Capabilities.Lease is 0: a delivery is held as long as its session lives")
	}
	tr.affordable(3*w.caps.Lease, "to wait for three leases")
	return w, got
}

// expired waits until the leases of got have run out.
func (tr *trial) expired(got []*arrival) {
	for _, a := range got {
		tr.pause(time.Until(a.LeaseUntil))
	}
	tr.pause(tr.Slack)
}

func leaseHolds(tr *trial) {
	holder, got := tr.deliver("held")
	other := tr.open(holder.sub.Topics...)
	wait := 3 * tr.Unit
	if until := got[0].LeaseUntil; !until.IsZero() {
		wait = min(time.Until(until)-tr.Slack, tr.patience)
	}
	tr.note("while another source holds it")
	other.quiet(wait)
}

func leaseEnds(tr *trial) {
	w, got := tr.leased("abandoned")
	meta := got[0].Meta()
	other := tr.open(w.sub.Topics...)
	tr.note("the lease ended at %v", got[0].LeaseUntil)
	again := other.expect(w.caps.Lease+tr.patience, "abandoned")
	tr.must(tr.sameMeta(again[0], meta))
	other.ack(again...)
}

// abandonedCounted lets one lease after another run out.
func abandonedCounted(tr *trial) {
	w, got := tr.leased("abandoned")
	tr.affordable(time.Duration(tr.losses())*w.caps.Lease, "to let so many leases run out")
	for n := range tr.losses() {
		tr.sameAbandoned(got[0], n)
		tr.expired(got)
		tr.note("after %d leases have run out", n+1)
		got = w.expect(tr.patience, "abandoned")
	}
	tr.sameAbandoned(got[0], tr.losses())
	if tr.AbandonedMargin == 0 && !tr.EstimatesMeta { // elsewhere a release may be a copy, which begins anew
		w.release(got[0])
		tr.note("after a Release of what was lost")
		got = w.expectSoon("abandoned")
		tr.sameAbandoned(got[0], tr.losses())
	}
	w.ack(got...)
}

// losses is how often a delivery must get lost to be counted at least twice.
func (tr *trial) losses() int { return max(0, tr.AbandonedMargin) + 2 }

// sameAbandoned demands that a tells of so many lost deliveries.
func (tr *trial) sameAbandoned(a *arrival, lost int) {
	least, count := lost-tr.AbandonedMargin, a.Abandoned
	if tr.AbandonedMargin < 0 {
		least = 0
	}
	if tr.EstimatesMeta {
		count += a.Meta().Attempt
	}
	if count < least || count > lost {
		tr.failf("%s: Abandoned is %d after %d lost deliveries, and Harness.AbandonedMargin is %d", a, count, lost, tr.AbandonedMargin)
	}
}

// each pairs every delivery with another way to end it.
func (tr *trial) each(got []*arrival) []brokers.Settlement {
	return []brokers.Settlement{acks(got[0])[0], got[1].again(tr), got[2].back()}
}

// stale demands that the settlements of got, which are lost, are refused.
func (w *worker) stale(got []*arrival, when string) {
	for _, s := range w.tr.each(got) {
		if s.Action == brokers.Retry {
			w.tr.fateOf(string(s.Delivery.Message.Body), func(f *fate) { f.mayCopy = true })
		}
		if err := w.settle(s)[0]; !lost(err) {
			w.tr.failf("source.Settle(%s) of %s %s returned %v, want ErrLeaseLost", s.Action, describe(s.Delivery), when, err)
		}
	}
}

var endings = [...]string{"to ack", "to retry", "to release"}

func settleExpired(tr *trial) {
	w, got := tr.leased(endings[:]...)
	tr.expired(got)
	verdict := caught(func() { w.stale(got, "after its lease ran out") })
	before := make(map[string]brokers.Meta)
	for _, a := range got {
		before[a.body()] = a.Meta()
	}
	tr.note("after a settlement that came too late")
	got = w.expect(tr.patience, endings[:]...)
	tr.must(verdict)
	for _, a := range got {
		if !tr.mayCopy(a) {
			tr.must(tr.sameMeta(a, before[a.body()]))
		}
	}
	w.ack(got...)
}

func settleStale(tr *trial) {
	w, got := tr.leased(endings[:]...)
	other := tr.open(w.sub.Topics...)
	again := other.expect(w.caps.Lease+tr.patience, endings[:]...)
	w.stale(got, "after another source received it")
	other.untouched(again)
}

// untouched demands that w still holds got, and nobody else.
func (w *worker) untouched(got []*arrival) {
	w.tr.note("after a settlement by an earlier holder")
	w.quiet(w.tr.Unit)
	w.tr.note("after a settlement by an earlier holder")
	w.ack(got...)
	w.quiet(2 * w.tr.Unit)
}

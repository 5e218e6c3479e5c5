package brokertest

import (
	"errors"
	"fmt"
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
			needs: []string{"lease-ends"},
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
func (tr *trial) leased(bodies ...string) (*worker, []*arrival, error) {
	w, got, err := tr.deliver(bodies...)
	if err != nil {
		return nil, nil, err
	}
	if w.caps.Lease == 0 {
		return nil, nil, skip("Capabilities.Lease is 0: a delivery is held as long as its session lives")
	}
	return w, got, tr.affordable(3*w.caps.Lease, "to wait for three leases")
}

// expired waits until the leases of got have run out.
func (tr *trial) expired(got []*arrival) {
	for _, a := range got {
		tr.pause(time.Until(a.LeaseUntil))
	}
	tr.pause(tr.Slack)
}

func leaseHolds(tr *trial) error {
	holder, got, err := tr.deliver("held")
	if err != nil {
		return err
	}
	other, err := tr.open(holder.sub.Topics...)
	if err != nil {
		return err
	}
	wait := 3 * tr.Unit
	if until := got[0].LeaseUntil; !until.IsZero() {
		wait = min(time.Until(until)-tr.Slack, tr.patience)
	}
	if err := other.quiet(wait); err != nil {
		return fmt.Errorf("while another source holds it: %w", err)
	}
	return nil
}

func leaseEnds(tr *trial) error {
	w, got, err := tr.leased("abandoned")
	if err != nil {
		return err
	}
	meta := got[0].Meta
	other, err := tr.open(w.sub.Topics...)
	if err != nil {
		return err
	}
	again, err := other.expect(w.caps.Lease+tr.patience, "abandoned")
	if err != nil {
		return fmt.Errorf("the lease ended at %v: %w", got[0].LeaseUntil, err)
	}
	if err := tr.sameMeta(again[0], meta); err != nil {
		return err
	}
	return other.ack(again...)
}

// abandonedCounted lets one lease after another run out.
func abandonedCounted(tr *trial) error {
	w, got, err := tr.leased("abandoned")
	if err != nil {
		return err
	}
	if err := tr.affordable(time.Duration(tr.losses())*w.caps.Lease, "to let so many leases run out"); err != nil {
		return err
	}
	for n := range tr.losses() {
		if err := tr.sameAbandoned(got[0], n); err != nil {
			return err
		}
		tr.expired(got)
		if got, err = w.expect(tr.patience, "abandoned"); err != nil {
			return fmt.Errorf("after %d leases have run out: %w", n+1, err)
		}
	}
	return errors.Join(tr.sameAbandoned(got[0], tr.losses()), w.ack(got...))
}

// losses is how often a delivery must get lost to be counted at least twice.
func (tr *trial) losses() int { return max(0, tr.AbandonedMargin) + 2 }

// sameAbandoned demands that a tells of so many lost deliveries.
func (tr *trial) sameAbandoned(a *arrival, lost int) error {
	least, count := lost-tr.AbandonedMargin, a.Abandoned
	if tr.AbandonedMargin < 0 {
		least = 0
	}
	if tr.EstimatesMeta {
		count += a.Meta.Attempt
	}
	if count < least || count > lost {
		return fmt.Errorf("%s: Abandoned is %d after %d lost deliveries, and Harness.AbandonedMargin is %d", a, count, lost, tr.AbandonedMargin)
	}
	return nil
}

// each pairs every delivery with another way to end it.
func (tr *trial) each(got []*arrival) []brokers.Settlement {
	return []brokers.Settlement{acks(got[0])[0], got[1].again(tr), got[2].back()}
}

// stale demands that the settlements of got, which are lost, are refused.
func (w *worker) stale(got []*arrival, when string) error {
	for _, s := range w.tr.each(got) {
		if s.Action == brokers.Retry {
			w.tr.allowCopy(&arrival{Delivery: s.Delivery})
		}
		if err := w.settle(s)[0]; !lost(err) {
			return fmt.Errorf("source.Settle(%s) of %s %s returned %v, want ErrLeaseLost", s.Action, describe(s.Delivery), when, err)
		}
	}
	return nil
}

var endings = [...]string{"to ack", "to retry", "to release"}

func settleExpired(tr *trial) error {
	w, got, err := tr.leased(endings[:]...)
	if err != nil {
		return err
	}
	tr.expired(got)
	verdict := w.stale(got, "after its lease ran out")
	before := make(map[string]brokers.Meta)
	for _, a := range got {
		before[a.body()] = a.Meta
	}
	if got, err = w.expect(tr.patience, endings[:]...); err != nil {
		return fmt.Errorf("after a settlement that came too late: %w", err)
	}
	if verdict != nil {
		return verdict
	}
	for _, a := range got {
		if err := tr.sameMeta(a, before[a.body()]); err != nil && !tr.mayCopy(a) {
			return fmt.Errorf("after a settlement that came too late: %w", err)
		}
	}
	return w.ack(got...)
}

func settleStale(tr *trial) error {
	w, got, err := tr.leased(endings[:]...)
	if err != nil {
		return err
	}
	other, err := tr.open(w.sub.Topics...)
	if err != nil {
		return err
	}
	again, err := other.expect(w.caps.Lease+tr.patience, endings[:]...)
	if err != nil {
		return err
	}
	if err := w.stale(got, "after another source received it"); err != nil {
		return err
	}
	return other.untouched(again)
}

// untouched demands that w still holds got, and nobody else.
func (w *worker) untouched(got []*arrival) error {
	if err := w.quiet(w.tr.Unit); err != nil {
		return fmt.Errorf("after a settlement by an earlier holder: %w", err)
	}
	if err := w.ack(got...); err != nil {
		return fmt.Errorf("after a settlement by an earlier holder: %w", err)
	}
	return w.quiet(2 * w.tr.Unit)
}

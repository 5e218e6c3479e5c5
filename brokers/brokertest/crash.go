package brokertest

import (
	"errors"
	"fmt"
)

func crashClauses() []clause {
	return []clause{
		{
			name:  "crash-loses-nothing",
			rule:  "When a worker dies, everything that it had not acked must be delivered to another one.",
			long:  true,
			needs: []string{"retry-durable", "lease-ends"},
			check: crashLosesNothing,
		},
		{
			name:  "crash-counted",
			rule:  "Abandoned must count the deliveries that a dead worker held.",
			needs: []string{"crash-loses-nothing", "abandoned-counted"},
			check: crashCounted,
		},
	}
}

// crash opens a worker on four messages, of which it acks the first, retries
// the second, holds the third and does not receive the fourth, and kills it.
func (tr *trial) crash() (*worker, error) {
	if tr.Crash == nil {
		return nil, skip("Harness.Crash is nil")
	}
	w, got, err := tr.deliver("acked", "retried", "held")
	if err != nil {
		return nil, err
	}
	if err := tr.affordable(w.caps.Lease, "a lease"); err != nil {
		return nil, err
	}
	if err := errors.Join(w.ack(got[0]), w.retry(got[1], tr.Unit)); err != nil {
		return nil, err
	}
	if err := tr.publish(w.sub.Topics[0], text("waiting")...); err != nil {
		return nil, err
	}
	tr.Crash(tr.broker, w.src)
	w.closed = true
	return w, nil
}

func crashLosesNothing(tr *trial) error {
	dead, err := tr.crash()
	if err != nil {
		return err
	}
	w, err := tr.open(dead.sub.Topics...)
	if err != nil {
		return err
	}
	got, err := w.consume(dead.caps.Lease+tr.patience, "retried", "held", "waiting")
	if err != nil {
		return fmt.Errorf("after the crash of another worker: %w", err)
	}
	if got[0].Meta.Attempt < 1 {
		return fmt.Errorf("%s was retried with attempt 1 before the crash, and has attempt %d", got[0], got[0].Meta.Attempt)
	}
	return w.quiet(2 * tr.Unit)
}

func crashCounted(tr *trial) error {
	if !tr.CountsAbandoned {
		return skip("Harness.CountsAbandoned is not set")
	}
	dead, err := tr.crash()
	if err != nil {
		return err
	}
	w, err := tr.open(dead.sub.Topics...)
	if err != nil {
		return err
	}
	got, err := w.consume(dead.caps.Lease+tr.patience, "retried", "held", "waiting")
	if err != nil {
		return err
	}
	for i, want := range []int{0, 1, 0} {
		if got[i].Abandoned != want {
			return fmt.Errorf("%s: Abandoned is %d after the crash of another worker, want %d", got[i], got[i].Abandoned, want)
		}
	}
	return nil
}

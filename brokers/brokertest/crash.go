package brokertest

import (
	"errors"
	"fmt"
	"time"
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
			long:  true,
			rule:  "Abandoned must count the deliveries that dead workers held, less Harness.AbandonedMargin, and no others.",
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
	w.crash()
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

// crashCounted looks at what is not the dead worker's, and lets one worker after
// another die with what is.
func crashCounted(tr *trial) error {
	dead, err := tr.crash()
	if err != nil {
		return err
	}
	w, err := tr.open(dead.sub.Topics...)
	if err != nil {
		return err
	}
	others := func(a *arrival) error {
		if a.body() == "held" {
			return nil
		}
		return errors.Join(unblamed(a), w.ack(a))
	}
	got, err := w.expectEach(dead.caps.Lease+tr.patience, others, []string{"retried", "held", "waiting"})
	if err != nil {
		return err
	}
	held := got[1]
	if held.Session == nil { // nothing but the end of the lease gives it back
		if err := tr.affordable(time.Duration(tr.losses())*w.caps.Lease, "to let so many workers crash"); err != nil {
			return err
		}
	}
	for n := 1; n < tr.losses(); n++ {
		if err := tr.sameAbandoned(held, n); err != nil {
			return fmt.Errorf("after the crash of %d workers: %w", n, err)
		}
		w.crash()
		if w, err = tr.open(dead.sub.Topics...); err != nil {
			return err
		}
		if got, err = w.expect(dead.caps.Lease+tr.patience, "held"); err != nil {
			return fmt.Errorf("after the crash of %d workers: %w", n+1, err)
		}
		held = got[0]
	}
	return errors.Join(tr.sameAbandoned(held, tr.losses()), w.ack(held))
}

// unblamed demands that nothing is held against a message.
func unblamed(a *arrival) error {
	if a.Abandoned != 0 {
		return fmt.Errorf("%s: Abandoned is %d after the crash of a worker that did not hold it", a, a.Abandoned)
	}
	return nil
}

func (w *worker) crash() {
	w.tr.Crash(w.tr.broker, w.src)
	w.closed = true
}

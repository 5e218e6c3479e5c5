package brokertest

import (
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
func (tr *trial) crash() *worker {
	if tr.Crash == nil {
		tr.skip("Harness.Crash is nil")
	}
	w, got := tr.deliver("acked", "retried", "held")
	tr.affordable(w.caps.Lease, "a lease")
	w.ack(got[0])
	w.retry(got[1], tr.Unit)
	tr.publish(w.sub.Topics[0], text("waiting")...)
	w.crash()
	return w
}

func crashLosesNothing(tr *trial) {
	dead := tr.crash()
	w := tr.open(dead.sub.Topics...)
	tr.note("after the crash of another worker")
	got := w.consume(dead.caps.Lease+tr.patience, "retried", "held", "waiting")
	if got[0].Meta().Attempt < 1 {
		tr.must(duplicate{fmt.Errorf("%s was retried with attempt 1 before the crash, and has attempt %d", got[0], got[0].Meta().Attempt)})
	}
	w.quiet(2 * tr.Unit)
}

// crashCounted looks at what is not the dead worker's, and lets one worker after
// another die with what is.
func crashCounted(tr *trial) {
	dead := tr.crash()
	w := tr.open(dead.sub.Topics...)
	others := func(a *arrival) {
		switch {
		case a.body() == "held":
			return
		case a.Abandoned != 0:
			tr.failf("%s: Abandoned is %d after the crash of a worker that did not hold it", a, a.Abandoned)
		}
		w.ack(a)
	}
	got := w.expectEach(dead.caps.Lease+tr.patience, others, []string{"retried", "held", "waiting"})
	held := got[1]
	if held.Session == nil { // nothing but the end of the lease gives it back
		tr.affordable(time.Duration(tr.losses())*w.caps.Lease, "to let so many workers crash")
	}
	for n := 1; n < tr.losses(); n++ {
		tr.sameAbandoned(held, n)
		w.crash()
		w = tr.open(dead.sub.Topics...)
		tr.note("after the crash of %d workers", n+1)
		held = w.expect(dead.caps.Lease+tr.patience, "held")[0]
	}
	tr.sameAbandoned(held, tr.losses())
	w.ack(held)
}

func (w *worker) crash() {
	w.tr.Crash(w.tr.broker, w.src)
	w.closed = true
}

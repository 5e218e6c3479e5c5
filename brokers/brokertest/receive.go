package brokertest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

func receiveClauses() []clause {
	needs := []string{"publish-delivers"}
	return []clause{
		{
			name:  "receive-waits",
			rule:  "Receive must block until there is a delivery: it never returns empty-handed without an error.",
			needs: needs,
			check: receiveWaits,
		},
		{
			name:  "receive-max",
			rule:  "Receive must return at most max deliveries.",
			needs: needs,
			check: receiveMax,
		},
		{
			name:  "receive-ends",
			rule:  "Receive must return when its context ends.",
			needs: needs,
			check: receiveEnds,
		},
		{
			name:  "receive-cause",
			rule:  "When its context ends, Receive must return the context's cause.",
			needs: []string{"receive-ends", "receive-waits"},
			check: receiveCause,
		},
		{
			name:  "receive-gives-back",
			rule:  "A delivery that was taken from the broker when the context of Receive ended must be given back, not dropped.",
			needs: []string{"receive-ends", "ack-removes"},
			check: receiveGivesBack,
		},
		{
			name:  "receive-in-flight",
			rule:  "A worker must be able to hold Subscription.InFlight deliveries at once.",
			needs: needs,
			check: receiveInFlight,
		},
		{
			name:  "receive-after-pause",
			rule:  "Not calling Receive for hours must be safe: what comes afterwards has half of its lease left and can be settled.",
			long:  true,
			needs: []string{"ack-removes", "lease-until", "receive-max"},
			check: receiveAfterPause,
		},
		{
			name:  "source-concurrent",
			rule:  "The methods of a Source must work at the same time, Settle for different deliveries: none waits for a Receive.",
			needs: []string{"ack-removes"},
			check: sourceConcurrent,
		},
	}
}

func receiveWaits(tr *trial) {
	w, topic := tr.empty()
	const units = 3
	start := time.Now()
	ctx, cancel := context.WithTimeout(tr.ctx, units*tr.Unit)
	out := w.receive(ctx, cancel, 1)
	select {
	case r := <-out:
		if r.err == nil {
			tr.failf("source.Receive from the empty topic %q returned %d deliveries and no error after %v", topic, len(r.ds), r.at.Sub(start))
		}
	case <-time.After(units*tr.Unit + tr.Slack):
		w.pending = out // that it ends is another clause
	}
	tr.publish(topic, text("at last")...)
	w.expect(tr.patience, "at last")
}

func receiveMax(tr *trial) {
	w := tr.stocked(numbered("message", 6)...)
	for _, most := range []int{1, 2, 1} {
		ctx, cancel := context.WithTimeout(tr.ctx, tr.patience)
		select {
		case r := <-w.receive(ctx, cancel, most):
			if len(r.ds) > most {
				tr.failf("source.Receive from %q of at most %d returned %d deliveries", w.sub.Topics, most, len(r.ds))
			}
		case <-time.After(tr.patience + tr.Slack):
			tr.failf("source.Receive from %q, where messages are waiting, did not return", w.sub.Topics)
		}
	}
}

// interrupted ends the context of a Receive that waits, and of one that has
// not begun, and returns what they returned.
func (tr *trial) interrupted(cause error) []error {
	w, topic := tr.empty()
	var errs []error
	for _, wait := range []time.Duration{tr.Unit, 0} {
		ctx, cancel := context.WithCancelCause(tr.ctx)
		if wait == 0 {
			cancel(cause)
		}
		out := w.receive(ctx, func() { cancel(nil) }, 1)
		tr.pause(wait)
		cancel(cause)
		select {
		case r := <-out:
			errs = append(errs, r.err)
		case <-time.After(tr.Slack):
			tr.failf("source.Receive from the empty topic %q was waiting still, %v after its context ended", topic, tr.Slack)
		}
	}
	return errs
}

func receiveEnds(tr *trial) {
	tr.interrupted(errors.New("the worker stops"))
}

func receiveCause(tr *trial) {
	cause := errors.New("the worker stops")
	for _, err := range tr.interrupted(cause) {
		if !errors.Is(err, cause) {
			tr.failf("the context of Receive ended with the cause %q, and Receive returned %v", cause, err)
		}
	}
}

// receiveGivesBack ends the context of one Receive after another at different
// times after a publish, so that some end with a delivery on its way.
func receiveGivesBack(tr *trial) {
	w, topic := tr.empty()
	rounds := 25
	if !tr.Virtual {
		rounds = 6
	}
	for n := range rounds {
		body := fmt.Sprintf("round %d", n)
		ctx, cancel := context.WithCancel(tr.ctx)
		w.pending = w.receive(ctx, cancel, 1)
		before := tr.Slack * time.Duration(n) / 50
		tr.publish(topic, text(body)...)
		tr.pause(before)
		cancel()
		tr.note("it was published %v before the context of a Receive ended", before)
		w.ack(w.expectSoon(body)...)
	}
}

func receiveInFlight(tr *trial) {
	const held = 12
	topic := tr.Topic("orders")
	sub := tr.subscription(topic)
	sub.InFlight = held
	w := tr.subscribe(sub)
	bodies := numbered("message", held)
	tr.publish(topic, text(bodies...)...)
	w.max = 5
	w.expect(tr.patience, bodies...)
}

// receiveAfterPause takes one of several messages, so that the adapter may
// have buffered the others, and comes back for them much later.
func receiveAfterPause(tr *trial) {
	bodies := numbered("message", 4)
	w := tr.stocked(bodies...)
	w.max = 1
	first := w.some()
	w.ack(first)
	pause := 3 * time.Hour
	if !tr.Virtual {
		pause = min(2*w.caps.Lease+tr.Unit, tr.patience)
	}
	tr.pause(pause)
	bodies = without(bodies, first)
	tr.note("after %v without a Receive", pause)
	got := w.expect(tr.patience, bodies...)
	for _, a := range got {
		if left := a.LeaseUntil.Sub(a.raw); w.caps.Lease > 0 && left < w.caps.Lease/2 {
			tr.failf("%s came after %v without a Receive and has %v of its lease of %v left", a, pause, left, w.caps.Lease)
		}
		w.ack(a)
	}
}

// sourceConcurrent hands deliveries from the goroutine that receives them to
// one that extends and on to two that settle them. The last one follows when
// a Receive is waiting on the empty topic, and must not wait for it.
func sourceConcurrent(tr *trial) {
	bodies := numbered("message", 40)
	w := tr.stocked(bodies...)
	w.max = 3
	toExtend, toSettle := make(chan *arrival, len(bodies)), make(chan *arrival, len(bodies))
	receive := func() {
		defer close(toExtend)
		w.feed(toExtend, bodies)
	}
	extend := func() {
		defer close(toSettle)
		for a := range toExtend {
			if w.caps.Lease > 0 {
				if w.overdue(a) {
					continue
				}
				tr.must(w.extend(w.caps.Lease, a.Delivery)[0])
			}
			toSettle <- a
		}
	}
	settle := func() {
		for a := range toSettle {
			if !w.overdue(a) {
				w.ack(a)
			}
		}
	}
	tr.together(receive, extend, settle, settle)
}

// overdue reports whether the machine has been so slow that the lease of a may be
// over before anything can be done with it.
func (w *worker) overdue(a *arrival) bool {
	return !w.tr.Virtual && w.caps.Lease > 0 && time.Since(a.at) > w.caps.Lease/2
}

// feed receives every body, and starts one more Receive before it hands over
// the last of them.
func (w *worker) feed(out chan<- *arrival, bodies []string) {
	tr := w.tr
	seen := make(map[string]bool)
	for until := deadline(tr.patience); ; {
		a := w.next(until)
		if a == nil {
			tr.failf("from %q: %d of %d messages came within %v", w.sub.Topics, len(seen), len(bodies), tr.patience)
		}
		if seen[a.body()] {
			continue // a duplicate
		}
		seen[a.body()] = true
		if len(seen) == len(bodies) {
			ctx, cancel := context.WithTimeout(tr.ctx, 2*tr.patience)
			w.pending = w.receive(ctx, cancel, 1)
			tr.pause(tr.Unit / 2)
			out <- a
			return
		}
		out <- a
	}
}

func numbered(what string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s %d", what, i)
	}
	return out
}

package brokertest

import (
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// step is a part of a check: it arranges, settles or expects something. It is
// about the worker that was opened last and is open still. Bodies name messages,
// and none of them means those that the worker received last. Names become those
// of topics by Harness.Topic. Times are in units.
type step func(*trial)

// steps is a check that takes one step after the other.
func steps(all ...step) func(*trial) { return times(1, all...) }

func times(n int, all ...step) func(*trial) {
	return func(tr *trial) {
		for range n {
			for _, s := range all {
				s(tr)
			}
		}
	}
}

// on is a step of the worker that steps are about.
func on(f func(w *worker)) step {
	return func(tr *trial) { f(tr.worker()) }
}

func (tr *trial) worker() *worker {
	for _, w := range slices.Backward(tr.workers) {
		if !w.closed {
			return w
		}
	}
	return tr.workers[len(tr.workers)-1]
}

// These arrange.

func open(names ...string) step { return func(tr *trial) { tr.open(names...) } }

// openWith opens a worker on one topic, with a subscription that differs.
func openWith(change func(tr *trial, sub *brokers.Subscription)) step {
	return func(tr *trial) {
		sub := tr.subscription(tr.Topic("orders"))
		change(tr, &sub)
		tr.subscribe(sub)
	}
}

// another opens a worker like this one, which goes on.
func another(tr *trial) { tr.worker().another() }

func shut(tr *trial) { tr.worker().close() }

// reopen closes the worker, unless it is closed, and opens another one.
func reopen(tr *trial) { tr.worker().reopen() }

// send publishes to the first topic of the worker, in one call.
func send(msgs ...brokers.Message) step {
	return on(func(w *worker) { w.tr.publish(w.topic(), slices.Clone(msgs)...) })
}

func publish(bodies ...string) step { return send(text(bodies...)...) }

func publishTo(name string, bodies ...string) step {
	return func(tr *trial) { tr.publish(tr.Topic(name), text(bodies...)...) }
}

// deliver opens a worker that receives a message of every body, and holds them.
func deliver(bodies ...string) step { return deliverMessages(text(bodies...)...) }

func deliverMessages(msgs ...brokers.Message) step {
	return func(tr *trial) { tr.deliver(slices.Clone(msgs)...) }
}

// leased is deliver where leases end, all at about the same time and soon enough
// to wait for.
func leased(bodies ...string) step {
	return func(tr *trial) {
		w, _ := tr.delivered(bodies...)
		if w.caps.Lease == 0 {
			tr.skip("Capabilities.Lease is 0: a delivery is held as long as its session lives")
		}
		tr.affordable(3*w.caps.Lease, "to wait for three leases")
	}
}

// pause replaces the pause before: without names it resumes all.
func pause(names ...string) step {
	return on(func(w *worker) { w.suspend(w.tr.topics(names)...) })
}

func wait(units int) step { return func(tr *trial) { tr.pause(time.Duration(units) * tr.Unit) } }

// These settle.

func ack(bodies ...string) step { return end(brokers.Settlement{Action: brokers.Ack}, bodies...) }

func release(bodies ...string) step {
	return end(brokers.Settlement{Action: brokers.Release}, bodies...)
}

// end settles with what s says, whatever that means for its action.
func end(s brokers.Settlement, bodies ...string) step {
	return on(func(w *worker) {
		for _, a := range w.these(bodies) {
			of := s
			of.Delivery = a.Delivery
			w.do(of)
		}
	})
}

func retry(units int, bodies ...string) step {
	return on(func(w *worker) {
		for _, a := range w.these(bodies) {
			w.retry(a, time.Duration(units)*w.tr.Unit)
		}
	})
}

// retryAs is retry in a unit, with another Meta.
func retryAs(change func(w *worker, m *brokers.Meta), bodies ...string) step {
	return on(func(w *worker) {
		for _, a := range w.these(bodies) {
			meta := failed(a.Delivery, w.tr.Unit)
			change(w, &meta)
			w.retryWith(a, w.tr.Unit, meta)
		}
	})
}

// These expect.

func expect(bodies ...string) step { return on(func(w *worker) { w.expect(bodies...) }) }

// consume is expect, and acks each message as it comes.
func consume(bodies ...string) step { return on(func(w *worker) { w.consume(bodies...) }) }

// consumeRest consumes all that is published and not acked.
func consumeRest(tr *trial) { tr.worker().consume(tr.rest()...) }

// soon expects messages that must not wait until a lease ends.
func soon(bodies ...string) step { return on(func(w *worker) { w.expectSoon(bodies...) }) }

func soonRest(tr *trial) { tr.worker().expectSoon(tr.rest()...) }

// most bounds what one Receive returns.
func most(n int) step { return on(func(w *worker) { w.max = n }) }

// take receives any n messages, one at a time, so that the adapter may have
// fetched others.
func take(n int) step {
	return on(func(w *worker) {
		w.max = 1
		var got []*arrival
		for range n {
			got = append(got, w.some())
		}
		w.last = got
	})
}

// each demands properties of what was received last.
func each(has ...property) step {
	return on(func(w *worker) {
		for _, a := range w.last {
			for _, p := range has {
				w.tr.must(p(w, a))
			}
		}
	})
}

// quiet expects nothing for so long.
func quiet(units int) step {
	return on(func(w *worker) { w.quiet(time.Duration(units) * w.tr.Unit) })
}

// gone expects nothing of the next workers either: a source that is closed gives
// back what is not really acked, and outside the process an Ack may get lost.
func gone(tr *trial) { times(1+tolerated, reopen, quiet(2))(tr) }

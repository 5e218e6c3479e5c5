package brokertest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

var closeClauses = []clause{
	{name: "capabilities-constant", needs: "publish-delivers", check: capabilitiesConstant,
		rule: "Capabilities must make sense and be constant for the life of the source."},
	{name: "close-unblocks", needs: "receive-waits", check: closeUnblocks,
		rule: "Close must unblock Receive, and every Receive after it must return ErrClosed at once."},
	{name: "close-releases", needs: "ack-removes meta-fresh",
		rule: "Close must release what is received but unsettled, with its Meta, and keep what is not received.",
		check: steps(open("orders"), publish(numbered("message", 8)...), take(1), ack(), take(3), reopen,
			soonRest, each(fresh), ack())},
	{name: "close-ends-settling", needs: "close-releases",
		rule: "A settlement after Close must be ErrClosed or ErrLeaseLost and remove nothing.",
		check: steps(deliver(endings[:]...), reopen, stale, on(owesLease), expect(endings[:]...), each(sameMeta),
			stale, quiet(1), ack(), quiet(2))},
	{name: "close-ends-session", needs: "publish-delivers",
		rule:  "The session of a delivery must live as long as its source, and end with a cause when that is closed.",
		check: steps(deliver("acked", "held"), ack("acked"), wait(1), each(sessionLives), shut, each(sessionEnds))},
	{name: "close-again", needs: "publish-delivers", check: closeAgain,
		rule: "Close of a source or a broker may be called again."},
	{name: "close-apart", needs: "close-releases", check: closeApart,
		rule: "Closing one source must leave the others alone."},
	{name: "broker-closes", needs: "close-unblocks close-ends-settling", check: brokerCloses,
		rule: "Broker.Close must close the sources still open, and every call after it must be ErrClosed."},
}

func capabilitiesConstant(tr *trial) {
	w, got := tr.delivered("one")
	c := w.caps
	if min(c.Lease, c.MaxLease, c.Granularity) < 0 || min(c.HeaderLimit, c.MessageLimit) < 0 {
		tr.failf("a capability is negative: %+v", c)
	}
	if c.MaxLease > 0 && c.MaxLease < c.Lease {
		tr.failf("MaxLease is less than Lease: %+v", c)
	}
	w.settle(w.all(brokers.Ack, got...)...)
	w.close()
	if now := w.src.Capabilities(); !reflect.DeepEqual(now, c) {
		tr.failf("they were %+v and became %+v", c, now)
	}
}

func closeUnblocks(tr *trial) {
	w := tr.open("orders")
	out := w.waiting()
	w.close()
	w.receivesClosed(out)
}

// waiting returns a Receive that waits for a message.
func (w *worker) waiting() <-chan received {
	for until := deadline(w.tr.patience); ; {
		out := w.receive(w.tr.ctx, 2*w.tr.patience, 1)
		select {
		case r := <-out:
			if !time.Now().Before(until) {
				w.tr.failf("source.Receive from %q does not wait: %d deliveries and the error %v", w.sub.Topics, len(r.ds), r.err)
			}
			w.tr.pause(w.tr.Unit / 20) // after a temporary error
		case <-time.After(w.tr.Unit):
			return out
		}
	}
}

// receivesClosed demands ErrClosed from the Receive under way and from another.
func (w *worker) receivesClosed(out <-chan received) {
	for _, what := range []string{"the Receive under way", "a Receive afterwards"} {
		select {
		case <-time.After(w.tr.Slack):
			w.tr.failf("%s from %q was waiting still, %v after Close", what, w.sub.Topics, w.tr.Slack)
		case r := <-out:
			if !errors.Is(r.err, brokers.ErrClosed) {
				w.tr.failf("%s from %q, after Close: %d deliveries and the error %v, want ErrClosed", what, w.sub.Topics, len(r.ds), r.err)
			}
		}
		out = w.receive(w.tr.ctx, w.tr.patience, 1)
	}
}

func sessionLives(w *worker, a *arrival) error {
	if a.Session == nil {
		w.tr.skip("Delivery.Session is nil: sessions cannot end")
	}
	if a.Session.Err() != nil {
		return fmt.Errorf("%s: its session ended while its source was open: %w", a, context.Cause(a.Session))
	}
	return nil
}

func sessionEnds(w *worker, a *arrival) error {
	select {
	case <-a.Session.Done():
	case <-time.After(w.tr.Slack):
		return fmt.Errorf("%s: its source was closed, and its session goes on", a)
	}
	if cause := context.Cause(a.Session); cause == context.Canceled {
		return fmt.Errorf("%s: its source was closed, and its session ended without a cause: %w", a, cause)
	}
	return nil
}

func closeAgain(tr *trial) {
	w := tr.open("orders")
	w.close()
	tr.must(tr.try("the second Close of a source", w.src.Close))
	tr.must(tr.closeBroker())
	tr.must(tr.try("the second Close of the broker", tr.broker.Close))
	tr.must(tr.try("Close of a source after that of its broker", w.src.Close))
}

func closeApart(tr *trial) {
	stays, goes := tr.open("orders"), tr.open("orders")
	stays.publish("one")
	goes.next(deadline(tr.Unit))
	goes.close()
	steps(publish("two"), on(owesLease), expect("one", "two"))(tr)
}

func brokerCloses(tr *trial) {
	w, got := tr.delivered("held")
	out := w.waiting()
	tr.must(tr.closeBroker())
	w.closed = true
	w.receivesClosed(out)
	if err := w.settle(w.to(brokers.Ack, got[0]))[0]; !lost(err) {
		tr.failf("source.Settle(ack) of %s after Broker.Close returned %v, want ErrClosed", got[0], err)
	}
	for what, s := range map[string]step{"broker.Publish": publish("too late"), "broker.Open": another} {
		if err := caught(func() { s(tr) }); !errors.Is(err, brokers.ErrClosed) {
			tr.failf("%s after Broker.Close returned %v, want ErrClosed", what, err)
		}
	}
}

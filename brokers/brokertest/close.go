package brokertest

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

func closeClauses() []clause {
	needs := []string{"publish-delivers"}
	return []clause{
		{
			name:  "capabilities-constant",
			rule:  "Capabilities must make sense and be constant for the life of the source.",
			needs: needs,
			check: capabilitiesConstant,
		},
		{
			name:  "close-unblocks",
			rule:  "Close must unblock Receive, and every Receive after it must return ErrClosed at once.",
			needs: []string{"receive-waits"},
			check: closeUnblocks,
		},
		{
			name:  "close-releases",
			rule:  "Close must release what is received but unsettled, with its Meta, and keep what is not received.",
			needs: []string{"ack-removes", "meta-fresh"},
			check: closeReleases,
		},
		{
			name:  "close-ends-settling",
			rule:  "A settlement after Close must be ErrClosed or ErrLeaseLost and remove nothing.",
			needs: []string{"close-releases"},
			check: closeEndsSettling,
		},
		{
			name:  "close-ends-session",
			rule:  "The session of a delivery must live as long as its source, and end with a cause when that is closed.",
			needs: needs,
			check: closeEndsSession,
		},
		{
			name:  "close-again",
			rule:  "Close of a source or a broker may be called again.",
			needs: needs,
			check: closeAgain,
		},
		{
			name:  "close-apart",
			rule:  "Closing one source must leave the others alone.",
			needs: []string{"close-releases"},
			check: closeApart,
		},
		{
			name:  "broker-closes",
			rule:  "Broker.Close must close the sources still open, and every call after it must be ErrClosed.",
			needs: []string{"close-unblocks", "close-ends-settling"},
			check: brokerCloses,
		},
	}
}

func capabilitiesConstant(tr *trial) {
	w, got := tr.deliver("one")
	c := w.caps
	if c.Lease < 0 || c.MaxLease < 0 || c.Granularity < 0 || c.HeaderLimit < 0 || c.MessageLimit < 0 {
		tr.failf("a capability is negative: %+v", c)
	}
	if c.MaxLease > 0 && c.MaxLease < c.Lease {
		tr.failf("MaxLease is less than Lease: %+v", c)
	}
	w.settle(acks(got...)...)
	w.close()
	if now := w.src.Capabilities(); !reflect.DeepEqual(now, c) {
		tr.failf("they were %+v and became %+v", c, now)
	}
}

func closeUnblocks(tr *trial) {
	w := tr.open(tr.Topic("orders"))
	out := w.waiting()
	w.close()
	w.receivesClosed(out, "Close")
}

// waiting returns a Receive that waits for a message.
func (w *worker) waiting() <-chan received {
	for until := deadline(w.tr.patience); ; {
		ctx, cancel := context.WithTimeout(w.tr.ctx, 2*w.tr.patience)
		out := w.receive(ctx, cancel, 1)
		select {
		case r := <-out:
			if !time.Now().Before(until) {
				last := make(chan received, 1)
				last <- r
				return last
			}
			w.tr.pause(w.tr.Unit / 20) // after a temporary error
		case <-time.After(w.tr.Unit):
			return out
		}
	}
}

// receivesClosed demands ErrClosed from the Receive under way and from another.
func (w *worker) receivesClosed(out <-chan received, closer string) {
	for _, what := range []string{"the Receive under way", "a Receive afterwards"} {
		select {
		case <-time.After(w.tr.Slack):
			w.tr.failf("%s from %q was waiting still, %v after %s", what, w.sub.Topics, w.tr.Slack, closer)
		case r := <-out:
			if !errors.Is(r.err, brokers.ErrClosed) {
				w.tr.failf("%s from %q, after %s: %d deliveries and the error %v, want ErrClosed", what, w.sub.Topics, closer, len(r.ds), r.err)
			}
		}
		ctx, cancel := context.WithTimeout(w.tr.ctx, w.tr.patience)
		out = w.receive(ctx, cancel, 1)
	}
}

// closeReleases closes a source that has acked one of eight messages, holds
// three and has not received the others.
func closeReleases(tr *trial) {
	bodies := numbered("message", 8)
	w := tr.stocked(bodies...)
	w.max = 1
	for n := range 4 {
		a := w.some()
		if n > 0 {
			continue
		}
		bodies = without(bodies, a)
		w.ack(a)
	}
	w = w.reopen()
	tr.note("one message was acked, three were received and four were not when the source was closed")
	got := w.expectSoon(bodies...)
	for _, a := range got {
		tr.must(tr.sameMeta(a, brokers.Meta{Origin: a.Meta().Origin}))
	}
	w.ack(got...)
}

func closeEndsSettling(tr *trial) {
	w, old := tr.deliver(endings[:]...)
	next := w.reopen()
	verdict := caught(func() { w.stale(old, "after Close of its source") })
	tr.note("after a settlement that followed Close")
	got := next.expect(w.caps.Lease+tr.patience, endings[:]...)
	tr.must(verdict)
	for i, a := range got {
		if !tr.mayCopy(a) {
			tr.must(tr.sameMeta(a, old[i].Meta()))
		}
	}
	w.stale(old, "after Close of its source, and while another one holds it,")
	next.untouched(got)
}

func closeEndsSession(tr *trial) {
	w, got := tr.deliver("one", "two")
	w.settle(acks(got[0])...)
	tr.pause(tr.Unit)
	for _, a := range got {
		if a.Session == nil {
			tr.skip("Delivery.Session is nil: sessions cannot end")
		}
		if a.Session.Err() != nil {
			tr.failf("%s: its session ended while its source was open: %w", a, context.Cause(a.Session))
		}
	}
	w.close()
	for _, a := range got {
		select {
		case <-a.Session.Done():
		case <-time.After(tr.Slack):
			tr.failf("%s: its source was closed, and its session goes on", a)
		}
		if cause := context.Cause(a.Session); cause == context.Canceled {
			tr.failf("%s: its source was closed, and its session ended without a cause: %w", a, cause)
		}
	}
}

func closeAgain(tr *trial) {
	w := tr.open(tr.Topic("orders"))
	w.close()
	tr.must(tr.try("the second Close of a source", w.src.Close))
	tr.must(tr.closeBroker())
	tr.must(tr.try("the second Close of the broker", tr.broker.Close))
	tr.must(tr.try("Close of a source after that of its broker", w.src.Close))
}

func closeApart(tr *trial) {
	topic := tr.Topic("orders")
	stays := tr.open(topic)
	goes := tr.open(topic)
	tr.publish(topic, text("one")...)
	goes.next(deadline(tr.Unit))
	goes.close()
	tr.publish(topic, text("two")...)
	stays.expect(goes.caps.Lease+tr.patience, "one", "two")
}

func brokerCloses(tr *trial) {
	topic := tr.Topic("orders")
	w, got := tr.deliver("held")
	out := w.waiting()
	tr.must(tr.closeBroker())
	w.closed = true
	w.receivesClosed(out, "Broker.Close")
	if err := w.settle(acks(got[0])...)[0]; !lost(err) {
		tr.failf("source.Settle(ack) of %s after Broker.Close returned %v, want ErrClosed", got[0], err)
	}
	if err := caught(func() { tr.publish(topic, text("too late")...) }); !errors.Is(err, brokers.ErrClosed) {
		tr.failf("broker.Publish to %q after Broker.Close returned %v, want ErrClosed", topic, err)
	}
	if err := caught(func() { tr.open(topic) }); !errors.Is(err, brokers.ErrClosed) {
		tr.failf("broker.Open of %q after Broker.Close returned %v, want ErrClosed", topic, err)
	}
}

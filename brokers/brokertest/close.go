package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

func capabilitiesConstant(tr *trial) error {
	w, got, err := tr.deliver("one")
	if err != nil {
		return err
	}
	c := w.caps
	if c.Lease < 0 || c.MaxLease < 0 || c.Granularity < 0 || c.HeaderLimit < 0 || c.MessageLimit < 0 {
		return fmt.Errorf("a capability is negative: %+v", c)
	}
	if c.MaxLease > 0 && c.MaxLease < c.Lease {
		return fmt.Errorf("MaxLease is less than Lease: %+v", c)
	}
	w.settle(acks(got...)...)
	if err := w.close(); err != nil {
		return err
	}
	if now := w.src.Capabilities(); now != c {
		return fmt.Errorf("they were %+v and became %+v", c, now)
	}
	return nil
}

func closeUnblocks(tr *trial) error {
	w, err := tr.open(tr.Topic("orders"))
	if err != nil {
		return err
	}
	out := w.waiting()
	if err := w.close(); err != nil {
		return err
	}
	return w.receivesClosed(out, "Close")
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
func (w *worker) receivesClosed(out <-chan received, closer string) error {
	for _, what := range []string{"the Receive under way", "a Receive afterwards"} {
		select {
		case <-time.After(w.tr.Slack):
			return fmt.Errorf("%s from %q was waiting still, %v after %s", what, w.sub.Topics, w.tr.Slack, closer)
		case r := <-out:
			if !errors.Is(r.err, brokers.ErrClosed) {
				return fmt.Errorf("%s from %q, after %s: %d deliveries and the error %v, want ErrClosed", what, w.sub.Topics, closer, len(r.ds), r.err)
			}
		}
		ctx, cancel := context.WithTimeout(w.tr.ctx, w.tr.patience)
		out = w.receive(ctx, cancel, 1)
	}
	return nil
}

// closeReleases closes a source that has acked one of eight messages, holds
// three and has not received the others.
func closeReleases(tr *trial) error {
	bodies := numbered("message", 8)
	topic := tr.Topic("orders")
	w, err := tr.open(topic)
	if err != nil {
		return err
	}
	if err := tr.publish(topic, text(bodies...)...); err != nil {
		return err
	}
	w.max = 1
	for n := range 4 {
		a, err := w.next(deadline(tr.patience))
		if err != nil || a == nil {
			return errors.Join(err, fmt.Errorf("messages are waiting in %q, and none came", topic))
		}
		if n > 0 {
			continue
		}
		bodies = slices.DeleteFunc(bodies, func(body string) bool { return body == a.body() })
		if err := w.ack(a); err != nil {
			return err
		}
	}
	if w, err = w.reopen(); err != nil {
		return err
	}
	got, err := w.expect(w.soon(), bodies...)
	if err != nil {
		return fmt.Errorf("one message was acked, three were received and four were not when the source was closed: %w", err)
	}
	for _, a := range got {
		if err := tr.sameMeta(a, brokers.Meta{Origin: a.Meta.Origin}); err != nil {
			return err
		}
	}
	return w.ack(got...)
}

func closeEndsSettling(tr *trial) error {
	w, old, err := tr.deliver(endings[:]...)
	if err != nil {
		return err
	}
	next, err := w.reopen()
	if err != nil {
		return err
	}
	verdict := w.stale(old, "after Close of its source")
	got, err := next.expect(w.caps.Lease+tr.patience, endings[:]...)
	if err != nil {
		return fmt.Errorf("after a settlement that followed Close: %w", err)
	}
	if verdict != nil {
		return verdict
	}
	for i, a := range got {
		if err := tr.sameMeta(a, old[i].Meta); err != nil && !tr.mayCopy(a) {
			return err
		}
	}
	if err := w.stale(old, "after Close of its source, and while another one holds it,"); err != nil {
		return err
	}
	return next.untouched(got)
}

func closeEndsSession(tr *trial) error {
	w, got, err := tr.deliver("one", "two")
	if err != nil {
		return err
	}
	w.settle(acks(got[0])...)
	tr.pause(tr.Unit)
	for _, a := range got {
		if a.Session == nil {
			return skip("Delivery.Session is nil: sessions cannot end")
		}
		if a.Session.Err() != nil {
			return fmt.Errorf("%s: its session ended while its source was open: %w", a, context.Cause(a.Session))
		}
	}
	if err := w.close(); err != nil {
		return err
	}
	for _, a := range got {
		select {
		case <-a.Session.Done():
		case <-time.After(tr.Slack):
			return fmt.Errorf("%s: its source was closed, and its session goes on", a)
		}
		if cause := context.Cause(a.Session); cause == context.Canceled {
			return fmt.Errorf("%s: its source was closed, and its session ended without a cause: %w", a, cause)
		}
	}
	return nil
}

func closeAgain(tr *trial) error {
	w, err := tr.open(tr.Topic("orders"))
	if err != nil {
		return err
	}
	if err := w.close(); err != nil {
		return err
	}
	if err := tr.try("the second Close of a source", w.src.Close); err != nil {
		return err
	}
	if err := tr.closeBroker(); err != nil {
		return err
	}
	return errors.Join(
		tr.try("the second Close of the broker", tr.broker.Close),
		tr.try("Close of a source after that of its broker", w.src.Close),
	)
}

func closeApart(tr *trial) error {
	topic := tr.Topic("orders")
	stays, err := tr.open(topic)
	if err != nil {
		return err
	}
	goes, err := tr.open(topic)
	if err != nil {
		return err
	}
	if err := tr.publish(topic, text("one")...); err != nil {
		return err
	}
	if _, err := goes.next(deadline(tr.Unit)); err != nil {
		return err
	}
	if err := goes.close(); err != nil {
		return err
	}
	if err := tr.publish(topic, text("two")...); err != nil {
		return err
	}
	_, err = stays.expect(goes.caps.Lease+tr.patience, "one", "two")
	return err
}

func brokerCloses(tr *trial) error {
	topic := tr.Topic("orders")
	w, got, err := tr.deliver("held")
	if err != nil {
		return err
	}
	out := w.waiting()
	if err := tr.closeBroker(); err != nil {
		return err
	}
	w.closed = true
	if err := w.receivesClosed(out, "Broker.Close"); err != nil {
		return err
	}
	if err := w.settle(acks(got[0])...)[0]; !lost(err) {
		return fmt.Errorf("source.Settle(ack) of %s after Broker.Close returned %v, want ErrClosed", got[0], err)
	}
	if err := tr.publish(topic, text("too late")...); !errors.Is(err, brokers.ErrClosed) {
		return fmt.Errorf("broker.Publish to %q after Broker.Close returned %v, want ErrClosed", topic, err)
	}
	if _, err := tr.open(topic); !errors.Is(err, brokers.ErrClosed) {
		return fmt.Errorf("broker.Open of %q after Broker.Close returned %v, want ErrClosed", topic, err)
	}
	return nil
}

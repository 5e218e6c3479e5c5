package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
)

// maxReceipts bounds the receipts that wait to be published.
const maxReceipts = 1000

var (
	errReceiptsFull    = fmt.Errorf("%d receipts wait to be published", maxReceipts)
	errReceiptsStopped = errors.New("the worker has stopped before it was published")
)

// receipts tell whoever sent a message back what became of it, if they asked. No
// message waits for them: where too many wait already, one is dropped.
type receipts struct {
	*reporter
	*sender[brokers.Message]
	broker                 brokers.Broker
	topic, group, instance string
}

// newReceipts returns nil if none are wanted.
func newReceipts(r *reporter, broker brokers.Broker, cfg Config, group string, ps *pulses) *receipts {
	if cfg.Receipts == "" {
		return nil
	}
	rs := &receipts{reporter: r, broker: broker, topic: cfg.Receipts, group: group, instance: cfg.Instance}
	rs.sender = newSender(settleBackoff, ps.add("receipts"), rs.publish)
	return rs
}

// tell publishes r about d.
func (rs *receipts) tell(d *delivery, r dlq.Receipt) {
	if d.came().Send == "" {
		return
	}
	if rs.unsent() >= maxReceipts {
		rs.drop(errReceiptsFull)
		return
	}
	d.mu.Lock()
	r.Attempt = max(int(d.last), d.meta.Attempt)
	d.mu.Unlock()
	r.Send, r.MessageID, r.Topic = d.came().Send, d.Message.ID, d.Message.Topic
	r.Group, r.By, r.At = rs.group, rs.instance, time.Now()
	rs.add(r.Message())
}

// end is tell for a message that is gone.
func (rs *receipts) end(d *delivery) {
	r := dlq.Receipt{Outcome: "handled"}
	if l := d.letter; l != nil {
		r = dlq.Receipt{Outcome: "dead", Class: l.Meta.Class, Fingerprint: l.Fingerprint, Reason: l.Reason}
	}
	rs.tell(d, r)
}

// publish publishes some and returns those to publish again.
func (rs *receipts) publish(ctx context.Context, some []brokers.Message) (failed []brokers.Message) {
	expectAnswer(ctx)
	err := rs.broker.Publish(ctx, rs.topic, some...)
	answered(ctx)
	for i, cause := range publishErrors(err, len(some)) {
		switch {
		case cause == nil:
		case errors.Is(cause, brokers.ErrRefused):
			rs.drop(cause)
		default:
			failed = append(failed, some[i])
		}
	}
	if len(failed) > 0 {
		rs.report(Event{Kind: EventError, Operation: "receipt",
			Err: fmt.Errorf("%d receipts to %q: %w; messages are not affected", len(failed), rs.topic, err)})
	}
	return failed
}

// dropRest drops what could not be published before the end.
func (rs *receipts) dropRest() {
	for range rs.abandon() {
		rs.drop(errReceiptsStopped)
	}
}

func (rs *receipts) drop(cause error) {
	rs.report(Event{Kind: EventReceiptDropped, Err: fmt.Errorf("receipt to %q: %w; whoever sent its message back is not told", rs.topic, cause)})
}

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

// receipt tells whoever sent d back what became of it, if they asked. It waits for
// nothing: where too many wait already, it is dropped.
func (p *pipeline) receipt(d *delivery, r dlq.Receipt) {
	if p.receipts == nil || d.came().Send == "" {
		return
	}
	if p.receipts.unsent() >= maxReceipts {
		p.dropReceipt(errReceiptsFull)
		return
	}
	d.mu.Lock()
	r.Attempt = max(int(d.last), d.meta.Attempt)
	d.mu.Unlock()
	r.Send, r.MessageID, r.Topic = d.came().Send, d.Message.ID, d.Message.Topic
	r.Group, r.By, r.At = p.group(), p.cfg.Instance, time.Now()
	p.receipts.add(r.Message())
}

// receiptOfEnd is receipt for a message that is gone.
func (p *pipeline) receiptOfEnd(d *delivery) {
	r := dlq.Receipt{Outcome: dlq.OutcomeHandled}
	if l := d.letter; l != nil {
		r = dlq.Receipt{Outcome: dlq.OutcomeDead, Class: l.Meta.Class, Fingerprint: l.Fingerprint, Reason: l.Reason}
	}
	p.receipt(d, r)
}

// publishReceipts publishes receipts and returns those to publish again.
func (p *pipeline) publishReceipts(ctx context.Context, receipts []brokers.Message) (failed []brokers.Message) {
	err := p.broker.Publish(ctx, p.cfg.Receipts, receipts...)
	for i, cause := range publishErrors(err, len(receipts)) {
		switch {
		case cause == nil:
		case errors.Is(cause, brokers.ErrRefused):
			p.dropReceipt(cause)
		default:
			failed = append(failed, receipts[i])
		}
	}
	if len(failed) > 0 {
		p.report(p.values, Event{Kind: EventError, Operation: "receipt",
			Err: fmt.Errorf("%d receipts to %q: %w; messages are not affected", len(failed), p.cfg.Receipts, err)})
	}
	return failed
}

// dropReceipts drops what could not be published before the end.
func (p *pipeline) dropReceipts() {
	if p.receipts == nil {
		return
	}
	for range p.receipts.abandon() {
		p.dropReceipt(errReceiptsStopped)
	}
}

func (p *pipeline) dropReceipt(cause error) {
	p.report(p.values, Event{Kind: EventReceiptDropped, Err: fmt.Errorf("receipt to %q: %w; whoever sent its message back is not told", p.cfg.Receipts, cause)})
}

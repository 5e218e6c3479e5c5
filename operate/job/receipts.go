package job

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/store"
)

// Receipts reads what workers say of letters that were sent back, and tells the
// store.
type Receipts struct {
	Store *store.Store

	believed, forged, unreadable atomic.Int64
}

// ReceiptCounts are numbers of messages that Receipts has read, since it began.
type ReceiptCounts struct {
	Believed   int64 // they speak of the last sending of a letter
	Forged     int64 // they speak of no sending, or of one that is not the last
	Unreadable int64 // they are no receipts
}

// Counts returns what was read by now. Run may go on meanwhile.
func (r *Receipts) Counts() ReceiptCounts {
	return ReceiptCounts{Believed: r.believed.Load(), Forged: r.forged.Load(), Unreadable: r.unreadable.Load()}
}

// maxReceipts is how many receipts are read at once.
const maxReceipts = 500

// Run reads receipts from the topics that workers publish them to, until ctx ends,
// and returns ctx's cause; or until the source is closed, or cannot go on, and
// returns why. It does not close the source. A receipt is acked when the store has
// it. A message that is no receipt, or is not believed, is acked and counted. While
// the store or the broker does not answer, Run waits. The log has a line when that
// begins, every 5 minutes, and when it is over.
func (r *Receipts) Run(ctx context.Context, source brokers.Source, log *slog.Logger) error {
	read, saved := trouble{log: log, what: "source of receipts"}, trouble{log: log, what: "store of receipts"}
	for {
		batch, err := source.Receive(ctx, maxReceipts)
		switch {
		case ctx.Err() != nil:
			settle(ctx, source, batch, brokers.Release)
			return context.Cause(ctx)
		case errors.Is(err, brokers.ErrClosed) || errors.Is(err, brokers.ErrMisconfigured) || isOfTopic(err):
			return err
		case err != nil:
			sleep(ctx, read.failed(time.Now(), err))
			continue
		}
		read.over(time.Now())
		for err := r.read(ctx, batch); err != nil; err = r.read(ctx, batch) {
			if sleep(ctx, saved.failed(time.Now(), err)); ctx.Err() != nil {
				settle(ctx, source, batch, brokers.Release)
				return context.Cause(ctx)
			}
		}
		saved.over(time.Now())
		settle(ctx, source, batch, brokers.Ack)
	}
}

// isOfTopic reports whether an error is about one topic of several.
func isOfTopic(err error) bool {
	_, ok := errors.AsType[*brokers.TopicError](err)
	return ok
}

// read tells the store what a batch says.
func (r *Receipts) read(ctx context.Context, batch []*brokers.Delivery) error {
	var list []dlq.Receipt
	for _, d := range batch {
		if receipt, err := dlq.DecodeReceipt(d.Message); err == nil {
			list = append(list, receipt)
		}
	}
	believed, err := r.Store.Receipts(ctx, time.Now(), list)
	if err != nil {
		return err
	}
	r.believed.Add(int64(believed))
	r.forged.Add(int64(len(list) - believed))
	r.unreadable.Add(int64(len(batch) - len(list)))
	return nil
}

// settle ends deliveries. One that cannot be settled comes again, and says nothing
// new then.
func settle(ctx context.Context, source brokers.Source, batch []*brokers.Delivery, action brokers.Action) {
	settlements := make([]brokers.Settlement, len(batch))
	for i, d := range batch {
		settlements[i] = brokers.Settlement{Delivery: d, Action: action}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_ = source.Settle(ctx, settlements)
}

package brokertest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

func readerClauses() []clause {
	needs := []string{"reader-receives"}
	return []clause{
		{
			name:  "reader-receives",
			rule:  "A subscription that only reads must receive what is in its topic, and Ack and Release must end it as ever.",
			needs: []string{"ack-removes", "release-returns", "publish-stores"},
			check: readerReceives,
		},
		{
			name:  "reader-retry",
			rule:  "Where a subscription only reads, a Retry must be done, or be ErrRefused, and then the delivery is still held.",
			needs: append(needs, "retry-returns"),
			check: readerRetry,
		},
		{
			name:  "reader-missing",
			rule:  "Open of a subscription that only reads must make no topic: one that is missing is ErrMisconfigured, and the error names it.",
			needs: needs,
			check: readerMissing,
		},
	}
}

// reading is what asks for nothing but to read topic, in a group of its own.
func (tr *trial) reading(topic string) brokers.Subscription {
	return brokers.Subscription{Topics: []string{topic}, Group: topic + "-readers", InFlight: 32, Lease: 5 * tr.Unit}
}

// read opens a reader on a topic that a worker has left, where a message for every
// body is waiting.
func (tr *trial) read(bodies ...string) *worker {
	w, topic := tr.empty()
	w.close()
	tr.publish(topic, text(bodies...)...)
	return tr.subscribe(tr.reading(topic))
}

func readerReceives(tr *trial) {
	w := tr.read("acked", "released")
	got := w.expect(tr.patience, "acked", "released")
	w.ack(got[0])
	w.release(got[1])
	tr.note("after Release by a reader")
	w.ack(w.expectSoon("released")...)
	tr.note("after Ack by a reader")
	for range 1 + tolerated {
		w = w.reopen()
		w.quiet(2 * tr.Unit)
	}
}

func readerRetry(tr *trial) {
	w := tr.read("retried")
	got := w.expect(tr.patience, "retried")
	if err := caught(func() { w.retry(got[0], tr.Unit) }); errors.Is(err, brokers.ErrRefused) {
		tr.note("after ErrRefused")
		w.release(got[0])
	} else {
		tr.must(err)
		tr.note("after Retry by a reader")
	}
	w.ack(w.expect(tr.Unit+tr.patience, "retried")...)
}

func readerMissing(tr *trial) {
	missing := "missing-" + tr.Topic("orders")
	what := fmt.Sprintf("broker.Open of %q, which nobody has made, only to read,", missing)
	err := tr.try(what, func(ctx context.Context) error {
		src, err := tr.broker.Open(ctx, tr.reading(missing))
		if err == nil {
			src.Close(ctx)
		}
		return err
	})
	switch {
	case err == nil:
		tr.failf("%s succeeded", what)
	case !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(errors.Unwrap(err).Error(), missing):
		tr.failf("%w: this is not ErrMisconfigured, or does not name it", err)
	}
}

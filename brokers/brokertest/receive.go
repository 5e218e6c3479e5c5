package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

var receiveClauses = []clause{
	{name: "receive-waits", needs: "publish-delivers", check: receiveWaits,
		rule: "Receive must block until there is a delivery: it never returns empty-handed without an error."},
	{name: "receive-max", needs: "publish-delivers", check: receiveMax,
		rule: "Receive must return at most max deliveries."},
	{name: "receive-ends", needs: "publish-delivers", check: interrupted(false),
		rule: "Receive must return when its context ends."},
	{name: "receive-cause", needs: "receive-ends receive-waits", check: interrupted(true),
		rule: "When its context ends, Receive must return the context's cause."},
	{name: "receive-gives-back", needs: "receive-ends ack-removes", check: receiveGivesBack,
		rule: "A delivery that was taken from the broker when the context of Receive ended must be given back, not dropped."},
	{name: "receive-in-flight", needs: "publish-delivers",
		rule: "A worker must be able to hold Subscription.InFlight deliveries at once.",
		check: steps(openWith(func(_ *trial, sub *brokers.Subscription) { sub.InFlight = 12 }), most(5),
			publish(numbered("message", 12)...), expect(numbered("message", 12)...))},
	{name: "receive-after-pause", needs: "ack-removes lease-until receive-max", long: true,
		rule: "Not calling Receive for hours must be safe: what comes afterwards has half of its lease left and can be settled.",
		check: steps(open("orders"), publish(numbered("message", 4)...), take(1), ack(), on(rests),
			on(func(w *worker) { w.expectEach(w.tr.patience, w.leaveHalf, w.tr.rest()) }))},
	{name: "source-concurrent", needs: "ack-removes", check: sourceConcurrent,
		rule: "The methods of a Source must work at the same time, Settle for different deliveries: none waits for a Receive."},
}

func receiveWaits(tr *trial) {
	w := tr.open("orders")
	const units = 3
	start := time.Now()
	out := w.receive(tr.ctx, units*tr.Unit, 1)
	select {
	case r := <-out:
		if r.err == nil {
			tr.failf("source.Receive from the empty topic %q returned %d deliveries and no error after %v", w.topic(), len(r.ds), r.at.Sub(start))
		}
	case <-time.After(units*tr.Unit + tr.Slack):
		w.pending = out // that it ends is another clause
	}
	steps(publish("at last"), expect("at last"))(tr)
}

func receiveMax(tr *trial) {
	w := tr.open("orders")
	w.publish(numbered("message", 6)...)
	for _, most := range []int{1, 2, 1} {
		w.max, w.inbox = most, nil
		w.fetch(deadline(tr.patience))
		if len(w.inbox) > most {
			tr.failf("source.Receive from %q of at most %d returned %d deliveries", w.topic(), most, len(w.inbox))
		}
		if w.pending != nil {
			tr.failf("source.Receive from %q, where messages are waiting, did not return", w.topic())
		}
	}
}

// interrupted ends the context of a Receive that waits, and of one that has
// not begun. If the cause matters, they must return it.
func interrupted(causeMatters bool) func(*trial) {
	return func(tr *trial) {
		w, cause := tr.open("orders"), errors.New("the worker stops")
		for _, wait := range []time.Duration{tr.Unit, 0} {
			ctx, cancel := context.WithCancelCause(tr.ctx)
			if wait == 0 {
				cancel(cause)
			}
			out := w.receive(ctx, 2*tr.patience, 1)
			tr.pause(wait)
			cancel(cause)
			select {
			case r := <-out:
				if causeMatters && !errors.Is(r.err, cause) {
					tr.failf("the context of Receive ended with the cause %q, and Receive returned %v", cause, r.err)
				}
			case <-time.After(tr.Slack):
				tr.failf("source.Receive from the empty topic %q was waiting still, %v after its context ended", w.topic(), tr.Slack)
			}
		}
	}
}

// receiveGivesBack ends the context of one Receive after another at different
// times after a publish, so that some end with a delivery on its way.
func receiveGivesBack(tr *trial) {
	w := tr.open("orders")
	for n := range by(tr, 25, 6) {
		body := fmt.Sprintf("round %d", n)
		ctx, cancel := context.WithCancel(tr.ctx)
		w.pending = w.receive(ctx, 2*tr.patience, 1)
		before := tr.Slack * time.Duration(n) / 50
		w.publish(body)
		tr.pause(before)
		cancel()
		tr.did("the context of a Receive ends, %v after this", before)
		w.ack(w.expectSoon(body)...)
	}
}

// rests leaves out Receive for much longer than a lease.
func rests(w *worker) {
	pause := by(w.tr, 3*time.Hour, min(2*w.caps.Lease+w.tr.Unit, w.tr.patience))
	w.tr.did("no Receive for %v", pause)
	w.tr.pause(pause)
}

// leaveHalf demands half of a lease, and acks.
func (w *worker) leaveHalf(a *arrival) {
	if left := a.LeaseUntil.Sub(a.raw); w.caps.Lease > 0 && left < w.caps.Lease/2 {
		w.tr.failf("%s has %v of its lease of %v left", a, left, w.caps.Lease)
	}
	w.ack(a)
}

// sourceConcurrent hands deliveries from the goroutine that receives them to
// others that extend and settle them. The last one follows when a Receive is
// waiting on the empty topic, and must not wait for it.
func sourceConcurrent(tr *trial) {
	bodies := numbered("message", 40)
	w := tr.open("orders")
	w.publish(bodies...)
	w.max = 3
	received := make(chan *arrival, len(bodies))
	receive := func() {
		defer close(received)
		seen := make(map[string]bool)
		w.expectEach(tr.patience, func(a *arrival) {
			if seen[a.body()] {
				return // a duplicate
			}
			seen[a.body()] = true
			if len(seen) == len(bodies) {
				w.pending = w.receive(tr.ctx, 2*tr.patience, 1)
				tr.pause(tr.Unit / 2)
			}
			received <- a
		}, bodies)
	}
	handle := func() {
		for a := range received {
			if w.overdue(a) {
				continue
			}
			if w.caps.Lease > 0 {
				tr.must(w.extend(w.caps.Lease, a)[0])
			}
			w.ack(a)
		}
	}
	tr.together(receive, handle, handle, handle)
}

// overdue reports whether the machine has been so slow that the lease of a may be
// over before anything can be done with it.
func (w *worker) overdue(a *arrival) bool {
	return !w.tr.Virtual && w.caps.Lease > 0 && time.Since(a.at) > w.caps.Lease/2
}

var readerClauses = []clause{
	{name: "reader-receives", needs: "ack-removes release-returns publish-stores",
		rule: "A subscription that only reads must receive what is in its topic, and Ack and Release must end it as ever.",
		check: steps(open("orders"), shut, publish("acked", "released"), openWith(reading), expect("acked", "released"),
			ack("acked"), release("released"), soon("released"), ack(), gone)},
	{name: "reader-retry", needs: "reader-receives retry-returns",
		rule: "Where a subscription only reads, a Retry must be done, or be ErrRefused, and then the delivery is still held.",
		check: steps(open("orders"), shut, publish("retried"), openWith(reading), expect("retried"),
			retryOrRelease, consume("retried"))},
	{name: "reader-missing", needs: "reader-receives", check: readerMissing,
		rule: "Open of a subscription that only reads must make no topic: one that is missing is ErrMisconfigured, and the error names it."},
}

// reading asks for nothing but to read the topic, in a group of its own.
func reading(tr *trial, sub *brokers.Subscription) {
	*sub = brokers.Subscription{Topics: sub.Topics, Group: sub.Topics[0] + "-readers", InFlight: sub.InFlight, Lease: sub.Lease}
}

func retryOrRelease(tr *trial) {
	if tr.refused(func() { retry(1)(tr) }) {
		release()(tr)
	}
}

func readerMissing(tr *trial) {
	sub := tr.subscription("missing-" + tr.Topic("orders"))
	reading(tr, &sub)
	what := fmt.Sprintf("broker.Open of %q, which nobody has made, only to read,", sub.Topics)
	err := tr.try(what, func(ctx context.Context) error {
		src, err := tr.broker.Open(ctx, sub)
		if err == nil {
			src.Close(ctx)
		}
		return err
	})
	switch {
	case err == nil:
		tr.failf("%s succeeded", what)
	case !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(errors.Unwrap(err).Error(), sub.Topics[0]):
		tr.failf("%w: this is not ErrMisconfigured, or does not name it", err)
	}
}

var unreadableClauses = []clause{
	{name: "unreadable-delivered", needs: "ack-removes release-returns headers-intact dead-letter-topics", with: "PublishUnreadable", long: true, check: unreadableDelivered,
		rule: "A message that the adapter cannot read must come, whenever it comes, with Delivery.Unreadable, hold up and change none of its neighbours, and end like any other: by a release that returns it, by a dead letter and an Ack."},
}

// unreadableDelivered does what the pipeline does: it publishes what could be read
// as a dead letter, and acks the original. Before that a worker gives it back.
func unreadableDelivered(tr *trial) {
	openWith(deadLetters)(tr)
	w := tr.worker()
	before := brokers.Message{Body: []byte("before"), Headers: brokers.Headers{{Name: "tenant", Value: "acme"}}}
	behind := brokers.Message{Body: []byte("behind"), Headers: before.Headers}
	tr.publish(w.topic(), before)
	tr.must(tr.try("Harness.PublishUnreadable", func(ctx context.Context) error {
		return tr.PublishUnreadable(ctx, tr.broker, w.topic())
	}))
	tr.publish(w.topic(), behind)

	w.do(w.to(brokers.Release, w.unreadable(before, behind)))
	bad := w.unreadable()
	letter := bad.Message
	if len(letter.Body) == 0 {
		letter.Body = []byte("a stub")
	}
	tr.publish(tr.Topic("orders-dead"), letter)
	w.ack(bad)
	w.quiet(2 * tr.Unit)
	steps(reopen, quiet(2))(tr)
}

// unreadable receives the message that cannot be read, and acks its neighbours,
// which come as they were published.
func (w *worker) unreadable(neighbours ...brokers.Message) (bad *arrival) {
	tr := w.tr
	missing := slices.Clone(neighbours)
	for until := deadline(tr.patience); bad == nil || len(missing) > 0; {
		a := w.next(until)
		if a == nil {
			tr.failf("from %q: within %v came the message that cannot be read: %t, of its %d neighbours all but %d; Receive says %v",
				w.sub.Topics, tr.patience, bad != nil, len(neighbours), len(missing), w.failure)
		}
		i := slices.IndexFunc(missing, func(m brokers.Message) bool { return string(m.Body) == a.body() })
		switch fate := tr.fateOf(a.body(), nil); {
		case i >= 0:
			if a.Unreadable != nil {
				tr.failf("%s can be read, and has Unreadable: %v", a, a.Unreadable)
			}
			tr.must(sameHeaders(w, a))
			missing = slices.Delete(missing, i, i+1)
			w.ack(a)
		case a.Unreadable != nil:
			bad = a // of duplicates the latest holds the lease
			tr.announce(w.topic(), a.Message)
		case fate.published && fate.acks > 0:
			w.stray(a)
		default:
			tr.failf("%s cannot be read, and came without Unreadable", a)
		}
	}
	return bad
}

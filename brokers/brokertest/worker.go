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

// worker uses one source as the pipeline would.
type worker struct {
	tr     *trial
	src    brokers.Source
	sub    brokers.Subscription
	caps   brokers.Capabilities
	max    int // of Receive
	closed bool

	pending <-chan received // the Receive under way
	inbox   []*arrival      // received, but not yet due or not yet taken
	failure error           // of the last Receive that returned before its time
	losses  map[string]bool // topics for which Receive has returned a *brokers.TopicError
}

// received is what one Receive returned.
type received struct {
	ds  []*brokers.Delivery
	err error
	at  time.Time
}

// arrival is a delivery at the time when it may be handled.
type arrival struct {
	*brokers.Delivery
	raw time.Time // when Receive returned it
	at  time.Time // the same, or Meta.DueAt if that is later
}

func (a *arrival) body() string { return string(a.Message.Body) }

func (a *arrival) String() string { return describe(a.Delivery) }

func describe(d *brokers.Delivery) string {
	return fmt.Sprintf("message %.40q (topic %q, ID %q)", d.Message.Body, d.Message.Topic, d.Message.ID)
}

// next returns the first delivery that may be handled before until, or nil.
// Its part in "never early" is the pipeline's: a delivery whose Meta.DueAt
// lies ahead counts as not delivered until then. It is held as long as its
// lease lasts, and else settled as a Retry with the rest of the delay.
func (w *worker) next(until time.Time) *arrival {
	for {
		now := time.Now()
		w.postpone(now)
		wake := until
		for i, a := range w.inbox {
			if a.raw.After(until) {
				continue
			}
			if due := a.Meta().DueAt; due.After(now) {
				wake = earlier(wake, due)
				continue
			}
			w.inbox = slices.Delete(w.inbox, i, i+1)
			a.at = now
			return a
		}
		if !now.Before(until) {
			return nil
		}
		w.fetch(wake)
	}
}

// postpone retries what is due only after its lease has run out.
func (w *worker) postpone(now time.Time) {
	kept := w.inbox[:0]
	for _, a := range w.inbox {
		due := a.Meta().DueAt
		if a.LeaseUntil.IsZero() || !due.After(now) || due.Add(w.tr.Slack).Before(a.LeaseUntil) {
			kept = append(kept, a)
			continue
		}
		s := brokers.Settlement{Delivery: a.Delivery, Action: brokers.Retry, Delay: due.Sub(now), Meta: a.Meta()}
		if err := w.settle(s)[0]; err != nil {
			w.tr.failf("%s came %v before Meta.DueAt, to be retried then: %w", a, s.Delay, err)
		}
	}
	w.inbox = kept
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// fetch waits for the Receive under way, or for a new one, until wake. A
// Receive that outlives its context stays the one under way: clauses about
// that look at it themselves, and the others go on.
func (w *worker) fetch(wake time.Time) {
	if w.pending == nil {
		ctx, cancel := context.WithDeadline(w.tr.ctx, wake)
		w.pending = w.receive(ctx, cancel, w.max)
	}
	select {
	case <-time.After(time.Until(wake) + w.tr.Slack):
	case r := <-w.pending:
		w.pending = nil
		w.take(r, wake)
	}
}

// receive starts a Receive and hands over what it returns.
func (w *worker) receive(ctx context.Context, cancel context.CancelFunc, max int) <-chan received {
	out := make(chan received, 1)
	w.tr.calls.Go(func() {
		defer cancel()
		ds, err := w.src.Receive(ctx, max)
		out <- received{ds, err, time.Now()}
	})
	return out
}

// take puts deliveries into the inbox. After a temporary error it backs off.
func (w *worker) take(r received, wake time.Time) {
	if errors.Is(r.err, brokers.ErrClosed) || errors.Is(r.err, brokers.ErrMisconfigured) {
		w.tr.failf("source.Receive from %q: %w", w.sub.Topics, r.err)
	}
	if lost, ok := errors.AsType[*brokers.TopicError](r.err); ok {
		w.losses[lost.Topic] = true
	}
	if time.Now().Before(wake) {
		w.failure = r.err
		if len(r.ds) == 0 {
			w.tr.pause(min(w.tr.Unit/50, time.Until(wake)))
		}
	}
	for _, d := range r.ds {
		if d == nil {
			w.tr.failf("source.Receive from %q returned a nil delivery", w.sub.Topics)
		}
		w.inbox = append(w.inbox, &arrival{Delivery: d, raw: r.at})
	}
}

// expect receives until every body has come, and returns the arrivals, which
// are held, in the order of bodies.
func (w *worker) expect(within time.Duration, bodies ...string) []*arrival {
	return w.expectEach(within, func(*arrival) {}, bodies)
}

// consume is expect, and acks each message as it comes.
func (w *worker) consume(within time.Duration, bodies ...string) []*arrival {
	return w.expectEach(within, func(a *arrival) { w.ack(a) }, bodies)
}

func (w *worker) expectEach(within time.Duration, each func(*arrival), bodies []string) []*arrival {
	got := make([]*arrival, len(bodies))
	until := time.Now().Add(within)
	for missing := len(bodies); missing > 0; {
		a := w.next(until)
		if a == nil {
			err := fmt.Errorf("from %q: %d of %d messages did not come within %v: %s",
				w.sub.Topics, missing, len(bodies), within, absent(bodies, got))
			if w.failure != nil {
				err = fmt.Errorf("%w; Receive says %w", err, w.failure)
			}
			w.tr.must(err)
		}
		i := slices.Index(bodies, a.body())
		switch {
		case i < 0:
			w.stray(a)
		case got[i] == nil:
			missing--
			fallthrough
		default:
			got[i] = a // of duplicates the latest holds the lease
			each(a)
		}
	}
	return got
}

func absent(bodies []string, got []*arrival) string {
	var out []string
	for i, body := range bodies {
		if got[i] == nil {
			out = append(out, fmt.Sprintf("%.40q", body))
		}
	}
	return strings.Join(out, ", ")
}

// stray judges a delivery that nobody waits for.
func (w *worker) stray(a *arrival) {
	tr := w.tr
	fate := tr.fateOf(a.body(), nil)
	switch {
	case !fate.published:
		tr.failf("%s was received, but nothing with this body was published", a)
	case fate.mayCopy:
		w.ack(a)
	case fate.acks > 0 && (tr.Virtual || fate.acks > tolerated):
		tr.failf("%s was received again after its Ack", a)
	case fate.acks > 0:
		w.ack(a)
	case tr.Virtual: // elsewhere, a duplicate of a message in hand
		tr.failf("%s was received although it is held already", a)
	}
}

// loses demands that Receive reports the loss of a topic.
func (w *worker) loses(topic string) {
	until := deadline(w.tr.patience)
	for !w.losses[topic] {
		if !time.Now().Before(until) {
			w.tr.failf("source.Receive from %q has not returned a *brokers.TopicError of %q within %v", w.sub.Topics, topic, w.tr.patience)
		}
		w.fetch(earlier(until, deadline(w.tr.Unit)))
	}
}

// quiet demands that nothing is delivered for d. Outside the process a message
// that was acked may come again.
func (w *worker) quiet(d time.Duration) {
	until := time.Now().Add(d)
	for a := w.next(until); a != nil; a = w.next(until) {
		if fate := w.tr.fateOf(a.body(), nil); fate.acks == 0 && !fate.mayCopy {
			w.tr.must(duplicate{fmt.Errorf("%s was received, %v before the wait was over", a, time.Until(until))})
		}
		w.stray(a)
	}
}

// settle ends deliveries in one call, and repeats what failed with an error
// that is not final.
func (w *worker) settle(batch ...brokers.Settlement) []error {
	const tries = 3
	errs := w.settleTry(batch)
	for range tries - 1 {
		var again []int
		var rest []brokers.Settlement
		for i, err := range errs {
			if err != nil && !final(err) && !errors.Is(err, brokers.ErrRefused) {
				again, rest = append(again, i), append(rest, batch[i])
			}
		}
		if len(rest) == 0 {
			break
		}
		w.tr.pause(w.tr.Unit / 20)
		for i, err := range w.settleTry(rest) {
			errs[again[i]] = err
		}
	}
	return errs
}

// settleTry calls Settle once. Where the answer is too short it is filled up
// with nil, and what is too long is cut: one clause judges that, and the others
// go on.
func (w *worker) settleTry(batch []brokers.Settlement) []error {
	errs, hung := call(w.tr, "source.Settle", w.tr.patience, func(ctx context.Context) []error {
		return w.src.Settle(ctx, batch)
	})
	return padded(errs, hung, len(batch))
}

func (w *worker) extend(lease time.Duration, ds ...*brokers.Delivery) []error {
	errs, hung := call(w.tr, "source.Extend", w.tr.patience, func(ctx context.Context) []error {
		return w.src.Extend(ctx, lease, ds)
	})
	return padded(errs, hung, len(ds))
}

func padded(errs []error, hung error, n int) []error {
	out := make([]error, n)
	copy(out, errs)
	if hung != nil {
		for i := range out {
			out[i] = hung
		}
	}
	return out
}

// do settles deliveries one after the other. A session may end that the broker has
// no time for, and its deliveries come again.
func (w *worker) do(batch ...brokers.Settlement) {
	for _, s := range batch {
		if err := w.settle(s)[0]; err != nil {
			err = fmt.Errorf("source.Settle(%s) of %s: %w", s.Action, describe(s.Delivery), err)
			if errors.Is(err, brokers.ErrLeaseLost) {
				err = duplicate{err}
			}
			w.tr.must(err)
		}
		if s.Action == brokers.Ack {
			w.tr.countAck(&arrival{Delivery: s.Delivery})
		}
	}
}

// final tells the errors that end a delivery from those that leave it held.
func final(err error) bool {
	return lost(err) || errors.Is(err, brokers.ErrSettled)
}

// lost tells that the delivery is no longer the caller's.
func lost(err error) bool {
	return errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, brokers.ErrClosed)
}

func (w *worker) ack(as ...*arrival) { w.do(acks(as...)...) }

func (w *worker) retry(a *arrival, delay time.Duration) {
	w.retryWith(a, delay, failed(a.Delivery, delay))
}

func (w *worker) retryWith(a *arrival, delay time.Duration, meta brokers.Meta) {
	w.do(brokers.Settlement{Delivery: a.Delivery, Action: brokers.Retry, Delay: delay, Meta: meta})
}

func (w *worker) release(a *arrival) { w.do(a.back()) }

// failed is the Meta of d after one more handler run that failed now.
func failed(d *brokers.Delivery, delay time.Duration) brokers.Meta {
	now := time.Now()
	meta := d.Meta()
	meta.Attempt++
	if meta.FirstFailedAt.IsZero() {
		meta.FirstFailedAt = now
	}
	meta.LastFailedAt = now
	meta.DueAt = now.Add(max(delay, 0))
	meta.Delay = delay
	meta.Class = "transient"
	return meta
}

func (w *worker) close() { w.tr.must(w.end()) }

// end closes the source, once.
func (w *worker) end() error {
	if w.closed {
		return nil
	}
	w.closed = true
	return w.tr.try(fmt.Sprintf("source.Close of %q", w.sub.Topics), w.src.Close)
}

// reopen closes the source and opens another one like it.
func (w *worker) reopen() *worker {
	w.close()
	return w.tr.subscribe(w.sub)
}

// expectSoon is expect for messages that must not wait until a lease ends. What is
// slow for all messages is no fault: half of a lease may pass after the arrival of a
// message that is published now.
func (w *worker) expectSoon(bodies ...string) []*arrival {
	tr := w.tr
	if w.caps.Lease <= 0 || w.caps.Lease/2 > tr.patience {
		return w.expect(tr.patience, bodies...)
	}
	tr.controls++
	control := fmt.Sprintf("control %d", tr.controls)
	tr.publish(w.sub.Topics[0], text(control)...)
	last := len(bodies)
	got := w.expectEach(tr.patience, func(a *arrival) {
		if a.body() == control {
			w.ack(a) // before its own lease ends
		}
	}, append(slices.Clone(bodies), control))
	for _, a := range got[:last] {
		if wait := a.at.Sub(got[last].at); wait > w.caps.Lease/2 {
			tr.failf("%s came %v after one that was published later, and a lease is %v", a, wait, w.caps.Lease)
		}
	}
	return got[:last]
}

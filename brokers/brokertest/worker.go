package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

	pending <-chan received     // the Receive under way
	inbox   []*arrival          // received, but not yet due or not yet taken
	held    map[string]*arrival // by body, of duplicates the latest
	last    []*arrival          // what the last step received
	failure error               // of the last Receive that returned before its time
	losses  map[string]bool     // topics for which Receive has returned a *brokers.TopicError
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

// these are the arrivals of bodies, or the last ones.
func (w *worker) these(bodies []string) []*arrival {
	if len(bodies) == 0 {
		return w.last
	}
	out := make([]*arrival, len(bodies))
	for i, body := range bodies {
		out[i] = w.held[body]
	}
	return out
}

func (w *worker) topic() string { return w.sub.Topics[0] }

func (w *worker) publish(bodies ...string) { w.tr.publish(w.topic(), text(bodies...)...) }

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
			w.held[a.body()] = a
			w.tr.did("source.Receive: %s", a)
			w.tr.fateOf(a.body(), func(f *fate) { f.arrived(a) })
			return a
		}
		if !now.Before(until) {
			return nil
		}
		w.fetch(wake)
	}
}

// some returns any message that is waiting.
func (w *worker) some() *arrival {
	a := w.next(deadline(w.tr.patience))
	if a == nil {
		w.tr.failf("nothing came from %q within %v although messages are waiting", w.sub.Topics, w.tr.patience)
	}
	return a
}

// postpone retries what is due only after its lease has run out.
func (w *worker) postpone(now time.Time) {
	w.inbox = slices.DeleteFunc(w.inbox, func(a *arrival) bool {
		due := a.Meta().DueAt
		if a.LeaseUntil.IsZero() || !due.After(now) || due.Add(w.tr.Slack).Before(a.LeaseUntil) {
			return false
		}
		s := brokers.Settlement{Delivery: a.Delivery, Action: brokers.Retry, Delay: due.Sub(now), Meta: a.Meta()}
		w.tr.must(w.settle(s)[0])
		return true
	})
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
		w.pending = w.receive(w.tr.ctx, time.Until(wake), w.max)
	}
	select {
	case <-time.After(time.Until(wake) + w.tr.Slack):
	case r := <-w.pending:
		w.pending = nil
		w.take(r, wake)
	}
}

// receive starts a Receive, whose context ends after limit, and hands over what
// it returns.
func (w *worker) receive(ctx context.Context, limit time.Duration, max int) <-chan received {
	out := make(chan received, 1)
	w.tr.calls.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, limit)
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
func (w *worker) expect(bodies ...string) []*arrival {
	return w.expectEach(w.tr.within(), func(*arrival) {}, bodies)
}

// consume is expect, and acks each message as it comes.
func (w *worker) consume(bodies ...string) []*arrival {
	return w.expectEach(w.tr.within(), func(a *arrival) { w.ack(a) }, bodies)
}

func (w *worker) expectEach(within time.Duration, each func(*arrival), bodies []string) []*arrival {
	got := make([]*arrival, len(bodies))
	until := time.Now().Add(within)
	for missing := len(bodies); missing > 0; {
		a := w.next(until)
		if a == nil {
			absent := slices.DeleteFunc(slices.Clone(bodies), func(body string) bool { return got[slices.Index(bodies, body)] != nil })
			err := fmt.Errorf("from %q: %d of %d messages did not come within %v: %.40q",
				w.sub.Topics, missing, len(bodies), within, absent)
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
	w.last = got
	return got
}

// expectSoon is expect for messages that must not wait until a lease ends. What is
// slow for all messages is no fault: half of a lease may pass after the arrival of a
// message that is published now.
func (w *worker) expectSoon(bodies ...string) []*arrival {
	tr := w.tr
	if w.caps.Lease <= 0 || w.caps.Lease/2 > tr.patience {
		return w.expect(bodies...)
	}
	tr.controls++
	control := fmt.Sprintf("control %d", tr.controls)
	w.publish(control)
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
	w.last = got[:last]
	return w.last
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

// to is the settlement of a by an action. A Retry is due in one unit.
func (w *worker) to(action brokers.Action, a *arrival) brokers.Settlement {
	s := brokers.Settlement{Delivery: a.Delivery, Action: action}
	if action == brokers.Retry {
		s.Delay, s.Meta = w.tr.Unit, failed(a.Delivery, w.tr.Unit)
	}
	return s
}

func (w *worker) all(action brokers.Action, as ...*arrival) []brokers.Settlement {
	batch := make([]brokers.Settlement, len(as))
	for i, a := range as {
		batch[i] = w.to(action, a)
	}
	return batch
}

// settle ends deliveries in one call, and repeats what failed with an error
// that is not final.
func (w *worker) settle(batch ...brokers.Settlement) []error {
	const tries = 3
	errs := w.settleTry(batch...)
	for i, s := range batch {
		for try := 1; try < tries && temporary(errs[i]); try++ {
			w.tr.pause(w.tr.Unit / 20)
			errs[i] = w.settleTry(s)[0]
		}
	}
	return errs
}

// settleTry calls Settle once. Where the answer is too short it is filled up
// with nil, and what is too long is cut: one clause judges that, and the others
// go on.
func (w *worker) settleTry(batch ...brokers.Settlement) []error {
	what := settleCall(batch[0])
	if len(batch) > 1 {
		what = fmt.Sprintf("source.Settle of %d deliveries", len(batch))
	}
	errs, hung := call(w.tr, what, w.tr.patience, func(ctx context.Context) []error {
		return w.src.Settle(ctx, batch)
	})
	return padded(errs, hung, len(batch))
}

// settleCall names the call that settles a delivery.
func settleCall(s brokers.Settlement) string {
	return fmt.Sprintf("source.Settle(%s) of %s", s.Action, describe(s.Delivery))
}

func (w *worker) extend(lease time.Duration, as ...*arrival) []error {
	ds := make([]*brokers.Delivery, len(as))
	for i, a := range as {
		ds[i] = a.Delivery
	}
	errs, hung := call(w.tr, fmt.Sprintf("source.Extend of %s by %v", as[0], lease), w.tr.patience, func(ctx context.Context) []error {
		return w.src.Extend(ctx, lease, ds)
	})
	return padded(errs, hung, len(ds))
}

func padded(errs []error, hung error, n int) []error {
	if hung != nil {
		return slices.Repeat([]error{hung}, n)
	}
	out := make([]error, n)
	copy(out, errs)
	return out
}

// do settles deliveries one after the other. A session may end that the broker has
// no time for, and its deliveries come again.
func (w *worker) do(batch ...brokers.Settlement) {
	for _, s := range batch {
		before := time.Now()
		w.tr.mustSettle(s, w.settle(s)[0])
		w.tr.settled(s, before)
	}
}

func (tr *trial) mustSettle(s brokers.Settlement, err error) {
	if errors.Is(err, brokers.ErrLeaseLost) {
		err = duplicate{err}
	}
	if err != nil {
		tr.failf("%s: %w", settleCall(s), err)
	}
}

// settled remembers what a settlement means for the next delivery.
func (tr *trial) settled(s brokers.Settlement, before time.Time) {
	if s.Action == brokers.Retry {
		tr.owes(max(s.Delay, time.Until(s.Meta.DueAt)))
	}
	tr.fateOf(string(s.Delivery.Message.Body), func(f *fate) {
		switch s.Action {
		case brokers.Ack, brokers.Reject:
			f.acks++
		case brokers.Retry:
			f.meta, f.known, f.due = s.Meta, true, before.Add(s.Delay)
		}
	})
}

// final tells the errors that end a delivery from those that leave it held.
func final(err error) bool {
	return lost(err) || errors.Is(err, brokers.ErrSettled)
}

func temporary(err error) bool {
	return err != nil && !final(err) && !errors.Is(err, brokers.ErrRefused)
}

// lost tells that the delivery is no longer the caller's.
func lost(err error) bool {
	return errors.Is(err, brokers.ErrLeaseLost) || errors.Is(err, brokers.ErrClosed)
}

func (w *worker) ack(as ...*arrival) { w.do(w.all(brokers.Ack, as...)...) }

func (w *worker) retry(a *arrival, delay time.Duration) {
	w.retryWith(a, delay, failed(a.Delivery, delay))
}

func (w *worker) retryWith(a *arrival, delay time.Duration, meta brokers.Meta) {
	w.do(brokers.Settlement{Delivery: a.Delivery, Action: brokers.Retry, Delay: delay, Meta: meta})
}

// refused does f, and tells whether that was ErrRefused. Other errors fail.
func (tr *trial) refused(f func()) bool {
	err := caught(f)
	if errors.Is(err, brokers.ErrRefused) {
		return true
	}
	tr.must(err)
	return false
}

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

// another opens a worker like this one.
func (w *worker) another() *worker { return w.tr.subscribe(w.sub) }

// reopen is another when this one is closed.
func (w *worker) reopen() *worker {
	w.close()
	return w.another()
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

// crash ends the source as the death of its process would, and opens another one.
func (w *worker) crash() {
	w.tr.did("the worker of %q crashes", w.sub.Topics)
	w.tr.Crash(w.tr.broker, w.src)
	w.closed = true
	owesLease(w)
	w.another()
}

// suspend calls Pause, which has to return at once. It is for when no Receive
// is under way.
func (w *worker) suspend(topics ...string) {
	what := fmt.Sprintf("source.Pause(%q)", topics)
	_, hung := call(w.tr, what, 0, func(context.Context) error {
		w.src.Pause(topics...)
		return nil
	})
	w.tr.must(hung)
}

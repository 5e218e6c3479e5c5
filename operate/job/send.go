package job

import (
	"cmp"
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/operate/internal/text"
	"github.com/redrive-go/redrive/operate/store"
)

// send sends a few letters that go to one place: of those that are claimed or queued
// already, or, if there are none, of up to n more.
func (w *run) send(ctx context.Context, s standing, n int) error {
	if n > 0 {
		if err := w.queue(ctx, n); err != nil {
			return err
		}
	}
	claimed, err := w.Store.Claim(ctx, w.now(), w.lease, batch(w.spec.Rate))
	if err != nil {
		return err
	}
	to, letters := w.together(claimed)
	if len(letters) == 0 {
		return w.save(ctx)
	}
	returned := returnedOf(to, letters)
	span := w.startSend(ctx, to, returned)
	errs := w.deliver(span, to, returned)
	misconfigured := w.judge(span, letters, errs)
	w.endSend(span, errs)
	w.notBefore = later(w.notBefore, w.now().Add(w.pay(to.target, len(letters))))
	if err := w.save(ctx); err != nil || misconfigured == nil {
		return err
	}
	return w.pause(ctx, noteOf(to, misconfigured))
}

// queue queues up to n letters, no more than a batch.
func (w *run) queue(ctx context.Context, n int) error {
	_, _, err := w.Store.Queue(ctx, w.now(), w.lease, min(n, batch(w.spec.Rate)), func(l store.Letter) string {
		_, skip := w.Targets.route(w.spec, l)
		return skip
	})
	return err
}

// together returns the first of the claimed letters that go to one place. The store
// hands out the others again. Those that go nowhere, by a configuration that has
// changed, are refused.
func (w *run) together(claimed []store.Sending) (to destination, letters []store.Sending) {
	spec := w.spec
	spec.Force = true // its limit was held against them when they were queued
	for _, l := range claimed {
		there, skip := w.Targets.route(spec, l.Letter)
		switch {
		case skip != "":
			w.unsaved = append(w.unsaved, store.Outcome{Letter: l.ID, Refused: skip})
		case len(letters) == 0:
			to, letters = there, append(letters, l)
		case there == to && len(letters) < batch(to.target.rate(w.spec.Rate)):
			letters = append(letters, l)
		}
	}
	return to, letters
}

// deliver puts letters back and returns what the broker says, for each.
func (w *run) deliver(ctx context.Context, to destination, letters []brokers.Item) []error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	broker, err := w.Open(ctx, to.target.Broker)
	if err == nil {
		err = put(ctx, broker, to, letters)
	}
	errs := make([]error, len(letters))
	failed, ok := errors.AsType[*brokers.PublishError](err)
	for i := range errs {
		if errs[i] = err; ok {
			errs[i] = failed.Failed[i]
		}
	}
	return errs
}

// returnedOf are letters as they go back.
func returnedOf(to destination, letters []store.Sending) []brokers.Item {
	returned := make([]brokers.Item, len(letters))
	for i, l := range letters {
		r := brokers.Item{Message: &l.Entry.Message, Meta: l.Entry.Meta}
		r.Message.Topic, r.Message.ID = to.target.Topic, cmp.Or(r.Message.ID, l.Raw.ID)
		r.Meta.Send = l.Token
		returned[i] = r
	}
	return returned
}

func put(ctx context.Context, broker brokers.Broker, to destination, returned []brokers.Item) error {
	topic := to.target.Topic
	if !to.all {
		return broker.SendBack(ctx, to.group, topic, returned...)
	}
	msgs := make([]brokers.Message, len(returned))
	for i, r := range returned {
		msgs[i] = *r.Message
		msgs[i].Headers = wire.Encode(brokers.Message{Headers: r.Message.Headers}, r.Meta.Restart())
	}
	return broker.Publish(ctx, topic, msgs...)
}

// judge notes what became of letters, to be saved, and when to go on if the broker
// does not answer. What is not known to be done stays with the store, which hands
// it out again. The error is one that an operator has to mend.
func (w *run) judge(ctx context.Context, letters []store.Sending, errs []error) (misconfigured error) {
	var unknown, refused error
	var last store.Sending // of those that are refused
	for i, err := range errs {
		switch {
		case err == nil:
			w.unsaved = append(w.unsaved, store.Outcome{Letter: letters[i].ID})
		case errors.Is(err, brokers.ErrRefused):
			refused, last = err, letters[i]
			w.unsaved = append(w.unsaved, store.Outcome{Letter: letters[i].ID, Refused: text.Line(err.Error(), maxCause)})
		case errors.Is(err, brokers.ErrMisconfigured):
			misconfigured = err
		default:
			unknown = err
		}
	}
	if refused != nil {
		w.log.WarnContext(ctx, "the broker refuses letters: they are collected again", append([]any{"letter", last.ID, "error", refused}, w.traceOf(last)...)...)
	}
	if unknown == nil && misconfigured == nil {
		w.broker.over(w.now())
		return nil
	}
	if unknown != nil {
		w.notBefore = w.now().Add(w.broker.failed(w.now(), unknown))
	}
	return misconfigured
}

// save tells the store what became of letters.
func (w *run) save(ctx context.Context) error {
	if len(w.unsaved) == 0 {
		return nil
	}
	err := w.Store.Sent(ctx, w.now(), w.lease, w.unsaved)
	if err == nil {
		w.unsaved = nil
	}
	return err
}

// pay says how long to wait after n letters to a target: so long that neither the
// rate of the job nor that of the target is exceeded.
func (w *run) pay(t *Target, n int) time.Duration {
	if w.toEach[t] == nil {
		w.toEach[t] = limiter(t.rate(w.spec.Rate))
	}
	now := time.Now()
	return max(w.all.ReserveN(now, n).DelayFrom(now), w.toEach[t].ReserveN(now, n).DelayFrom(now))
}

// limiter has letters paid for that were sent, from the first one on. Time that
// was not used is good for a batch.
func limiter(perSecond float64) *rate.Limiter {
	l := rate.NewLimiter(rate.Limit(perSecond), batch(perSecond))
	l.AllowN(time.Now(), l.Burst())
	return l
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

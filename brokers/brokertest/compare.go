package brokertest

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
)

// precision is how exactly times and delays must be carried.
const precision = time.Millisecond

func sameTime(a, b time.Time) bool {
	return a.IsZero() == b.IsZero() && a.Sub(b).Abs() < precision
}

func sameDelay(a, b time.Duration) bool { return (a - b).Abs() < precision }

// property is demanded of a delivery. What it must be follows from how its
// message was published and settled.
type property func(w *worker, a *arrival) error

// same demands that a field is as wanted.
func same(a *arrival, field string, is bool, got, want any) error {
	if is {
		return nil
	}
	return fmt.Errorf("%s: %s is %.200q, want %.200q", a, field, fmt.Sprint(got), fmt.Sprint(want))
}

func equal[T comparable](a *arrival, field string, got, want T) error {
	return same(a, field, got == want, got, want)
}

// sent is the message as it was published; its ID is that of the first delivery
// if it had none.
func (w *worker) sent(a *arrival) brokers.Message { return w.tr.fateOf(a.body(), nil).sent }

func sameID(w *worker, a *arrival) error { return equal(a, "ID", a.Message.ID, w.sent(a).ID) }

func sameKey(w *worker, a *arrival) error { return equal(a, "Key", a.Message.Key, w.sent(a).Key) }

func sameTopic(w *worker, a *arrival) error {
	return equal(a, "Topic", a.Message.Topic, w.sent(a).Topic)
}

func samePublishedAt(w *worker, a *arrival) error {
	got, want := a.Message.PublishedAt, w.sent(a).PublishedAt
	return same(a, "PublishedAt", sameTime(got, want), got, want)
}

// sameHeaders leaves it to the adapter what type a published value has that is
// not text and names no type.
func sameHeaders(w *worker, a *arrival) error {
	got, want := w.tr.arranged(a.Message.Headers), w.tr.arranged(w.sent(a).Headers)
	equal := func(got, want brokers.Header) bool {
		if want.Type == "" && !utf8.ValidString(want.Value) {
			got.Type = ""
		}
		return got == want
	}
	if !slices.EqualFunc(got, want, equal) {
		return fmt.Errorf("%s has the headers\n\t%q,\nwant\n\t%q", a, got, want)
	}
	return nil
}

// sameMessage demands all but the ID and the body, by which messages are told
// apart.
func sameMessage(w *worker, a *arrival) error {
	return errors.Join(sameKey(w, a), sameTopic(w, a), samePublishedAt(w, a), sameHeaders(w, a))
}

// keeps demands that a has each of these headers.
func keeps(a *arrival, headers brokers.Headers) error {
	for _, h := range headers {
		if !slices.Contains(a.Message.Headers, h) {
			return fmt.Errorf("%s lost the header %q: %q", a, h, a.Message.Headers)
		}
	}
	return nil
}

// arranged is h in the order that the broker keeps.
func (tr *trial) arranged(h brokers.Headers) brokers.Headers {
	if !tr.SortsHeaders {
		return h
	}
	return slices.SortedStableFunc(slices.Values(h), func(a, b brokers.Header) int {
		return cmp.Compare(a.Name, b.Name)
	})
}

// carried is the Meta of the last Retry or SendBack, or else of the first delivery.
func (w *worker) carried(a *arrival) brokers.Meta { return w.tr.fateOf(a.body(), nil).meta }

// fresh demands the Meta of a new message.
func fresh(w *worker, a *arrival) error {
	origin := a.Meta().Origin
	return errors.Join(
		same(a, "Meta.Origin", len(origin) > 0, origin, "at least one header"),
		w.sameMetaAs(a, brokers.Meta{Origin: origin}),
	)
}

// sameMeta demands that a carries what it must, times and delays to the
// millisecond. A late Retry may have left a copy, which carries another Meta.
func sameMeta(w *worker, a *arrival) error {
	if w.tr.fateOf(a.body(), nil).mayCopy {
		return nil
	}
	return w.sameMetaAs(a, w.carried(a))
}

func (w *worker) sameMetaAs(a *arrival, want brokers.Meta) error {
	if !w.tr.EstimatesMeta {
		return w.equalMetaAs(a, want)
	}
	got := a.Meta().Attempt
	return same(a, "Meta.Attempt", got >= want.Attempt, got, fmt.Sprintf("at least %d", want.Attempt))
}

// equalMeta is sameMeta of what was just stored, which no broker has to estimate.
func equalMeta(w *worker, a *arrival) error { return w.equalMetaAs(a, w.carried(a)) }

func (w *worker) equalMetaAs(a *arrival, want brokers.Meta) error {
	got := a.Meta()
	err := errors.Join(
		same(a, "FirstFailedAt", sameTime(got.FirstFailedAt, want.FirstFailedAt), got.FirstFailedAt, want.FirstFailedAt),
		same(a, "LastFailedAt", sameTime(got.LastFailedAt, want.LastFailedAt), got.LastFailedAt, want.LastFailedAt),
		same(a, "DueAt", sameTime(got.DueAt, want.DueAt), got.DueAt, want.DueAt),
		same(a, "Delay", sameDelay(got.Delay, want.Delay), got.Delay, want.Delay),
		same(a, "History", slices.EqualFunc(got.History, want.History, sameFailure), got.History, want.History),
		same(a, "Origin", slices.Equal(w.tr.arranged(got.Origin), w.tr.arranged(want.Origin)), got.Origin, want.Origin),
		sameDeathAs(a, want.Death),
	)
	for _, m := range []*brokers.Meta{&got, &want} { // the rest must be equal
		m.FirstFailedAt, m.LastFailedAt, m.DueAt, m.Delay = time.Time{}, time.Time{}, time.Time{}, 0
		m.History, m.Origin, m.Death = nil, nil, nil
	}
	err = errors.Join(err, same(a, "Meta", reflect.DeepEqual(got, want), fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want)))
	if err != nil {
		return duplicate{err} // of the message before its last hop
	}
	return nil
}

func sameFailure(a, b brokers.Failure) bool {
	equal := sameTime(a.At, b.At) && sameDelay(a.Delay, b.Delay)
	a.At, b.At, a.Delay, b.Delay = time.Time{}, time.Time{}, 0, 0
	return equal && a == b
}

func sameDeath(w *worker, a *arrival) error { return sameDeathAs(a, w.carried(a).Death) }

func sameDeathAs(a *arrival, want *brokers.Death) error {
	got := a.Meta().Death
	if got == nil || want == nil {
		return equal(a, "Meta.Death", got, want)
	}
	g, d := *got, *want
	times := sameTime(g.At, d.At) && sameTime(g.DueAt, d.DueAt)
	g.At, d.At, g.DueAt, d.DueAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	return same(a, "Meta.Death", times && reflect.DeepEqual(g, d), *got, *want)
}

// sameIdentity demands what a message is known by after it was sent back.
func sameIdentity(a *arrival, want brokers.Meta) error {
	got := a.Meta()
	return errors.Join(
		equal(a, "Meta.IdempotencyKey", got.IdempotencyKey, want.IdempotencyKey),
		equal(a, "Meta.RedriveCount", got.RedriveCount, want.RedriveCount),
		equal(a, "Meta.Send", got.Send, want.Send),
	)
}

// notEarly demands that a came when it had waited for the delay of its Retry.
func notEarly(w *worker, a *arrival) error {
	if due := w.tr.fateOf(a.body(), nil).due; a.at.Before(due.Add(-precision)) {
		return duplicate{fmt.Errorf("%s came %v before the delay of its retry was over (Meta.DueAt %v)", a, due.Sub(a.at), a.Meta().DueAt)}
	}
	return nil
}

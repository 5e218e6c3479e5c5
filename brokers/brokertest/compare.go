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

// sameMessage demands that a is want, apart from what Publish sets.
func (tr *trial) sameMessage(a *arrival, want brokers.Message) error {
	var errs []error
	got := a.Message
	if string(got.Body) != string(want.Body) {
		errs = append(errs, fmt.Errorf("%s: the body was %.40q", a, want.Body))
	}
	if got.Key != want.Key {
		errs = append(errs, fmt.Errorf("%s: the key was %q and is %q", a, want.Key, got.Key))
	}
	if got.Topic != want.Topic {
		errs = append(errs, fmt.Errorf("%s: the topic was %q", a, want.Topic))
	}
	if !sameTime(got.PublishedAt, want.PublishedAt) {
		errs = append(errs, fmt.Errorf("%s: PublishedAt was %v and is %v", a, want.PublishedAt, got.PublishedAt))
	}
	return errors.Join(append(errs, tr.sameHeaders(a, want.Headers))...)
}

func (tr *trial) sameHeaders(a *arrival, want brokers.Headers) error {
	got, want := tr.arranged(a.Message.Headers), tr.arranged(want)
	if !slices.EqualFunc(got, want, sameHeader) {
		return fmt.Errorf("%s has the headers\n\t%q,\nwant\n\t%q", a, got, want)
	}
	return nil
}

// sameHeader leaves it to the adapter what type a published value has that is
// not text and names no type.
func sameHeader(got, want brokers.Header) bool {
	if want.Type == "" && !utf8.ValidString(want.Value) {
		got.Type = ""
	}
	return got == want
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

// sameMeta demands that a carries want, times and delays to the millisecond.
func (tr *trial) sameMeta(a *arrival, want brokers.Meta) error {
	if tr.EstimatesMeta {
		if got := a.Meta().Attempt; got < want.Attempt {
			return fmt.Errorf("%s: Meta.Attempt is %d, and at least %d runs have failed", a, got, want.Attempt)
		}
		return nil
	}
	return tr.equalMeta(a, want)
}

// equalMeta is sameMeta of what was just stored, which no broker has to estimate.
func (tr *trial) equalMeta(a *arrival, want brokers.Meta) error {
	got := a.Meta()
	var errs []error
	check := func(field string, same bool, got, want any) {
		if !same {
			errs = append(errs, fmt.Errorf("%s: Meta.%s is %v, want %v", a, field, got, want))
		}
	}
	check("Attempt", got.Attempt == want.Attempt, got.Attempt, want.Attempt)
	check("Throttles", got.Throttles == want.Throttles, got.Throttles, want.Throttles)
	check("Excused", got.Excused == want.Excused, got.Excused, want.Excused)
	check("Crashes", got.Crashes == want.Crashes, got.Crashes, want.Crashes)
	check("FirstFailedAt", sameTime(got.FirstFailedAt, want.FirstFailedAt), got.FirstFailedAt, want.FirstFailedAt)
	check("LastFailedAt", sameTime(got.LastFailedAt, want.LastFailedAt), got.LastFailedAt, want.LastFailedAt)
	check("DueAt", sameTime(got.DueAt, want.DueAt), got.DueAt, want.DueAt)
	check("Delay", sameDelay(got.Delay, want.Delay), got.Delay, want.Delay)
	check("Class", got.Class == want.Class, got.Class, want.Class)
	check("History", slices.EqualFunc(got.History, want.History, sameFailure), got.History, want.History)
	check("IdempotencyKey", got.IdempotencyKey == want.IdempotencyKey, got.IdempotencyKey, want.IdempotencyKey)
	check("RedriveCount", got.RedriveCount == want.RedriveCount, got.RedriveCount, want.RedriveCount)
	check("Send", got.Send == want.Send, got.Send, want.Send)
	gotOrigin, wantOrigin := tr.arranged(got.Origin), tr.arranged(want.Origin)
	check("Origin", slices.Equal(gotOrigin, wantOrigin), gotOrigin, wantOrigin)
	check("Death", sameDeath(got.Death, want.Death), got.Death, want.Death)
	if len(errs) > 0 {
		return duplicate{errors.Join(errs...)} // of the message before its last hop
	}
	return nil
}

func sameFailure(a, b brokers.Failure) bool {
	return a.Attempt == b.Attempt && sameTime(a.At, b.At) && a.Class == b.Class && a.Ambiguous == b.Ambiguous && a.TimedOut == b.TimedOut &&
		a.Fingerprint == b.Fingerprint && sameDelay(a.Delay, b.Delay)
}

func sameDeath(a, b *brokers.Death) bool {
	if a == nil || b == nil {
		return a == b
	}
	got, want := *a, *b
	times := sameTime(got.At, want.At) && sameTime(got.DueAt, want.DueAt)
	got.At, want.At, got.DueAt, want.DueAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	return times && reflect.DeepEqual(got, want)
}

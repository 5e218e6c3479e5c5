package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
)

// DeadlineHeader names the header in which a producer says until when its message
// may run: a time of RFC 3339, such as "2026-11-28T18:30:00Z". See [Topic.Deadline].
const DeadlineHeader = "redrive-deadline"

// ErrDeadline is the cause with which the context of a run ends at the deadline
// of its message. The run is the last one, and says nothing about its dependency.
var ErrDeadline = errors.New("the deadline of the message has passed")

var expiredVerdict = classify.Verdict{Class: classify.ClassUnknown, Rule: "deadline"}

// deadlineOf returns the time until which d may run; zero if there is no limit.
// A message that was dead before has no deadline, whether a tool or a person
// sent it back.
func (p *pipeline) deadlineOf(d *delivery, now time.Time) (deadline time.Time) {
	value, given := d.Message.Headers.Lookup(DeadlineHeader)
	if !given && d.sub.deadline == 0 || d.returned() {
		return deadline
	}
	if _, err := dlq.Decode(d.Message); err == nil {
		return deadline
	}
	if d.sub.deadline > 0 {
		deadline = d.publishedAt(now).Add(d.sub.deadline)
	}
	if !given {
		return deadline
	}
	at, err := time.Parse(time.RFC3339, value)
	switch {
	case err == nil && !at.IsZero() && (deadline.IsZero() || at.Before(deadline)):
		return at
	case err != nil && first(d.meta):
		p.observe(d, Event{Kind: EventError, Operation: "deadline",
			Err: fmt.Errorf("header %s: %.40q is not a time of RFC 3339, such as 2006-01-02T15:04:05Z: it is ignored", DeadlineHeader, value)})
	}
	return deadline
}

// publishedAt returns the time at which d was published. If that is unknown, or in
// the future, it is now, and the copies of d keep this time.
func (d *delivery) publishedAt(now time.Time) time.Time {
	if at := d.Message.PublishedAt; at.IsZero() || at.After(now) {
		d.Message.PublishedAt = now
	}
	return d.Message.PublishedAt
}

// expires reports whether d may not run any more at t.
func (d *delivery) expires(t time.Time) bool { return d.expiring && !t.Before(d.deadline) }

// inTime reports whether d may still run. Otherwise it becomes a dead letter.
func (p *pipeline) inTime(d *delivery, now time.Time) bool {
	if !d.expires(now) {
		return true
	}
	d.refund(now)
	err := fmt.Errorf("%w at %s, before this run", ErrDeadline, d.deadline.Format(time.RFC3339))
	p.deadLetter(d, reasonExpired, p.letter(d, err, expiredVerdict))
	return false
}

var notYet = deferral{"start-after", errors.New("Topic.StartAfter has not passed since the message was published: it waits, uncounted")}

// postpone puts off the first run of d until Topic.StartAfter has passed. It
// reports whether it did.
func (p *pipeline) postpone(d *delivery) bool {
	if d.sub.startAfter == 0 || !first(d.meta) || d.returned() {
		return false
	}
	now := time.Now()
	wait := d.publishedAt(now).Add(d.sub.startAfter).Sub(now)
	if wait > 0 {
		p.deferRun(d, now, wait, notYet)
	}
	return wait > 0
}

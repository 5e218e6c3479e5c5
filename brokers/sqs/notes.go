package sqs

import (
	"maps"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

const (
	// longestDelay is the most that a copy can be delayed.
	longestDelay = 900 * time.Second

	// maxTotal is for how long one receive can hold a message, 12 h, less a
	// margin.
	maxTotal = 12*time.Hour - time.Minute

	// early is how early a copy may come without taking another hop: the
	// pipeline holds it.
	early = 2 * time.Second

	// How many receives without a settlement count neither as attempts nor as
	// deaths: releases by workers, and messages that were in a worker when another
	// one killed it. Before the trial few are enough: suspicion costs a copy only.
	// On trial as many are forgiven again. FIFO queues need the most: they have no
	// trial, and other workers count receives there that were throttled, or came
	// with a message before them.
	bystanders     = 4
	bystandersFIFO = 100

	mostNotes = 20_000
	noteLife  = time.Hour // after the message can be received again
)

// history is what a worker can know about a message when it receives it.
type history struct {
	meta     brokers.Meta // as of a moment
	receives int          // by then
	lost     int          // receives by then that are not in meta
	hops     int          // receives to come that only wait for a due time
	expires  time.Time    // of a note
}

// counting says how receives are understood.
type counting struct {
	copies      bool // nothing is retried in place, so that no receive is an attempt
	fifo        bool // everything is
	maxAttempts int
}

// read returns the Meta of a message at a receive, and how many receives it
// leaves unexplained. Where messages are retried in place, a receive that
// nobody accounts for may have been an attempt, so it counts as one, up to the
// last attempt before the message is exhausted.
func (c counting) read(h history, receives int) (meta brokers.Meta, lost int) {
	passed := max(0, receives-1-h.receives)
	passed -= min(passed, h.hops)
	meta = h.meta
	if !c.copies {
		counted := min(passed, max(0, c.maxAttempts-1-meta.Attempt))
		meta.Attempt += counted
		passed -= counted
	}
	return meta, h.lost + passed
}

// abandoned is Delivery.Abandoned after so many unexplained receives.
func (c counting) abandoned(lost int) int {
	if c.fifo {
		return max(0, lost-bystandersFIFO)
	}
	return max(0, lost-bystanders)
}

// stored is the history that the message itself tells.
func (r *record) history() history {
	h := history{meta: r.meta}
	if r.stored {
		h.hops = hops(r.meta.DueAt, r.sent)
	}
	return h
}

// hops is how often a copy that was sent at a time is received before it is
// due: it cannot be delayed for longer than longestDelay, nor held for longer
// than maxTotal.
func hops(due, sent time.Time) int {
	left := due.Sub(sent) - longestDelay - early
	if due.IsZero() || left <= 0 {
		return 0
	}
	return 1 + int(left/maxTotal)
}

// notes are what a worker remembers of messages that it gave back or retried
// in place, where SQS can store nothing, by the id that SQS gave them.
type notes struct {
	entries map[string]history
	most    int
	purged  time.Time
}

func newNotes(most int) notes { return notes{entries: make(map[string]history), most: most} }

// room reports whether there is room for a note about a message. If not, it drops
// those that have expired, at most once a minute.
func (n *notes) room(id string, now time.Time) bool {
	_, known := n.entries[id]
	if !known && len(n.entries) >= n.most && now.Sub(n.purged) >= time.Minute {
		n.purged = now
		maps.DeleteFunc(n.entries, func(_ string, h history) bool { return now.After(h.expires) })
	}
	return known || len(n.entries) < n.most
}

// put notes what is known of a message that can be received again after delay.
// Without room it does nothing.
func (n *notes) put(id string, h history, now time.Time, delay time.Duration) {
	if n.room(id, now) {
		h.expires = now.Add(max(0, delay) + noteLife)
		n.entries[id] = h
	}
}

// about returns the latest that is known of a message at a receive.
func (n *notes) about(r *record) history {
	if entry, known := n.entries[r.id]; known && entry.receives < r.receives {
		return entry
	}
	return r.history()
}

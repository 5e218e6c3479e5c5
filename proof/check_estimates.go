package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
)

// SQS counts receives, and stores nothing with a message that waits in place.
// So what a worker reads of a retry that another one asked for is an estimate:
// its attempt may be too high by each receive that was no failed attempt, and
// it has the throttles and the due time of the message as it was last copied,
// or as this worker knew it before. With sqs.Options.Copies nothing is
// estimated. See docs/explanation/sqs.md.

// estimates reports whether workers may read estimates.
func (c *checker) estimates() bool { return c.scenario.broker == "sqs" && !c.scenario.copies }

// leased reports whether messages are held by leases alone, so that the end of
// a connection gives back nothing, and what is confirmed stays so.
func (c *checker) leased() bool { return c.scenario.broker == "sqs" }

// repeats is how often more than once a message may be stored that is sent now:
// the SDK of SQS sends again, twice, what it has no answer to.
func (c *checker) repeats() int {
	if c.leased() && c.stormy() {
		return 2
	}
	return 0
}

// repeatAll has that begin for what is being sent.
func (c *checker) repeatAll() {
	n := c.repeats()
	for _, f := range c.fates {
		f.excuse(n * (f.publishing + f.asking[brokers.Retry]))
	}
	for _, w := range c.workers {
		for f, letters := range w.burying {
			f.spare += n * letters
		}
	}
}

// How many deliveries of a message the adapters forgive before they count it as
// abandoned.
const (
	bystandersOnRabbitMQ = 14
	bystandersOnSQS      = 10
)

// strays is the most receives of f that may have ended in no settlement by
// which it counts: what workers polled and never handed out, what they lost or
// gave back, and what came to a poll whose answer nobody read, of a killed
// worker or in a fault.
//
// On a FIFO queue runs that do not count wait in place as well.
func (c *checker) strays(f *fate) int {
	if c.scenario.fifo {
		return f.free + c.receives(f)
	}
	return c.receives(f)
}

func (c *checker) receives(f *fate) int {
	return f.polled - len(f.deliveries) + f.losses + f.released + c.crashes + c.deafPolls
}

// ambiguous reports whether there may be several copies of f, so that the due
// time of a delivery is only what its worker knows of it.
func (c *checker) ambiguous(f *fate) bool { return f.wilds > 0 && c.estimates() }

// explains reports whether got may be what a worker reads of t without having
// all of it. Where a copy lives beside its original, an estimate does not tell
// which of them it is of: then it may be of any token there was.
func (c *checker) explains(f *fate, t, got token) bool {
	if c.ambiguous(f) {
		return slices.ContainsFunc(f.seen, func(any token) bool { return c.estimated(f, any, got) })
	}
	return c.estimated(f, t, got)
}

// held is how many runs of f have followed others of the same delivery, after a
// wait in the worker. On a FIFO queue their count is one receive all the same.
func (c *checker) held(f *fate) (n int) {
	if c.scenario.fifo {
		for _, d := range f.deliveries {
			n += max(0, d.runs-1)
		}
	}
	return n
}

// estimated is explains for one token. An estimate must never be below what has
// failed, but for what was held, nor end the message.
func (c *checker) estimated(f *fate, t, got token) bool {
	if !c.estimates() || got.attempt < t.least-c.held(f) || got.attempt > t.least+c.strays(f) || got.attempt >= c.attempts(f) {
		return false
	}
	return slices.ContainsFunc(f.seen, func(base token) bool {
		return base.attempt <= got.attempt && base.throttles == got.throttles && c.near(base.due, got.due)
	})
}

// attempts is how many f may have.
func (c *checker) attempts(f *fate) int {
	m := c.scenario.message(f.id)
	if m == nil {
		return 0
	}
	return or(c.scenario.topics[m.topic].policy.MaxAttempts, 10)
}

// unseen reports whether a dead letter is of a message whose failures its worker
// may not have seen: those that it counts are an estimate, and it ran nothing.
func (c *checker) unseen(letter dlq.Entry) bool {
	return c.estimates() && letter.Meta.FirstFailedAt.IsZero() && (letter.Reason == "oversize" || letter.Reason == "crash-loop")
}

// closestEstimate returns the index of the token that explains an estimate
// best: of those that were due by then, the last. It is -1 if there is none.
func (c *checker) closestEstimate(f *fate, got token) int {
	best := -1
	rank := func(t token) time.Duration {
		if t.due > c.now {
			return -t.due
		}
		return t.due
	}
	for i, t := range f.tokens {
		if c.explains(f, t, got) && (best < 0 || cmp.Less(rank(f.tokens[best]), rank(t))) {
			best = i
		}
	}
	return best
}

package rabbitmq

import (
	"slices"
	"time"
)

// A delay queue is a queue whose messages all wait for the same time, so that none
// wait behind another one. Where most retries wait there are more of them to the
// octave, so that one hop or two are enough; below that a worker can mostly hold
// what is left, and above it a hop more is little beside the wait.
const (
	shortestDelay = 250 * time.Millisecond
	longestDelay  = 24 * time.Hour

	// tail is what a worker holds in process by default rather than send it
	// to the broker once more.
	tail = 2 * time.Second

	// lateness is what a hop may add to a delay on a busy broker.
	lateness = 250 * time.Millisecond
)

// delayPlan lists the delays of the delay queues, the shortest first.
type delayPlan []time.Duration

// planDelays returns the delay queues for delays up to maxDelay. Plans of
// different workers agree: the shorter one is the beginning of the longer one.
func planDelays(maxDelay time.Duration) delayPlan {
	var plan delayPlan
	for octave := shortestDelay; ; octave *= 2 {
		steps := delaysIn(octave)
		for step := range steps {
			wait := octave + (octave * step / steps).Truncate(time.Millisecond)
			if wait > maxDelay || wait > longestDelay {
				return plan
			}
			plan = append(plan, wait)
		}
	}
}

// delaysIn is how many delay queues begin an octave or are in it.
func delaysIn(octave time.Duration) time.Duration {
	switch {
	case octave < 4*time.Second:
		return 1
	case octave < 8*time.Second:
		return 2
	case octave < 2*time.Minute:
		return 4
	case octave < 15*time.Minute:
		return 3
	case octave < time.Hour:
		return 2
	}
	return 1
}

// floor returns the longest delay queue that is not longer than delay, or 0.
func (p delayPlan) floor(delay time.Duration) time.Duration {
	i, found := slices.BinarySearch(p, delay)
	switch {
	case found:
		return delay
	case i == 0:
		return 0
	}
	return p[i-1]
}

// pick returns the delay queue for a message that is to wait for delay, or 0 if
// none is short enough. It is never longer than delay, so that the message
// comes early rather than late. If the longest one that fits leaves more than
// a worker holds, pick takes the one of at least half the delay after which
// the next delay queue leaves least.
func (p delayPlan) pick(delay time.Duration) time.Duration {
	best := p.floor(delay)
	if best == 0 || delay-best <= tail {
		return best
	}
	least := p.leftAfter(delay - best)
	for _, wait := range slices.Backward(p) {
		if wait < delay/2 {
			break
		}
		if wait >= best {
			continue
		}
		if left := p.leftAfter(delay - wait); left < least {
			best, least = wait, left
		}
	}
	return best
}

// holdable is the delay below which a retry needs no delay queue, as a worker has room
// to hold it until it is due: it is at hand then, and has cost the broker one
// message instead of two. The more are held of the most that can be, the shorter
// it is, as long delays take the room for long. Half of the room is left to what
// comes back from delay queues.
func holdable(held, most int) time.Duration {
	return tail * time.Duration(max(0, most-2*held)) / time.Duration(most)
}

// leftAfter is what is left of rest after one more delay queue.
func (p delayPlan) leftAfter(rest time.Duration) time.Duration {
	return rest - p.floor(rest-lateness)
}

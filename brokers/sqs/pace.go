package sqs

import "time"

const (
	// quickly is how soon an answer comes from a queue that had it ready.
	quickly = time.Second

	// gather is how long a queue is left alone after a poll that came back at
	// once and not half full: what arrives meanwhile shares a call.
	gather = 20 * time.Millisecond

	shortestRest = time.Second
	longestRest  = 20 * time.Second
)

// pace says how many polls of a queue may be open: twice as many after each
// round of full answers, one less after each that came at once and sparse, half
// after one that waited in vain.
type pace struct {
	polls, most int
}

func newPace(most int) pace { return pace{polls: 1, most: most} }

// note takes in that a poll for asked messages got some after a time, and
// returns how long to wait with the next one.
func (p *pace) note(asked, got int, took time.Duration) time.Duration {
	switch quick, half := took < quickly, 2*got >= asked; {
	case quick && half:
		p.polls = min(p.polls+1, p.most)
	case quick:
		p.polls = max(p.polls-1, 1)
		return gather
	case got < asked:
		p.polls = max(p.polls/2, 1)
	}
	return 0
}

// restart has one poll at a time find out again how many there should be: after
// a failure, or a long pause.
func (p *pace) restart() { p.polls = 1 }

// rest is how long a queue is left alone after so many failures in a row: full
// jitter above a second. random is in [0, 1).
func rest(failures int, random float64) time.Duration {
	longest := shortestRest
	for range min(failures, 8) {
		longest = min(2*longest, longestRest)
	}
	return shortestRest + time.Duration(random*float64(longest-shortestRest))
}

// appetite counts what a worker takes, in windows of a fraction of the lease:
// as much may be fetched in advance and will be taken in time.
type appetite struct {
	window       time.Duration
	begun        time.Time // the present window
	taken, later int       // in the window before, and in this one
}

func (a *appetite) turn(now time.Time) {
	switch past := now.Sub(a.begun); {
	case past >= 2*a.window:
		a.begun, a.taken, a.later = now, 0, 0
	case past >= a.window:
		a.begun, a.taken, a.later = a.begun.Add(a.window), a.later, 0
	}
}

func (a *appetite) take(n int, now time.Time) {
	a.turn(now)
	a.later += n
}

// recent is what was taken in a window.
func (a *appetite) recent(now time.Time) int {
	a.turn(now)
	return max(a.taken, a.later)
}

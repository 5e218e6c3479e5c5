package main

import (
	"math"
	"slices"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry"
)

// What may follow a run is what the pure functions of classify and retry say for
// the luckiest and the unluckiest draw. They have tests of their own; what is held
// against them here is that a worker does as they say, to every message, whatever
// becomes of its workers and its broker.

// judgement is what may follow a run. Expiry leaves a choice, since it depends on
// the jitter.
type judgement struct {
	acks, retries, dies, releases bool
	split                         bool // in a smaller batch
	attempt, throttles            int  // from then on
	counted                       bool
	reason                        string        // of the dead letter
	low, high                     time.Duration // of the delay
}

const reasonAmbiguous = "ambiguous"

// judge says what may follow a run of d that ended with e, if why ended its
// context.
func (c *checker) judge(d *delivery, e *event, why cause) []judgement {
	same := judgement{attempt: d.attempt, throttles: d.throttles}
	if e.Outcome == okay || e.Outcome == skipping {
		same.acks = why != lost
		return []judgement{same}
	}
	v := e.Outcome.verdict(why, e.Delay)
	if d.topic.noRepeat && v.Ambiguous {
		return []judgement{{dies: true, counted: true, attempt: d.attempt + 1, throttles: d.throttles, reason: reasonAmbiguous}}
	}
	switch v.Class {
	case classify.ClassPoison, classify.ClassTransient, classify.ClassUnknown:
		if e.Flags&isWhole != 0 {
			same.retries, same.split = true, true
			return []judgement{same}
		}
	}
	return c.judgeAlone(d, v)
}

// judgeAlone says what may follow a run of d that was no part of a batch which
// failed as a whole. A probe ends no message, but by its age, and waits until
// others have been tried. Which runs are probes the consumer does not tell: those
// that start while a guard is closed may be.
func (c *checker) judgeAlone(d *delivery, v classify.Verdict) []judgement {
	p := d.topic.policy
	if !d.mayProbe {
		return []judgement{c.decide(d, p, v, d.attempt+1, 0)}
	}
	wait := min(c.scenario.pace.pause, p.HintLimit())
	j := c.decide(d, p, v, d.attempt+1, wait)
	if !j.retries && !j.dies {
		return []judgement{j}
	}
	v.MaxAttempts = 0
	if v.Class == classify.ClassPoison {
		v.Class = classify.ClassTransient
	}
	p.MaxAttempts = max(or(p.MaxAttempts, 10), 2)
	probe := c.decide(d, p, v, 1, wait)
	probe.attempt, probe.counted, probe.throttles = d.attempt, false, d.throttles
	if v.Class == classify.ClassThrottled {
		probe.throttles++
	}
	return []judgement{j, probe}
}

// decide is [retry.Decide] for a run with this number, which may have to wait.
func (c *checker) decide(d *delivery, p retry.Policy, v classify.Verdict, number int, wait time.Duration) judgement {
	const rounding, unknown, ageless = time.Microsecond, 24 * time.Hour, 1 << 60
	slack, start := c.scenario.pace.slack+rounding, time.Unix(1e9, 0)
	f := retry.Run{Attempt: number, Throttles: d.throttles, Now: start.Add(c.now), PrevDelay: unknown, Verdict: v}
	if d.first > 0 {
		f.FirstFailedAt = start.Add(d.first)
	}
	f.Ran = max(0, c.now-d.began-slack)
	soonest := retry.Decide(p, f, 0)
	f.Ran = c.now - d.began + slack
	if c.scenario.served { // on a busy machine a run may begin long before its handler gets to say so
		f.Ran = c.now - d.received + slack
	}
	f.Verdict.RetryAfter = max(v.RetryAfter, wait)
	latest := retry.Decide(p, f, 1)
	p.MaxAge = ageless
	widest := retry.Decide(p, f, 1)
	j := judgement{
		retries:  soonest.Action == retry.ActionRetry,
		dies:     latest.Action == retry.ActionDeadLetter,
		releases: soonest.Action == retry.ActionRelease,
		reason:   latest.Reason,
		counted:  soonest.Counted,
		attempt:  d.attempt, throttles: d.throttles,
		low: max(0, soonest.Delay-rounding), high: widest.Delay + rounding,
	}
	if j.counted {
		j.attempt++
	} else if v.Class == classify.ClassThrottled {
		j.throttles++
	}
	return j
}

// The checker does not follow every step of a guard: it knows when observers
// were told of a pause, and holds what happens meanwhile against what is
// promised of guards. A pause needs contrast. While it lasts, only probes run.
// What waits keeps its count and starts within bounded time. And retries are
// paced, by what is delivered and by what succeeds.

// guarded is what the checker knows of one dependency, as one worker saw it.
type guarded struct {
	paused bool
	until  time.Duration // the end of the last pause
	runs   []reported
	failed int

	delivered, retried, refunded int // by its budget
}

// reported is what a run said about a dependency.
type reported struct {
	of   string
	at   time.Duration
	fine bool
}

func (w *life) guard(name string) *guarded {
	g := w.guards[name]
	if g == nil {
		g = &guarded{}
		w.guards[name] = g
	}
	return g
}

// dependency is that of a message, "" if it has none but that of its topic.
func (d *delivery) dependency() string {
	if d.fate.message == nil {
		return ""
	}
	return d.topic.dependency(d.fate.message.Headers)
}

// guards are those of a delivery, its nearest first.
func (c *checker) guards(d *delivery) []*guarded {
	of := d.worker.guard(d.topic.name)
	if own := d.dependency(); own != "" {
		return []*guarded{d.worker.guard(own), of}
	}
	return []*guarded{of}
}

// enough is how many runs fail before a guard can have closed.
const enough = 10

// wasPaused reports whether a guard may have been closed at a time since from.
func (c *checker) wasPaused(g *guarded, from time.Duration) bool {
	if !c.scenario.slots[0].observed {
		return g.failed >= enough
	}
	return g.paused || g.until > 0 && g.until+c.scenario.pace.slack >= from
}

// takePaused follows what observers are told of guards.
func (c *checker) takePaused(e *event) {
	w := c.workers[e.Worker]
	g := w.guard(e.Note)
	if e.Kind == resumed {
		g.paused, g.until = false, e.At
		return
	}
	g.paused = true
	if w.crashed == 0 && c.scenario.pace.slack == 0 && !g.contrasts(c.now) {
		c.violate(promiseContrast, "", "worker %d pauses what depends on %q after %+v", w.number, e.Note, g.runs[max(0, len(g.runs)-25):])
	}
}

// contrasts reports whether practically nothing succeeds: of some number of the
// last messages nine in ten fail, or all there were.
func (g *guarded) contrasts(now time.Duration) bool {
	const share = 0.9
	latest, failing, row, succeeds := map[string]bool{}, 0, 0, false
	for _, r := range slices.Backward(g.runs) {
		if r.at == now && r.fine {
			continue // its worker may not have come to it
		}
		if succeeds = succeeds || r.fine; !succeeds {
			row++
		}
		if _, known := latest[r.of]; known {
			continue
		}
		latest[r.of] = true
		if !r.fine {
			failing++
		}
		if n := len(latest); n >= enough && float64(failing) >= share*float64(n) {
			return true
		}
	}
	return row >= enough && failing == len(latest)
}

// report takes in what a run that has ended says about its dependencies. What
// its worker does not know for sure, because the lease may be lost, is no
// success.
func (c *checker) report(d *delivery, e *event, causes []cause) {
	if d.next[0].split && e.Flags&isFirst == 0 {
		return // one run is evidence once
	}
	guards, sure := c.guards(d), !d.freed && d.toldAt == 0 && !d.excused && e.Cause != lost
	v := e.Outcome.verdict(e.Cause, e.Delay)
	silent := e.Outcome == skipping || v.Class == classify.ClassShutdown || v.Class == classify.ClassLost
	if d.paid && (e.Outcome == okay || silent) {
		guards[0].refunded++
	}
	for i, g := range guards {
		r := reported{of: d.fate.id, at: e.At, fine: e.Outcome == okay}
		if i > 0 {
			r.of = d.dependency()
		}
		switch {
		case r.fine:
			if !sure || d.began < g.until {
				continue
			}
		case silent:
			continue
		default:
			g.failed++
		}
		g.runs = append(g.runs, r)
	}
}

// startPaced holds the start of a retry against the budget: a share of what is
// delivered, some each second, and what was given back.
func (c *checker) startPaced(d *delivery, e *event) {
	const saved, share, floor = 20, 0.1, 1.0
	if slices.ContainsFunc(d.next, func(j judgement) bool { return j.split }) {
		return // in a smaller batch, with the token that it has
	}
	if d.paid = e.First > 0 && !d.mayProbe; !d.paid {
		return
	}
	g := c.guards(d)[0]
	g.retried++
	allowed := saved + share*float64(g.delivered) + floor*(c.now-d.worker.up).Seconds() + float64(g.refunded)
	if float64(g.retried) > math.Ceil(allowed)+1 {
		c.violate(promisePace, d.fate.id, "is retry %d of worker %d, allowed are %.1f", g.retried, d.worker.number, allowed)
	}
}

// mayWait reports whether d, which was not run, may be sent to wait: for its
// guard to open, or for a token of the budget.
func (c *checker) mayWait(d *delivery) bool {
	if d.first > 0 || d.topic.tenants {
		return true
	}
	return slices.ContainsFunc(c.guards(d), func(g *guarded) bool {
		return c.wasPaused(g, d.received) || g.contrasts(c.now) // and observers are about to be told
	})
}

// sentToWait holds a wait that is not due to a failure against its bounds. It
// reports whether e may ask for one.
func (c *checker) sentToWait(d *delivery, e *event) bool {
	p := c.scenario.pace
	waits := e.Due > d.due+p.rounding && c.now+p.rounding >= d.due
	if waits && e.Due > c.now+p.pause {
		c.violate(promiseLate, d.fate.id, "waits for %v without a failure, allowed are %v", e.Due-c.now, p.pause)
	}
	return waits
}

// diesLater holds the retry of a dead message, whose dead letter has found no place
// in its worker or no time: it must say what it is dead of, and leave no attempt to
// a worker that does not know of deaths. It comes back after as long as it is dead.
func (c *checker) diesLater(d *delivery, e *event) {
	const least, first, most = 2 * time.Second, 10 * time.Second, 3 * time.Minute
	limit := or(d.topic.policy.MaxAttempts, 10)
	switch since, slack := max(d.ended, d.received), c.scenario.pace.slack+c.scenario.pace.rounding; {
	case d.running || !d.diesOf(e.Death, e.Throttles):
		c.violate(promiseLetter, d.fate.id, "is sent to wait for its dead letter as %+v, the ledger says %+v, or before %+v", e.Death, d.next, d.got.death)
	case e.Attempt != max(e.Death.Attempt, limit):
		c.violate(promiseLetter, d.fate.id, "waits for its dead letter with attempt %d of %d, so that another worker may run it", e.Attempt, limit)
	case d.asked > 0:
	case c.now < d.due && e.Due == d.due: // still: the broker was asked for no longer delay than it takes
	case d.worker.halting() && e.Due < c.now:
	case e.Due < since+least-slack:
		c.violate(promiseEarly, d.fate.id, "is to be dead-lettered at %v, which is less than %v away", e.Due, least)
	case e.Due > c.now+min(max(c.now-e.Died, first), most)+slack:
		c.violate(promiseLate, d.fate.id, "is to be dead-lettered at %v, longer from now than it has been dead, since %v", e.Due, e.Died)
	}
}

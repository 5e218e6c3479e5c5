package main

import (
	"hash/fnv"
	"iter"
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
// failed as a whole. A failure counts if another message has succeeded since d
// failed last.
func (c *checker) judgeAlone(d *delivery, v classify.Verdict) []judgement {
	p := d.topic.policy
	if v.Class == classify.ClassPoison || v.Class == classify.ClassSkipped || v.Deferred {
		return c.judgePoison(d, c.decide(d, p, v, d.attempt+1, d.throttles, 0))
	}
	may, must := c.isAttempt(d)
	verdicts := []classify.Verdict{v}
	if (v.Class == classify.ClassUnknown || v.Reason == "timeout") && v.MaxAttempts > 0 && c.othersFail(d) {
		v.MaxAttempts = 0
		verdicts = append(verdicts, v)
	}
	var all []judgement
	for _, v := range verdicts {
		if may {
			j := c.decide(d, p, v, d.attempt+1, d.throttles, 0)
			all = append(all, j)
			if age := c.now - d.first; j.dies && j.reason != "expired" && d.first > 0 && age < leastAge+c.scenario.pace.slack {
				early, longer := c.uncounted(d, p, v), p
				longer.Backoff.Floor = max(p.Backoff.Floor, min(age+c.scenario.pace.slack, or(p.Backoff.Cap, uncountedCap), uncountedCap))
				early.high = c.uncounted(d, longer, v).high
				all = append(all, early)
			}
		}
		if !must {
			all = append(all, c.uncounted(d, p, v))
		}
	}
	return all
}

// While retries wait for tokens, attempts do not end before leastAge. The checker does
// not follow the budget: it allows that whenever a message is young enough.
const (
	leastAge     = time.Hour
	uncountedCap = 9 * time.Minute
)

// uncounted is decide for a failure that is no attempt.
func (c *checker) uncounted(d *delivery, p retry.Policy, v classify.Verdict) judgement {
	const least = 0.75
	longest := max(uncountedCap, p.Backoff.Base, p.Backoff.Floor)
	p.MaxAttempts = math.MaxInt
	p.Backoff.Cap = min(or(p.Backoff.Cap, longest), longest)
	v.MaxAttempts = 0
	j := c.decide(d, p, v, d.attempt+1+d.throttles, 0, least)
	j.attempt, j.counted = d.attempt, false
	if j.retries || j.dies {
		j.throttles = d.throttles + 1
	}
	return j
}

// judgePoison is j, which ends d as poison; or d is put aside, because more messages
// are poison before one succeeds, or its worker stops. Then d does not end for an hour.
func (c *checker) judgePoison(d *delivery, j judgement) []judgement {
	const longest, most = 13 * time.Minute, time.Hour
	if !j.dies {
		return []judgement{j}
	}
	aside := judgement{retries: true, attempt: d.attempt, throttles: d.throttles, high: longest}
	if c.poisonBefore(d) < poisonRow || d.first > 0 && c.now-d.first >= most-c.scenario.pace.slack {
		return []judgement{j, aside}
	}
	return []judgement{aside}
}

// poisonBefore returns how many messages have been poison in a row, with d, at least.
func (c *checker) poisonBefore(d *delivery) (n int) {
	n = 1
	for r := range c.reports(d, 0) {
		switch {
		case r.as == succeeds:
			return n
		case r.as == isPoison && r.sure && r.at < c.now-c.scenario.pace.slack:
			n++
		}
	}
	return n
}

// decide is [retry.Policy.Decide] for a run with these numbers, whose delay draws least or
// more.
func (c *checker) decide(d *delivery, p retry.Policy, v classify.Verdict, number, throttles int, least float64) judgement {
	const rounding, unknown, ageless = time.Microsecond, 24 * time.Hour, 1 << 60
	slack, start := c.scenario.pace.slack+rounding, time.Unix(1e9, 0)
	f := retry.FailedRun{Attempt: number, Throttles: throttles, Now: start.Add(c.now), Verdict: v}
	if d.first > 0 {
		f.FirstFailedAt = start.Add(d.first)
	}
	f.Ran = max(0, c.now-d.began-slack)
	soonest := p.Decide(f, least)
	f.Ran = c.now - d.began + slack
	if c.scenario.served { // on a busy machine a run may begin long before its handler gets to say so
		f.Ran = c.now - d.received + slack
	}
	f.PrevDelay = unknown
	latest := p.Decide(f, 1)
	p.MaxAge = ageless
	widest := p.Decide(f, 1)
	j := judgement{
		retries:  soonest.Retry,
		dies:     latest.DeadLetter,
		releases: v.Class == classify.ClassShutdown,
		reason:   latest.Reason,
		counted:  soonest.Counted,
		attempt:  d.attempt, throttles: d.throttles,
		low: max(0, soonest.Delay-rounding), high: widest.Delay + rounding,
	}
	switch {
	case j.counted:
		j.attempt++
	case j.retries || j.dies:
		j.throttles++
	}
	return j
}

// The checker does not follow every step of a limit. It knows how runs ended, and
// from that which failures are attempts, and when poison is put aside. A message
// that waits keeps its count and starts within bounded time. A pause needs contrast.
// And retries are paced, by the deliveries and by the retries that succeed.

// dependency is that of a topic, as one worker saw it.
type dependency struct {
	runs      []reported
	contrasts bool          // practically nothing has succeeded at some time, or a person has paused it
	lasts     time.Duration // what failures say, after runs that timed out

	delivered, retried, refunded int // by its budget
}

// reported is what a run said about a dependency.
type reported struct {
	who  string // the message, or the name that it depends on
	name uint64 // where its worker keeps what it knows of that name; 0 is none
	at   time.Duration
	as   evidence
	sure bool // the worker takes it into account
	of   *delivery
}

type evidence uint8

const (
	fails evidence = iota
	throttles
	isPoison
	succeeds
	silent
)

const (
	successLasts = 2 * time.Minute // so long a run speaks for the dependency
	poisonRow    = 5               // poison messages without a success between them that are put aside
)

func (w *life) dependency(topic string) *dependency {
	g := w.dependencies[topic]
	if g == nil {
		g = &dependency{}
		w.dependencies[topic] = g
	}
	return g
}

// reported is what the end of a run says, and for whom.
func (c *checker) reported(e *event) reported {
	r := reported{who: e.ID, at: e.At}
	if m := c.scenario.message(e.ID); m != nil {
		if name := c.scenario.topics[m.topic].dependency(m.Headers); name != "" {
			const buckets = 1 << 13
			h := fnv.New64a()
			h.Write([]byte(name))
			r.who, r.name = name, h.Sum64()%buckets+1
		}
	}
	switch v := e.Outcome.verdict(e.Cause, e.Delay); {
	case e.Outcome == okay:
		r.as = succeeds
	case e.Outcome == skipping, v.Class == classify.ClassShutdown, v.Class == classify.ClassLost:
		r.as = silent
	case v.Class == classify.ClassPoison:
		r.as = isPoison
	case v.Class == classify.ClassThrottled:
		r.as = throttles
	}
	return r
}

// reports are those of the topic of d, the latest first: those that come next, which
// its worker may have seen before the end of d, and those before, back to from. From
// is no limit if it is below 0.
func (c *checker) reports(d *delivery, from time.Duration) iter.Seq[reported] {
	return func(yield func(reported) bool) {
		for i := c.index + 1; i < len(c.events) && c.events[i].At <= c.now+c.scenario.pace.slack; i++ {
			e := &c.events[i]
			if e.Kind == ended && e.Worker == d.worker.number && e.Topic == d.topic.name && !yield(c.reported(e)) {
				return
			}
		}
		for _, r := range slices.Backward(d.worker.dependency(d.topic.name).runs) {
			if r.at < from || !yield(r) {
				return
			}
		}
	}
}

// isAttempt reports whether a failure of d may be an attempt, and whether it must be.
func (c *checker) isAttempt(d *delivery) (may, must bool) {
	slack, rounding := c.scenario.pace.slack, max(c.scenario.pace.rounding, time.Microsecond)
	name := c.reported(&event{ID: d.fate.id}).name
	for r := range c.reports(d, max(0, c.now-successLasts-slack)) {
		if r.as != succeeds || name != 0 && r.name != name {
			continue
		}
		may = may || r.at >= d.failed-rounding-slack
		acked := r.of != nil && r.of.asked > 0 // or its lease may have been lost before the worker took it in
		must = must || acked && r.sure && r.at < c.now-slack && r.at > d.failed+rounding+slack && r.at >= c.now-successLasts+slack
	}
	return may, must
}

// othersFail reports whether another message may have failed beside d.
func (c *checker) othersFail(d *delivery) bool {
	who, lasts := c.reported(&event{ID: d.fate.id}).who, d.worker.dependency(d.topic.name).lasts
	for r := range c.reports(d, max(0, c.now-max(successLasts, lasts)-c.scenario.pace.slack)) {
		if r.as <= throttles && r.who != who {
			return true
		}
	}
	return c.isStuck(d.worker, d.topic.name)
}

// isStuck reports whether a handler does not return after its timeout. For its worker
// it has failed.
func (c *checker) isStuck(w *life, topic string) bool {
	return slices.ContainsFunc(c.order, func(f *fate) bool {
		return slices.ContainsFunc(f.deliveries, func(d *delivery) bool {
			return d.running && d.worker == w && d.topic.name == topic && c.now-d.began >= d.topic.timeout
		})
	})
}

// takePaused holds a pause against the runs before it: practically none succeeded,
// or many were throttled.
func (c *checker) takePaused(e *event) {
	w := c.workers[e.Worker]
	if g := w.dependency(e.Note); w.crashed == 0 && c.scenario.pace.slack == 0 && !g.contrasts && !c.isStuck(w, e.Note) {
		c.violate(promiseContrast, "", "worker %d pauses what depends on %q after %+v", w.number, e.Note, g.runs[max(0, len(g.runs)-25):])
	}
}

// contrast reports whether of some number of the last messages nine in ten fail, or
// one in ten is throttled. What the worker may not have seen yet is left out.
func (g *dependency) contrast(now time.Duration) bool {
	const enough, failing, throttled = 3, 0.9, 0.1
	latest, n := map[string]bool{}, [silent + 1]int{}
	for _, r := range slices.Backward(g.runs) {
		if latest[r.who] || r.as == succeeds && (r.at == now || !r.sure) {
			continue
		}
		latest[r.who] = true
		n[r.as]++
		bad := n[fails] + n[throttles]
		if all := bad + n[succeeds]; all >= enough && (float64(bad) >= failing*float64(all) || float64(n[throttles]) >= throttled*float64(all)) {
			return true
		}
	}
	return false
}

// report takes in what a run that has ended says about its dependency. The worker
// may not know for sure of a success whose lease may be lost.
func (c *checker) report(d *delivery, e *event) {
	part := d.next[0].split
	if part && e.Flags&isFirst == 0 {
		return // one run is evidence once
	}
	g, r := d.worker.dependency(d.topic.name), c.reported(e)
	r.of = d
	if took := e.At - d.began; took >= d.topic.timeout-c.scenario.pace.slack {
		g.lasts = max(g.lasts, 2*took)
	}
	r.sure = !d.freed && d.toldAt == 0 && !d.excused && !d.isSkipped() && e.Cause != lost && !part
	if d.paid && (r.as == succeeds || r.as == silent || r.as == throttles) {
		g.refunded++
	}
	if r.as == silent && c.now-d.began >= d.topic.timeout { // its worker took it for stuck before it ended
		r.as = fails
	}
	if r.as == silent {
		return
	}
	g.runs = append(g.runs, r)
	g.contrasts = g.contrasts || r.as <= throttles && g.contrast(e.At)
}

// startPaced holds the start of a retry against the budget: a share of the
// deliveries, some each second, and the tokens that were given back.
func (c *checker) startPaced(d *delivery, e *event) {
	const saved, share, floor = 20, 0.1, 1.0
	if slices.ContainsFunc(d.next, func(j judgement) bool { return j.split }) {
		return // in a smaller batch, with the token that it has
	}
	if d.paid = e.First > 0; !d.paid {
		return
	}
	g := d.worker.dependency(d.topic.name)
	g.retried++
	allowed := saved + share*float64(g.delivered) + floor*(c.now-d.worker.up).Seconds() + float64(g.refunded)
	if float64(g.retried) > math.Ceil(allowed)+1 {
		c.violate(promisePace, d.fate.id, "is retry %d of worker %d, allowed are %.1f", g.retried, d.worker.number, allowed)
	}
}

// sentToWait holds a wait that is not due to a failure against its bounds: for the
// limit of its dependency, for the slot of its name, or for a token of the budget. It
// reports whether e may ask for one.
func (c *checker) sentToWait(d *delivery, e *event) bool {
	p, limit := c.scenario.pace, c.scenario.pace.pause
	if d.first == 0 {
		limit = min(limit, 2*time.Minute) // it needs no token
	}
	if d.pausedFor() {
		limit = max(limit, 10*time.Minute)
	}
	waits := e.Due > d.due+p.rounding && c.now+p.rounding >= d.due
	if waits && e.Due > c.now+limit {
		c.violate(promiseLate, d.fate.id, "waits for %v without a failure, allowed are %v", e.Due-c.now, limit)
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
	case d.running && !d.isSkipped() || !d.diesOf(e.Death, e.Throttles):
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

package main

import (
	"math"
	"slices"
	"time"
)

// The checker does not follow every step of a guard: it knows when observers
// were told of a pause, and holds what happens meanwhile against what is
// promised of guards. A pause needs contrast. While it lasts, only probes run.
// One that fails is not counted unless another message has succeeded since, and
// ends its message by its age alone. What waits keeps its count and starts
// within bounded time. And retries are paced, by what is delivered and by what
// succeeds.

// guarded is what the checker knows of one dependency, as one worker saw it.
type guarded struct {
	paused       bool
	since, until time.Duration // of the last pause
	runs         []reported    // since the first
	failed       int
	succeeded    time.Duration // the last run that did,
	surely       time.Duration // and the last of which the worker surely knew

	delivered, retried, refunded int // by its budget
}

// reported is what a run said about a dependency.
type reported struct {
	of     string
	at     time.Duration
	weight int  // of a failure of the dependency, 0 is none
	poison bool // a failure of the message
	fine   bool // it succeeded
}

func (w *life) guard(name string) *guarded {
	if w.guards == nil {
		w.guards = map[string]*guarded{}
	}
	g := w.guards[name]
	if g == nil {
		g = &guarded{}
		w.guards[name] = g
	}
	return g
}

// own is the dependency of a message, "" if it has none but that of its topic.
func (c *checker) own(d *delivery) string {
	if m := c.scenario.message(d.fate.id); m != nil && d.topic != nil {
		return d.topic.dependency(m.Headers)
	}
	return ""
}

// guards are those of a delivery, its nearest first.
func (c *checker) guards(d *delivery) []*guarded {
	of := d.worker.guard(d.topic.name)
	if own := c.own(d); own != "" {
		return []*guarded{d.worker.guard(own), of}
	}
	return []*guarded{of}
}

func (c *checker) observed() bool { return c.scenario.slots[0].observed }

// enough is how many runs fail before a guard can have closed of which nobody
// is told.
const enough = 10

// wasPaused reports whether a guard may have been closed at a time since from.
func (c *checker) wasPaused(g *guarded, from time.Duration) bool {
	if !c.observed() {
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
		for _, d := range w.deliveries { // what the guard that is open let start at once
			if d.running && d.began == e.At {
				d.mustProbe = false
			}
		}
		return
	}
	g.paused, g.since = true, e.At
	if w.crashed == 0 && c.scenario.pace.slack == 0 && !g.contrasts(c.now) {
		c.violate(promiseContrast, "", "worker %d pauses what depends on %q after %+v", w.number, e.Note, g.runs[max(0, len(g.runs)-25):])
	}
}

// contrasts reports whether practically nothing succeeds, or practically
// everything is poison.
func (g *guarded) contrasts(now time.Duration) bool {
	health := trend{window: 50, ratio: 0.9, streak: 20}
	poison := trend{window: 100, ratio: 0.95, streak: 60}
	for _, r := range slices.Backward(g.runs) {
		if r.at == now && r.fine {
			continue // its worker may not have come to it
		}
		weight := 0
		if r.poison {
			weight = 1
		} else if health.add(r.of, r.weight) {
			return true
		}
		if poison.add(r.of, weight) {
			return true
		}
	}
	return health.alone() || poison.alone()
}

// trend is what the last runs say, taken in from the last one on: how many
// messages failed last, and how much in a row.
type trend struct {
	window, streak int
	ratio          float64

	latest    map[string]bool // fails, by message
	failing   int
	broken    bool // the row, by a success
	row       int
	different map[string]bool // messages of the row
}

// add takes in a run that failed with this weight, or did not. It reports
// whether the runs from there on are reason enough to pause: all of the first 20
// messages fail, nearly all of a window, or many in a row of 10 messages.
func (t *trend) add(of string, weight int) bool {
	const first, different = 20, 10
	if t.latest == nil {
		t.latest, t.different = map[string]bool{}, map[string]bool{}
	}
	if t.broken = t.broken || weight == 0; !t.broken {
		t.row += weight
		t.different[of] = true
	}
	if _, known := t.latest[of]; !known {
		if t.latest[of] = weight > 0; weight > 0 {
			t.failing++
		}
	}
	n := len(t.latest)
	return t.row >= t.streak && len(t.different) >= different ||
		n >= first && t.failing == n || n >= t.window && float64(t.failing) >= t.ratio*float64(n)
}

// alone reports whether the row is long enough where no success is known.
func (t *trend) alone() bool { return t.row >= t.streak && t.failing == len(t.latest) }

// report takes in what a run that has ended says about its dependencies. What
// its worker does not know for sure, because the lease may be lost, is no
// success.
func (c *checker) report(d *delivery, e *event, k class) {
	if d.next[0].split && e.Flags&isFirst == 0 {
		return // one run is evidence once
	}
	guards := c.guards(d)
	sure := !d.freed && !d.told && !d.excused && e.Cause != lost
	for i, g := range guards {
		r := reported{of: d.fate.id, at: e.At}
		if i < len(guards)-1 || len(guards) == 1 {
		} else {
			r.of = c.own(d)
		}
		switch {
		case e.Outcome == okay:
			g.succeeded = e.At
			if sure {
				g.surely = e.At
			}
			if r.fine = sure && d.began >= g.until; !r.fine {
				continue
			}
		case e.Outcome == skipping, k == classShutdown, k == classLost:
			continue
		case k.name == "poison":
			r.poison = true
		case k.severe(), slices.Contains(c.causes(d, e), timedOut):
			r.weight = 2
		default:
			r.weight = 1
		}
		if r.weight > 0 || r.poison {
			g.failed++
		}
		g.runs = append(g.runs, r)
	}
	if d.paid && (e.Outcome == okay || e.Outcome == skipping || k == classShutdown || k == classLost) {
		guards[0].refunded++
	}
}

// startProbe notes whether a run that starts may be a probe, and whether it has
// to be one.
func (c *checker) startProbe(d *delivery) {
	d.mayProbe, d.mustProbe = false, false
	for _, g := range c.guards(d) {
		if c.wasPaused(g, c.now) {
			d.mayProbe = true
		}
		if c.observed() && c.scenario.pace.slack == 0 && g.paused && g.since < c.now {
			d.mustProbe = true
		}
	}
}

// startPaced holds the start of a retry against the budget: a share of what is
// delivered, some each second, and what was given back.
func (c *checker) startPaced(d *delivery, e *event) {
	const saved, share, floor = 20, 0.1, 1.0
	again := slices.ContainsFunc(d.next, func(j judgement) bool { return j.split })
	if d.paid = e.First > 0 && !d.mayProbe && !again; !d.paid {
		return
	}
	g := c.guards(d)[0]
	g.retried++
	allowed := saved + share*float64(g.delivered) + floor*(c.now-d.worker.up).Seconds() + float64(g.refunded)
	if float64(g.retried) > math.Ceil(allowed)+1 {
		c.violate(promisePace, d.fate.id, "is retry %d of worker %d, allowed are %.1f", g.retried, d.worker.number, allowed)
	}
}

// probed returns what may follow a run, of which j would if it was no probe.
func (c *checker) probed(d *delivery, j judgement, k class, hint time.Duration) []judgement {
	if !d.mayProbe || !j.retries && !j.dies || j.reason == reasonAmbiguous {
		return []judgement{j}
	}
	p := judgement{attempt: d.attempt, throttles: d.throttles}
	if k == classThrottled {
		p.throttles++
	}
	as := k
	if k.name == "poison" {
		as = classTransient
	}
	p.low, p.high = as.bounds(d.topic.policy, 1, d.throttles, hint)
	ends := j.dies && !j.retries && j.reason != reasonExpired
	for _, j := range []*judgement{&j, &p} { // until others have been tried
		if j.high = max(j.high, min(c.scenario.pace.pause, or(d.topic.policy.MaxRetryAfter, 15*time.Minute))); j == &p || !ends {
			c.age(d, j)
		}
	}
	f, nearest := d.fate, c.guards(d)[0]
	switch {
	case !d.mustProbe:
		return []judgement{j, p}
	case ends, d.first == 0:
		return []judgement{p}
	case f.disturbed > 0 || f.wilds > 0: // its worker may not know when it failed last
		return []judgement{j, p}
	case nearest.succeeded < f.failedAt:
		return []judgement{p}
	case nearest.surely > f.failedAt && !j.dies:
		return []judgement{j}
	}
	return []judgement{j, p}
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

// diesLater reports whether e asks for a retry without attempts, of a dead
// letter that has found no place in its worker.
func (c *checker) diesLater(d *delivery, e *event) bool {
	limit := or(d.topic.policy.MaxAttempts, 10)
	later := func(attempt int) bool { return e.Attempt == max(attempt, limit) }
	refused := d.runs == 0 && d.refused() && (later(d.attempt) || d.oversize() && e.Attempt == d.attempt)
	if !refused && !slices.ContainsFunc(d.next, func(j judgement) bool { return j.dies && later(j.attempt) }) {
		return false
	}
	w, since := d.worker, max(d.ended, d.received)
	if w.halting() && e.Due < c.now || d.asked > 0 {
		return d.asked > 0
	}
	dying := 0
	for _, other := range w.deliveries {
		if other.topic == d.topic && other.dying() && (!other.ok && !other.told || max(other.okAt, other.toldAt) >= since) {
			dying++
		}
	}
	switch {
	case dying < w.concurrency && c.scenario.pace.slack == 0:
		c.violate(promiseSettlement, d.fate.id, "is to be dead-lettered later, although only %d others are", dying)
	case e.Due < since+time.Minute || e.Due > c.now+3*time.Minute+c.scenario.pace.slack:
		c.violate(promiseLate, d.fate.id, "is to be dead-lettered at %v, which is not in 1 to 3 minutes", e.Due)
	}
	return true
}

// dying reports whether the delivery is on its way to the dead letters.
func (d *delivery) dying() bool {
	return !d.running && slices.ContainsFunc(d.next, func(j judgement) bool { return j.dies }) || d.runs == 0 && d.refused()
}

// delivered counts what a budget earns by.
func (c *checker) earn(d *delivery, e *event) {
	if e.First == 0 && e.Due == 0 {
		c.guards(d)[0].delivered++
	}
}

// Package flow decides how many runs may use a dependency at once.
//
// A [Limiter] holds one number, the limit. A limit of 10 is ten runs at once. A
// limit of 0.5 is one run at a time, with pauses as long as the runs. A limit of
// 0.001 of runs that take 10 ms is a probe every ten seconds. So a rate limit, an
// outage and the recovery from either are one scale and no states.
//
// The limit rises and falls as the congestion window of TCP does: a cut for each
// round of overload, slow start up to half of the last good value, and linear
// growth above. A cut needs evidence from several different messages. One message
// that fails is evidence about that message.
//
// A Limiter paces; it drops nothing and counts no attempt. It does not promise
// that a dependency is never called beyond what it bears: it learns that from
// failures.
//
// The package reads no clock, starts no goroutine and draws no number: the time
// and the source of chance come from the caller.
package flow

import (
	"cmp"
	"math"
	"sync"
	"time"
)

// Outcome is what the end of a run says about the dependency.
type Outcome uint8

const (
	Neutral   Outcome = iota // nothing: it was lost, stopped, or never called the dependency
	Success                  // the dependency serves
	Poison                   // the message is at fault; the dependency was not reached or did its part
	Unknown                  // an error of no known class, or a panic
	Overload                 // refused, 5xx, or the environment is at fault
	Timeout                  // the handler ran into its time limit
	Throttled                // the dependency asked for fewer calls
	outcomes
)

// bad reports whether o is a failure that the message alone does not explain.
func (o Outcome) bad() bool { return o >= Unknown }

// The constants of the loop. Durations and times are in seconds.
const (
	cutTo      = 0.7      // the part of the limit that a cut leaves, as in CUBIC and the AWS SDKs
	stopTo     = 0.3      // the same if nothing in the sample succeeded
	cutShare   = 0.9      // a share of failures above which the limit is cut
	doubling   = 1.25     // the limit doubles at most once in this time
	linear     = 1.0 / 20 // growth per second above half of the good limit, as a part of it
	rampFor    = 5.0      // for this long a ramp stays below 1.5 times the normal rate
	probeEvery = 600.0    // probes come every 600th of the time since the last success,
	probeMin   = 1.0      // but not closer than this,
	probeMax   = 30.0     // and not farther apart
	probeShare = 1.0 / 20 // the part of the normal rate that probes may use
	probeOut   = 10.0     // a probe that runs for longer does not hold up the next
	probes     = 3        // but no more than so many at once
	memory     = 600.0    // for so long the good limit and a relapse are remembered
	relapses   = 6        // the slowest ramp doubles once in 2^6 × 1.25 s
	assumed    = 0.1      // the usual duration of a run while it is unknown
	slowStart  = 0.1      // a ramp starts at so many runs a second at least
	calm       = 10.0     // an unbounded limit that refuses nothing for so long ends
	unbounded  = 1e9      // the slots of a Limiter that has no highest limit
)

// Limiter decides when a run may start. Its methods may be called from any number
// of goroutines.
type Limiter struct {
	random func() float64
	slots  float64 // the highest limit
	fleet  float64 // workers that use the dependency together, each with a Limiter

	mu      sync.Mutex
	epoch   time.Time
	latest  float64 // the latest time that was told
	limit   float64
	running int
	sample  sample
	meter   meter
	pace    throttles
	success time.Time // the last one

	good    float64 // the limit before the last cut under full load
	relapse int     // cuts above the normal load in the last minutes: a ramp doubles every 2^relapse × 1.25 s
	cutAt   float64 // only runs that began later may cut again
	grown   bool    // since the last cut
	grewAt  float64
	rampAt  float64 // when a ramp from below the normal load began
	held    bool    // the limit has kept a run waiting since it last changed
	heldAt  float64 // when it last did
	lastAt  float64 // the last start
	gap     float64 // jitter of the distance to the next start

	paused string // why nothing may start until it is resumed; "" if it may
}

// New returns a Limiter for at most slots runs at once. Random returns numbers in
// [0, 1); it spreads the probes of a fleet. A new Limiter starts at half of the slots,
// and stays there until that keeps work waiting.
func New(slots int, random func() float64) *Limiter {
	return &Limiter{
		random: random, slots: float64(max(1, slots)), fleet: 1,
		limit: max(1, float64(slots)/2), good: 2 * float64(max(1, slots)), gap: 1,
		lastAt: never, cutAt: never, heldAt: never, rampAt: never, meter: newMeter(),
	}
}

// Unbounded returns a Limiter for calls that do not wait: a call that may not start
// is refused. There is no limit until calls fail, and none again once the limit has
// refused nothing for 10 s. The first cut begins at twice the usual number of calls
// at once. The limit admits as many calls in one burst. A call that is never
// reported to [Limiter.Done] delays the others for 30 s at most.
func Unbounded(random func() float64) *Limiter {
	l := New(unbounded, random)
	l.limit = l.slots
	return l
}

// probeLeast is the shortest time between two probes of this worker.
func (l *Limiter) probeLeast() float64 { return min(probeMin*l.fleet, probeMax) }

const (
	never = -1e9 // a time before all others
	exact = 1e-6 // times that differ by less are the same
)

// stepsBack is how much earlier a time is than the latest one, in seconds, if the
// clock was set back. Goroutines that report at about the same time differ by less.
const stepsBack = 1.0

// seconds turns now into the time of the Limiter, which never goes back: if the
// clock was set back, it goes on from the latest time. mu is held.
func (l *Limiter) seconds(now time.Time) float64 {
	if now.IsZero() {
		return l.latest
	}
	t := now.Sub(l.epoch).Seconds()
	if l.epoch.IsZero() || t < l.latest-stepsBack {
		l.epoch, t = now.Add(-time.Duration(l.latest*float64(time.Second))), l.latest
	}
	l.latest = max(l.latest, t)
	return l.latest
}

// Start reports whether a run may start now, and counts it if so. Each run that
// starts must be reported to [Limiter.Done]. If it may not, next is when to ask
// again; the zero time means when a run has ended, or the pause by hand.
func (l *Limiter) Start(now time.Time) (ok bool, next time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.seconds(now)
	at := l.next(t)
	if at > t+exact {
		l.hold(t)
		return false, l.time(at)
	}
	l.running++
	if l.limit >= l.slots {
		l.lastAt, l.gap = t, 1
		return true, time.Time{}
	}
	l.lastAt, l.gap = max(min(l.lastAt+l.spacing(), t), t-l.credit()), 1
	if l.limit < 1 {
		l.gap = 0.8 + 0.4*l.random()
	}
	return true, time.Time{}
}

func (l *Limiter) hold(t float64) { l.held, l.heldAt, l.meter.disturbed = true, t, true }

// time turns seconds into a time, and math.MaxFloat64 into the zero time.
func (l *Limiter) time(t float64) time.Time {
	if t == math.MaxFloat64 {
		return time.Time{}
	}
	return l.epoch.Add(time.Duration(math.Ceil(t * float64(time.Second))))
}

// next returns when a run may start: t or earlier means now, math.MaxFloat64 not
// before another ends.
func (l *Limiter) next(t float64) float64 {
	if l.paused != "" {
		return math.MaxFloat64
	}
	if float64(l.running) < l.limit && (l.limit >= l.slots || l.limit >= 1 && (l.meter.usual == 0 || l.cutAt == never)) {
		return t
	}
	at := l.lastAt + l.spacing()
	switch {
	case float64(l.running) < l.limit:
		return at
	case l.limit < 1 && l.running < probes:
		return max(at, l.lastAt+probeOut)
	case l.slots == unbounded:
		return max(at, l.lastAt+probeMax)
	}
	return math.MaxFloat64
}

// spacing is the time from the last start to the next.
func (l *Limiter) spacing() float64 { return l.gap * l.meter.duration() / l.limit }

// credit is how far the calls of an unbounded Limiter may be ahead of their spacing.
func (l *Limiter) credit() float64 {
	if l.slots != unbounded {
		return 0
	}
	return max(0, l.limit-1) * l.meter.duration() / l.limit
}

// End is how a run ended.
type End struct {
	Began   time.Time
	Outcome Outcome

	// Who tells messages apart, or the names that they depend on: several failures
	// of one count once.
	Who uint64

	// Again says that the message was throttled in its last run, too.
	Again bool

	// More says that the run was reported before: this is what one more of its
	// messages says.
	More bool
}

// Done takes in how a run ended. Changed reports whether [Limiter.Start] may answer
// differently now, apart from the place that is free again.
func (l *Limiter) Done(now time.Time, e End) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	full := !e.More && float64(l.running) >= l.limit // it used the last place
	if !e.More {
		l.running--
	}
	before, t := l.limit, l.seconds(now)
	if e.Outcome == Neutral {
		return before < l.slots
	}
	took := max(0, now.Sub(e.Began).Seconds())
	l.sample.add(t, e.Who, e.Outcome)
	if e.Outcome == Timeout {
		l.sample.age = 2 * took
	}
	l.meter.ended(t, e.Outcome)
	l.pace.ended(e)
	switch {
	case e.Outcome == Success:
		l.success = now // as seconds it would be rounded
		if e.More {
			l.meter.lastSuccess = t
			break
		}
		usual := l.meter.duration()
		l.meter.succeeded(t, took)
		if l.limit < 1 { // it is a rate, which slow runs do not change
			l.limit = min(l.limit*l.meter.duration()/usual, 1)
		}
		l.grow(t)
	case e.Outcome.bad() && t-took > l.cutAt && l.convincing(t, e.Outcome):
		l.cut(t, e.Outcome, full)
	}
	return min(before, l.limit) < l.slots
}

// convincing reports whether enough different messages failed for a cut.
func (l *Limiter) convincing(t float64, o Outcome) bool {
	n := l.sample.counts(t)
	bad, all := n.bad(), n.bad()+n[Success]
	return all >= 3 && (float64(bad) > cutShare*float64(all) ||
		o == Throttled && float64(n[Throttled]) > paceShare*float64(all) && !l.pace.same())
}

// cut lowers the limit, but not below that at which probes find the end of the
// trouble, nor below what the dependency serves while it throttles.
func (l *Limiter) cut(t float64, o Outcome, full bool) {
	m := &l.meter
	normal := 2 * m.normal * m.duration()
	if l.limit == unbounded {
		l.limit = cmp.Or(normal, float64(l.running+1))
	}
	if l.grown && t-l.heldAt < 1 || l.limit >= l.slots && full {
		if o != Throttled && normal < l.limit && l.limit < l.slots {
			l.relapse = min(l.relapse+1, relapses)
		}
		l.good = max(l.limit, normal)
	}
	part := cutTo
	if l.sample.counts(t)[Success] == 0 {
		part = stopTo
	}
	least := m.duration() * max(m.normal*probeShare, 1/min(max(m.silence(t)/probeEvery, l.probeLeast()), probeMax))
	switch o {
	case Throttled:
		least = max(least, m.served()*m.duration())
	case Unknown:
		least = 1
	}
	l.limit = min(l.limit, max(l.limit*part, least))
	l.cutAt, l.grewAt, l.grown, l.held = t, t, false, false
}

// grow raises the limit if it kept work waiting, and more runs at once would not
// only wait in the dependency.
func (l *Limiter) grow(t float64) {
	if t-l.cutAt > memory {
		l.good = 2 * l.slots
		if l.relapse > 0 {
			l.relapse--
			l.cutAt = t - memory/2
		}
	}
	if l.slots == unbounded && (l.grown || !l.held) && t-max(l.heldAt, l.cutAt) > calm {
		l.limit = unbounded
	}
	m := &l.meter
	if l.limit >= l.slots || !l.held || m.recent > 2*m.usual && m.rate() >= m.normal {
		return
	}
	if m.normal > 0 && !l.grown && l.limit < m.usual*max(m.normal, 2/l.probeLeast()) { // probes may be more than the normal rate
		l.rampAt = t
	}
	part := min((t-l.grewAt)/(doubling*math.Exp2(float64(l.relapse))), 1)
	if l.limit < l.good/2 {
		l.limit *= math.Exp2(part)
	} else {
		l.limit += linear * l.good * part
	}
	l.limit = max(l.limit, min(1, m.usual*max(slowStart/l.fleet, m.normal/8)))
	if t-l.rampAt < rampFor {
		l.limit = min(l.limit, m.usual*max(1/(probeMin*l.fleet), 1.5*m.normal))
	}
	l.limit = min(l.limit, l.slots)
	l.good = max(l.good, l.limit)
	l.grown, l.grewAt, l.held = true, t, false
}

// Change is what a Limiter is told besides the ends of runs. What is zero says nothing.
type Change struct {
	// Workers is how many workers use the dependency together, each with a Limiter
	// of its own; one until it is told. Their ramps together begin like that of one,
	// and so do their probes, as far as none probes more rarely than every 30 s.
	Workers int

	// Waits says that the limit keeps work waiting which does not ask for a start,
	// such as messages that are not received. Only a limit that holds work back
	// grows.
	Waits bool

	// Pause is why nothing starts until Resume.
	Pause string

	// Resume ends a pause. The limit ramps up as after an outage.
	Resume bool
}

// Adjust takes in a change and returns the status after it. The zero Change only asks.
// The zero time stands for the latest one that the Limiter was given.
func (l *Limiter) Adjust(now time.Time, c Change) Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fleet = cmp.Or(float64(max(0, c.Workers)), l.fleet)
	l.paused = cmp.Or(c.Pause, l.paused)
	t := l.seconds(now)
	if c.Waits && l.limit < l.slots {
		l.hold(t)
	}
	if c.Resume && l.paused != "" {
		l.paused = ""
		l.limit = min(l.limit, 1, l.meter.duration()*max(slowStart/l.fleet, l.meter.normal/8))
		l.cutAt, l.grewAt, l.grown, l.held = t, t, false, false
	}
	return l.status(t)
}

// Status is what a Limiter knows and lets start at one time. The zero value is that of
// no limit.
type Status struct {
	Limit       float64 // how many runs may go at once; below 1 their distance is Interval; 0 in a pause by hand
	Slots       int
	Running     int
	Held        bool          // Start would not let one more run start
	Next        time.Time     // if Held, when to ask again, as Start returns it
	Interval    time.Duration // between two starts; zero from a limit of 1 on
	Usual       time.Duration // the mean of successes over ten minutes; zero if there was none
	LastSuccess time.Time     // zero if there was none
	Silence     time.Duration // since the last success, or else the first end of a run; zero if none ended
	Failing     int           // different messages of the sample that fail for a reason not their own
	Sampled     int           // different messages of the sample, poison left out
	Poisoned    bool          // practically all messages are poison
	Paused      string        // why nothing starts until it is resumed; "" unless paused by hand
}

// Full reports whether nothing is held back.
func (s Status) Full() bool { return s.Limit >= float64(s.Slots) }

// status returns the status at t. mu is held.
func (l *Limiter) status(t float64) Status {
	n := l.sample.counts(t)
	s := Status{
		Limit: l.limit, Slots: int(l.slots), Running: l.running,
		Usual:       time.Duration(l.meter.usual * float64(time.Second)),
		LastSuccess: l.success,
		Failing:     n.bad(),
		Sampled:     n.bad() + n[Success],
		Poisoned:    n.poisoned(),
		Paused:      l.paused,
	}
	if s.Paused != "" {
		s.Limit = 0
	}
	if l.limit < 1 {
		s.Interval = time.Duration(l.meter.duration() / l.limit * float64(time.Second))
	}
	if l.meter.since != never {
		s.Silence = time.Duration(l.meter.silence(t) * float64(time.Second))
	}
	if at := l.next(t); at > t+exact {
		s.Held, s.Next = true, l.time(at)
	}
	return s
}

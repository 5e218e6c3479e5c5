package consumer

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/retry/flow"
)

// admission decides which runs may start. It knows the dependencies with their
// limits and budgets, and the jobs in line at them. A job that may start has a
// ticket, which done takes back with what the run says about its dependency.
//
// mu guards the lines and the timers. The admission does not hold it while it tells
// the queues. A caller that holds the mu of the pipeline may use follow, inLine,
// lineUp, waiting and close, and takeBack after close.
type admission struct {
	*reporter
	random       func() float64
	queues       queues
	pulses       *pulses
	dependencies []*dependency
	semaphores   []*semaphore
	tenants      atomic.Pointer[map[uint64]health.ByHand] // that are paused by hand; nil if none is

	mu      sync.Mutex
	closed  bool
	telling sync.WaitGroup // of openings that the queues are being told
}

// queues are told by the admission of deliveries that may not start now, or may
// start since.
type queues interface {
	// putOff puts off the run of d.
	putOff(d *delivery, now time.Time, wait time.Duration, why deferral)
	// await lets job wait until the limit lets it start, or else until a slot for
	// messages that were sent back does, and has it lined up.
	await(job []*delivery, now time.Time, slot bool)
	// opened takes jobs that wait out of line. It returns how many of those that
	// may start do not.
	opened(opening) (unused int)
}

// opening is what becomes of jobs in line.
type opening struct {
	at     *dependency // whose limit lets them start; nil if it is a semaphore
	now    time.Time
	start  [][]*delivery
	leave  [][]*delivery // for the broker: they cannot wait here any longer
	status flow.Status   // of the dependency
	news   bool          // the status may have changed
}

// ticket is what a job holds while it runs. Its first member has it.
type ticket struct {
	place bool // counted by the limiter of its dependency
	slot  bool // one of the slots for messages that were sent back
}

// takeTicket returns what a job holds, and takes it away.
func takeTicket(job []*delivery) (t ticket) {
	for _, d := range job {
		t.place = t.place || d.ticket.place
		t.slot = t.slot || d.ticket.slot
		d.ticket = ticket{}
	}
	return t
}

// acquire returns those of job, deliveries of s, that may start now. T is the
// ticket that the job has from its time in line. Those that do not start hold
// nothing but the token of a retry.
func (a *admission) acquire(s *subscription, job []*delivery, t ticket, now time.Time) []*delivery {
	if len(job) > 0 && s.byHand.Load() != nil {
		a.takeBack(s, t, now, flow.End{})
		a.queues.await(job, now, false)
		return nil
	}
	if tenants := a.tenants.Load(); tenants != nil {
		job = those(job, func(d *delivery) bool { return !a.isPaused(d, *tenants, now) })
	}
	job = those(job, func(d *delivery) bool { return a.pays(d, now) })
	if g := s.dependency; len(job) > 0 && !t.place && g.limiter != nil {
		if g.line.length.Load() == 0 {
			t.place, _ = g.limiter.Start(now)
		}
		if !t.place {
			a.queues.await(job, now, false)
			return nil
		}
	}
	if len(job) > 0 && job[0].returned() {
		if t.slot = s.returned.acquire(s.dependency, now); !t.slot {
			a.queues.await(job, now, true)
			job = nil
		}
	}
	job = those(job, func(d *delivery) bool { return a.enters(d, now) })
	if len(job) == 0 {
		a.takeBack(s, t, now, flow.End{})
		return nil
	}
	job[0].ticket = t
	return job
}

// those returns the members of job that are so. It leaves job as it is: the
// context of an earlier attempt may still read it.
func those(job []*delivery, so func(*delivery) bool) []*delivery {
	first := slices.IndexFunc(job, func(d *delivery) bool { return !so(d) })
	if first < 0 {
		return job
	}
	kept := slices.Clone(job[:first])
	for _, d := range job[first+1:] {
		if so(d) {
			kept = append(kept, d)
		}
	}
	return kept
}

// takeBack takes back what a job of s held that does not run any more, or not at
// all. End says how its run ended.
func (a *admission) takeBack(s *subscription, t ticket, now time.Time, end flow.End) {
	if t.place || end.More && s.dependency.limiter != nil {
		a.ended(s.dependency, now, s.dependency.limiter.Done(now, end))
	}
	if t.slot {
		s.returned.used.Add(-1)
		a.openSlot(s, now)
	}
}

// done takes back the ticket of d, with what the end of its run says about its
// dependency.
func (a *admission) done(d *delivery, began, now time.Time, o flow.Outcome) {
	if o == flow.Success || o == flow.Neutral {
		d.refund(now)
	}
	d.token = false
	who := d.who()
	if name := d.sharesSlot(); name != 0 {
		d.sub.names.done(now, began, name, o)
	} else if o == flow.Timeout {
		d.sub.names.done(now, began, timedOut, o)
	}
	if d.returned() && o != flow.Success { // a dead letter failed before, for reasons that may be its own
		o = flow.Neutral
	}
	t := takeTicket(d.alone())
	a.takeBack(d.sub, t, now, flow.End{Began: began, Who: who, Outcome: o, Again: d.meta.Class == classify.ClassThrottled, More: !t.place})
}

// deferral is why a run is put off: in one word, and in a sentence.
type deferral struct {
	reason string
	err    error
}

var (
	noToken  = deferral{"budget", errors.New("the budget has no token for a retry: it waits, uncounted")}
	noName   = deferral{"dependency", errors.New("what TopicConfig.DependencyOf names is in trouble, and has its one slot: the message waits, uncounted")}
	noSlot   = deferral{"room", errors.New("messages that were sent back have half of the slots, and there is no room to wait in the process: the broker brings it again, uncounted")}
	noTrial  = deferral{"room", errors.New("it may have killed workers, and waits in the process neither for a slot nor for another that may have: the broker brings it again, uncounted")}
	noRoom   = deferral{"room", errors.New("its dependency is overloaded, and there is no room to wait in the process: the broker brings it again, uncounted")}
	onHold   = deferral{"paused", errors.New("it is paused by hand: the broker keeps the message, uncounted")}
	onPoison = deferral{"poison", errors.New("practically all messages are poison, as after a faulty deployment: it is tried again, uncounted, for an hour at most")}
)

// pays reports whether d has the token that a retry needs. Otherwise d is put
// off.
func (a *admission) pays(d *delivery, now time.Time) bool {
	pacer := d.budget()
	if pacer == nil || !d.isRetry() || d.token {
		return true
	}
	// While nothing succeeds, it may be this worker that fails: a retry does not wait
	// for a turn that only this one gives.
	most, g := d.sub.longestDelay, d.sub.dependency
	if g.limiter != nil && g.status(now).LastSuccess.Before(d.meta.LastFailedAt) {
		most = min(most, max(silentFloor, now.Sub(d.meta.FirstFailedAt)*2/3))
	}
	wait, ok := pacer.Withdraw(now, most, a.random())
	if d.token = ok; !ok {
		a.queues.putOff(d, now, wait, noToken)
	}
	return ok
}

// silentFloor is the least that bounds the wait of a retry while nothing succeeds.
const silentFloor = 5 * time.Second

// A message whose name has its one slot waits in the broker for one to three times
// nameFloor. One that timed out waits for longer, the longer that was ago.
const (
	nameFloor    = 5 * time.Second
	timedOutMost = 5 * time.Minute
)

// enters reports whether those that d shares a slot with let it start. Otherwise d
// is put off.
func (a *admission) enters(d *delivery, now time.Time) bool {
	name := d.sharesSlot()
	if name == 0 || d.sub.names.start(now, name, d.sub.dependency.status(now).Usual) {
		return true
	}
	d.refund(now)
	wait := nameFloor
	if name == timedOut {
		wait = min(max(wait, d.sinceFailure(now)/2), timedOutMost)
	}
	a.queues.putOff(d, now, wait+time.Duration(a.random()*2*float64(wait)), noName)
	return false
}

// follow returns what may start at g, for the intake. If that is not all, the
// pipeline is told when it changes.
func (a *admission) follow(g *dependency, now time.Time) flow.Status {
	v := g.adjust(now, flow.Change{Waits: true})
	if v.Held && v.Limit < 1 {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.wake(g, now, v.Next)
	}
	return v
}

// inLine returns how many jobs of each rank are in line at g.
func (a *admission) inLine(g *dependency) (n [ranks]int) {
	if g.line.length.Load() > 0 {
		a.mu.Lock()
		defer a.mu.Unlock()
		for rank, jobs := range g.line.jobs {
			n[rank] = len(jobs)
		}
	}
	return n
}

// lineUp adds job, which waits, to those in line. After that open or openSlot sees
// whether it may start since.
func (a *admission) lineUp(l *lineup, job []*delivery) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l.add(job)
}

// waiting returns every delivery in line.
func (a *admission) waiting() (ds []*delivery) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.dependencies {
		ds = append(ds, g.line.all()...)
	}
	for _, s := range a.semaphores {
		ds = append(ds, s.line.all()...)
	}
	return ds
}

// close lets no other job go on. The openings under way are in telling.
func (a *admission) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, g := range a.dependencies {
		if g.timer != nil {
			g.timer.Stop()
			g.pulse.Rest()
		}
	}
}

// recheck is how often a limiter is looked at that may change without our doing.
const recheck = time.Second

// inLineMost is how many jobs of a dependency wait in the process for a next start
// that is not near: enough to choose a fresh one from.
const inLineMost = 3

// near is the time for which every job may wait in the process, if there is room.
const near = 2 * time.Second

// far reports whether the next start is not near.
func far(v flow.Status, now time.Time) bool {
	return v.Held && v.Limit < 1 && (v.Next.IsZero() || v.Next.Sub(now) > near)
}

// freshGrace is how long a probe waits for a message that has not failed before,
// if only others are in line. Runs that start closer than that do not wait.
const freshGrace = time.Second

// open has the jobs in line at g go on, as far as the limit lets them. News says
// that the limiter may answer differently now.
func (a *admission) open(g *dependency, now time.Time, news bool) {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return
	}
	if news {
		a.announce(g, now)
	}
	o := a.next(g, now)
	o.status, o.news = g.status(now), news
	if news {
		a.wake(g, now, o.status.Next)
	}
	for range a.tell(o) {
		a.ended(g, now, g.limiter.Done(now, flow.End{}))
	}
}

// tell unlocks mu and tells the queues of o.
func (a *admission) tell(o opening) (unused int) {
	a.telling.Add(1)
	defer a.telling.Done()
	a.mu.Unlock()
	return a.queues.opened(o)
}

// next takes out of line at g what may start, and what cannot wait. mu is held.
func (a *admission) next(g *dependency, now time.Time) opening {
	o := opening{at: g, now: now}
	for g.line.length.Load() > 0 {
		v := g.status(now)
		last := ranks
		switch {
		case v.Held:
			o.leave = g.line.shorten(v, now)
			a.wake(g, now, v.Next)
			return o
		case v.Interval < freshGrace:
		case g.alone.IsZero():
			g.alone, last = now, retried
		case now.Before(g.alone.Add(freshGrace)):
			last = retried
		}
		job := g.line.next(last)
		if job == nil && last < ranks {
			a.wake(g, now, g.alone.Add(freshGrace))
			return o
		}
		if job == nil {
			return o
		}
		g.alone = time.Time{}
		if ok, _ := g.limiter.Start(now); !ok { // another Consumer took the place
			g.line.add(job)
			a.wake(g, now, now.Add(recheck))
			return o
		}
		o.start = append(o.start, job)
	}
	return o
}

// wake has g looked at again at next, if that is not done before. With the zero
// time the end of a run does that, unless others may change the limiter. mu is
// held.
func (a *admission) wake(g *dependency, now, next time.Time) {
	if soon := now.Add(recheck); g.shared && (next.IsZero() || next.After(soon)) {
		next = soon
	}
	switch {
	case next.IsZero():
		return
	case g.timer == nil:
		g.pulse = a.pulses.add("limit of " + g.name)
		g.timer = time.AfterFunc(next.Sub(now), func() { a.reopen(g) })
	case g.fires.After(now) && !next.Before(g.fires):
		return
	default:
		g.timer.Reset(next.Sub(now))
	}
	g.fires = next
	g.pulse.Expect(next)
}

// reopen is called by the timer of g.
func (a *admission) reopen(g *dependency) {
	a.open(g, time.Now(), true)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !g.fires.After(time.Now()) { // nothing waits for another look
		g.pulse.Rest()
	}
}

// ended follows the end of a run of g. Changed is what the limiter said of it.
func (a *admission) ended(g *dependency, now time.Time, changed bool) {
	if changed || g.line.length.Load() > 0 {
		a.open(g, now, true)
	}
}

// announce reports that practically no run succeeds and single ones try out a
// dependency from now on, or that most succeed again. mu is held.
func (a *admission) announce(g *dependency, now time.Time) {
	s := g.limiter.Adjust(now, flow.Change{})
	down, up := s.Limit < 1 && 10*s.Failing > 9*s.Sampled, s.Limit >= 1 || 2*s.Failing < s.Sampled
	switch {
	case (s.Paused != "" || down) && g.paused.Load() == 0:
		g.paused.Store(now.UnixNano())
		why := errors.New(pauseCause(s))
		a.report(Event{Kind: EventPaused, Dependency: g.name, Time: now, Until: g.status(now).Next, Err: why})
	case g.paused.Load() != 0 && s.Paused == "" && up:
		g.paused.Store(0)
		a.report(Event{Kind: EventResumed, Dependency: g.name, Time: now})
	}
}

// start begins to look at limiters that others may change.
func (a *admission) start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.dependencies {
		a.wake(g, time.Now(), time.Time{})
	}
}

// giveBack has what is in line of s go back to the broker, as s is paused by hand.
func (a *admission) giveBack(s *subscription, now time.Time) {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return
	}
	a.tell(opening{now: now, status: s.standing(now), leave: append(s.dependency.line.remove(s), s.returned.line.remove(s)...)})
}

// pauseTenants has messages of the tenants that are paused put off, and no others.
func (a *admission) pauseTenants(pauses []health.ByHand) {
	tenants := map[uint64]health.ByHand{}
	for _, p := range pauses {
		if p.Tenant != "" {
			tenants[numberOf(p.Tenant)] = p
		}
	}
	if len(tenants) == 0 {
		a.tenants.Store(nil)
		return
	}
	a.tenants.Store(&tenants)
}

// A message of a tenant that is paused waits in the broker for about half as long as
// the pause has lasted, and for no longer than this, or twice this.
const pausedMost = 5 * time.Minute

// isPaused reports whether d is of a paused tenant. If so, d is put off.
func (a *admission) isPaused(d *delivery, tenants map[uint64]health.ByHand, now time.Time) bool {
	name := d.name
	if name == 0 && d.sub.dependencyOf != nil { // it was sent back, and has slots apart
		name, _ = d.nameOf()
	}
	p, ok := tenants[name]
	if !ok {
		return false
	}
	d.refund(now)
	wait := min(max(nameFloor, now.Sub(p.Since)/2), pausedMost)
	wait += time.Duration(a.random() * float64(wait))
	if left := p.Until.Sub(now); !p.Until.IsZero() && left < wait {
		wait = max(left, recheck)
	}
	a.queues.putOff(d, now, wait, onHold)
	return true
}

// openSlot lets the next job in line at the semaphore of s go on, if a slot is
// free: the one after that when it has started, or not.
func (a *admission) openSlot(s *subscription, now time.Time) {
	for unused := 1; unused > 0 && s.returned.line.length.Load() > 0; {
		a.mu.Lock()
		if a.closed || s.returned.used.Load() >= s.returned.most(s.dependency, now) {
			a.mu.Unlock()
			return
		}
		o := opening{now: now}
		if job := s.returned.line.next(ranks); job != nil {
			o.start = [][]*delivery{job}
		}
		unused = a.tell(o)
	}
}

// await lets job wait in the process, until the limit or else a slot lets it start.
// It goes back to the broker if there is no room for it here, its lease would not
// last, or the next start is not near. A job that waits for the limit stays whole.
func (p *pipeline) await(job []*delivery, now time.Time, slot bool) {
	s, g := job[0].sub, job[0].sub.dependency
	v, until, why := s.standing(now), now.Add(recheck), noRoom
	if slot {
		v, until, why = flow.Status{}, now.Add(s.timeout), noSlot
	}
	leaves := func(d *delivery) bool {
		return d.yields() || d.onTrial() || !s.roomToWait(d) || !d.lasts(until)
	}
	p.mu.Lock()
	all := s.byHand.Load() != nil || !slot && (far(v, now) && g.line.length.Load() >= inLineMost || slices.ContainsFunc(job, leaves))
	job = those(job, func(d *delivery) bool {
		switch {
		case p.draining.Load():
			p.settle(brokers.Release, d)
		case all || slot && leaves(d):
			p.deferStart(d, v, now, why)
		default:
			return p.hold(d)
		}
		return false
	})
	line, open := &g.line, func() { p.admission.open(g, now, false) }
	if slot {
		line, open = &s.returned.line, func() { p.admission.openSlot(s, now) }
	}
	if len(job) > 0 {
		p.admission.lineUp(line, job)
	}
	p.mu.Unlock()
	open()
}

// opened takes jobs that wait out of line, and gives them back in a drain. It
// returns how many of those that may start do not.
func (p *pipeline) opened(o opening) (unused int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	goOn := func(d *delivery) bool {
		if p.draining.Load() {
			p.settle(d.actionOnStop(), d)
			return false
		}
		return p.to(d, queued)
	}
	for _, job := range o.start {
		if job = those(job, goOn); len(job) == 0 {
			unused++
			continue
		}
		job[0].ticket.place = o.at != nil
		p.pool.add(job[0].sub.queue, job)
	}
	for _, job := range o.leave {
		for _, d := range those(job, goOn) {
			p.deferStart(d, o.status, o.now, noRoom)
		}
	}
	if o.at == nil {
		return unused
	}
	for _, s := range p.subs {
		if s.dependency == o.at {
			p.intake.roomFor(s)
		}
	}
	if o.news && changed(o.status, o.at.seen) {
		p.intake.replan()
	}
	return unused
}

const (
	// farWait is how long a message waits in the broker, at least, if the next start
	// is not near: longer than the default HoldLimit, or the process would hold it.
	farWait = 5 * time.Second

	// sentBackWait is the same for messages that were sent back. There may be
	// thousands, in no hurry.
	sentBackWait = 15 * time.Second
)

// deferStart has the broker bring d again when it may start: v is the status of
// its dependency. mu is held.
func (p *pipeline) deferStart(d *delivery, v flow.Status, now time.Time, why deferral) {
	d.refundSoon(now)
	if p.isSkipped(d) {
		return
	}
	if v.Paused != "" {
		why = onHold
	}
	if d.turn && first(d.meta) && far(v, now) { // the broker brings the rest of its key again, too, in their order
		d.turn = false
		p.settle(brokers.Release, append([]*delivery{d}, p.keys.clear(d)...)...)
		return
	}
	wait := max(v.Next.Sub(now), recheck)
	switch {
	case d.returned():
		wait = max(wait, sentBackWait)
	case far(v, now):
		wait = max(wait, farWait)
	}
	p.deferRun(d, now, wait+time.Duration(p.cfg.Random()*float64(wait)), why)
}

// admitted returns those of job that may start now. The others wait, uncounted.
func (p *pipeline) admitted(job []*delivery, now time.Time) []*delivery {
	p.leases.expire(job, now)
	s, t := job[0].sub, takeTicket(job)
	return p.admission.acquire(s, those(job, func(d *delivery) bool { return p.startable(d, now) }), t, now)
}

// startable reports whether d may start, as far as d itself is concerned. If it is
// lost, it is dropped; if its deadline has passed, or a person has skipped it, it
// becomes a dead letter; if the worker is stopping, it is given back.
func (p *pipeline) startable(d *delivery, now time.Time) bool {
	loss, draining := d.lost(), p.draining.Load()
	switch {
	case loss != nil:
		d.refund(now)
		p.drop(d, loss)
	case draining:
		d.refund(now)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.settle(brokers.Release, d)
	case p.isGivenUp(d):
		d.refund(now)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.isSkipped(d)
	case d.expires(now):
		d.refund(now)
		err := fmt.Errorf("%w at %s, before this run", ErrDeadline, d.deadline.Format(time.RFC3339))
		letter := p.letters.write(d, err, expiredVerdict)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.deadLetter(d, reasonExpired, letter)
	default:
		return true
	}
	return false
}

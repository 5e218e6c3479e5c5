package consumer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
)

// pass is what a job holds while it runs. Its first member has it.
type pass struct {
	place bool // counted by the limiter of its dependency
	slot  bool // one of the slots for messages that were sent back
}

// takePass returns what a job holds, and takes it away.
func takePass(job []*delivery) (held pass) {
	for _, d := range job {
		held.place = held.place || d.pass.place
		held.slot = held.slot || d.pass.slot
		d.pass = pass{}
	}
	return held
}

// admitted returns those of job that may start now. The others wait, uncounted.
// While they wait they hold nothing but the token of a retry.
func (p *pipeline) admitted(job []*delivery, now time.Time) []*delivery {
	s, held := job[0].sub, takePass(job)
	job = those(p.startable(job), func(d *delivery) bool { return p.inTime(d, now) && p.pays(d, now) })
	if len(job) > 0 && !held.place && s.dependency.limiter != nil {
		if held.place = s.dependency.start(now); !held.place {
			p.await(job, now)
			return nil
		}
	}
	if len(job) > 0 && job[0].returned() {
		if held.slot = s.returned.acquire(s.dependency, now); !held.slot {
			p.awaitSlot(job, now)
			job = nil
		}
	}
	job = those(job, func(d *delivery) bool { return p.enters(d, now) })
	if len(job) == 0 {
		p.returnPass(s, held, now)
		return nil
	}
	job[0].pass = held
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

// start counts one more run, if the limit lets it start and no other is in line.
func (g *dependency) start(now time.Time) bool {
	if g.crowd.Load() > 0 {
		return false
	}
	ok, _ := g.limiter.Start(now)
	return ok
}

// returnPass gives back what a job held that does not run.
func (p *pipeline) returnPass(s *subscription, held pass, now time.Time) {
	if held.place {
		p.ended(s.dependency, now, s.dependency.limiter.Done(now, flow.End{}))
	}
	if held.slot {
		p.slotFree(s.returned)
	}
}

// freePlace gives back the place of a job that goes on without one, or not at all.
// Changed reports whether another may start now.
func freePlace(job []*delivery, began, now time.Time, o flow.Outcome) (changed bool) {
	for _, d := range job {
		if d.pass.place {
			d.pass.place = false
			return d.sub.dependency.limiter.Done(now, flow.End{Began: began, Who: d.who(), Outcome: o})
		}
	}
	return false
}

// who tells messages, or the names that they depend on, apart.
func (d *delivery) who() uint64 {
	if d.name != 0 {
		return d.name
	}
	return identity(keyOf(&d.Message))
}

// deferral is why a run is put off: in one word, and in a sentence.
type deferral struct {
	reason string
	err    error
}

var (
	noToken  = deferral{"budget", errors.New("the budget has no token for a retry: it waits, uncounted")}
	noName   = deferral{"dependency", errors.New("what Topic.DependencyOf names is in trouble, and has its one slot: the message waits, uncounted")}
	noSlot   = deferral{"room", errors.New("messages that were sent back have half of the slots, and there is no room to wait in the process: the broker brings it again, uncounted")}
	noRoom   = deferral{"room", errors.New("its dependency is overloaded, and there is no room to wait in the process: the broker brings it again, uncounted")}
	onPoison = deferral{"poison", errors.New("practically all messages are poison, as after a faulty deployment: it is tried again, uncounted, for an hour at most")}
)

// pays reports whether d has the token that a retry needs. Otherwise d is put
// off.
func (p *pipeline) pays(d *delivery, now time.Time) bool {
	pacer := d.budget()
	if pacer == nil || !d.isRetry() || d.token {
		return true
	}
	most := d.sub.longestDelay
	if d.sub.dependency.silentSince(d.meta.LastFailedAt, now) {
		most = min(most, max(silentFloor, now.Sub(d.meta.FirstFailedAt)*2/3))
	}
	wait, ok := pacer.Withdraw(now, most, p.cfg.Random())
	if d.token = ok; !ok {
		p.deferRun(d, now, wait, noToken)
	}
	return ok
}

// silentFloor is the least that bounds the wait of a retry while nothing succeeds.
const silentFloor = 5 * time.Second

// silentSince reports whether no run has succeeded here since t. It may be this
// worker that fails, so a retry does not wait for a turn that only this one gives.
func (g *dependency) silentSince(t, now time.Time) bool {
	return g.limiter != nil && g.look(now).LastSuccess.Before(t)
}

// budget is the one for retries of d; nil if they need no tokens.
func (d *delivery) budget() budget.Pacer {
	if d.returned() {
		return d.sub.returned.budget
	}
	return d.sub.dependency.budget
}

// refund gives back the token of d, which succeeded or did not run.
func (d *delivery) refund(now time.Time) {
	if d.token {
		d.budget().Refund(now)
	}
	d.token = false
}

// A message whose name has its one slot waits in the broker for one to three times
// nameFloor. One that timed out waits for longer, the longer that was ago.
const (
	nameFloor    = 5 * time.Second
	timedOutMost = 5 * time.Minute
)

// enters reports whether those that d shares a slot with let it start. Otherwise d
// is put off.
func (p *pipeline) enters(d *delivery, now time.Time) bool {
	name := d.sharesSlot()
	if name == 0 || d.sub.names.start(now, name, d.sub.dependency.look(now).Usual) {
		return true
	}
	d.refund(now)
	wait := nameFloor
	if name == timedOut {
		wait = min(max(wait, d.sinceFailure(now)/2), timedOutMost)
	}
	p.deferRun(d, now, wait+time.Duration(p.cfg.Random()*2*float64(wait)), noName)
	return false
}

// notStarted gives back what d holds, which does not run after all.
func (p *pipeline) notStarted(d *delivery, now time.Time) {
	p.returnPass(d.sub, takePass(d.alone()), now)
	d.refund(now)
}

// tell reports what the end of a run of d says about its dependency.
func (p *pipeline) tell(d *delivery, began, now time.Time, o flow.Outcome) {
	if o == flow.Success || o == flow.Neutral {
		d.refund(now)
	}
	d.token = false
	g, who := d.sub.dependency, d.who()
	if name := d.sharesSlot(); name != 0 {
		d.sub.names.done(now, began, name, o)
	} else if o == flow.Timeout {
		d.sub.names.done(now, began, timedOut, o)
	}
	if d.returned() && o != flow.Success { // a dead letter failed before, for reasons that may be its own
		o = flow.Neutral
	}
	held, end := takePass(d.alone()), flow.End{Began: began, Who: who, Outcome: o, Again: d.meta.Class == throttledClass}
	switch {
	case held.place:
		p.ended(g, now, g.limiter.Done(now, end))
	case g.limiter != nil:
		end.More = true
		p.ended(g, now, g.limiter.Done(now, end))
	}
	if held.slot {
		p.slotFree(d.sub.returned)
	}
	if o == flow.Success && d.sub.doubted.Load() > 0 {
		p.believe(d.sub)
	}
}

// succeededSince reports whether a run of the dependency of d, or of the name that
// d depends on, has succeeded since t, and not long before or after now: another
// goroutine may have been a moment later, and faster to say so.
func (d *delivery) succeededSince(t, now time.Time) bool {
	var at time.Time
	switch {
	case d.name != 0:
		at = d.sub.names.lastSuccess(d.name)
	case d.sub.dependency.limiter != nil:
		at = d.sub.dependency.look(now).LastSuccess
	}
	return !at.IsZero() && !at.Before(t) && now.Sub(at).Abs() <= successLasts
}

// successLasts is how long a success speaks for the dependency.
const successLasts = 2 * time.Minute

// recheck is how often a limiter is looked at that may change without our doing.
const recheck = time.Second

// inLineMost is how many jobs of a dependency wait in the process for a next start
// that is not near: enough to choose a fresh one from.
const inLineMost = 3

// near is the time for which every job may wait in the process, if there is room.
const near = 2 * time.Second

// await lets job wait until the limit lets it start: in the process, or in the
// broker if there is no room for it here, its lease would not last, or the next
// start is not near.
func (p *pipeline) await(job []*delivery, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := job[0].sub.dependency
	v := g.look(now)
	switch {
	case p.draining.Load():
		p.releaseAll(job)
	case far(v, now) && g.line.len() >= inLineMost, slices.ContainsFunc(job, func(d *delivery) bool {
		return d.yields() || d.onTrial() || !p.roomToWait(d) || !p.lasts(d, now.Add(recheck))
	}):
		p.back(job, v, now)
	default:
		p.wait(job)
		g.line.add(job)
		g.crowd.Store(int32(g.line.len())) // before the look: a run that ends from now on dispatches
	}
	p.dispatch(g, now)
}

// far reports whether the next start is not near.
func far(v flow.Status, now time.Time) bool {
	return v.Held && v.Limit < 1 && (v.Next.IsZero() || v.Next.Sub(now) > near)
}

// wait moves the members of job to waiting. mu is held.
func (p *pipeline) wait(job []*delivery) {
	for _, d := range job {
		if p.to(d, waiting) {
			p.observe(d, Event{Kind: EventHeld})
		}
	}
}

// releaseAll gives job back to the broker. mu is held.
func (p *pipeline) releaseAll(job []*delivery) {
	for _, d := range job {
		p.settleLocked(d, brokers.Release)
	}
}

// farWait is how long a message waits in the broker, at least, if the next start is
// not near: longer than the default HoldLimit, or the process would hold it.
const farWait = 5 * time.Second

// back has the broker bring job again when its dependency may let it start. mu is
// held.
func (p *pipeline) back(job []*delivery, v flow.Status, now time.Time) {
	wait := max(v.Next.Sub(now), recheck)
	switch {
	case len(job) > 0 && job[0].returned():
		wait = max(wait, sentBackWait)
	case far(v, now):
		wait = max(wait, farWait)
	}
	for _, d := range job {
		if d.token { // a budget may be slow
			d.token = false
			go d.budget().Refund(now)
		}
		if d.turn && first(d.meta) && far(v, now) {
			p.releaseKey(d)
			continue
		}
		p.deferLocked(d, now, wait+time.Duration(p.cfg.Random()*float64(wait)), noRoom)
	}
}

// releaseKey gives d and the messages behind its key back, so that the broker brings
// them in their order once the topic is received again. mu is held.
func (p *pipeline) releaseKey(d *delivery) {
	behind := p.keys.clear(d)
	d.turn = false
	p.settleLocked(d, brokers.Release)
	p.releaseAll(behind)
}

// deferRun puts the run of d off, which is not an attempt.
func (p *pipeline) deferRun(d *delivery, now time.Time, wait time.Duration, why deferral) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deferLocked(d, now, wait, why)
}

// deferLocked is deferRun with mu held.
func (p *pipeline) deferLocked(d *delivery, now time.Time, wait time.Duration, why deferral) {
	wait = min(wait, p.longestDelay) // that the broker was told of: a longer one would be cut
	m := d.metaNow()
	m.DueAt = now.Add(wait)
	d.setMeta(m)
	p.observe(d, Event{Kind: EventDeferred, Time: now, Err: why.err,
		Decision: retry.Decision{Action: retry.ActionRetry, Delay: wait, Reason: why.reason}})
	p.waitLocked(d, p.holdLimit(d))
}

// freshGrace is how long a probe waits for a message that has not failed before,
// if only others are in line. Runs that start closer than that do not wait.
const freshGrace = time.Second

// dispatch starts the jobs in line at g, as far as the limit lets it. mu is held.
func (p *pipeline) dispatch(g *dependency, now time.Time) {
	g.crowd.Store(int32(g.line.len())) // before the look, or the end of a run may miss it
	defer p.thinned(g)
	for !p.draining.Load() && g.line.len() > 0 {
		v := g.look(now)
		last := ranks
		switch {
		case v.Held:
			p.shorten(g, v, now)
			p.wake(g, now, v.Next)
			return
		case v.Interval < freshGrace:
		case g.alone.IsZero():
			g.alone, last = now, retried
		case now.Before(g.alone.Add(freshGrace)):
			last = retried
		}
		job := g.line.next(last)
		if job == nil && last < ranks {
			p.wake(g, now, g.alone.Add(freshGrace))
			return
		}
		if job == nil {
			return
		}
		g.alone = time.Time{}
		if ok, _ := g.limiter.Start(now); !ok { // another Consumer took the place
			g.line.add(job)
			p.wake(g, now, now.Add(recheck))
			return
		}
		for _, d := range job {
			p.to(d, queued)
		}
		job[0].pass.place = true
		p.pool.add(job[0].sub.line, job)
	}
}

// thinned takes in that jobs have left the line of g, also those whose deliveries
// were lost: there may be room for others. mu is held.
func (p *pipeline) thinned(g *dependency) {
	g.crowd.Store(int32(g.line.len()))
	for _, s := range p.subs {
		if s.dependency == g {
			p.roomFor(s)
		}
	}
}

// shorten sends jobs in line back to the broker that cannot wait for the next
// start, or are too many if that is not near. mu is held.
func (p *pipeline) shorten(g *dependency, v flow.Status, now time.Time) {
	start := v.Next
	if start.IsZero() {
		start = now.Add(recheck)
	}
	lasts := func(d *delivery) bool { return p.lasts(d, start) }
	for rank, jobs := range g.line {
		g.line[rank] = slices.DeleteFunc(jobs, func(job []*delivery) bool {
			job = those(job, func(d *delivery) bool { return !d.isNotWaiting() })
			if len(those(job, lasts)) == len(job) && len(job) > 0 {
				return false
			}
			p.leave(job, v, now)
			return true
		})
	}
	for far(v, now) && g.line.len() > inLineMost {
		for rank := ranks - 1; rank >= 0; rank-- {
			if n := len(g.line[rank]); n > 0 {
				job := g.line[rank][n-1]
				g.line[rank] = g.line[rank][:n-1]
				p.leave(those(job, func(d *delivery) bool { return !d.isNotWaiting() }), v, now)
				break
			}
		}
	}
}

// leave sends a job that waited back to the broker. mu is held.
func (p *pipeline) leave(job []*delivery, v flow.Status, now time.Time) {
	for _, d := range job {
		p.to(d, queued)
	}
	p.back(job, v, now)
}

// wake has g looked at again at next, if that is not done before. With the zero
// time the end of a run does that. mu is held.
func (p *pipeline) wake(g *dependency, now, next time.Time) {
	switch {
	case next.IsZero():
		return
	case g.timer == nil:
		g.timer = time.AfterFunc(next.Sub(now), func() { p.follow(g, time.Now()) })
	case g.fires.After(now) && !next.Before(g.fires):
		return
	default:
		g.timer.Reset(next.Sub(now))
	}
	g.fires = next
}

// follow does what a limiter lets it that may answer differently now.
func (p *pipeline) follow(g *dependency, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining.Load() {
		return
	}
	p.announce(g, now)
	p.dispatch(g, now)
	v := g.look(now)
	if changed(v, g.seen) {
		p.lookAgain()
	}
	p.wake(g, now, v.Next)
}

// ended follows the end of a run of g. Changed is what the limiter said of it.
func (p *pipeline) ended(g *dependency, now time.Time, changed bool) {
	if changed || g.crowd.Load() > 0 {
		p.follow(g, now)
	}
}

// announce reports that practically no run succeeds and single ones try out a
// dependency from now on, or that most succeed again. mu is held.
func (p *pipeline) announce(g *dependency, now time.Time) {
	s := g.limiter.Status(now)
	down, up := s.Limit < 1 && 10*s.Failing > 9*s.Sampled, s.Limit >= 1 || 2*s.Failing < s.Sampled
	switch {
	case (s.Paused != "" || down) && !g.pausing:
		g.pausing = true
		why := fmt.Errorf("%d of the last %d messages failed: single runs try it out", s.Failing, s.Sampled)
		if s.Paused != "" {
			why = fmt.Errorf("paused by hand: %s", s.Paused)
		}
		p.report(p.values, Event{Kind: EventPaused, Dependency: g.name, Time: now, Until: g.look(now).Next, Err: why})
	case g.pausing && s.Paused == "" && up:
		g.pausing = false
		p.report(p.values, Event{Kind: EventResumed, Dependency: g.name, Time: now})
	}
}

// watchShared looks at limiters that others may change without our doing: another
// Consumer, or a person.
func (p *pipeline) watchShared() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.ContainsFunc(p.dependencies, func(g *dependency) bool { return g.shared }) {
		return
	}
	p.watch = time.AfterFunc(recheck, func() {
		for _, g := range p.dependencies {
			if g.shared {
				p.follow(g, time.Now())
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.draining.Load() {
			p.watch.Reset(recheck)
		}
	})
}

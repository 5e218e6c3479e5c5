package consumer

import (
	"container/heap"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

// resumeEvery is how often deliveries that wait are resumed at the most. So what
// is due at about the same time costs one timer and one goroutine together.
const resumeEvery = time.Millisecond

// waitlist is what waits in the process for its time. It calls due when the wait
// of some is over. It belongs to the pipeline, under its mu.
type waitlist struct {
	due     func()
	waiting schedule    // and what was lost meanwhile
	timer   *time.Timer // nil until something has waited
	fires   time.Time   // zero when it does not
}

// add lets d, which waits, do so until due.
func (w *waitlist) add(d *delivery, due time.Time) {
	d.own().wakes = due.UnixNano()
	heap.Push(&w.waiting, appointment{due, d})
	if w.fires.IsZero() || due.Before(w.fires) {
		w.set(due)
	}
}

// set sets the timer.
func (w *waitlist) set(t time.Time) {
	w.fires = t
	if w.timer == nil {
		w.timer = time.AfterFunc(time.Until(t), w.due)
		return
	}
	w.timer.Reset(time.Until(t))
}

// next takes the next delivery whose wait is over; nil if there is none. Then the
// timer is set for those that wait on.
func (w *waitlist) next(now time.Time) *delivery {
	for len(w.waiting) > 0 && !w.waiting[0].at.After(now) {
		if a := heap.Pop(&w.waiting).(appointment); !a.isVoid() {
			return a.delivery
		}
	}
	w.fires = time.Time{}
	if len(w.waiting) > 0 {
		next, soonest := w.waiting[0].at, now.Add(resumeEvery)
		if next.Before(soonest) {
			next = soonest
		}
		w.set(next)
	}
	return nil
}

// all returns all that waits.
func (w *waitlist) all() (ds []*delivery) {
	for _, a := range w.waiting {
		if !a.isVoid() {
			ds = append(ds, a.delivery)
		}
	}
	return ds
}

// close stops the timer, and has next find nothing.
func (w *waitlist) close() {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.waiting = nil
}

// wait lets d wait for its due time: in the process if that is within limit, in
// the broker otherwise. mu is held.
func (p *pipeline) wait(d *delivery, limit time.Duration) {
	due := d.meta.DueAt
	switch {
	case p.draining.Load() || time.Until(due) > limit || !d.sub.roomToWait(d) || !d.lasts(due):
		p.settle(brokers.Retry, d)
	case p.hold(d):
		p.waitlist.add(d, due)
	}
}

// resumeDue ends the wait of the deliveries that are due.
func (p *pipeline) resumeDue() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for d := p.waitlist.next(now); d != nil; d = p.waitlist.next(now) {
		switch {
		case !p.to(d, queued):
		case d.judgement != nil:
			p.condemn(d)
		default:
			p.enqueue(d)
		}
	}
}

// hold lets d wait in the process. mu is held.
func (p *pipeline) hold(d *delivery) bool {
	held := p.to(d, waiting)
	if held {
		p.observe(d, Event{Kind: EventHeld})
	}
	return held
}

// await lets job wait until the limit lets it start: in the process, or in the
// broker if there is no room for it here, its lease would not last, or the next
// start is not near.
func (p *pipeline) await(job []*delivery, now time.Time) {
	p.mu.Lock()
	g := job[0].sub.dependency
	v := g.look(now)
	switch {
	case p.draining.Load():
		p.settle(brokers.Release, job...)
	case far(v, now) && g.crowd.Load() >= inLineMost, slices.ContainsFunc(job, func(d *delivery) bool {
		return d.yields() || d.onTrial() || !d.sub.roomToWait(d) || !d.lasts(now.Add(recheck))
	}):
		p.back(job, v, now)
	default:
		for _, d := range job {
			p.hold(d)
		}
		p.admission.lineUp(job, false)
	}
	p.mu.Unlock()
	p.admission.open(g, now, false)
}

// sentBackWait is how long a message that was sent back waits in the broker, at
// least, if it finds no slot and no room to wait for one. There may be thousands,
// in no hurry.
const sentBackWait = 15 * time.Second

// awaitSlot lets job wait until fewer messages run that were sent back.
func (p *pipeline) awaitSlot(job []*delivery, now time.Time) {
	s := job[0].sub.returned
	p.mu.Lock()
	job = those(job, func(d *delivery) bool {
		switch {
		case p.draining.Load():
			p.settle(brokers.Release, d)
		case d.yields() || d.onTrial() || !d.sub.roomToWait(d) || !d.lasts(now.Add(d.sub.timeout)):
			d.refund(now)
			p.deferRun(d, now, sentBackWait+time.Duration(p.cfg.Random()*float64(sentBackWait)), noSlot)
		default:
			return p.hold(d)
		}
		return false
	})
	if len(job) > 0 {
		p.admission.lineUp(job, true)
	}
	p.mu.Unlock()
	p.admission.openSlot(s, now)
}

// opened is told by the admission which jobs in line go on. It returns how many of
// those that may start do not.
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
		p.pool.add(job[0].sub.line, job)
	}
	for _, job := range o.leave {
		p.back(those(job, goOn), o.status, o.now)
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
		p.intake.lookAgain()
	}
	return unused
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
		p.deferRun(d, now, wait+time.Duration(p.cfg.Random()*float64(wait)), noRoom)
	}
}

// releaseKey gives d and the messages behind its key back, so that the broker brings
// them in their order once the topic is received again. mu is held.
func (p *pipeline) releaseKey(d *delivery) {
	behind := p.keys.clear(d)
	d.turn = false
	p.settle(brokers.Release, d)
	p.settle(brokers.Release, behind...)
}

// deferRun puts the run of d off, which is not an attempt. mu is held.
func (p *pipeline) deferRun(d *delivery, now time.Time, wait time.Duration, why deferral) {
	wait = min(wait, p.longestDelay) // that the broker was told of: a longer one would be cut
	m := d.metaNow()
	m.DueAt = now.Add(wait)
	d.setMeta(m)
	p.observe(d, Event{Kind: EventDeferred, Time: now, Err: why.err,
		Decision: retry.Decision{Action: retry.ActionRetry, Delay: wait, Reason: why.reason}})
	p.wait(d, p.holdLimit(d))
}

// held returns all that waits, but for those behind their key: these go when the
// one before them does. mu is held.
func (p *pipeline) held() []*delivery {
	return slices.DeleteFunc(append(p.admission.waiting(), p.waitlist.all()...), (*delivery).isNotWaiting)
}

// appointment is when a delivery is due.
type appointment struct {
	at       time.Time
	delivery *delivery
}

// isVoid reports whether its delivery waits for something else by now, or for nothing.
func (a appointment) isVoid() bool {
	return a.delivery.isNotWaiting() || a.at.UnixNano() != a.delivery.wakes
}

// schedule is a heap of appointments.
type schedule []appointment

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at.Before(s[j].at) }
func (s schedule) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *schedule) Push(x any)        { *s = append(*s, x.(appointment)) }

func (s *schedule) Pop() any {
	last := len(*s) - 1
	a := (*s)[last]
	(*s)[last] = appointment{}
	*s = (*s)[:last]
	return a
}

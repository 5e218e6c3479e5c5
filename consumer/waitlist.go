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
		w.set(now.Add(max(resumeEvery, w.waiting[0].at.Sub(now))))
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

// await lets job wait in the process, until the limit or else a slot lets it start.
// It goes back to the broker if there is no room for it here, its lease would not
// last, or the next start is not near. A job that waits for the limit stays whole.
func (p *pipeline) await(job []*delivery, now time.Time, slot bool) {
	s, g := job[0].sub, job[0].sub.dependency
	v, until, why := g.status(now), now.Add(recheck), noRoom
	if slot {
		v, until, why = flow.Status{}, now.Add(s.timeout), noSlot
	}
	leaves := func(d *delivery) bool {
		return d.yields() || d.onTrial() || !s.roomToWait(d) || !d.lasts(until)
	}
	p.mu.Lock()
	all := !slot && (far(v, now) && g.line.length.Load() >= inLineMost || slices.ContainsFunc(job, leaves))
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
	if d.token { // a budget may be slow
		d.token = false
		go d.budget().Refund(now)
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

// putOff is deferRun without mu.
func (p *pipeline) putOff(d *delivery, now time.Time, wait time.Duration, why deferral) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deferRun(d, now, wait, why)
}

// deferRun puts the run of d off, which is not an attempt. mu is held.
func (p *pipeline) deferRun(d *delivery, now time.Time, wait time.Duration, why deferral) {
	wait = min(wait, p.longestDelay) // that the broker was told of: a longer one would be cut
	m := d.metaNow()
	m.DueAt = now.Add(wait)
	if d.onTrial() {
		m.Crashes = 1 + d.unsettled() // Abandoned begins anew with the copy
	}
	d.setMeta(m)
	p.observe(d, Event{Kind: EventDeferred, Time: now, Err: why.err,
		Decision: retry.Decision{Retry: true, Delay: wait, Reason: why.reason}})
	limit := p.holdLimit(d)
	if d.onTrial() && wait >= recheck { // it would be to blame for a worker that ends meanwhile
		limit = 0
	}
	p.wait(d, limit)
}

// allWaiting returns all that waits, but for those behind their key: these go when
// the one before them does. mu is held.
func (p *pipeline) allWaiting() []*delivery {
	return those(append(p.admission.waiting(), p.waitlist.all()...), (*delivery).isWaiting)
}

// appointment is when a delivery is due.
type appointment struct {
	at       time.Time
	delivery *delivery
}

// isVoid reports whether its delivery waits for something else by now, or for nothing.
func (a appointment) isVoid() bool {
	return !a.delivery.isWaiting() || a.at.UnixNano() != a.delivery.wakes
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

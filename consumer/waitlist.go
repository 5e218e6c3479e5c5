package consumer

import (
	"container/heap"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/pulse"
	"github.com/redrive-go/redrive/retry"
)

// resumeEvery is how often deliveries that wait are resumed at the most. So what
// is due at about the same time costs one timer and one goroutine together.
const resumeEvery = time.Millisecond

// waitlist is what waits in the process for its time. It calls due when the wait
// of some is over. It belongs to the pipeline, under its mu.
type waitlist struct {
	due     func()
	pulse   *pulse.Pulse
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
	w.pulse.Expect(t)
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
	w.pulse.Rest()
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
	w.pulse.Rest()
	w.waiting = nil
}

// wait lets d wait for its due time: in the process if that is within limit, in
// the broker otherwise. mu is held.
func (p *pipeline) wait(d *delivery, limit time.Duration) {
	due := d.meta.DueAt
	switch {
	case p.isSkipped(d):
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
	if p.isSkipped(d) {
		return false
	}
	held := p.to(d, waiting)
	if held {
		p.observe(d, Event{Kind: EventHeld})
	}
	return held
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
	if why == onHold || d.onTrial() && wait >= recheck { // the latter would be to blame for a worker that ends meanwhile
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

package consumer

import (
	"container/heap"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// resumeEvery is how often deliveries that wait are resumed at the most. So what
// is due at about the same time costs one timer and one goroutine together.
const resumeEvery = time.Millisecond

// waitlist is what waits in the process for its time. It belongs to the
// pipeline, under its mu.
type waitlist struct {
	due   schedule    // and what was lost meanwhile
	timer *time.Timer // nil until something has waited
	fires time.Time   // zero when it does not
}

// waitLocked lets d wait for its due time: in the process if that is within
// limit, in the broker otherwise. mu is held.
func (p *pipeline) waitLocked(d *delivery, limit time.Duration) {
	due := d.meta.DueAt
	if p.draining.Load() || time.Until(due) > limit || !p.roomToWait(d) || !p.lasts(d, due) {
		p.settleLocked(d, brokers.Retry)
		return
	}
	if !p.to(d, waiting) {
		return
	}
	p.resume(d, due)
	p.observe(d, Event{Kind: EventHeld})
}

// resume ends the wait of d at due. mu is held.
func (p *pipeline) resume(d *delivery, due time.Time) {
	w := &p.waitlist
	d.own().wakes = due.UnixNano()
	heap.Push(&w.due, appointment{due, d})
	if w.fires.IsZero() || due.Before(w.fires) {
		p.resumeAt(due)
	}
}

// roomToWait reports whether d may wait outside the window. mu is held.
func (p *pipeline) roomToWait(d *delivery) bool {
	s, share := d.sub, 1
	if d.returned() {
		share = 2
	}
	return s.waiting+s.dying < s.maxHeld/share && s.held+size(d) <= s.maxBytes/share
}

// lasts reports whether d can be held until a run that begins at start is over.
func (p *pipeline) lasts(d *delivery, start time.Time) bool {
	end := d.ReceivedAt.Add(p.caps.MaxLease)
	return p.caps.MaxLease == 0 || start.Add(d.sub.timeout).Before(end)
}

// resumeAt sets the timer. mu is held.
func (p *pipeline) resumeAt(t time.Time) {
	w := &p.waitlist
	w.fires = t
	if w.timer == nil {
		w.timer = time.AfterFunc(time.Until(t), p.resumeDue)
		return
	}
	w.timer.Reset(time.Until(t))
}

// resumeDue ends the wait of the deliveries that are due.
func (p *pipeline) resumeDue() {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, now := &p.waitlist, time.Now()
	w.fires = time.Time{}
	for len(w.due) > 0 && !w.due[0].at.After(now) {
		a := heap.Pop(&w.due).(appointment)
		d := a.delivery
		switch {
		case a.isVoid() || !p.to(d, queued):
		case d.judgement != nil:
			p.condemn(d)
		default:
			p.enqueue(d)
		}
	}
	if len(w.due) == 0 {
		return
	}
	next, soonest := w.due[0].at, now.Add(resumeEvery)
	if next.Before(soonest) {
		next = soonest
	}
	p.resumeAt(next)
}

// held returns all that waits, but for those behind their key: these go when the
// one before them does. mu is held.
func (p *pipeline) held() []*delivery {
	var all []*delivery
	for _, g := range p.dependencies {
		all = append(all, g.line.all()...)
	}
	for s := range p.sentBack {
		all = append(all, slices.Concat(s.line...)...)
	}
	for _, a := range p.waitlist.due {
		if !a.isVoid() {
			all = append(all, a.delivery)
		}
	}
	return slices.DeleteFunc(all, (*delivery).isNotWaiting)
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

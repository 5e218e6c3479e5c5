package consumer

import (
	"container/heap"
	"slices"
	"time"
)

// resumePace is how often held runs are resumed at the most. So what is due at
// about the same time costs one timer and one goroutine together.
const resumePace = time.Millisecond

// held is what waits in the process and outside the window: at the gate, or for
// its time. It belongs to the pipeline, under its mu.
type held struct {
	count int         // of both
	due   schedule    // what waits for its time, and of what was lost meanwhile
	timer *time.Timer // nil until something has waited
	fires time.Time   // zero when it does not
}

// hold takes r out of the window. mu is held.
func (p *pipeline) hold(r *run) {
	p.leave(1)
	p.held.count++
	r.held = true
	p.observe(r, Event{Kind: EventHeld})
}

// unhold takes r back into the window, if it is held. mu is held.
func (p *pipeline) unhold(r *run) bool {
	if !r.held {
		return false
	}
	r.held = false
	p.held.count--
	p.active++
	return true
}

// holdUntilDue is hold for a run that waits for its time. mu is held.
func (p *pipeline) holdUntilDue(r *run) {
	h, due := &p.held, r.meta.DueAt
	heap.Push(&h.due, appointment{due, r})
	if h.fires.IsZero() || due.Before(h.fires) {
		p.resumeAt(due)
	}
	p.hold(r)
}

// resumeAt sets the timer. mu is held.
func (p *pipeline) resumeAt(t time.Time) {
	h := &p.held
	h.fires = t
	if h.timer == nil {
		h.timer = time.AfterFunc(time.Until(t), p.resume)
		return
	}
	h.timer.Reset(time.Until(t))
}

// resume ends the wait of held runs that are due.
func (p *pipeline) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, now := &p.held, time.Now()
	h.fires = time.Time{}
	for len(h.due) > 0 && !h.due[0].at.After(now) {
		if r := heap.Pop(&h.due).(appointment).run; p.unhold(r) {
			p.enqueue(r)
		}
	}
	if len(h.due) == 0 {
		return
	}
	next, soonest := h.due[0].at, now.Add(resumePace)
	if next.Before(soonest) {
		next = soonest
	}
	p.resumeAt(next)
}

// heldRuns returns all that is held. mu is held.
func (p *pipeline) heldRuns() []*run {
	runs := slices.Clone(p.gated.runs)
	for _, a := range p.held.due {
		runs = append(runs, a.run)
	}
	return slices.DeleteFunc(runs, func(r *run) bool { return !r.held })
}

// appointment is when a run is due.
type appointment struct {
	at  time.Time
	run *run
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

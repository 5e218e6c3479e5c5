package consumer

import (
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/retry/budget"
)

// returned reports whether d was sent back from a dead-letter queue.
func (d *delivery) returned() bool { return d.came().RedriveCount > 0 }

// yields reports whether the messages behind d of its key go on while d waits.
func (d *delivery) yields() bool { return d.turn && d.returned() }

// semaphore limits the runs of messages of a topic that were sent back.
type semaphore struct {
	slots  int32
	used   atomic.Int32
	crowd  atomic.Int32 // jobs in line
	budget budget.Pacer
	line   [][]*delivery // under the mu of the pipeline
}

// newSemaphore returns one with half of so many slots.
func newSemaphore(slots int) *semaphore {
	return &semaphore{slots: int32(max(1, slots/2)), budget: must(budget.New(budget.Queue()))}
}

// acquire takes a slot, if one is free: of half of the runs that g lets go at once.
func (s *semaphore) acquire(g *dependency, now time.Time) bool {
	if s.used.Add(1) > s.most(g, now) {
		s.used.Add(-1)
		return false
	}
	return true
}

// most is how many slots there are now.
func (s *semaphore) most(g *dependency, now time.Time) int32 {
	if v := g.look(now); !v.Full() {
		return min(s.slots, max(1, int32(v.Limit/2)))
	}
	return s.slots
}

// sentBackWait is how long a message that was sent back waits in the broker, at
// least, if it finds no slot and no room to wait for one. There may be thousands,
// in no hurry.
const sentBackWait = 15 * time.Second

// awaitSlot lets job wait until fewer messages run that were sent back.
func (p *pipeline) awaitSlot(job []*delivery, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := job[0].sub.returned
	for _, d := range job {
		switch {
		case p.draining.Load():
			p.settleLocked(d, brokers.Release)
		case d.yields() || d.onTrial() || !p.roomToWait(d) || !p.lasts(d, now.Add(d.sub.timeout)):
			d.refund(now)
			p.deferLocked(d, now, sentBackWait+time.Duration(p.cfg.Random()*float64(sentBackWait)), noSlot)
		default:
			p.wait([]*delivery{d})
		}
	}
	if job = those(job, func(d *delivery) bool { return !d.isNotWaiting() }); len(job) > 0 {
		s.line = append(s.line, job)
		s.crowd.Store(int32(len(s.line)))
		p.sentBack[s] = true
		p.nextOf(s) // a slot may be free since
	}
}

// slotFree gives a slot back and lets the next job in line go on.
func (p *pipeline) slotFree(s *semaphore) {
	s.used.Add(-1)
	if s.crowd.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nextOf(s)
}

// nextOf lets the next job in line go on, if a slot is free. mu is held.
func (p *pipeline) nextOf(s *semaphore) {
	for !p.draining.Load() && len(s.line) > 0 && s.used.Load() < s.most(s.line[0][0].sub.dependency, time.Now()) {
		job := those(s.line[0], func(d *delivery) bool { return !d.isNotWaiting() })
		s.line = s.line[1:]
		if len(job) > 0 {
			for _, d := range job {
				p.to(d, queued)
			}
			p.pool.add(job[0].sub.line, job)
			break // the next when that has started, or not
		}
	}
	s.crowd.Store(int32(len(s.line)))
	if len(s.line) == 0 {
		s.line = nil
		delete(p.sentBack, s)
	}
}

package consumer

import (
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
)

// A handler that takes practically every message for poison is itself at fault, as
// after a bad deployment. So a verdict of poison is in doubt until another message
// succeeds: the message waits for that, and dies after doubtLasts in any case. But if
// several are poison without a success between them, they are put aside and run again
// later, uncounted.
const (
	poisonRow   = 5               // poison messages without a success between them that put all aside
	doubtLasts  = 5 * time.Second // a verdict in doubt holds after this time
	asideMost   = time.Hour       // a message that is still poison after this time is dead
	asideLeast  = time.Second     // between two runs of a message that is put aside
	asideLonger = 10 * time.Minute
)

// judgement is what a message dies of once it is not in doubt.
type judgement struct {
	reason string
	letter dlq.Entry
}

// judge decides on d, whose run said that it is poison. mu is held.
func (p *pipeline) judge(d *delivery, reason string, letter dlq.Entry, now time.Time) {
	s := d.sub
	row := s.poisonRow.Add(1)
	known := s.dependency.status(now)
	switch {
	case d.poisonFor(now) >= asideMost:
		p.deadLetter(d, reason, letter)
	case row >= poisonRow, known.Poisoned:
		p.putAside(d, now)
		for _, other := range p.inDoubt(s) {
			p.putAside(other, now)
		}
	case p.draining.Load(), !s.roomToWait(d), !d.lasts(now.Add(doubtLasts)):
		d.own().judgement = &judgement{reason, letter}
		p.decideNow(d, now)
	case p.hold(d):
		d.own().judgement = &judgement{reason, letter}
		s.inDoubt = append(s.inDoubt, d)
		p.waitlist.add(d, now.Add(doubtLasts))
	}
}

// inDoubt returns the deliveries whose verdict is in doubt, for other ends. mu is
// held.
func (p *pipeline) inDoubt(s *subscription) (ds []*delivery) {
	for _, d := range s.inDoubt {
		if d.judgement != nil && p.to(d, queued) {
			ds = append(ds, d)
		}
	}
	s.inDoubt = nil
	return ds
}

// believe ends the doubts about verdicts: a message of s has succeeded.
func (p *pipeline) believe(s *subscription) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.poisonRow.Store(0)
	for _, d := range p.inDoubt(s) {
		p.condemn(d)
	}
}

// decideNow ends the doubt about a verdict that cannot wait: it holds if a message has
// succeeded lately. mu is held.
func (p *pipeline) decideNow(d *delivery, now time.Time) {
	if now.Sub(d.sub.dependency.status(now).LastSuccess) <= successLasts {
		p.condemn(d)
		return
	}
	p.putAside(d, now)
}

// condemn dead-letters a delivery whose verdict was in doubt. mu is held.
func (p *pipeline) condemn(d *delivery) {
	v := d.judgement
	d.own().judgement = nil
	p.deadLetter(d, v.reason, v.letter)
}

// poisonFor is how long d has been poison in every run.
func (d *delivery) poisonFor(now time.Time) time.Duration {
	since := d.meta.FirstFailedAt
	for _, f := range d.meta.History {
		if f.Class != poisonClass {
			since = time.Time{}
		} else if since.IsZero() {
			since = f.At
		}
	}
	return now.Sub(since)
}

// putAside lets d run again later, uncounted: about half as long again as it has
// been poison. mu is held.
func (p *pipeline) putAside(d *delivery, now time.Time) {
	d.own().judgement = nil
	m := d.metaNow()
	m.Attempt = max(0, m.Attempt-1)
	d.setMeta(m)
	been := d.poisonFor(now)
	wait := min(max(been/2, asideLeast), asideLonger)
	wait += time.Duration((p.cfg.Random() - 0.5) / 2 * float64(wait))
	if left := asideMost - been; wait > left {
		wait = left + time.Duration(p.cfg.Random()*float64(time.Minute))
	}
	if p.draining.Load() {
		m.DueAt = now.Add(wait)
		d.setMeta(m)
		p.settle(brokers.Retry, d)
		return
	}
	p.deferRun(d, now, wait, onPoison)
}

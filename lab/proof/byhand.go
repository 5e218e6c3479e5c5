package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/health"
)

// control is what a person asks of a worker.
type control struct {
	at    time.Duration
	slot  int
	do    kind   // pauseAsked, resumedByHand or skipAsked
	topic string // that is concerned, "" for a tenant
	what  health.ByHand
	ends  time.Duration // of a pause, from the start of the run; 0 is never
}

// controls draws what people do. Each pause without an end is resumed before the calm.
func (d dice) controls(s *scenario) (all []control) {
	for range d.IntN(10) {
		t := pick(d, s.topics...)
		c := control{at: d.upTo(s.calm), slot: d.IntN(len(s.slots)), do: pauseAsked, topic: t.name}
		switch tenant := s.messages[d.IntN(len(s.messages))].Headers.Get("tenant"); {
		case d.chance(0.3):
			c.do, c.what.Topic = skipAsked, t.name
		case t.tenants && tenant != "":
			c.topic, c.what.Tenant = "", t.name+" of "+tenant
		case d.chance(0.3):
			c.what.Dependency = t.name
		default:
			c.what.Topic = t.name
		}
		c.ends = c.at + d.upTo(s.calm-c.at)
		if c.do == pauseAsked && d.chance(0.5) {
			end := c
			end.do, end.at = resumedByHand, c.ends
			all = append(all, end)
			c.ends = pick(d, 0, s.calm)
		}
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(a, b control) int { return cmp.Compare(a.at, b.at) })
	return all
}

// controlAll does what people do, to the workers that there are then.
func (r *run) controlAll(ctx context.Context) {
	for _, c := range r.scenario.controls {
		wait(ctx, c.at-r.ledger.now())
		if w := r.current[c.slot].Load(); w != nil {
			w.control(c)
		}
	}
}

// control has a worker do what a person asks, unless it just starts or stops. The
// ledger has that before, as it takes effect in between, and again when it is done.
func (w *worker) control(c control) {
	worker := w.consumer.Load()
	if worker == nil || worker.Status().State != health.Running {
		return
	}
	l, p := w.run.ledger, c.what
	if c.ends > 0 {
		p.Until = l.start.Add(c.ends)
	}
	e := event{Kind: c.do, Worker: w.number, Topic: c.topic, Until: c.ends, Note: whatOf(p)}
	switch c.do {
	case pauseAsked:
		w.ask(e, pausedByHand, func() error { return worker.Pause(p) })
	case resumedByHand:
		w.ask(e, resumedByHand, func() error { return worker.Resume(p) })
	case skipAsked:
		w.skipOne(e, worker)
	}
}

// ask notes e, does it, and notes that it is done. It reports whether it is.
func (w *worker) ask(e event, done kind, do func() error) bool {
	w.run.ledger.add(e)
	if spoil := w.run.rig.control; spoil != nil {
		do = spoil
	}
	if do() != nil {
		return false
	}
	e.Kind = done
	w.run.ledger.add(e)
	return true
}

// skipOne skips a message of a topic, of those that came last.
func (w *worker) skipOne(e event, worker *consumer.Consumer) {
	for _, id := range w.seen.source.latest(e.Topic) {
		e.ID, e.Note = id, ""
		if w.ask(e, skippedByHand, func() error { return worker.Skip(e.Topic, id, "") }) {
			return
		}
	}
}

// latest returns the messages of a topic that were received last, the latest first.
func (s *watched) latest(topic string) (ids []string) {
	const most = 20
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*held
	for _, h := range s.deliveries {
		if h.topic == topic {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b *held) int { return cmp.Compare(b.number, a.number) })
	for _, h := range all[:min(len(all), most)] {
		ids = append(ids, h.id)
	}
	return ids
}

// whatOf names what is paused.
func whatOf(p health.ByHand) string {
	switch {
	case p.Topic != "":
		return "topic " + p.Topic
	case p.Dependency != "":
		return "dependency " + p.Dependency
	}
	return "tenant " + p.Tenant
}

// hand is a pause by hand, as a worker has it.
type hand struct {
	topic, tenant string
	asked         time.Duration // when it was asked for last
	from, until   time.Duration // it holds in between, or did last
}

// skip is a message that a person skips.
type skip struct {
	asked, done time.Duration // 0 is not
}

const reasonSkipped = "skipped-by-hand"

// takeByHand follows what people ask of a worker.
func (c *checker) takeByHand(e *event) {
	w, now := c.workers[e.Worker], max(c.now, 1)
	if e.Kind == skipAsked || e.Kind == skippedByHand {
		c.takeSkip(w, c.fate(e.ID), e.Kind, now)
		return
	}
	h := w.hands[e.Note]
	if h == nil {
		h = &hand{topic: e.Topic, tenant: strings.TrimPrefix(e.Note, "tenant ")}
		w.hands[e.Note] = h
	}
	switch e.Kind {
	case pauseAsked:
		h.asked = now
		w.dependency(e.Topic).contrasts = true // it comes back in a ramp, in which one failure pauses it again
	case pausedByHand:
		if h.until <= now {
			h.from = now
		}
		h.until = or(e.Until, forever)
	case resumedByHand:
		h.until = min(h.until, now)
	}
}

// takeSkip notes a skip: whatever f waits for in w, it may die now.
func (c *checker) takeSkip(w *life, f *fate, k kind, now time.Duration) {
	s := w.skips[f]
	if s == nil {
		s = &skip{}
		w.skips[f] = s
	}
	if k == skippedByHand {
		s.done = now
		w.dependency(c.scenario.topics[f.message.topic].name).refunded++
		return
	}
	s.asked = now
	for _, d := range f.deliveries {
		if d.worker != w || d.running {
			continue
		}
		for _, j := range d.next {
			if j.retries || j.dies { // it waits, or its verdict is in doubt
				j.retries, j.dies, j.reason = false, true, reasonSkipped
				if !slices.Contains(d.next, j) { // it may have been skipped before
					d.next = append(d.next, j)
				}
			}
		}
	}
}

// isSkipped reports whether a person may have skipped d.
func (d *delivery) isSkipped() bool {
	s := d.worker.skips[d.fate]
	return s != nil && s.asked >= d.received
}

// skippedOrBeside adds what follows a run of d that was skipped, or ran in one batch with
// a message that was.
func (c *checker) skippedOrBeside(d *delivery) {
	if d.isSkipped() {
		d.next = append(d.next, judgement{dies: true, counted: true, attempt: d.attempt + 1, throttles: d.throttles, reason: reasonSkipped})
	}
	for f, s := range d.worker.skips {
		if d.topic.batchSize > 1 && f != d.fate && s.asked >= d.began && c.scenario.topic(d.topic.name) == &c.scenario.topics[f.message.topic] {
			d.next = append(d.next, judgement{releases: true, attempt: d.attempt, throttles: d.throttles})
		}
	}
}

// concerns reports whether h is of d.
func (h *hand) concerns(d *delivery) bool {
	m := d.fate.message
	return h.topic == d.topic.name || h.topic == "" && m != nil && d.topic.dependency(m.Headers) == h.tenant
}

// pausedFor reports whether a pause by hand of d may have held in its worker since it
// was received.
func (d *delivery) pausedFor() bool {
	for _, h := range d.worker.hands {
		if h.concerns(d) && (h.asked >= d.received || h.until >= d.received) {
			return true
		}
	}
	return false
}

// startsByHand holds the start of a run against what people have asked for before.
func (c *checker) startsByHand(d *delivery) {
	if d.worker.halting() {
		return
	}
	for what, h := range d.worker.hands {
		if h.concerns(d) && h.from < c.now && c.now < h.until {
			c.violate(promiseByHand, d.fate.id, "is started by worker %d, in which %s is paused by hand from %v to %v", d.worker.number, what, h.from, h.until)
		}
	}
	if s := d.worker.skips[d.fate]; s != nil && s.done >= d.received && s.done < c.now {
		c.violate(promiseByHand, d.fate.id, "is started by worker %d, in which it was skipped by hand at %v", d.worker.number, s.done)
	}
}

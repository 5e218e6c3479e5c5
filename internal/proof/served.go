package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// served is the pace of a broker that is a process of its own: delays long
// enough to wait there, and times that a busy machine can keep.
var served = pace{
	lease:    [2]time.Duration{time.Second, 2 * time.Second}, // how long slow handlers take; leases are the broker's
	timeout:  [2]time.Duration{500 * time.Millisecond, 1500 * time.Millisecond},
	base:     [2]time.Duration{time.Millisecond, 300 * time.Millisecond},
	longest:  3 * time.Second,
	drain:    time.Second,
	work:     10 * time.Millisecond,
	slack:    2 * time.Second,
	rounding: time.Millisecond,
	slow:     0.05,
	liveness: 30 * time.Second,
}

const (
	shortestRun = 10 * time.Second // in which messages are published and workers are killed
	perKill     = 1300 * time.Millisecond
	perMessage  = 2500 * time.Microsecond
)

// newServedScenario derives a scenario for worker processes, in which kills of
// them are killed. What it declares on the broker begins with tag.
func newServedScenario(seed uint64, n, kills int, tag string) *scenario {
	p := served
	p.calm = max(shortestRun, time.Duration(kills)*perKill, time.Duration(n)*perMessage)
	s := newScenario(seed, n, p)
	d := dice{rand.New(rand.NewPCG(seed, 2)), p}
	s.served, s.kills, s.calm = true, 0, p.calm
	s.options = memory.Options{Lease: s.options.Lease}
	for i := range s.topics {
		t := &s.topics[i]
		t.name = tag + "." + t.name
		if t.dead != "" {
			t.dead = tag + "." + t.dead
		}
	}
	for i := range s.slots {
		c := &s.slots[i].config
		c.Lease = 0
		c.HoldLimit = pick(d, -1, -1, d.between(p.base[0], p.base[1]))
		s.slots[i].observed = true
	}
	for i := range s.messages {
		s.messages[i].Headers = asServed(s.messages[i].Headers)
	}
	for i := range s.calls {
		s.calls[i].at = d.upTo(s.calm * 9 / 10)
	}
	slices.SortFunc(s.calls, func(a, b call) int { return cmp.Compare(a.at, b.at) })
	s.incidents = d.ends(s, kills)
	s.limit = s.calm + d.longest(s)
	return s
}

// asServed leaves out what brokers remove, and sorts the rest by name, since a
// table has no order.
func asServed(h brokers.Headers) brokers.Headers {
	h = h.Without("x-death")
	slices.SortStableFunc(h, func(a, b brokers.Header) int { return cmp.Compare(a.Name, b.Name) })
	return h
}

// ends draws kills of worker processes, spread over the run and the points,
// and some clean stops between them.
func (d dice) ends(s *scenario, kills int) []incident {
	var all []incident
	spread := func(n int, each func(i int) incident) {
		for i := range n {
			in := each(i)
			in.at = s.calm/20*time.Duration(1) + time.Duration((float64(i)+d.Float64())/float64(n)*0.85*float64(s.calm))
			in.slot = d.IntN(len(s.slots))
			in.pause = d.upTo(s.calm / 50)
			all = append(all, in)
		}
	}
	order := d.Perm(len(points))
	spread(kills, func(i int) incident { return incident{crash: true, point: points[order[i%len(points)]]} })
	spread(2+kills/10, func(int) incident { return incident{} })
	slices.SortFunc(all, func(a, b incident) int { return cmp.Compare(a.at, b.at) })
	return all
}

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
	age:      [2]time.Duration{10 * time.Second, 20 * time.Second},
	pause:    time.Minute,
	drain:    time.Second,
	work:     10 * time.Millisecond,
	slack:    4 * time.Second,
	rounding: time.Millisecond,
	good:     0.85,
	slow:     0.1,
	liveness: 30 * time.Second,
	tokens:   100 * time.Millisecond,
}

// servedSQS has handlers that outlast a lease, since nothing else holds a
// message there.
func servedSQS() pace {
	p := served
	p.lease = [2]time.Duration{sqsLease, sqsLease + time.Second}
	p.timeout[1] = 2 * sqsLease
	p.closing = sqsPollWait // of the polls that are open: none is cut
	return p
}

const (
	shortestRun = 10 * time.Second // in which messages are published and workers are killed
	perKill     = 1300 * time.Millisecond
	perKafkan   = 5 * time.Second // whose death stops the group until its session ends
	perMessage  = 2500 * time.Microsecond
)

// newServedScenario derives a scenario for worker processes, some of which are
// killed, also by messages. What it declares on the broker begins with the tag
// of the job.
func newServedScenario(j job) *scenario {
	p := served
	each := perKill
	name := func(topic string) string { return j.Tag + "." + topic }
	var lease time.Duration
	switch j.Broker {
	case "kafka":
		each = perKafkan
	case "sqs":
		p, lease = servedSQS(), sqsLease
		name = func(topic string) string { return asQueue(j.Tag+"-"+topic, j.FIFO) }
	}
	p.calm = max(shortestRun, time.Duration(j.Kills)*each, time.Duration(j.Messages)*perMessage, time.Duration(j.Stops)*perKill)
	s := newScenario(j.Seed, j.Messages, p)
	d := dice{rand.New(rand.NewPCG(j.Seed, 2)), p}
	s.served, s.broker, s.copies, s.fifo, s.kills, s.calm = true, j.Broker, j.Copies, j.FIFO, 0, p.calm
	s.options = memory.Options{Lease: s.options.Lease, Ordered: j.FIFO}
	for i := range s.topics {
		t := &s.topics[i]
		t.name = name(t.name)
		if t.dead != "" {
			t.dead = name(t.dead)
		}
		if t.outage.how == permanent { // poison is put aside for minutes: that is for virtual time
			t.outage.how = interrupted
		}
	}
	for i := range s.slots {
		c := &s.slots[i].config
		c.Lease = lease
		c.HoldLimit = pick(d, -1, -1, d.between(p.base[0], p.base[1]))
		s.slots[i].observed = true
		if j.Broker == "kafka" && c.CrashLimit == 2 {
			c.CrashLimit = 0 // two kills in a row are no proof where so many are killed
		}
	}
	for i := range s.messages {
		s.messages[i].Headers = asServed(s.messages[i].Headers)
	}
	for i := range s.calls {
		s.calls[i].at = d.upTo(s.calm * 9 / 10)
	}
	slices.SortFunc(s.calls, func(a, b call) int { return cmp.Compare(a.at, b.at) })
	s.incidents = d.ends(s, j)
	if j.Loops > 0 {
		d.loops(s, j.Loops, name)
	}
	s.limit = s.calm + d.longest(s)
	return s
}

// loops has n messages of one topic kill whoever runs them.
func (d dice) loops(s *scenario, n int, name func(string) string) {
	t := &s.topics[0]
	t.dead, t.maxBody, t.batchSize = or(t.dead, name("topic-0.dead")), 0, 0
	for i := range s.slots {
		s.slots[i].config.CrashLimit = 0
	}
	for _, i := range d.Perm(len(s.messages)) {
		if n > 0 && s.messages[i].topic == 0 {
			s.messages[i].script = []step{{outcome: interrupted, fatal: true}}
			n--
		}
	}
}

func (m *message) fatal() bool { return m.script[0].fatal }

// asServed leaves out what brokers remove, and sorts the rest by name, since a
// table has no order.
func asServed(h brokers.Headers) brokers.Headers {
	h = h.Without("x-death")
	slices.SortStableFunc(h, func(a, b brokers.Header) int { return cmp.Compare(a.Name, b.Name) })
	return h
}

// ends draws kills of worker processes, spread over the run and the points,
// and some clean stops between them.
func (d dice) ends(s *scenario, j job) []incident {
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
	spread(j.Kills, func(i int) incident { return incident{crash: true, point: points[order[i%len(points)]]} })
	spread(or(j.Stops, 2+j.Kills/10), func(int) incident { return incident{} })
	slices.SortFunc(all, func(a, b incident) int { return cmp.Compare(a.at, b.at) })
	return all
}

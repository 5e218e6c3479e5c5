package main

import (
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// script draws what the handler runs of one message do.
func (d dice) script(s *scenario) []step {
	quick := func(o outcome) step {
		st := step{outcome: o, hint: d.between(d.pace.base[0], 2*d.pace.longest)}
		if d.chance(0.3) {
			st.works = d.upTo(d.pace.work)
		}
		return st
	}
	last := quick(okay)
	slow := d.chance(d.pace.slow)
	if d.chance(d.pace.good) {
		return []step{last}
	}
	switch p := d.Float64(); {
	case p < 0.16 && slow: // a long run, whose lease has to be kept
		st := quick(okay)
		st.works = d.between(s.options.Lease/2, 3*s.options.Lease)
		return []step{st, st, last}
	case p < 0.22 && slow: // over its time, at least for once
		return d.late(s)
	case p < 0.29:
		return []step{{outcome: broken, outage: true}}
	case p < 0.31 && s.kills > 0:
		return []step{{outcome: interrupted, kills: true}, last}
	case p < 0.47: // never succeeds
		o := pick(d, refusing, marked, throttled, baffling, panicking, exiting, joined, spoiling)
		return []step{quick(o), quick(o)}
	}
	var script []step
	for range 1 + d.IntN(5) {
		script = append(script, quick(outcome(1+d.IntN(int(interrupted)-1))))
	}
	return append(script, last)
}

// late draws runs that take longer than they may.
func (d dice) late(s *scenario) []step {
	st := step{outcome: pick(d, okay, refusing, baffling, panicking, marked), deaf: d.chance(0.4)}
	st.works = d.between(d.pace.timeout[0], 2*d.pace.timeout[1])
	if st.deaf {
		st.works = d.between(d.pace.timeout[0], d.pace.timeout[1]/2)
	}
	script := []step{st}
	for d.chance(0.5) {
		script = append(script, st)
	}
	return append(script, step{})
}

// faultPlan says what goes wrong with the broker. It is a function of the
// operation, so that a fault does not move when other messages do.
type faultPlan struct {
	seed    uint64
	rate    uint64 // of 2^32 operations
	sure    map[string]memory.Operation
	dead    window // no dead letter can be published
	latency time.Duration
}

type window struct{ from, to time.Duration }

func (w window) holds(t time.Duration) bool { return w.from <= t && t < w.to }

func (d dice) faults(s *scenario) faultPlan {
	f := faultPlan{
		seed:    d.Uint64(),
		rate:    uint64(float64(1<<32) * (0.002 + 0.04*d.Float64()*d.Float64())),
		sure:    map[string]memory.Operation{},
		latency: s.options.Lease / 8,
	}
	for range 12 {
		m := s.messages[d.IntN(len(s.messages))]
		f.sure[m.ID] = pick(d, memory.Deliver, memory.Settle, memory.Publish)
	}
	if d.chance(0.5) {
		f.dead.from = d.upTo(s.calm)
		f.dead.to = f.dead.from + d.upTo(s.calm/3)
	}
	return f
}

var errHiccup = errorText("the broker is not available for a moment")

type errorText string

func (e errorText) Error() string { return string(e) }

// fault returns what goes wrong with op at now.
func (s *scenario) fault(now time.Duration, op memory.Op) memory.Fault {
	if now >= s.calm {
		return memory.Fault{}
	}
	f := s.faults
	isDead := op.Operation == memory.Publish && s.isDead(op.Topic)
	if isDead && f.dead.holds(now) {
		return memory.Fault{Err: errHiccup}
	}
	h := f.hash(op)
	if h&(1<<32-1) >= f.rate && (op.Nth != 1 || isDead || f.sure[op.ID] != op.Operation || op.ID == "") {
		return memory.Fault{}
	}
	return f.draw(op, h>>32)
}

// draw chooses among what can go wrong with an operation.
func (f faultPlan) draw(op memory.Op, n uint64) memory.Fault {
	slow := memory.Fault{Latency: time.Duration(n>>8) % (f.latency + 1)}
	temporary := memory.Fault{Err: errHiccup}
	noRequest := memory.Fault{Err: brokers.ErrUnknownOutcome}
	noAnswer := memory.Fault{Err: brokers.ErrUnknownOutcome, Done: true, Latency: slow.Latency / 4}
	twice := memory.Fault{Duplicate: true}
	stolen := memory.Fault{Lost: true}
	stale := memory.Fault{Err: brokers.ErrLeaseLost}
	var of []memory.Fault
	switch op.Operation {
	case memory.Publish:
		of = []memory.Fault{slow, temporary, noRequest, noAnswer, twice}
	case memory.Receive:
		of = []memory.Fault{slow, temporary}
	case memory.Deliver:
		of = []memory.Fault{slow, temporary, noAnswer, twice, stolen}
	case memory.Extend:
		of = []memory.Fault{slow, temporary, noRequest, noAnswer, stolen, stale}
	case memory.Settle:
		of = []memory.Fault{slow, temporary, noRequest, noAnswer, stolen, stale}
		if op.Action == brokers.Retry {
			of = append(of, twice, memory.Fault{Duplicate: true, Err: brokers.ErrUnknownOutcome})
		}
	}
	return of[n%uint64(len(of))]
}

// hash is FNV-1a over the operation, then mixed with the seed.
func (f faultPlan) hash(op memory.Op) uint64 {
	h := uint64(14695981039346656037)
	add := func(s string) {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h *= 1099511628211
	}
	add(string(op.Operation))
	add(op.Topic)
	add(op.ID)
	h ^= uint64(op.Nth)<<8 | uint64(op.Action)
	h ^= f.seed
	for range 2 {
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

package memory

import "time"

// alarm is the place of its owner in a heap of times: of an entry that waits
// for its retry, or of a hold whose lease runs.
type alarm struct {
	pos   int // index in the heap plus one; 0 means not in it
	entry *entry
	hold  *hold
}

// alarms is a heap of times. Equal times go by seq, so that a run with
// virtual time is the same every time.
type alarms []timed

type timed struct {
	at    time.Duration
	seq   uint64
	alarm *alarm
}

func (t timed) before(u timed) bool {
	return t.at < u.at || t.at == u.at && t.seq < u.seq
}

// next returns the earliest time, and whether there is one.
func (h alarms) next() (time.Duration, bool) {
	if len(h) == 0 {
		return 0, false
	}
	return h[0].at, true
}

// pop removes the earliest alarm if its time has come, or returns nil.
func (h *alarms) pop(now time.Duration) *alarm {
	if len(*h) == 0 || (*h)[0].at > now {
		return nil
	}
	a := (*h)[0].alarm
	h.remove(a)
	return a
}

func (h *alarms) push(a *alarm, at time.Duration, seq uint64) {
	*h = append(*h, timed{at: at, seq: seq, alarm: a})
	h.up(len(*h)-1, timed{at: at, seq: seq, alarm: a})
}

func (h *alarms) remove(a *alarm) {
	i, n := a.pos-1, len(*h)-1
	last := (*h)[n]
	(*h)[n] = timed{}
	*h = (*h)[:n]
	a.pos = 0
	if i == n {
		return
	}
	if i > 0 && last.before((*h)[(i-1)/2]) {
		h.up(i, last)
	} else {
		h.down(i, last)
	}
}

func (h alarms) up(i int, t timed) {
	for i > 0 {
		parent := (i - 1) / 2
		if !t.before(h[parent]) {
			break
		}
		h.set(i, h[parent])
		i = parent
	}
	h.set(i, t)
}

func (h alarms) down(i int, t timed) {
	for child := 2*i + 1; child < len(h); child = 2*i + 1 {
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(t) {
			break
		}
		h.set(i, h[child])
		i = child
	}
	h.set(i, t)
}

func (h alarms) set(i int, t timed) {
	h[i] = t
	t.alarm.pos = i + 1
}

package memory

import "time"

// alarms is a heap of times: of entries that wait for their retry, or of holds
// whose leases run. Equal times go by seq, so that a run with virtual time is
// the same every time.
type alarms []timed

type timed struct {
	at    time.Duration
	seq   uint64
	entry *entry
	hold  *hold // nil if it is the entry's own
}

// pos is where the owner keeps its index in the heap plus one; 0 means that it
// has no alarm.
func (t timed) pos() *int32 {
	if t.hold != nil {
		return &t.hold.pos
	}
	return &t.entry.pos
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

// pop removes the earliest alarm if its time has come.
func (h *alarms) pop(now time.Duration) (timed, bool) {
	if len(*h) == 0 || (*h)[0].at > now {
		return timed{}, false
	}
	first := (*h)[0]
	h.remove(first.pos())
	return first, true
}

func (h *alarms) push(t timed) {
	*h = append(*h, t)
	h.up(len(*h)-1, t)
}

// remove removes the alarm whose index pos holds.
func (h *alarms) remove(pos *int32) {
	i, n := int(*pos)-1, len(*h)-1
	last := (*h)[n]
	(*h)[n] = timed{}
	*h = (*h)[:n]
	*pos = 0
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
	*t.pos() = int32(i + 1)
}

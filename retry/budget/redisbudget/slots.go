package redisbudget

import (
	"math"
	"math/bits"
	"time"
)

const (
	perWindow = 6             // slots in a window
	touched   = perWindow + 1 // slots that a window touches at most
	horizon   = 16384         // slots ahead in which retries are counted
	maxLimit  = touched * 60_000
	far       = 100 * 365 * 24 * time.Hour
)

// entry is what a worker has in one slot.
type entry struct {
	held  uint16 // leases from the pool
	free  uint16 // of these, how many no retry has taken
	local uint16 // retries in the worker's own half
	shut  uint16 // the measure by which this worker had no room
	full  uint16 // the survey by which the pool had no room
}

// slots are the current slot of a worker and the horizon from it on. Their
// numbers are those of the server's clock.
type slots struct {
	width   time.Duration
	base    time.Time // the worker's clock at start
	start   int64     // the server's clock at base, in nanoseconds since 1970
	current int64
	shift   int64 // by which numbers have changed with the server's clock
	ring    [horizon]entry
	free    int // sum over ring

	seats int64
	seat  int64
	floor int64 // retries in seven slots that all seats together have

	share     float64 // of the worker's deliveries
	recent    [touched]int64
	own       int64 // retries in seven slots that the deliveries allow
	measuring uint16
	surveying uint16
	stale     bool // own was measured in an earlier slot
}

func (w *slots) at(slot int64) *entry { return &w.ring[uint64(slot-w.shift)%horizon] }

func (w *slots) deliveries(slot int64) *int64 {
	return &w.recent[uint64(slot-w.shift)%touched]
}

// clock returns the server's time at t, in nanoseconds since 1970.
func (w *slots) clock(t time.Time) int64 {
	return w.start + int64(min(max(t.Sub(w.base), -far), far))
}

func (w *slots) slot(clock int64) int64 { return clock / int64(w.width) }

// begin sets the worker's own clock as the server's, until that is known.
func (w *slots) begin(now time.Time) {
	w.base, w.start = now, now.UnixNano()
	w.current = w.slot(w.start)
	w.shift = w.current
}

// advance moves to the slot of now. A clock that steps back by more than a
// window takes the slots with it.
func (w *slots) advance(now time.Time) {
	next := w.slot(w.clock(now))
	if next < w.current-perWindow {
		w.start += (w.current - next) * int64(w.width)
	}
	if next <= w.current {
		return
	}
	for s := range min(next-w.current, horizon) {
		e := w.at(w.current + s)
		w.free -= int(e.free)
		*e = entry{}
	}
	for s := range min(next-w.current, touched) {
		*w.deliveries(w.current + 1 + s) = 0
	}
	w.current, w.stale = next, true
}

// set corrects the clock: it is clock at now. By whole slots the numbers of the
// slots change, and what is in them stays as far ahead as it is.
func (w *slots) set(now time.Time, clock int64) (moved int64) {
	off := clock - w.clock(now)
	moved = int64(math.Round(float64(off) / float64(w.width)))
	w.base, w.start = now, clock
	w.current += moved
	w.shift += moved
	return moved
}

// measure brings the limit of the worker's deliveries up to date: those of the
// last whole window, or of the one up to now if that has more.
func (w *slots) measure() {
	var total int64
	for _, n := range w.recent {
		total += n
	}
	total -= min(*w.deliveries(w.current), *w.deliveries(w.current + 1))
	own := int64(min(w.share*float64(total), maxLimit))
	switch {
	case own < w.own:
		w.own = own
	case own > w.own && (w.stale || own-w.own >= w.own/4):
		w.own = own
		w.reopen()
	}
	w.stale = false
}

// reopen has every slot looked at again.
func (w *slots) reopen() {
	if w.measuring++; w.measuring == 0 {
		w.measuring = 1
		for i := range w.ring {
			w.ring[i].shut = 0
		}
	}
}

// survey forgets which slots of the pool had no room.
func (w *slots) survey() {
	if w.surveying++; w.surveying == 0 {
		w.surveying = 1
		for i := range w.ring {
			w.ring[i].full = 0
		}
	}
}

// room returns how many retries a slot may hold in the worker's own half: a
// seventh of what its deliveries allow, and those of the floor that fall to its
// seat. Counted from slot 0 on, the seats take the floor's retries in turn.
func (w *slots) room(slot int64) int64 {
	room := w.own / touched
	if slot*3%touched < w.own%touched {
		room++
	}
	first, next := slot*w.floor/touched, (slot+1)*w.floor/touched
	turns := func(n int64) int64 { return (n - w.seat + w.seats - 1) / w.seats }
	return room + turns(next) - turns(first)
}

// find returns the first slot from wanted on in which this worker has room, or
// the end of the horizon, and how many slots before it may have room in the
// pool.
func (w *slots) find(wanted int64) (slot, unknown int64) {
	end := w.current + horizon
	for slot = wanted; slot < end; slot++ {
		e := w.at(slot)
		if e.shut != w.measuring {
			if e.free > 0 || int64(e.local) < min(w.room(slot), math.MaxUint16) {
				break
			}
			e.shut = w.measuring
		}
		if e.full != w.surveying {
			unknown++
		}
	}
	return slot, unknown
}

// take takes a retry's room in a slot that find returned, and says whether it
// was leased, and how many retries there are before it.
func (w *slots) take(slot int64) (leased bool, before uint16) {
	e := w.at(slot)
	before = e.held - e.free + e.local
	if e.free > 0 {
		e.free--
		w.free--
		return true, before
	}
	e.local++
	return false, before
}

// refund gives a retry's room back to this worker.
func (w *slots) refund(slot int64) {
	e := w.at(slot)
	switch {
	case e.held > e.free:
		e.free++
		w.free++
	case e.local > 0:
		e.local--
	}
	e.shut = 0
}

// grant adds leases. Those of slots that are past are of no use any more.
func (w *slots) grant(slot, n int64) {
	if slot < w.current || slot >= w.current+horizon || n <= 0 {
		return
	}
	e := w.at(slot)
	n = min(n, math.MaxUint16-int64(e.held))
	e.held += uint16(n)
	e.free += uint16(n)
	e.shut = 0
	w.free += int(n)
}

// within returns when in slot the retry goes that has n others before it and was
// due at the given time. Its place in the slot that it was due in is kept, and
// shifted by multiples of the golden ratio, which part equal times evenly.
func (w *slots) within(slot, due int64, n uint16) int64 {
	width := uint64(w.width)
	fraction, _ := bits.Div64(uint64(due)%width, 0, width)
	inside, _ := bits.Mul64(fraction+uint64(n)*golden, width)
	return slot*int64(width) + int64(inside)
}

const golden = 0x9E3779B97F4A7C15 // of 1<<64

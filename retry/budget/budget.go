package budget

import (
	"math"
	"math/bits"
	"sync"
	"time"
)

const (
	perWindow = 6             // slots in a window
	touched   = perWindow + 1 // slots that a window touches at most
	group     = 64            // slots in a slot of the far wheel

	horizon = length * (group + 1) // slots; what is reserved lies within it
	century = 100 * 365 * 24 * time.Hour

	maxLimit    = touched << 24
	maxDelivery = 1 << 40
)

// Budget paces the retries to one dependency. Make one with [New]; its methods
// may be called from any number of goroutines.
//
// A budget for a fleet, whose counts live in a store that its workers share,
// has the same method set:
//
//	Reserve(now, due time.Time) time.Time
//	Refund(now, slot time.Time)
//	Delivered(now time.Time, n int)
//	Snapshot(now time.Time) budget.Snapshot
//
// There, Reserve may block for a short and bounded time.
type Budget struct {
	share float64
	floor float64       // retries in a window
	width time.Duration // of a slot

	mu       sync.Mutex
	origin   time.Time      // start of slot 0
	current  int64          // the slot of the latest now
	near     wheel          // slots current to nearEnd
	far      wheel          // groups of slots from nearEnd on
	limit    int64          // retries in a window, as applied
	stale    bool           // a slot has passed since limit was measured
	recent   [touched]int64 // deliveries of the slots up to current
	total    int64          // sum of recent
	furthest time.Duration  // since origin
	added    float64
	moved    uint64
	unpaced  uint64
}

// New returns a budget without deliveries and reservations. The error names
// every fault of c at once, each a *[ConfigError].
func New(c Config) (*Budget, error) {
	if c.Window == 0 {
		c.Window = defaultWindow
	}
	if err := c.faults(); err != nil {
		return nil, err
	}
	b := &Budget{share: c.Share, floor: c.Floor * c.Window.Seconds(), width: c.Window / perWindow}
	b.limit = b.measured()
	return b, nil
}

// Delivered counts n deliveries at now. Count each message that is delivered
// for the first time, however it ends. To count retries as well is allowed, but
// lets them bring more retries: a share s then means s/(1−s) of the rest.
func (b *Budget) Delivered(now time.Time, n int) {
	if n <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	n64 := min(int64(n), maxDelivery)
	b.recent[b.current%touched] += n64
	b.total += n64
}

// Reserve reserves room for one retry that is due at due, and returns when to
// start it: due itself if there is room, otherwise a later time, in the first
// slot that has room. A due time before now is as good as now. More than 4096
// slots ahead, the time is up to 128 slots later than need be.
func (b *Budget) Reserve(now, due time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	b.measure()

	at := b.offset(now, due)
	place, ok := b.place(max(at, b.start()))
	if !ok {
		b.unpaced++
	}
	b.furthest = max(b.furthest, place)
	if place == at {
		return due
	}
	if due.Before(now) {
		due = now
	}
	delay := place - at
	b.moved++
	b.added += delay.Seconds()
	return due.Add(delay)
}

// Refund gives back the room of a retry that will not run, because its message
// went to another worker, to the dead letters or back to its queue. Slot is the
// time that Reserve returned, and must not be given back twice. Room that is
// past, or more than 4096 slots ahead, stays taken.
func (b *Budget) Refund(now, slot time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	at := b.offset(now, slot)
	s := int64(at / b.width)
	if slot.Before(now) || at < b.start() || s >= b.nearEnd() {
		return
	}
	if used := b.near.count(s); *used > 0 {
		*used--
		b.near.unmark(s)
	}
}

// Snapshot is what a Budget was doing at one moment.
type Snapshot struct {
	// Limit is how many retries a window may hold now.
	Limit int
	// Used is how many retries are reserved in the six slots from the current
	// one on, which are about the coming window.
	Used int
	// Furthest is the latest time reserved, refunded or not; zero if none lies
	// ahead.
	Furthest time.Time
	// Moved is how many retries were given a later time, ever.
	Moved uint64
	// Added is the delay that this added to them in all, in seconds.
	Added float64
	// Unpaced is how many retries found no room as far ahead as the budget
	// looks, ever. It stays 0 unless demand exceeds the budget for days.
	Unpaced uint64
}

// Snapshot returns the state at now, for metrics.
func (b *Budget) Snapshot(now time.Time) Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	b.measure()
	s := Snapshot{Limit: int(b.limit), Moved: b.moved, Added: b.added, Unpaced: b.unpaced}
	for i := range int64(perWindow) {
		s.Used += int(*b.near.count(b.current + i))
	}
	if ahead := b.furthest - b.offset(now, now); ahead > 0 {
		s.Furthest = now.Add(ahead)
	}
	return s
}

// offset returns how long after the origin t is, or now if that is later.
func (b *Budget) offset(now, t time.Time) time.Duration {
	at, ahead := now.Sub(b.origin), max(t.Sub(now), 0)
	if at > math.MaxInt64-ahead {
		return math.MaxInt64
	}
	return at + ahead
}

// start returns how long after the origin the current slot begins.
func (b *Budget) start() time.Duration { return time.Duration(b.current) * b.width }

// advance moves to the slot of now. A clock that steps back a little, as that
// of a goroutine that was overtaken, changes nothing; if it steps back more,
// the slots move with it, so that reservations stay as far ahead as they were.
func (b *Budget) advance(now time.Time) {
	if b.origin.IsZero() {
		b.origin = now
	}
	elapsed := now.Sub(b.origin)
	slot := int64(elapsed / b.width)
	switch {
	case slot-b.current > horizon || elapsed > century:
		b.restart(now)
	case slot > b.current:
		b.forward(slot)
	case slot < b.current-perWindow:
		b.origin = now.Add(-b.start())
	}
}

// restart begins anew at now, since all that is known is past.
func (b *Budget) restart(now time.Time) {
	b.origin, b.current, b.furthest, b.stale = now, 0, 0, true
	b.recent, b.total = [touched]int64{}, 0
	b.near, b.far = wheel{}, wheel{}
}

// forward empties the slots before slot, and takes groups of the far wheel into
// the near one.
func (b *Budget) forward(slot int64) {
	for s := range min(slot-b.current, touched) {
		oldest := &b.recent[(b.current+1+s)%touched]
		b.total -= *oldest
		*oldest = 0
	}
	for s := range min(slot-b.current, length) {
		b.near.reset(b.current + s)
	}
	first := b.nearEnd() / group
	b.current, b.stale = slot, true
	for g := range min(b.nearEnd()/group-first, length) {
		b.unfold(first + g)
	}
}

// nearEnd returns the first slot that belongs to the far wheel, a multiple of
// group.
func (b *Budget) nearEnd() int64 { return (b.current + length) / group * group }

// unfold moves the counts of a group to its slots.
func (b *Budget) unfold(g int64) {
	n := *b.far.count(g)
	b.far.reset(g)
	for i := range int64(group) {
		if s := g*group + i; s >= b.current && s < b.current+length {
			share := n / group
			if reversed(i) < int64(n%group) {
				share++
			}
			*b.near.count(s) = share
		}
	}
}

// reversed turns the six bits of i round: counting up, it visits the slots of a
// group evenly.
func reversed(i int64) int64 { return int64(bits.Reverse8(uint8(i)) >> 2) }

// measured returns the limit that the deliveries allow: of the last whole
// window, or of the one up to now if that has more.
func (b *Budget) measured() int64 {
	current, oldest := b.recent[b.current%touched], b.recent[(b.current+1)%touched]
	limit := b.share*float64(b.total-min(current, oldest)) + b.floor
	return max(int64(min(limit, maxLimit)), touched)
}

// measure brings the limit up to date. A rise has every slot looked at again,
// and so must not come with every delivery.
func (b *Budget) measure() {
	limit := b.measured()
	switch {
	case limit < b.limit:
		b.limit = limit
	case limit > b.limit && (b.stale || limit-b.limit >= b.limit/4):
		b.limit = limit
		b.near.unmarkAll()
		b.far.unmarkAll()
	}
	b.stale = false
}

// room returns how many retries slot may hold: a seventh of the limit, so
// rounded that any seven slots in a row hold the limit, and a higher limit never
// means less room.
func (b *Budget) room(slot int64) uint32 {
	room := b.limit / touched
	if slot*3%touched < b.limit%touched {
		room++
	}
	return uint32(room)
}

// place takes room for a retry at the given time after the origin, and returns
// the time that it gets. It is at if the slot of that has room.
func (b *Budget) place(at time.Duration) (time.Duration, bool) {
	wanted := int64(at / b.width)
	end := b.nearEnd()
	for s := b.near.next(wanted, end); s < end; s = b.near.next(s+1, end) {
		used := b.near.count(s)
		if *used >= b.room(s) {
			b.near.mark(s)
			continue
		}
		*used++
		if s == wanted {
			return at, true
		}
		return b.within(s, at, *used-1), true
	}
	return b.placeFar(max(wanted/group+1, end/group), at)
}

// placeFar is place for groups from first on.
func (b *Budget) placeFar(first int64, at time.Duration) (time.Duration, bool) {
	end := b.nearEnd()/group + length
	for g := b.far.next(first, end); g < end; g = b.far.next(g+1, end) {
		used := b.far.count(g)
		if *used >= uint32(b.limit/touched*group) {
			b.far.mark(g)
			continue
		}
		*used++
		n := *used - 1
		return b.within(g*group+reversed(int64(n%group)), at, n/group), true
	}
	return max(at, b.within(end*group, at, 0)), false
}

// within returns where in slot the retry goes that has n others before it and
// was due at the given time. Its place in the slot that it was due in is kept,
// and shifted by multiples of the golden ratio, which parts equal times evenly.
func (b *Budget) within(slot int64, due time.Duration, n uint32) time.Duration {
	const golden = 0x9E3779B97F4A7C15 // of 1<<64
	fraction, _ := bits.Div64(uint64(due%b.width), 0, uint64(b.width))
	fraction += uint64(n) * golden
	inside, _ := bits.Mul64(fraction, uint64(b.width))
	return time.Duration(slot)*b.width + time.Duration(inside)
}

package redisbudget

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/internal/fault"
	"github.com/redrive-go/redrive/retry/budget"
)

// Budget paces the retries of one worker, as part of its fleet. Make one with
// [New] for each dependency and process.
type Budget struct {
	client    redis.UniversalClient
	key       string
	script    string // its digest
	id        string
	share     float64 // of the deliveries, in the pool
	poolFloor int64   // retries in seven slots, in the pool
	onError   func(error)
	trips     atomic.Uint64

	mu sync.Mutex
	slots
	link
	furthest int64 // on the server's clock
	reserved uint64
	moved    uint64
	added    float64
	unpaced  uint64
}

// New returns a Budget, and makes no call. The client stays the caller's to
// close, after the last use of the Budget. The error names every fault of c at
// once.
func New(client redis.UniversalClient, c Config) (*Budget, error) {
	err := c.faults()
	if client == nil {
		err = errors.Join(&fault.Error{Package: "redisbudget", Field: "client", Problem: "is nil", Fix: "pass what redis.NewClient or redis.NewClusterClient returns"}, err)
	}
	if err != nil {
		return nil, err
	}
	if c.Budget.Window == 0 {
		c.Budget.Window = budget.Queue().Window
	}
	floor := int64(min(c.Budget.Floor*c.Budget.Window.Seconds(), maxLimit))
	b := &Budget{
		client:    client,
		key:       keyPrefix + "{" + c.Name + "}",
		script:    fmt.Sprintf("%x", sha1.Sum([]byte(leaseSource))),
		id:        fmt.Sprintf("%016x", rand.Uint64()),
		share:     c.Budget.Share / 2,
		poolFloor: floor / 2,
		onError:   c.OnError,
	}
	// In whole microseconds, as the script counts; rounded up, so that a window
	// touches no eighth slot.
	b.width = (c.Budget.Window + perWindow*time.Microsecond - 1) / (perWindow * time.Microsecond) * time.Microsecond
	b.slots.share, b.floor = c.Budget.Share/2, floor-floor/2
	b.seats, b.seat = int64(c.Workers), rand.Int64N(int64(c.Workers))
	b.measuring, b.surveying = 1, 1
	b.patience, b.batch, b.err = usualPatience, minBatch, errNoContact
	return b, nil
}

// Delivered counts n deliveries to this worker at now. Count each message that
// is delivered for the first time, however it ends.
func (b *Budget) Delivered(now time.Time, n int) {
	if n <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prepare(now)
	n64 := min(int64(n), maxDelivered)
	*b.deliveries(b.current) += n64
	b.note(b.current, n64)
	b.keepUp(now)
}

// Reserve reserves room for one retry that is due at due, and returns when to
// start it: due itself if there is room, otherwise a later time. A due time
// before now is as good as now. While Redis answers, Reserve may wait for
// leases, for 50 ms at most.
func (b *Budget) Reserve(now, due time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prepare(now)
	b.measure()
	if b.current-b.surveyed > 3*perWindow {
		b.survey()
		b.surveyed = b.current
	}
	if due.Before(now) {
		due = now
	}
	at, wanted, slot := b.search(now, due)
	b.reserved++
	if wanted >= b.current+horizon {
		b.unpaced++
		return due
	}
	place := b.place(slot, at)
	b.keepUp(now)
	if slot == wanted {
		b.furthest = max(b.furthest, at)
		return due
	}
	delay := time.Duration(place - at)
	b.furthest = max(b.furthest, place)
	b.moved++
	b.added += delay.Seconds()
	return due.Add(delay)
}

// prepare moves to now, before anything else.
func (b *Budget) prepare(now time.Time) {
	if b.base.IsZero() {
		b.begin(now)
		b.lastCall = b.current
	}
	b.advance(now)
}

// search returns the server's time at due, the slot of that and the one that
// the retry gets. If the pool may have an earlier one, it asks; to spare that,
// a retry may be late by a slot, or by an eighth of its delay.
func (b *Budget) search(now, due time.Time) (at, wanted, slot int64) {
	for asked := false; ; asked = true {
		at = b.clock(due)
		wanted = max(b.slot(at), b.current)
		if wanted >= b.current+horizon {
			return at, wanted, wanted
		}
		if !asked {
			b.demand[bucket(wanted-b.current)]++
		}
		var unknown int64
		slot, unknown = b.find(wanted)
		if asked || unknown <= 1+(wanted-b.current)/8 || !b.ask(now, wanted) {
			return at, wanted, slot
		}
	}
}

// place takes the room that search found, and returns the time in it.
func (b *Budget) place(slot, at int64) int64 {
	if end := b.current + horizon; slot >= end {
		b.unpaced++
		inside, _ := bits.Mul64(b.unpaced*golden, horizon*uint64(b.width))
		return end*int64(b.width) + int64(inside)
	}
	leased, before := b.take(slot)
	if leased {
		b.drawn++
	}
	b.taken++
	return max(b.within(slot, at, before), at)
}

// Refund gives back the room of a retry that will not run, for another one of
// this worker. Slot is the time that Reserve returned, and must not be given
// back twice. Room that is past stays taken.
func (b *Budget) Refund(now, slot time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prepare(now)
	s := b.slot(b.clock(slot))
	if !slot.Before(now) && s >= b.current && s < b.current+horizon {
		b.refund(s)
	}
}

// Snapshot returns the state of this worker's retries at now, for metrics.
// Limit is how many it might start in a window: those of the pool, while that
// is in use, and those of its own half.
func (b *Budget) Snapshot(now time.Time) budget.Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prepare(now)
	b.measure()
	s := budget.Snapshot{Limit: int(b.own), Moved: b.moved, Added: b.added, Unpaced: b.unpaced}
	s.Limit += int((b.floor + b.seats - 1) / b.seats)
	if b.fleet {
		s.Limit += int(b.limit)
	}
	for i := range int64(perWindow) {
		e := b.at(b.current + i)
		s.Used += int(e.held-e.free) + int(e.local)
	}
	if ahead := b.furthest - b.clock(now); ahead > 0 {
		s.Furthest = now.Add(time.Duration(ahead))
	}
	return s
}

// Status says how a worker gets on with Redis.
type Status struct {
	// Fleet says that the pool in Redis is in use; otherwise the worker has
	// its leases and its own half alone.
	Fleet bool
	// Err says why Fleet is false; nil if it is true.
	Err error
	// Leased is how many leases are at hand that no retry has taken.
	Leased int
	// Reserved is how many retries were given a time, ever.
	Reserved uint64
	// RoundTrips is how many commands were sent to Redis, ever.
	RoundTrips uint64
	// ClockAhead is how far the clock of Redis is ahead of the worker's, as of
	// the latest answer. That may be any time, and has no effect.
	ClockAhead time.Duration
}

// Status returns how this worker gets on with Redis at now.
func (b *Budget) Status(now time.Time) Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prepare(now)
	return Status{
		Fleet: b.fleet, Err: b.err, Leased: b.free, ClockAhead: b.apart,
		Reserved: b.reserved, RoundTrips: b.trips.Load(),
	}
}

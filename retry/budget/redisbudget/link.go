package redisbudget

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	lag    = 2 * perWindow // slots after which every worker has reported
	settle = lag + 2       // slots for which a new pool stays closed
	ahead  = 2 * perWindow // slots for which leases are to last

	usualPatience = 40 * time.Millisecond // for an answer
	callTimeout   = time.Second           // later than patience, an answer is still of use
	pause         = time.Second           // between attempts while not in the fleet
	goodEnough    = 3                     // answers in a row to be in the fleet

	minBatch     = 16
	maxBatch     = 512
	buckets      = 11
	maxDelivered = 1 << 31
)

// What Config.OnError and Status.Err are told, besides what the client returns
// when it cannot reach the server, log in or write.
var (
	// ErrSlow means that Redis took longer than 40 ms.
	ErrSlow = errors.New("no answer within 40 ms")
	// ErrForgotten means that Redis lost what the fleet had reserved, because
	// it restarted, evicted the key or promoted a replica. The pool opens again
	// when the workers have told it what they hold.
	ErrForgotten = errors.New("the server lost the reservations of the fleet, which its workers now repeat")
	// ErrEvicting means that Redis may remove the budget's key to save memory.
	// The budget is in use, and survives that as ErrForgotten says.
	ErrEvicting = errors.New("the server evicts keys to save memory: set maxmemory-policy to noeviction, or use another server")
	// ErrCrowded means that there are more workers than Config.Workers. While
	// Redis is away, there may be more retries than the budget has.
	ErrCrowded = errors.New("more workers than Config.Workers share the budget: raise Workers in all of them")

	errNoContact = errors.New("the server has not answered yet")
	errSettling  = errors.New("the budget is new on the server, and opens 14 slots after its first use")
)

// link is what a worker knows of Redis.
type link struct {
	patience time.Duration
	fleet    bool
	err      error // why not fleet
	calling  *call
	running  sync.WaitGroup // calls, until their reports are made
	epoch    string
	calls    int64
	restore  bool // Redis has forgotten the leases
	good     int
	limit    int64
	apart    time.Duration // the server's clock from the worker's

	nextTry   time.Time
	told      string // the kind of the fault that was reported latest
	inspected bool
	crowded   bool

	lastCall   int64  // its slot
	surveyed   int64  // the slot of the latest survey
	callAfter  int64  // slots
	unreported []pair // deliveries by slot
	batch      int64
	demand     [buckets]float64 // retries by how far ahead, lately
	taken      int64            // retries since the latest call
	drawn      int64            // of these, how many took a lease
}

// call is one that is under way.
type call struct {
	request
	now     time.Time
	started time.Time // on the real clock
	inspect bool
	done    chan struct{}
}

// bucket returns which of the demands a retry counts for: the first is for less
// than 16 slots ahead, each further one for twice as many.
func bucket(distance int64) int { return max(bits.Len64(uint64(distance))-4, 0) }

// bounds returns the distances that count for a bucket.
func bounds(bucket int) (from, to int64) {
	to = 16 << bucket
	if bucket > 0 {
		from = to / 2
	}
	return from, to
}

// note adds deliveries to those that are not reported. Those of slots that the
// script does not want any more are left out.
func (b *Budget) note(slot, n int64) {
	if last := len(b.unreported) - 1; last >= 0 && b.unreported[last].slot == slot {
		b.unreported[last].n += n
		return
	}
	if len(b.unreported) == lag {
		b.unreported = append(b.unreported[:0], b.unreported[1:]...)
	}
	b.unreported = append(b.unreported, pair{slot, n})
}

// keepUp makes a call in the background if one is due.
func (b *Budget) keepUp(now time.Time) {
	switch {
	case b.calling != nil:
		if b.fleet && time.Since(b.calling.started) > b.patience {
			b.fall(now, ErrSlow)
		}
	case b.due(now):
		b.call(now)
	}
}

// due reports whether it is time for a call: to find out whether Redis is back,
// to report deliveries and see whether it has forgotten, or for more leases.
func (b *Budget) due(now time.Time) bool {
	if !b.fleet {
		return !now.Before(b.nextTry)
	}
	if b.current-b.lastCall >= b.callAfter {
		return true
	}
	low := b.drawn > 0 && int64(b.slots.free) < b.batch/4
	return low && (b.current-b.lastCall >= perWindow || b.taken >= b.batch/2)
}

// ask waits for leases, one of them in the slot wanted or after it, and reports
// whether there was an answer. It waits for a call under way rather than making
// another one. The lock is released meanwhile.
func (b *Budget) ask(now time.Time, wanted int64) bool {
	if !b.fleet || b.calling == nil && b.current == b.lastCall && b.taken < b.batch/2 {
		return false
	}
	c := b.calling
	if c == nil {
		c = b.call(now, span{wanted, wanted + 1, 1})
	}
	b.mu.Unlock()
	timer := time.NewTimer(b.patience - time.Since(c.started))
	defer timer.Stop()
	answered := true
	select {
	case <-c.done:
	case <-timer.C:
		answered = false
	}
	b.mu.Lock()
	if !answered && b.calling == c {
		b.fall(now, ErrSlow)
	}
	return answered
}

// fall leaves the fleet, because of err.
func (b *Budget) fall(now time.Time, err error) {
	b.fleet, b.good, b.err = false, 0, err
	b.nextTry = now.Add(pause*3/4 + rand.N(pause/2))
}

// call starts a call that asks for what is urgent, and for what will be needed.
func (b *Budget) call(now time.Time, urgent ...span) *call {
	c := &call{
		now: now, started: time.Now(), inspect: !b.inspected, done: make(chan struct{}),
		request: request{seat: b.seat, epoch: b.epoch, calls: b.calls, delivered: b.unreported},
	}
	b.unreported = make([]pair, 0, lag)
	if b.restore {
		c.held = b.leases()
	}
	if b.fleet {
		c.wants = b.wants(urgent)
	}
	b.nextTry = now.Add(pause*3/4 + rand.N(pause/2))
	b.calling, b.drawn, b.taken = c, 0, 0
	b.lastCall, b.callAfter = b.current, lag-4+rand.Int64N(3)
	b.running.Go(func() { b.run(c) })
	return c
}

// wants spreads a batch over the distances that were in demand lately, and over
// the slots for which it is to last. The batch follows what was taken since the
// latest call, and doubles if that was not enough.
func (b *Budget) wants(urgent []span) []span {
	elapsed := max(b.current-b.lastCall, 1)
	need := b.drawn * ahead * 3 / 2 / elapsed
	if len(urgent) > 0 && elapsed < ahead {
		need = max(need, 2*b.batch)
	}
	b.batch = min(max(need, b.batch/2, minBatch), maxBatch)
	var all float64
	for _, d := range b.demand {
		all += d
	}
	wants := urgent
	for i, d := range b.demand {
		if b.demand[i] /= 2; d < 0.5 {
			b.demand[i] = 0
			continue
		}
		from, to := bounds(i)
		from, to = b.current+from, b.current+to
		n := int64(math.Ceil(float64(b.batch)*d/all)) - b.atHand(from, to)
		if n > 0 {
			wants = append(wants, span{from, to + ahead, n})
		}
	}
	return wants
}

// atHand counts the leases that no retry has taken, in the slots from and before
// to.
func (b *Budget) atHand(from, to int64) (n int64) {
	for s := from; s < to && n < int64(b.slots.free); s++ {
		n += int64(b.at(s).free)
	}
	return n
}

// leases returns all that this worker has from the pool.
func (b *Budget) leases() (held []pair) {
	for s := b.current; s < b.current+horizon; s++ {
		if n := b.at(s).held; n > 0 {
			held = append(held, pair{s, int64(n)})
		}
	}
	return held
}

// run makes a call, and tells what came of it.
func (b *Budget) run(c *call) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	a, err := b.lease(ctx, c.request)
	took := time.Since(c.started)
	var policy string
	if c.inspect && err == nil {
		policy = b.evicting(ctx)
	}
	b.mu.Lock()
	reports := b.finish(c, a, err, took, policy)
	b.calling = nil
	b.mu.Unlock()
	close(c.done)
	for _, report := range reports {
		if b.onError != nil {
			b.onError(fmt.Errorf("redisbudget %s: %w", b.key, report))
		}
	}
}

// finish takes in what came of a call, and returns what is to be reported.
func (b *Budget) finish(c *call, a answer, err error, took time.Duration, policy string) (reports []error) {
	now := c.now.Add(took)
	b.advance(now)
	if err != nil {
		b.fall(now, err)
	} else {
		reports = b.accept(now, a, took > b.patience)
	}
	if c.inspect && err == nil {
		b.inspected = true
		if policy != "" {
			reports = append(reports, fmt.Errorf("%w; it is %s", ErrEvicting, policy))
		}
	}
	if k := kind(b.err); k != b.told {
		b.told = k
		if k != "" {
			reports = append(reports, fmt.Errorf("retries are paced by this worker's own part of the budget: %w%s", b.err, remedy(b.err)))
		}
	}
	return reports
}

// kind tells faults apart that are worth a report each; "" is none.
func kind(err error) string {
	if err == nil || err == errNoContact || err == errSettling {
		return ""
	}
	if err == ErrSlow || err == ErrForgotten {
		return err.Error()
	}
	if e, ok := errors.AsType[redis.Error](err); ok {
		code, _, _ := strings.Cut(e.Error(), " ")
		return code
	}
	return "unreachable"
}

// remedy says what to do about an answer, where that is known. An error inside
// a script may have its code anywhere.
func remedy(err error) string {
	for _, r := range []struct{ code, fix string }{
		{"NOAUTH", "give the client a user and password"},
		{"unauthenticated", "give the client a user and password"}, // what a server says to long commands
		{"WRONGPASS", "check the client's user and password"},
		{"NOPERM", "give the client's user the rights that the package documentation names"},
		{"READONLY", "point the client at the primary"},
		{"WRONGTYPE", "the key belongs to something else, use another Name"},
		{"OOM", "give the server more memory"},
	} {
		if strings.Contains(err.Error(), r.code) {
			return ": " + r.fix
		}
	}
	return ""
}

// accept takes in an answer.
func (b *Budget) accept(now time.Time, a answer, late bool) (reports []error) {
	forgotten := b.epoch != "" && a.epoch != b.epoch
	b.restore = forgotten
	if !late && b.synchronize(now, a.time) != 0 {
		b.restore = true // under new numbers
	}
	if a.seat < 0 && !b.crowded {
		reports = append(reports, ErrCrowded)
	}
	b.crowded = a.seat < 0
	if a.seat >= 0 && a.seat != b.seat {
		b.seat = a.seat
		b.reopen()
	}
	b.epoch, b.calls, b.limit = a.epoch, a.calls, a.limit
	b.learn(a)
	switch {
	case forgotten:
		b.fall(now, ErrForgotten)
		b.nextTry = now
		b.inspected = false
	case late:
		b.fall(now, ErrSlow)
	case a.settled:
		if b.good++; b.good >= goodEnough {
			b.fleet, b.err = true, nil
		}
	case b.err != ErrForgotten:
		b.fall(now, errSettling)
	}
	return reports
}

// synchronize sets the clock by the server's, and returns by how much the
// numbers of the slots change.
func (b *Budget) synchronize(now time.Time, clock int64) (moved int64) {
	moved = b.set(now, clock)
	b.apart = time.Duration(clock - now.UnixNano())
	b.furthest += moved * int64(b.width)
	b.lastCall += moved
	b.surveyed += moved
	for i := range b.unreported {
		b.unreported[i].slot += moved
	}
	b.advance(now)
	return moved
}

// learn takes in the leases of an answer, and which slots of the pool are full.
func (b *Budget) learn(a answer) {
	if len(a.open) > 0 {
		b.survey()
		b.surveyed = b.current
	}
	for _, p := range a.open {
		for s := max(p.slot, b.current); s < min(p.n, b.current+horizon); s++ {
			b.slots.at(s).full = b.surveying
		}
	}
	for _, p := range a.granted {
		b.grant(p.slot, p.n)
	}
}

package redisbudget

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget/internal/pace"
)

const (
	usualPatience = 40 * time.Millisecond // for an answer
	callTimeout   = time.Second           // later than patience, an answer is still of use
	pause         = time.Second           // between attempts while not in the fleet
	goodEnough    = 3                     // answers in a row to be in the fleet

	interval = 2 * time.Second        // between reports, and what leases are to last
	lifetime = 2 * interval           // of leases
	scarce   = 500 * time.Millisecond // between calls while the pool has too little
	maxBatch = 512
)

// What Config.OnError and Status.Err are told, besides what the client returns
// when it cannot reach the server, log in or write.
var (
	// ErrSlow means that Redis took longer than 40 ms.
	ErrSlow = errors.New("no answer within 40 ms")
	// ErrEvicting means that Redis may remove the budget's key to save memory.
	// The budget is in use, and begins anew with one token when that happens.
	ErrEvicting = errors.New("the server evicts keys to save memory: set maxmemory-policy to noeviction, or use another server")
	// ErrCrowded means that there are more workers than Config.Workers. While
	// Redis is away, there may be more retries than the budget has.
	ErrCrowded = errors.New("more workers than Config.Workers share the budget: raise Workers in all of them")

	errNoContact = errors.New("the server has not answered yet")
)

// link is what a worker knows of Redis, and has to tell it.
type link struct {
	report
	patience time.Duration
	fleet    bool
	err      error // why not fleet
	calling  *call
	running  sync.WaitGroup // calls, until their reports are made
	good     int
	seat     int64

	nextTry   time.Time // while not in the fleet
	lastCall  time.Time
	answered  time.Time // when the latest answer came
	scarceTo  time.Time // the pool had too little, and is not asked before
	told      string    // the kind of the fault that was reported latest
	inspected bool
	crowded   bool

	pool   pool // as of the latest answer
	leased int  // tokens taken from the pool, at hand
	batch  int  // leases to have after a call
	asked  int  // Withdraws since the latest call
}

// call is one that is under way.
type call struct {
	request
	now     time.Time
	started time.Time // on the real clock
	inspect bool
	done    chan struct{}
}

// expire drops leases that are too old to use.
func (b *Budget) expire(now time.Time) {
	if b.leased > 0 && (now.Sub(b.answered) > lifetime || now.Before(b.answered.Add(-lifetime))) {
		b.leased = 0
	}
}

// ahead returns the line of the fleet at now, as far as this worker knows.
func (b *Budget) ahead(now time.Time) pace.Line {
	l := b.pool.line
	l.Waiting += float64(b.deferred)
	l.Age += max(now.Sub(b.answered), 0)
	return l
}

// wait returns when a retry is to ask again, and adds it to the line.
func (b *Budget) wait(now time.Time, most time.Duration, random float64) time.Duration {
	if most <= 0 {
		return 0
	}
	wait := b.ahead(now).Wait(most, random)
	b.line[min(int(wait/bucketWidth), buckets-1)]++
	b.deferred++
	return wait
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
// to report, or for more leases before there are none.
func (b *Budget) due(now time.Time) bool {
	if !b.fleet {
		return !now.Before(b.nextTry) || now.Before(b.nextTry.Add(-2*pause))
	}
	if elapsed := now.Sub(b.lastCall); elapsed >= interval || elapsed < -interval {
		return true
	}
	return b.asked > 1 && b.leased < b.batch/4 && b.asks(now)
}

// asks reports whether the pool may have tokens.
func (b *Budget) asks(now time.Time) bool {
	return b.fleet && (!now.Before(b.scarceTo) || now.Before(b.scarceTo.Add(-2*scarce)))
}

// ask waits for leases, for the patience at most. It waits for a call under way
// before it makes one.
func (b *Budget) ask(now time.Time) {
	until := time.Now().Add(b.patience)
	for range 2 {
		if b.leased > 0 || !b.asks(now) {
			return
		}
		c := b.calling
		if c == nil {
			c = b.call(now)
		}
		if !b.await(c, until) {
			if b.calling == c && b.fleet && time.Since(c.started) >= b.patience {
				b.fall(now, ErrSlow)
			}
			return
		}
	}
}

// await reports whether c is answered before the time. The lock is released
// meanwhile.
func (b *Budget) await(c *call, until time.Time) bool {
	b.mu.Unlock()
	defer b.mu.Lock()
	timer := time.NewTimer(min(time.Until(until), b.patience-time.Since(c.started)))
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-timer.C:
		return false
	}
}

// fall leaves the fleet, because of err.
func (b *Budget) fall(now time.Time, err error) {
	b.fleet, b.good, b.err = false, 0, err
	b.nextTry = now.Add(pause*3/4 + rand.N(pause/2))
}

// call starts a call that reports, and tops the leases up or gives some back.
func (b *Budget) call(now time.Time) *call {
	c := &call{now: now, started: time.Now(), inspect: !b.inspected, done: make(chan struct{})}
	c.request = request{report: b.report, seat: b.seat, elapsed: min(max(now.Sub(b.lastCall), 0), lifetime)}
	if b.fleet {
		b.resize(now)
		c.want, c.surplus = max(b.batch-b.leased, 0), max(b.leased-b.batch, 0)
		b.leased -= c.surplus
	}
	b.report, b.asked, b.lastCall = report{}, 0, now
	b.nextTry = now.Add(pause*3/4 + rand.N(pause/2))
	b.calling = c
	b.running.Go(func() { b.run(c) })
	return c
}

// resize sets how many leases to have: what is asked for in an interval and a
// quarter. That doubles if the leases did not last, and falls by half at most.
func (b *Budget) resize(now time.Time) {
	elapsed := max(now.Sub(b.lastCall), interval/16)
	need := int(math.Ceil(float64(b.asked) * 1.25 * interval.Seconds() / elapsed.Seconds()))
	if elapsed < interval {
		need = min(need, 2*b.batch)
	}
	b.batch = min(max(need, b.batch/2, min(b.asked, 1)), maxBatch)
}

// run makes a call, and tells what came of it.
func (b *Budget) run(c *call) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	policy := ""
	a, err := b.exchange(ctx, c.request)
	if err == nil && c.inspect {
		policy = b.evicting(ctx)
	}
	took := time.Since(c.started)
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
	if err != nil {
		b.fall(now, err)
	} else {
		reports = b.accept(now, c, a, took > b.patience)
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
	if err == nil || err == errNoContact {
		return ""
	}
	if err == ErrSlow {
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
func (b *Budget) accept(now time.Time, c *call, a answer, late bool) (reports []error) {
	if a.seat < 0 && !b.crowded {
		reports = append(reports, ErrCrowded)
	}
	b.crowded = a.seat < 0
	b.seat = max(a.seat, 0)
	b.expire(now)
	b.pool, b.answered = a.pool, now
	b.leased += a.granted
	if a.granted < c.want {
		b.scarceTo = now.Add(scarce*3/4 + rand.N(scarce/2))
	}
	if late {
		b.fall(now, ErrSlow)
	} else if b.good++; b.good >= goodEnough {
		b.fleet, b.err = true, nil
	}
	return reports
}

package redisbudget

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/redisguard"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/settings"
)

// Budget paces the retries of one worker, as part of its fleet. Make one with
// [New] for each dependency and process.
type Budget struct {
	client  redis.UniversalClient
	key     string
	script  string // its digest
	id      string
	share   float64
	floor   float64 // of the fleet
	seats   int64
	onError func(error)
	trips   atomic.Uint64
	own     *budget.Budget // this worker's part; every retry takes from it as well

	mu sync.Mutex
	link
	granted, refunds, deferrals uint64
	waits                       float64
}

// New returns a Budget, and makes no call. The client stays the caller's to
// close, after the last use of the Budget. The error names every fault of c at
// once.
//
// New adds a hook to the client. On connections that the client opens later, a
// malformed answer, or one that announces more than 512 MiB, becomes an error.
// A panic of the client becomes an error, too.
func New(client redis.UniversalClient, c Config) (*Budget, error) {
	err := c.faults()
	if client == nil {
		err = errors.Join(&settings.Error{Package: "redisbudget", Field: "client", Problem: "is nil", Fix: "pass the client of redis.NewClient or redis.NewClusterClient"}, err)
	}
	if err != nil {
		return nil, err
	}
	own, err := budget.New(budget.Config{Share: c.Budget.Share, Floor: c.Budget.Floor / float64(c.Workers)})
	if err != nil {
		return nil, err
	}
	b := &Budget{
		client:  client,
		key:     keyPrefix + "{" + c.Name + "}",
		script:  fmt.Sprintf("%x", sha1.Sum([]byte(source))),
		id:      fmt.Sprintf("%016x", rand.Uint64()),
		share:   c.Budget.Share,
		floor:   c.Budget.Floor,
		seats:   int64(c.Workers),
		onError: c.OnError,
		own:     own,
	}
	redisguard.Protect(client)
	b.seat = rand.Int64N(b.seats)
	b.patience, b.batch, b.err = usualPatience, 1, errNoContact
	return b, nil
}

// Deposit implements [budget.Pacer].
func (b *Budget) Deposit(now time.Time, n int) {
	if n <= 0 {
		return
	}
	b.own.Deposit(now, n)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.delivered = min(b.delivered+int64(n), math.MaxInt32)
	b.keepUp(now)
}

// Withdraw implements [budget.Pacer]. While Redis answers it may wait for
// tokens, for 50 ms at most.
func (b *Budget) Withdraw(now time.Time, most time.Duration, random float64) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire(now)
	b.asked++
	if b.leased == 0 {
		b.ask(now)
	}
	switch {
	case b.leased > 0:
		b.leased--
		b.own.Withdraw(now, 0, 0)
		ok = true
	case b.fleet:
		wait = b.wait(now, most, random)
	default:
		wait, ok = b.own.Withdraw(now, most, random)
	}
	if ok {
		b.granted++
	} else {
		b.deferrals++
		b.waits += wait.Seconds()
	}
	b.keepUp(now)
	return wait, ok
}

// Refund implements [budget.Pacer].
func (b *Budget) Refund(now time.Time) {
	b.own.Refund(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refunds++
	b.refunded++
	b.keepUp(now)
}

// Snapshot implements [budget.Pacer]. Tokens, Capacity, Limit and Waiting are
// those of the fleet as of the latest answer, or those of this worker's own part
// while it has to do with that. The other fields count this worker's retries.
func (b *Budget) Snapshot(now time.Time) budget.Snapshot {
	s := b.own.Snapshot(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire(now)
	if b.fleet {
		s.Tokens, s.Capacity = max(b.pool.tokens, 0)+float64(b.leased), b.pool.capacity
		s.Limit, s.Waiting = b.pool.limit, int(math.Round(b.ahead(now).Waiting))
	}
	s.Granted, s.Refunded, s.Deferred, s.Waits = b.granted, b.refunds, b.deferrals, b.waits
	return s
}

// Workers implements [budget.Fleet]: it is Config.Workers.
func (b *Budget) Workers() int { return int(b.seats) }

// Status says how a worker gets on with Redis.
type Status struct {
	// Fleet says that the tokens in Redis are in use; otherwise the worker has
	// its own part of the budget alone.
	Fleet bool
	// Err says why Fleet is false; nil if it is true.
	Err error
	// Leased is how many tokens are at hand.
	Leased int
	// RoundTrips is how many commands were sent to Redis, ever.
	RoundTrips uint64
}

// Status returns how this worker gets on with Redis at now.
func (b *Budget) Status(now time.Time) Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire(now)
	return Status{Fleet: b.fleet, Err: b.err, Leased: b.leased, RoundTrips: b.trips.Load()}
}

package budget

import (
	"math"
	"sync"
	"time"

	"github.com/redrive-go/redrive/retry/budget/internal/pace"
)

const (
	seconds = int64(pace.Span / time.Second)
	due     = 1024            // seconds, more than pace.Longest
	burst   = time.Second / 4 // in which retries may start at once
	stepped = 10 * time.Second

	leastBurst = 5 // retries, however low the limit is
)

// Pacer paces the retries to one dependency. [Budget] is one for a process, and
// *redisbudget.Budget one for a fleet. Its methods may be called at the same
// time, and return within 50 ms.
type Pacer interface {
	// Deposit counts n messages that were delivered for the first time at now,
	// however they end.
	Deposit(now time.Time, n int)
	// Withdraw asks for the token of a retry that is about to start. If ok is
	// false, the retry does not start, and asks again after wait, which is above
	// 0 and at most most. Random, in [0, 1), spreads the waits. With a most of 0
	// or less, wait is 0 and the retry is not expected again.
	Withdraw(now time.Time, most time.Duration, random float64) (wait time.Duration, ok bool)
	// Refund gives back the token of a retry that succeeded, or did not run
	// after all.
	Refund(now time.Time)
	// Snapshot returns the state at now, for metrics.
	Snapshot(now time.Time) Snapshot
}

// Fleet is what a Pacer implements, too, that several workers share. A Consumer whose
// Guard has such a budget recovers from an outage together with the others: their ramps
// and probes together are like those of one worker.
type Fleet interface {
	// Workers is how many workers share the budget, at most.
	Workers() int
}

// Snapshot is what a budget was doing at one moment.
type Snapshot struct {
	Tokens   float64 // retries that could start at once, but for the limit
	Capacity float64 // tokens that are saved at most
	Limit    float64 // retries that may start in a second, whatever the tokens
	Waiting  int     // about how many retries were told to ask again, and are not due yet
	Granted  uint64  // retries that got their token, ever
	Refunded uint64  // tokens that were given back, ever
	Deferred uint64  // times that a retry was told to wait or not to start, ever
	Waits    float64 // the sum of these waits, in seconds
}

// Budget paces the retries of one process to one dependency. Make one with
// [New]; its methods may be called from any number of goroutines.
type Budget struct {
	mu       sync.Mutex
	rates    pace.Rates
	ceiling  float64 // of rates
	capacity float64 // of rates
	tokens   float64
	limit    pace.Limit
	room     float64 // retries that may start now under the limit

	origin time.Time
	recent

	granted, refunded, deferred uint64
	waits                       float64
}

// recent is what a Budget knows of the latest minutes.
type recent struct {
	last   time.Duration // the latest now, since origin
	second int64         // of last

	deliveries, refunds counter
	started             int64 // retries in this second

	line    [due]uint32   // retries that wait, by the second in which they ask again
	waiting int64         // sum of line
	since   time.Duration // when it began, or retries began to fail or to succeed
}

// counter counts what happens in the latest seconds, the current one included.
type counter struct {
	each  [seconds]int64
	total int64
}

func (c *counter) add(second, n int64) {
	c.each[second%seconds] += n
	c.total += n
}

// expire makes room for second.
func (c *counter) expire(second int64) {
	oldest := &c.each[second%seconds]
	c.total -= *oldest
	*oldest = 0
}

// New returns a budget that is full. The error names every fault of c at once,
// each a *settings.Error.
func New(c Config) (*Budget, error) {
	if err := c.faults(); err != nil {
		return nil, err
	}
	b := &Budget{rates: pace.Rates{Share: c.Share, Floor: c.Floor}}
	b.restart(time.Time{}, 0)
	b.tokens = b.capacity
	return b, nil
}

// Deposit implements [Pacer]. To count retries as well is allowed, but lets
// them bring more retries: a share s then means s/(1−s) of the rest.
func (b *Budget) Deposit(now time.Time, n int) {
	if n <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	b.deliveries.add(b.second, min(int64(n), math.MaxInt32))
	b.tokens = min(b.tokens+b.rates.Share*float64(n), b.capacity)
}

// Withdraw implements [Pacer].
func (b *Budget) Withdraw(now time.Time, most time.Duration, random float64) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	if b.tokens >= 1 && b.room >= 1 {
		b.tokens--
		b.room--
		b.granted++
		b.started++
		return 0, true
	}
	b.deferred++
	if most <= 0 {
		return 0, false
	}
	line := b.ahead()
	if line.Waiting < 1 {
		b.since, line.Age = b.last, 0
	}
	wait = line.Wait(most, random)
	b.line[int64((b.last+wait)/time.Second)%due]++
	b.waiting++
	b.waits += wait.Seconds()
	return wait, false
}

// Refund implements [Pacer].
func (b *Budget) Refund(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	b.refunded++
	b.refunds.add(b.second, 1)
	b.tokens = min(b.tokens+1, b.capacity)
}

// Snapshot implements [Pacer].
func (b *Budget) Snapshot(now time.Time) Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	return Snapshot{
		Tokens: b.tokens, Capacity: b.capacity, Limit: b.limit.Now,
		Waiting: int(math.Round(b.ahead().Waiting)),
		Granted: b.granted, Refunded: b.refunded, Deferred: b.deferred, Waits: b.waits,
	}
}

// ahead returns the line. Of the retries that ask in the current second, a part
// has asked.
func (b *Budget) ahead() pace.Line {
	asked := float64(b.last%time.Second) / float64(time.Second)
	return pace.Line{
		Waiting: float64(b.waiting) - asked*float64(b.line[b.second%due]),
		Age:     b.last - b.since,
		Rate:    min(b.rates.Floor+b.earned()+float64(b.refunds.total)/pace.Span.Seconds(), b.limit.Now),
		Ceiling: b.limit.Best(b.ceiling),
	}
}

// earned returns what deliveries earn in a second.
func (b *Budget) earned() float64 {
	return b.rates.Share * float64(b.deliveries.total) / pace.Span.Seconds()
}

// most returns how many retries may start at once under the limit.
func (b *Budget) most() float64 { return max(leastBurst, b.limit.Now*burst.Seconds()) }

func (b *Budget) setPeak(peak float64) {
	b.rates.Peak = peak
	b.ceiling, b.capacity = b.rates.Ceiling(), b.rates.Capacity()
}

// advance moves to now. A clock that steps back a little, as that of a goroutine
// that was overtaken, changes nothing; one that steps back more takes what is
// known with it.
func (b *Budget) advance(now time.Time) {
	elapsed := now.Sub(b.origin)
	switch {
	case b.origin.IsZero():
		b.origin = now
		return
	case elapsed <= b.last:
		if elapsed < b.last-stepped {
			b.origin = now.Add(-b.last)
		}
		return
	case elapsed-b.last >= due*time.Second:
		b.restart(now, elapsed-b.last)
		return
	}
	gain := (elapsed - b.last).Seconds()
	b.last = elapsed
	for b.second < int64(elapsed/time.Second) {
		b.tick()
	}
	b.tokens = min(b.tokens+b.rates.Floor*gain, b.capacity)
	b.room = min(b.room+b.limit.Now*gain, b.most())
}

// tick moves to the next second.
func (b *Budget) tick() {
	b.setPeak(max(b.rates.Fade(time.Second), float64(b.deliveries.total)/pace.Span.Seconds()))
	succeeded, lowest := b.refunds.each[b.second%seconds], b.rates.Floor+b.earned()
	if b.limit.Adapt(b.second, float64(b.started), float64(succeeded), lowest, b.ceiling) {
		b.since = b.last
	}
	b.started = 0
	gone := &b.line[b.second%due]
	b.waiting -= int64(*gone)
	*gone = 0
	b.second++
	b.deliveries.expire(b.second)
	b.refunds.expire(b.second)
}

// restart begins anew at now, after a time in which all that is known has passed.
func (b *Budget) restart(now time.Time, elapsed time.Duration) {
	b.setPeak(b.rates.Fade(elapsed))
	b.tokens = min(b.tokens+b.rates.Floor*elapsed.Seconds(), b.capacity)
	b.limit = pace.NewLimit(b.ceiling)
	b.room = b.most()
	b.origin, b.recent = now, recent{}
}

package outage

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// dependency is what handlers call.
type dependency struct {
	Scenario
	began time.Time
	every time.Duration // between the beginnings of two calls

	mu     sync.Mutex
	free   time.Duration // when the next call can begin
	load   Load
	during int // calls in the outage
	wasted int // calls whose answer nobody waited for
}

// Load is what a dependency got to do in each second.
type Load struct {
	Offered []int // calls that came
	Served  []int // answers that somebody waited for
}

func newDependency(s Scenario, began time.Time) *dependency {
	return &dependency{Scenario: s, began: began, every: time.Second / time.Duration(s.Capacity)}
}

// errDown is what a client sees during the outage.
var errDown = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

var errLate = errors.New("no answer in time")

// busy is the answer of a dependency whose line is full.
type busy struct{}

func (busy) Error() string       { return "429 Too Many Requests" }
func (busy) HTTPStatusCode() int { return 429 }

// refusal is how long it takes to learn that a call is refused.
const refusal = 5 * time.Millisecond

// call waits for the answer, or for the end of ctx.
func (d *dependency) call(ctx context.Context) error {
	begins, err := d.admit(time.Since(d.began))
	if err != nil {
		return errors.Join(err, wait(ctx, refusal))
	}
	err = wait(ctx, begins+d.Service-time.Since(d.began))
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.wasted++
		return errors.Join(errLate, err)
	}
	count(&d.load.Served, time.Since(d.began))
	return nil
}

// admit takes a place in the line, and returns when its turn comes.
func (d *dependency) admit(now time.Duration) (begins time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	count(&d.load.Offered, now)
	if d.down(now) {
		d.during++
		return 0, errDown
	}
	begins = max(now, d.free)
	if d.Line > 0 && begins-now > d.every*time.Duration(d.Line) {
		return 0, busy{}
	}
	d.free = begins + d.every
	return begins, nil
}

// recovery is when the outage ends.
func (s Scenario) recovery() time.Duration { return s.Warm + s.Outage }

func (s Scenario) down(at time.Duration) bool { return at >= s.Warm && at < s.recovery() }

func count(bins *[]int, at time.Duration) {
	second := int(at / time.Second)
	for len(*bins) <= second {
		*bins = append(*bins, 0)
	}
	(*bins)[second]++
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

package visibility_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/visibility"
)

const lease = 30 * time.Second

var (
	errBusy = errors.New("the broker is busy")
	errGone = errors.New("the receipt is not valid any more")
)

// held is a delivery with its lease.
type held struct {
	name            string
	received, until time.Time
	extending       bool
}

func take(name string) *held {
	now := time.Now()
	return &held{name: name, received: now, until: now.Add(lease)}
}

func takeMany(n int) []*held {
	leases := make([]*held, n)
	for i := range leases {
		leases[i] = take(fmt.Sprint("lease ", i))
	}
	return leases
}

type call struct {
	at     time.Duration // since the start of the world
	length time.Duration
	leases []*held
}

type lostLease struct {
	lease *held
	at    time.Duration
	cause error
}

// world is a broker that does what answer says and otherwise extends, and the
// worker that hears of lost leases. It fails the test when the keeper breaks
// what it says of its calls.
type world struct {
	*visibility.Keeper[*held]
	t     *testing.T
	start time.Time

	mu     sync.Mutex
	answer func(ctx context.Context, length time.Duration, leases []*held) []error
	calls  []call
	lost   []lostLease
}

func newWorld(t *testing.T, maxLease time.Duration) *world {
	w := &world{t: t, start: time.Now(), answer: func(context.Context, time.Duration, []*held) []error { return nil }}
	w.Keeper = &visibility.Keeper[*held]{
		Lease:    lease,
		MaxLease: maxLease,
		Extend:   w.extend,
		Times:    w.times,
		Final:    func(err error) bool { return errors.Is(err, errGone) },
		Lost: func(l *held, cause error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lost = append(w.lost, lostLease{l, time.Since(w.start), cause})
		},
	}
	return w
}

// play runs f in virtual time, with a world whose keeper runs.
func play(t *testing.T, maxLease time.Duration, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, maxLease)
		defer w.run()()
		f(w)
	})
}

// answers has each lease in a call of Extend end so from now on.
func (w *world) answers(err error) {
	w.reply(func(_ context.Context, _ time.Duration, leases []*held) []error {
		return slices.Repeat([]error{err}, len(leases))
	})
}

// wantCause checks that a lease was lost for all of these reasons.
func (w *world) wantCause(cause error, reasons ...error) {
	w.t.Helper()
	for _, reason := range reasons {
		if !errors.Is(cause, reason) {
			w.t.Errorf("a lease was lost because of %q, want %q", cause, reason)
		}
	}
}

// run starts the keeper and returns what stops it.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// reply sets the answer of the calls of Extend from now on.
func (w *world) reply(answer func(ctx context.Context, length time.Duration, leases []*held) []error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = answer
}

func (w *world) extend(ctx context.Context, length time.Duration, leases []*held) []error {
	w.mu.Lock()
	w.mark(leases, true)
	w.calls = append(w.calls, call{time.Since(w.start), length, slices.Clone(leases)})
	answer := w.answer
	w.mu.Unlock()
	errs := answer(ctx, length, leases)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mark(leases, false)
	for i, l := range leases {
		if errs == nil || i < len(errs) && errs[i] == nil {
			l.until = time.Now().Add(length)
		}
	}
	return errs
}

func (w *world) mark(leases []*held, extending bool) {
	for _, l := range leases {
		if l.extending == extending {
			w.t.Errorf("%s is in two calls of Extend at once", l.name)
		}
		l.extending = extending
	}
}

// made returns the calls of Extend so far.
func (w *world) made() []call {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls)
}

// left returns how long l is still held.
func (w *world) left(l *held) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Until(l.until)
}

func (w *world) times(l *held) (time.Time, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.extending {
		w.t.Errorf("Times is called for %s while Extend is at work on it", l.name)
	}
	return l.received, l.until
}

// wantLost checks that exactly these leases were lost, each at its time, and
// returns the causes.
func (w *world) wantLost(at time.Duration, leases ...*held) []error {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var causes []error
	for _, l := range leases {
		n := 0
		for _, lost := range w.lost {
			if lost.lease != l {
				continue
			}
			n++
			causes = append(causes, lost.cause)
			if lost.at != at {
				w.t.Errorf("%s was lost after %s, want %s", l.name, lost.at, at)
			}
		}
		if n != 1 {
			w.t.Errorf("Lost was called %d times for %s, want once", n, l.name)
		}
	}
	if len(w.lost) != len(leases) {
		w.t.Errorf("Lost was called %d times in all, want %d", len(w.lost), len(leases))
	}
	return causes
}

func (w *world) wantLen(want int) {
	w.t.Helper()
	if got := w.Len(); got != want {
		w.t.Errorf("Len = %d, want %d", got, want)
	}
}

// pass lets d pass, and all that happens up to and at its end.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

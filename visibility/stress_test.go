package visibility_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/visibility"
)

// flaky is a broker whose leases really expire: a message goes to the next
// worker as soon as the lease of the one before has run out or was revoked.
// Its extensions fail in all the ways that they can.
type flaky struct {
	t      *testing.T
	random *rand.Rand // guarded by mu

	mu       sync.Mutex
	open     map[int]*grant // by message: the last grant, nil before the first
	handed   int
	extended int
	revoked  int
}

// grant is one delivery of a message to a worker.
type grant struct {
	message int
	until   time.Time // as the broker knows it
	told    time.Time // as the keeper knows it; only Extend changes it
	since   time.Time
	revoked bool

	ctx  context.Context // of the work; ends when the lease is lost
	lose context.CancelCauseFunc
}

func (g *grant) over() bool { return g.revoked || !time.Now().Before(g.until) }

// receive hands out up to most messages that nobody holds.
func (b *flaky) receive(most int) (grants []*grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, message := range slices.Sorted(maps.Keys(b.open)) {
		last := b.open[message]
		if len(grants) == most {
			break
		}
		if last != nil && !last.over() {
			continue
		}
		if last != nil && !last.revoked && last.ctx.Err() == nil && time.Now().After(last.until) {
			b.t.Errorf("message %d has two owners: the first was not told that its lease ran out %s ago", message, time.Since(last.until))
		}
		g := &grant{message: message, since: time.Now(), until: time.Now().Add(lease)}
		g.told = g.until
		g.ctx, g.lose = context.WithCancelCause(b.t.Context())
		b.open[message] = g
		b.handed++
		grants = append(grants, g)
	}
	return grants
}

// done removes the message of g, which its owner worked through.
func (b *flaky) done(g *grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[g.message] == g {
		delete(b.open, g.message)
		return
	}
	if !g.revoked && g.ctx.Err() == nil {
		b.t.Errorf("message %d was finished by a worker that had lost it and did not know", g.message)
	}
}

func (b *flaky) extend(ctx context.Context, length time.Duration, grants []*grant) []error {
	b.mu.Lock()
	latency, fate := time.Duration(b.random.Int64N(int64(2*time.Second))), b.random.IntN(10)
	b.mu.Unlock()
	switch {
	case fate == 0: // the connection hangs
		<-ctx.Done()
		return slices.Repeat([]error{ctx.Err()}, len(grants))
	case fate == 1: // and nobody notices
		time.Sleep(2 * lease)
	}
	time.Sleep(latency)
	b.mu.Lock()
	defer b.mu.Unlock()
	errs := make([]error, len(grants))
	for i, g := range grants {
		switch roll := b.random.IntN(100); {
		case roll < 30 || fate == 2:
			errs[i] = errBusy
		case roll < 33:
			g.revoked = true
			b.revoked++
			errs[i] = errGone
		case b.open[g.message] != g || g.over():
			errs[i] = errGone
		default:
			g.until = time.Now().Add(length)
			g.told = g.until
			b.extended++
		}
	}
	if fate == 3 { // done, but the answer got cut off
		return errs[:len(errs)/2]
	}
	return errs
}

// worker takes messages in and works on them, some for many leases.
func (b *flaky) worker(keeper *visibility.Keeper[*grant], random *rand.Rand, pending func() bool) {
	var work sync.WaitGroup
	defer work.Wait()
	for pending() {
		grants := b.receive(1 + random.IntN(10))
		keeper.Track(grants...)
		for _, g := range grants {
			took := time.Duration(random.Int64N(int64(4 * lease)))
			work.Go(func() {
				select {
				case <-time.After(took):
					keeper.Forget(g)
					b.done(g)
				case <-g.ctx.Done():
				}
			})
		}
		time.Sleep(time.Duration(random.Int64N(int64(5 * time.Second))))
	}
}

func TestNeverTwoOwners(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testNeverTwoOwners(t, seed) })
		})
	}
}

func testNeverTwoOwners(t *testing.T, seed uint64) {
	const messages, workers = 300, 3
	b := &flaky{t: t, random: rand.New(rand.NewPCG(seed, 0)), open: map[int]*grant{}}
	for message := range messages {
		b.open[message] = nil
	}
	pending := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.open) > 0
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running, working sync.WaitGroup
	var keepers []*visibility.Keeper[*grant]
	for i := range workers {
		keeper := visibility.New(visibility.Config[*grant]{
			Lease:    lease,
			MaxLease: 10 * lease,
			Extend:   b.extend,
			Times:    func(g *grant) (time.Time, time.Time) { return g.since, g.told },
			Final:    func(err error) bool { return errors.Is(err, errGone) },
			Lost: func(g *grant, cause error) {
				if g.ctx.Err() != nil {
					t.Errorf("message %d was lost twice: %v, %v", g.message, context.Cause(g.ctx), cause)
				}
				g.lose(cause)
			},
		})
		keepers = append(keepers, keeper)
		running.Go(func() { keeper.Run(ctx) })
		working.Go(func() { b.worker(keeper, rand.New(rand.NewPCG(seed, uint64(i)+1)), pending) })
	}
	working.Wait()
	time.Sleep(4 * lease)
	synctest.Wait()
	for _, keeper := range keepers {
		if n := keeper.Len(); n != 0 {
			t.Errorf("%d leases are tracked after the work is done, want none", n)
		}
	}
	cancel()
	running.Wait()
	if b.extended < messages || b.revoked == 0 || b.handed == messages {
		t.Errorf("%d messages, %d deliveries, %d extensions, %d revoked: the scenario tests too little", messages, b.handed, b.extended, b.revoked)
	}
}

// Everything happens at one instant of the bubble, so the race detector sees
// all of it side by side.
func TestTrackAndForgetDuringRun(t *testing.T) {
	const workers, rounds, batch = 4, 300, 10
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.reply(func(_ context.Context, _ time.Duration, leases []*held) []error {
			errs := make([]error, len(leases))
			for i := range errs {
				errs[i] = []error{nil, errBusy, errGone}[rand.IntN(3)]
			}
			return errs
		})
		defer w.run()()
		var working sync.WaitGroup
		for range workers {
			working.Go(func() {
				for i := 0; i < rounds || len(w.made()) == 0; i++ { // the keeper may get its turn late
					leases := takeMany(batch)
					for _, l := range leases {
						l.until = time.Now().Add(1 + rand.N(lease))
					}
					w.Track(leases...)
					runtime.Gosched()
					w.Forget(leases[:batch/2]...)
					w.Track(leases[:batch/4]...)
					runtime.Gosched()
					w.Forget(leases...)
				}
			})
		}
		working.Wait()
		pass(lease)
		w.wantLen(0)
		for _, l := range w.lost {
			if !errors.Is(l.cause, errGone) {
				t.Errorf("a lease that had not run out was lost: %v", l.cause)
			}
		}
	})
}

func BenchmarkTrackForget(b *testing.B) {
	const batch = 10
	for _, inFlight := range []int{0, 1000, 10000} {
		b.Run(fmt.Sprintf("inflight=%d", inFlight), func(b *testing.B) {
			keeper := visibility.New(visibility.Config[*held]{
				Lease:  lease,
				Extend: func(context.Context, time.Duration, []*held) []error { return nil },
				Times:  func(l *held) (time.Time, time.Time) { return l.received, l.until },
				Final:  func(error) bool { return false },
				Lost:   func(*held, error) {},
			})
			var running sync.WaitGroup
			ctx, cancel := context.WithCancel(b.Context())
			running.Go(func() { keeper.Run(ctx) })
			keeper.Track(takeMany(inFlight)...)
			leases := takeMany(batch)
			b.ReportAllocs()
			for b.Loop() {
				keeper.Track(leases...)
				keeper.Forget(leases...)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/lease")
			cancel()
			running.Wait()
		})
	}
}

package visibility_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/visibility"
)

// Everything happens at one instant of the bubble, so the race detector sees
// all of it side by side.
func TestTrackAndForgetDuringRun(t *testing.T) {
	const workers, rounds, batch = 4, 300, 10
	play(t, 0, func(w *world) {
		w.reply(func(_ context.Context, _ time.Duration, leases []*held) []error {
			errs := make([]error, len(leases))
			for i := range errs {
				errs[i] = []error{nil, errBusy, errGone}[rand.IntN(3)]
			}
			return errs
		})
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
			keeper := &visibility.Keeper[*held]{
				Lease:  lease,
				Extend: func(context.Context, time.Duration, []*held) []error { return nil },
				Times:  func(l *held) (time.Time, time.Time) { return l.received, l.until },
				Final:  func(error) bool { return false },
				Lost:   func(*held, error) {},
			}
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

package breaker_test

import (
	"testing"
	"time"

	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/flow"
)

// inState returns a breaker in a state, and when it is.
func inState(s breaker.State) (*breaker.Breaker, time.Time) {
	b, now := breaker.New(breaker.Config{}), epoch
	switch s {
	case breaker.Open:
		now = fail(b, now, 100, anonymous)
	case breaker.Isolated:
		b.Isolate("test")
	}
	return b, now
}

func BenchmarkStart(b *testing.B) {
	for _, s := range []breaker.State{breaker.Closed, breaker.Open, breaker.Isolated} {
		breaker, now := inState(s)
		parallel(b, s.String(), func(uint64) { breaker.Start(now) })
	}
}

func BenchmarkDone(b *testing.B) {
	for name, every := range map[string]uint64{"healthy": 1 << 62, "1% fail": 100, "half fail": 2} {
		breaker, now := inState(breaker.Closed)
		parallel(b, name, func(n uint64) {
			o := flow.Success
			if n%every == 0 {
				o = flow.Overload
			}
			breaker.Done(now.Add(ms), now, n, o)
		})
	}
}

// parallel calls f with numbers, on one processor and on all.
func parallel(b *testing.B, name string, f func(n uint64)) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		for n := uint64(101); b.Loop(); n++ {
			f(n)
		}
	})
	b.Run(name+", parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for n := uint64(101); pb.Next(); n++ {
				f(n)
			}
		})
	})
}

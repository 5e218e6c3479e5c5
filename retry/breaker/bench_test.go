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
		b.Run(s.String(), func(b *testing.B) {
			breaker, now := inState(s)
			b.ReportAllocs()
			for b.Loop() {
				breaker.Start(now)
			}
		})
	}
}

func BenchmarkStartParallel(b *testing.B) {
	breaker, now := inState(breaker.Closed)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			breaker.Start(now)
		}
	})
}

func BenchmarkDone(b *testing.B) {
	for _, bench := range []struct {
		name  string
		every uint64
	}{{"healthy", 0}, {"1% fail", 100}, {"half fail", 2}} {
		b.Run(bench.name, func(b *testing.B) {
			breaker, now := inState(breaker.Closed)
			of := uint64(100)
			b.ReportAllocs()
			for b.Loop() {
				of++
				o := flow.Success
				if bench.every > 0 && of%bench.every == 0 {
					o = flow.Overload
				}
				breaker.Done(now.Add(ms), now, of, o)
			}
		})
	}
}

func BenchmarkDoneParallel(b *testing.B) {
	breaker, now := inState(breaker.Closed)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for of := uint64(1000); pb.Next(); of++ {
			breaker.Done(now.Add(ms), now, of, flow.Success)
		}
	})
}

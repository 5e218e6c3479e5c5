package breaker

import "testing"

func BenchmarkStart(b *testing.B) {
	for _, state := range []State{Closed, Open, HalfOpen, Isolated} {
		b.Run(state.String(), func(b *testing.B) {
			breaker := inState(b, state)
			b.ReportAllocs()
			for b.Loop() {
				breaker.Start(noon)
			}
		})
	}
}

func BenchmarkStartParallel(b *testing.B) {
	breaker := newBreaker(b, Config{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			breaker.Start(noon)
		}
	})
}

func BenchmarkAllows(b *testing.B) {
	for _, state := range []State{Closed, Open, HalfOpen} {
		b.Run(state.String(), func(b *testing.B) {
			breaker := inState(b, state)
			b.ReportAllocs()
			for b.Loop() {
				breaker.Allows(noon)
			}
		})
	}
}

// BenchmarkDone reports one failure in so many runs.
func BenchmarkDone(b *testing.B) {
	for _, bench := range []struct {
		name  string
		every uint64
	}{{"healthy", 0}, {"1% fail", 100}, {"half fail", 2}} {
		b.Run(bench.name, func(b *testing.B) {
			breaker := newBreaker(b, Config{})
			p := start(b, breaker, noon)
			for of := range uint64(100) {
				breaker.Done(noon, p, of+1, Success, 0.5)
			}
			of := uint64(100)
			b.ReportAllocs()
			for b.Loop() {
				of++
				o := Success
				if bench.every > 0 && of%bench.every == 0 {
					o = Failure
				}
				breaker.Done(noon, p, of, o, 0.5)
			}
		})
	}
}

func BenchmarkDoneParallel(b *testing.B) {
	breaker := newBreaker(b, Config{})
	p := start(b, breaker, noon)
	for of := range uint64(100) {
		breaker.Done(noon, p, of+1, Success, 0.5)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for of := uint64(1000); pb.Next(); of++ {
			breaker.Done(noon, p, of, Success, 0.5)
		}
	})
}

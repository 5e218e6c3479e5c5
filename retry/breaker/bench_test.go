package breaker

import (
	"testing"
	"time"
)

func BenchmarkStart(b *testing.B) {
	for _, state := range []State{Closed, Open, HalfOpen, Isolated} {
		b.Run(state.String(), func(b *testing.B) {
			breaker := inState(b, state)
			b.ReportAllocs()
			for b.Loop() {
				breaker.Start(noon, Permit{})
			}
		})
	}
}

func BenchmarkFetch(b *testing.B) {
	for _, state := range []State{Closed, Open, HalfOpen} {
		b.Run(state.String(), func(b *testing.B) {
			breaker := inState(b, state)
			b.ReportAllocs()
			for b.Loop() {
				breaker.Fetch(noon, 10)
			}
		})
	}
}

func BenchmarkStartParallel(b *testing.B) {
	breaker := newBreaker(b, Config{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			breaker.Start(noon, Permit{})
		}
	})
}

func BenchmarkDone(b *testing.B) {
	breaker := newBreaker(b, Config{})
	run, _ := breaker.Start(noon, Permit{})
	now := noon
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		breaker.Done(now, run, Success, 0.5)
	}
}

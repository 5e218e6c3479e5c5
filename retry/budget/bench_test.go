package budget

import (
	"testing"
	"time"
)

func BenchmarkReserve(b *testing.B) {
	for _, bm := range []struct {
		name     string
		backlog  int // retries that wait already
		delay    time.Duration
		interval time.Duration // between calls
		traffic  int           // deliveries between calls
	}{
		{"idle", 0, time.Second, 2 * time.Second, 0},
		{"busy", 0, time.Second, time.Millisecond, 10},
		{"backlog of 1000", 1000, time.Second, time.Millisecond, 2},
		{"backlog of hours", 6000, time.Second, time.Millisecond, 0},
		{"hours ahead", 0, 12 * time.Hour, time.Millisecond, 10},
	} {
		b.Run(bm.name, func(b *testing.B) {
			budget := newBudget(b, Queue())
			now := noon
			for range bm.backlog {
				budget.Reserve(now, now)
			}
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(bm.interval)
				budget.Delivered(now, bm.traffic)
				budget.Reserve(now, now.Add(bm.delay))
			}
		})
	}
}

func BenchmarkReserveParallel(b *testing.B) {
	budget := newBudget(b, Mesh())
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		now := noon
		for pb.Next() {
			now = now.Add(time.Millisecond)
			budget.Reserve(now, now.Add(time.Second))
		}
	})
}

func BenchmarkDelivered(b *testing.B) {
	budget := newBudget(b, Queue())
	now := noon
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		budget.Delivered(now, 1)
	}
}

func BenchmarkRefund(b *testing.B) {
	budget := newBudget(b, Queue())
	b.ReportAllocs()
	for b.Loop() {
		budget.Refund(noon, budget.Reserve(noon, noon))
	}
}

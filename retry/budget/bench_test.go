package budget

import (
	"testing"
	"time"
)

func BenchmarkWithdraw(b *testing.B) {
	for _, bm := range []struct {
		name     string
		interval time.Duration // between calls
		traffic  int           // deliveries between calls
		refund   bool
		waiting  int
	}{
		{"granted", time.Millisecond, 10, true, 0},
		{"idle", 2 * time.Second, 0, false, 0},
		{"deferred", time.Microsecond, 0, false, 1000},
	} {
		b.Run(bm.name, func(b *testing.B) {
			budget := newBudget(b, Queue())
			now := noon
			for range bm.waiting {
				budget.Withdraw(now, time.Hour, 0.5)
			}
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(bm.interval)
				if bm.refund {
					budget.Deposit(now, bm.traffic)
				}
				if _, ok := budget.Withdraw(now, time.Hour, 0.5); ok && bm.refund {
					budget.Refund(now)
				}
			}
		})
	}
}

func BenchmarkWithdrawParallel(b *testing.B) {
	budget := newBudget(b, Mesh())
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		now := noon
		for pb.Next() {
			now = now.Add(time.Millisecond)
			budget.Withdraw(now, time.Minute, 0.5)
		}
	})
}

func BenchmarkDeposit(b *testing.B) {
	budget := newBudget(b, Queue())
	now := noon
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		budget.Deposit(now, 1)
	}
}

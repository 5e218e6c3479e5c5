package service_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/operate/service/scheduletest"
)

func TestHeap(t *testing.T) {
	scheduletest.Run(t, func(*testing.T) service.Schedule { return service.NewHeap() })
}

// BenchmarkHeap is one task that is taken and added again, while so many wait.
func BenchmarkHeap(b *testing.B) {
	for _, waiting := range []int{1_000, 1_000_000} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			h := service.NewHeap()
			now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			tenants := []string{"a", "b", "c", "d"}
			for i := range waiting {
				_ = h.Add(b.Context(), service.Due{Row: int64(i), Tenant: tenants[i%4], At: now.Add(time.Duration(i) * time.Hour / time.Duration(waiting))})
			}
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Hour / time.Duration(waiting))
				due, _, _ := h.Take(b.Context(), now, 64)
				for i := range due {
					due[i].At = due[i].At.Add(time.Hour)
				}
				_ = h.Add(b.Context(), due...)
			}
		})
	}
}

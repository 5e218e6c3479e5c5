package service_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/operate/service/scheduletest"
)

func TestHeap(t *testing.T) {
	scheduletest.Run(t, func(*testing.T) service.Schedule { return service.NewHeap() })
}

// TestHeapForgets moves a few tasks again and again: what is stale does not pile up.
func TestHeapForgets(t *testing.T) {
	h := service.NewHeap()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	add := func() {
		for i := range 200_000 {
			if err := h.Add(t.Context(), service.Due{Row: int64(i % 10), Tenant: "a", At: now.Add(time.Duration(i) * time.Second)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	add()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 5 {
		add()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("it has grown by %d KiB", grown>>10)
	}
	due, _, err := h.Take(t.Context(), now.Add(200_000*time.Second), 100)
	if err != nil || len(due) != 10 {
		t.Errorf("Take = %v, %v", due, err)
	}
}

// BenchmarkHeap takes 64 tasks, one for each millisecond, and adds them again, while
// so many wait: those that are due in the next seconds, and others.
func BenchmarkHeap(b *testing.B) {
	for _, waiting := range []int{1_000, 1_000_000} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			h := service.NewHeap()
			now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			span := time.Duration(waiting) * time.Millisecond
			tenants := []string{"a", "b", "c", "d"}
			for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(waiting) {
				_ = h.Add(b.Context(), service.Due{Row: int64(i), Tenant: tenants[i%4], At: now.Add(time.Duration(i) * time.Millisecond)})
			}
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(64 * time.Millisecond)
				due, _, _ := h.Take(b.Context(), now, 64)
				for i := range due {
					due[i].At = due[i].At.Add(span)
				}
				_ = h.Add(b.Context(), due...)
			}
		})
	}
}

package service_test

import (
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

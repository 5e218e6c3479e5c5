package sqs

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// TestCallersKeepTheirGoroutines makes each call at once, and at most as many
// goroutines as calls are open at a time.
func TestCallersKeepTheirGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(callers)
		c.enter()
		begun := time.Now()
		var made atomic.Int32
		for range 100 {
			c.each(5, func(int) {
				made.Add(1)
				time.Sleep(time.Second)
			})
			synctest.Wait() // all are free again
		}
		if took := time.Since(begun); made.Load() != 500 || took != 100*time.Second {
			t.Errorf("%d calls took %v, want 500 in 100 s", made.Load(), took)
		}
		if free := len(c.free); free != 4 {
			t.Fatalf("%d goroutines wait, want as many as each starts beside its own", free)
		}
		last := c.free[3]
		c.start(func() { time.Sleep(time.Second) })
		if slices.Contains(c.free, last) {
			t.Error("the goroutine that has waited least was not the next")
		}
		synctest.Wait()
		c.leave()               // while one makes a call,
		time.Sleep(time.Second) // with which it ends
	})
}

// TestCallersKeepTheirStacks makes a call about as deep as the SDK's on a network,
// and looks where the stack is after a collection: what was shrunk has moved.
func TestCallersKeepTheirStacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(callers)
		c.enter()
		defer c.leave()
		var at [2]uintptr
		for i := range at {
			c.start(func() {
				deep(16)
				at[i] = address()
			})
			synctest.Wait()
			runtime.GC()
		}
		if len(c.free) != 1 || at[0] != at[1] {
			t.Errorf("the stack of one of %d goroutines was at %#x, and after a collection at %#x", len(c.free), at[0], at[1])
		}
	})
}

// deep uses so many KiB of stack.
//
//go:noinline
func deep(kib int) byte {
	var used [1 << 10]byte
	if kib > 1 {
		used[kib] = deep(kib - 1)
	}
	return used[0]
}

//go:noinline
func address() uintptr {
	var here byte
	return uintptr(unsafe.Pointer(&here))
}

package sqs

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestCallersKeepTheirGoroutines makes each call at once, and at most as many
// goroutines as calls are open at a time.
func TestCallersKeepTheirGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCallers()
		c.enter()
		begun := time.Now()
		var made, running atomic.Int32
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
		over := c.over
		free := func() {
			running.Add(1)
			<-over
		}
		for range 4 { // as many as each started beside its own
			select {
			case c.next <- free:
			default:
				t.Error("a goroutine has gone")
			}
		}
		select {
		case c.next <- free:
			t.Error("there are more goroutines than calls were open")
		default:
		}
		synctest.Wait()
		c.leave()
		if got := running.Load(); got != 4 {
			t.Errorf("%d goroutines, want 4", got)
		}
	})
}

// Calls without a source, such as those that publish, leave no goroutine behind,
// nor does a source that was closed: the bubble would not end.
func TestCallersLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCallers()
		for range 2 {
			c.each(5, func(int) { time.Sleep(time.Minute) })
			c.enter()
			c.each(5, func(int) { time.Sleep(time.Minute) })
			c.leave()
		}
	})
}

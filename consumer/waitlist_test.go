package consumer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// A timer of due retries that does not come to an end shows in the pulse.
func TestPulseOfTheWaitlist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ps pulses
		thaw := make(chan struct{})
		w := waitlist{pulse: ps.add("due"), due: func() { <-thaw }}
		late := func(want ...time.Duration) {
			t.Helper()
			loops := ps.late(time.Now())
			if len(loops) != len(want) || len(want) > 0 && time.Duration(loops[0].Late) != want[0] {
				t.Errorf("late are %v, want %v", loops, want)
			}
		}
		late()
		d := &delivery{Delivery: new(brokers.Delivery), rare: &nothing}
		d.state.Store(uint32(waiting))
		w.add(d, time.Now().Add(time.Minute))
		time.Sleep(time.Minute)
		late()
		time.Sleep(15 * time.Second)
		late(15 * time.Second)
		close(thaw)
		if w.next(time.Now()) == nil || w.next(time.Now()) != nil {
			t.Error("want one retry to be due")
		}
		time.Sleep(time.Hour)
		late()
	})
}

package lateness

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pauses
		if got := p.Longest(); got != 0 {
			t.Errorf("pause before anything = %v, want 0", got)
		}
		p.Tick("a")
		p.Tick("b")
		time.Sleep(3 * time.Second)
		p.Tick("a")
		time.Sleep(2 * time.Second)
		p.Tick("a")
		p.Tick("b")
		if got := p.Longest(); got != 5*time.Second {
			t.Errorf("pause = %v, want 5s, that of b", got)
		}
		time.Sleep(time.Second)
		p.Tick("b")
		time.Sleep(time.Second)
		if got := p.Longest(); got != 2*time.Second {
			t.Errorf("pause = %v, want 2s, that of a, which lasts", got)
		}
	})
}

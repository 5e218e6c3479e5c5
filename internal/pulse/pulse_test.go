package pulse_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/internal/pulse"
)

func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(pulse.Pulse)
		expect := func(when string, want time.Duration) {
			t.Helper()
			if got := p.Overdue(time.Now()); got != want {
				t.Errorf("%s: overdue for %v, want %v", when, got, want)
			}
		}
		time.Sleep(time.Minute)
		expect("before it began", 0)
		if p.Ask(time.Now(), 0) {
			t.Error("a loop that has not begun can be asked")
		}
		p.Expect(time.Now().Add(time.Second))
		time.Sleep(time.Second)
		expect("in time", 0)
		time.Sleep(time.Minute)
		expect("late", time.Minute)
		p.Rest()
		time.Sleep(4 * time.Second)
		if p.Ask(time.Now(), 5*time.Second) {
			t.Error("asked after 4s of rest, want that after 5s")
		}
		time.Sleep(time.Second)
		if !p.Ask(time.Now(), 5*time.Second) || p.Ask(time.Now(), 5*time.Second) {
			t.Error("want a loop that rests for 5s to be asked once")
		}
		time.Sleep(time.Second)
		expect("asked", time.Second)
		p.End()
		expect("ended", 0)
		if p.Ask(time.Now(), 0) {
			t.Error("a loop that has ended can be asked")
		}
	})
}

func TestPulseOfAContext(t *testing.T) {
	p := pulse.Of(context.Background()) // nil takes in everything
	p.Expect(time.Now())
	p.Rest()
	p.End()
	if q := new(pulse.Pulse); pulse.Of(pulse.With(context.Background(), q)) != q {
		t.Error("the context does not have the pulse")
	}
}

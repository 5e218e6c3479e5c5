package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// extend extends one delivery and checks the error.
func (w *world) extend(src brokers.Source, d *brokers.Delivery, lease time.Duration, want error) {
	w.Helper()
	check(w.T, "Extend", src.Extend(w.Context(), lease, []*brokers.Delivery{d}), want)
}

// left checks how much of a lease is left.
func (w *world) left(d *brokers.Delivery, want time.Duration) {
	w.Helper()
	if got := time.Until(d.LeaseUntil); got != want {
		w.Fatalf("%v of the lease are left, want %v", got, want)
	}
}

func TestLeaseOfASource(t *testing.T) {
	tests := []struct {
		name                     string
		option, subscribed, want time.Duration
	}{
		{"default", 0, 0, 30 * time.Second},
		{"option", time.Minute, 0, time.Minute},
		{"subscription", time.Minute, time.Hour, time.Hour},
	}
	for _, tt := range tests {
		run(t, memory.Options{Lease: tt.option, MaxLease: 2 * time.Hour}, func(w *world) {
			src, err := w.broker.Open(w.Context(), brokers.Subscription{Topics: []string{"in"}, Lease: tt.subscribed})
			if err != nil {
				w.Fatal(err)
			}
			if c := src.Capabilities(); c.Lease != tt.want || c.MaxLease != 2*time.Hour {
				w.Errorf("%s: Capabilities = %+v, want a lease of %v, at most 2h", tt.name, c, tt.want)
			}
			w.publish("in", "a")
			d := w.one(src)
			w.left(d, tt.want)
			if !d.ReceivedAt.Equal(time.Now()) {
				w.Errorf("%s: ReceivedAt = %v, want now, %v", tt.name, d.ReceivedAt, time.Now())
			}
		})
	}
}

func TestExpiryCountsAndRedelivers(t *testing.T) {
	run(t, memory.Options{Lease: time.Minute}, func(w *world) {
		w.publish("in", "a", "b", "c")
		start := time.Now()
		w.expect(w.source, "a", "b")
		for round := 1; round <= 3; round++ {
			w.stats("in", memory.Stats{Ready: 1, InFlight: 2})
			time.Sleep(time.Until(start.Add(time.Duration(round) * time.Minute)))
			w.stats("in", memory.Stats{Ready: 3})
			for _, d := range w.expect(w.source, "a", "b") {
				if d.Abandoned != round {
					w.Errorf("Abandoned of %s = %d, want %d", d.Message.ID, d.Abandoned, round)
				}
			}
		}
	})
}

func TestAbandonedSurvivesRetryAndRelease(t *testing.T) {
	run(t, memory.Options{Lease: time.Minute}, func(w *world) {
		w.publish("in", "a")
		w.one(w.source)
		d := w.one(w.source)
		w.retry(w.source, d, time.Second)
		w.release(w.source, w.one(w.source))
		if d := w.one(w.source); d.Abandoned != 1 {
			w.Errorf("Abandoned = %d, want 1: it counts expired leases only", d.Abandoned)
		}
	})
}

func TestExpiryWakesReceive(t *testing.T) {
	run(t, memory.Options{Lease: time.Minute}, func(w *world) {
		w.publish("in", "a")
		w.one(w.source)
		start := time.Now()
		w.one(w.source)
		if got := time.Since(start); got != time.Minute {
			w.Errorf("Receive returned after %v, want the lease, 1m", got)
		}
	})
}

func TestExtend(t *testing.T) {
	run(t, memory.Options{Lease: time.Minute}, func(w *world) {
		w.publish("in", "a")
		d := w.one(w.source)
		for range 10 {
			time.Sleep(50 * time.Second)
			w.extend(w.source, d, time.Minute, nil)
			w.left(d, time.Minute)
		}
		w.stats("in", memory.Stats{InFlight: 1})
		w.ack(w.source, d)
	})
}

func TestExtendedLeaseEndsExactly(t *testing.T) {
	for _, late := range []time.Duration{-1, 0} {
		run(t, memory.Options{Lease: time.Minute}, func(w *world) {
			w.publish("in", "a")
			d := w.one(w.source)
			w.extend(w.source, d, time.Hour, nil)
			time.Sleep(time.Hour + late)
			var want error
			if late == 0 {
				want = brokers.ErrLeaseLost
			}
			w.settle(w.source, brokers.Settlement{Delivery: d}, want)
		})
	}
}

func TestExtendNeverShortens(t *testing.T) {
	run(t, memory.Options{Lease: time.Minute}, func(w *world) {
		w.publish("in", "a")
		d := w.one(w.source)
		for _, lease := range []time.Duration{time.Second, 0, -time.Hour} {
			w.extend(w.source, d, lease, nil)
			w.left(d, time.Minute)
		}
	})
}

func TestExtendStopsAtMaxLease(t *testing.T) {
	run(t, memory.Options{Lease: time.Minute, MaxLease: 90 * time.Second}, func(w *world) {
		w.publish("in", "a")
		d := w.one(w.source)
		for range 2 {
			time.Sleep(40 * time.Second)
			w.extend(w.source, d, time.Minute, nil)
		}
		w.left(d, 10*time.Second)
		time.Sleep(10 * time.Second)
		w.extend(w.source, d, time.Minute, brokers.ErrLeaseLost)
		if again := w.one(w.source); again.Abandoned != 1 {
			w.Errorf("Abandoned = %d, want 1", again.Abandoned)
		}
	})
}

func TestExtendWhatIsNotHeld(t *testing.T) {
	run(t, memory.Options{Lease: time.Minute}, func(w *world) {
		w.publish("in", "a", "b", "c")
		ds := w.expect(w.source, "a", "b", "c")
		w.ack(w.source, ds[0])
		time.Sleep(30 * time.Second)
		errs := w.source.Extend(w.Context(), time.Minute, []*brokers.Delivery{ds[0], ds[1], nil})
		if !errors.Is(errs[0], brokers.ErrSettled) || errs[1] != nil || !errors.Is(errs[2], brokers.ErrLeaseLost) {
			w.Errorf("Extend = %v, want ErrSettled, nil, ErrLeaseLost", errs)
		}
		time.Sleep(30 * time.Second)
		until := ds[2].LeaseUntil
		w.extend(w.source, ds[2], time.Minute, brokers.ErrLeaseLost)
		if !ds[2].LeaseUntil.Equal(until) {
			w.Errorf("a refused Extend changed LeaseUntil from %v to %v", until, ds[2].LeaseUntil)
		}
		w.stats("in", memory.Stats{Ready: 1, InFlight: 1})
	})
}

func TestCloseReleases(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		w.publish("in", "a", "b", "c")
		other := w.open("in")
		ds := w.expect(w.source, "a", "b", "c")
		w.ack(w.source, ds[1])
		session := ds[0].Session
		if session.Err() != nil {
			w.Errorf("the session ended before its source did: %v", context.Cause(session))
		}
		for range 2 {
			if err := w.source.Close(w.Context()); err != nil {
				w.Fatalf("Close: %v", err)
			}
		}
		if cause := context.Cause(session); !errors.Is(cause, brokers.ErrClosed) {
			w.Errorf("cause of the session = %v, want ErrClosed", cause)
		}
		for _, d := range w.expect(other, "a", "c") {
			if d.Abandoned != 0 {
				w.Errorf("Abandoned of %s = %d after Close, want 0", d.Message.ID, d.Abandoned)
			}
		}
		for _, want := range []error{brokers.ErrClosed, brokers.ErrLeaseLost} {
			w.settle(w.source, brokers.Settlement{Delivery: ds[0]}, want)
			w.extend(w.source, ds[0], time.Hour, want)
		}
		w.settle(w.source, brokers.Settlement{Delivery: ds[1]}, brokers.ErrSettled)
		if _, err := w.source.Receive(w.Context(), 1); err != brokers.ErrClosed {
			w.Errorf("Receive after Close = %v, want ErrClosed", err)
		}
		w.stats("in", memory.Stats{InFlight: 2})
	})
}

func TestCrashKeepsLeases(t *testing.T) {
	run(t, memory.Options{Lease: time.Minute}, func(w *world) {
		w.publish("in", "a", "b")
		other := w.open("in")
		start := time.Now()
		d := w.expect(w.source, "a", "b")[0]
		w.broker.Crash(w.source)
		w.broker.Crash(w.source)
		w.settle(w.source, brokers.Settlement{Delivery: d}, brokers.ErrClosed)
		if _, err := w.source.Receive(w.Context(), 1); err != brokers.ErrClosed {
			w.Errorf("Receive after Crash = %v, want ErrClosed", err)
		}
		if cause := context.Cause(d.Session); !errors.Is(cause, brokers.ErrClosed) {
			w.Errorf("cause of the session = %v, want ErrClosed", cause)
		}
		w.stats("in", memory.Stats{InFlight: 2})
		for _, d := range w.expect(other, "a", "b") {
			if d.Abandoned != 1 {
				w.Errorf("Abandoned of %s = %d, want 1", d.Message.ID, d.Abandoned)
			}
		}
		if got := time.Since(start); got != time.Minute {
			w.Errorf("came back after %v, want the lease, 1m", got)
		}
	})
}

func TestCrashOfAStranger(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		defer func() {
			if recover() == nil {
				w.Error("Crash of another broker's source did not panic")
			}
		}()
		memory.New(memory.Options{}).Crash(w.source)
	})
}

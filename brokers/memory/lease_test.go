package memory_test

import (
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

func TestExtendedLeaseEndsExactly(t *testing.T) {
	for _, late := range []time.Duration{-1, 0} {
		run(t, memory.Options{Lease: time.Minute}, func(w *world) {
			w.publish("in", "a")
			d := w.one(w.source)
			w.extend(w.source, d, time.Hour, nil)
			w.pass(time.Hour + late)
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

package memory

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// TestQueueIsSorted plays random pushes and pops against a sorted slice.
func TestQueueIsSorted(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		var q queue
		var model []uint64
		next := uint64(0)
		gone := []uint64{}
		for step := range 1000 {
			switch {
			case r.IntN(5) < 2:
				next++
				q.push(&entry{seq: next})
				model = append(model, next)
			case r.IntN(4) == 0 && len(gone) > 0:
				i := r.IntN(len(gone))
				q.push(&entry{seq: gone[i]})
				model = append(model, gone[i])
				gone = slices.Delete(gone, i, i+1)
			case len(model) > 0:
				slices.Sort(model)
				front, got := q.front().seq, q.pop().seq
				if front != got || got != model[0] {
					t.Fatalf("seed %d, step %d: front %d, pop %d, want %d", seed, step, front, got, model[0])
				}
				model = model[1:]
				gone = append(gone, got)
			}
			if q.len() != len(model) {
				t.Fatalf("seed %d, step %d: len = %d, want %d", seed, step, q.len(), len(model))
			}
		}
	}
}

func TestQueueReusesItsSpace(t *testing.T) {
	var q queue
	for i := range uint64(100_000) {
		q.push(&entry{seq: 2 * i})
		q.push(&entry{seq: 2*i + 1})
		q.pop()
		if i >= 10 {
			q.pop()
		}
	}
	if got := cap(q.fifo); got > 100 {
		t.Errorf("a queue of %d entries has room for %d", q.len(), got)
	}
}

func TestKeysAreForgotten(t *testing.T) {
	b := New(Options{Ordered: true})
	src, err := b.Open(t.Context(), brokers.Subscription{Topics: []string{"in"}, MaxAttempts: 10})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := b.Publish(t.Context(), "in", brokers.Message{Key: string(rune('a' + i))}); err != nil {
			t.Fatal(err)
		}
		ds, err := src.Receive(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if errs := src.Settle(t.Context(), []brokers.Settlement{{Delivery: ds[0]}}); errs != nil {
			t.Fatal(errs)
		}
	}
	if got := len(b.topic("in").lanes); got != 0 {
		t.Errorf("an empty topic remembers %d keys", got)
	}
}

// TestAlarmsAreSorted plays random pushes, removals and pops against a sorted
// slice.
func TestAlarmsAreSorted(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 2))
		var h alarms
		var model []timed
		for step := range 1000 {
			switch r.IntN(5) {
			case 0, 1:
				next := timed{at: time.Duration(r.IntN(100)), seq: uint64(step), entry: &entry{}}
				if r.IntN(2) == 0 {
					next.hold = &hold{entry: next.entry}
				}
				h.push(next)
				model = append(model, next)
			case 2:
				if len(model) == 0 {
					continue
				}
				i := r.IntN(len(model))
				h.remove(model[i].pos())
				model = slices.Delete(model, i, i+1)
			default:
				slices.SortFunc(model, func(a, b timed) int {
					if a.before(b) {
						return -1
					}
					return 1
				})
				now := time.Duration(r.IntN(40))
				got, ok := h.pop(now)
				if want := len(model) > 0 && model[0].at <= now; ok != want || ok && got != model[0] {
					t.Fatalf("seed %d, step %d: pop(%d) = %v, %v; want %v from %v", seed, step, now, got, ok, want, model)
				}
				if ok {
					model = model[1:]
				}
			}
			for i, a := range h {
				if int(*a.pos()) != i+1 {
					t.Fatalf("seed %d, step %d: the alarm at %d believes to be at %d", seed, step, i, *a.pos()-1)
				}
			}
		}
	}
}

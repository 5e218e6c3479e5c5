package budget_test

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/retry/budget"
)

// A worker counts what is delivered, and asks for a time for each retry.
func Example() {
	b, err := budget.New(budget.Queue())
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) // time.Now() in a worker
	b.Delivered(now, 40)

	// All 40 fail at once, and the backoff says to retry each after 2 s.
	var first, last time.Time
	for i := range 40 {
		last = b.Reserve(now, now.Add(2*time.Second))
		if i == 0 {
			first = last
		}
	}
	fmt.Println("first after", first.Sub(now).Round(time.Second))
	fmt.Println("last after", last.Sub(now).Round(time.Second))
	// Output:
	// first after 2s
	// last after 35s
}

// A reservation whose retry will not run is given back, for another to take.
func ExampleBudget_Refund() {
	b, _ := budget.New(budget.Config{Share: 0.1, Floor: 0.7})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	b.Reserve(now, now)
	slot := b.Reserve(now, now)
	fmt.Println("second after", slot.Sub(now).Round(time.Second))

	b.Refund(now, slot) // its message went to the dead letters
	fmt.Println("third after", b.Reserve(now, now).Sub(now).Round(time.Second))
	// Output:
	// second after 2s
	// third after 2s
}

// Metrics come from a snapshot.
func ExampleBudget_Snapshot() {
	b, _ := budget.New(budget.Mesh())
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	b.Delivered(now, 500)
	for range 300 {
		b.Reserve(now, now)
	}
	s := b.Snapshot(now)
	fmt.Printf("%d of %d used in the coming window\n", s.Used, s.Limit)
	fmt.Printf("%d retries moved, by %.0f s on average\n", s.Moved, s.Added/float64(s.Moved))
	fmt.Printf("reserved up to %v ahead\n", s.Furthest.Sub(now).Round(time.Second))
	// Output:
	// 172 of 200 used in the coming window
	// 271 retries moved, by 10 s on average
	// reserved up to 18s ahead
}

// All faults come at once, each with its fix.
func ExampleNew() {
	_, err := budget.New(budget.Config{Share: 10, Floor: 0.1})
	fmt.Println(err)
	// Output:
	// budget: Config.Share is 10: use a number above 0 and at most 1, such as 0.1 for 10 %
	// budget: Config.Window is 10s: too short for a Floor of 0.1 per second: use a Window of at least 7s/Floor, or a Floor of at least 0.7
}

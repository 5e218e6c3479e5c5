package budget_test

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/retry/budget"
)

// A worker counts what is delivered, and asks for a token before each retry.
func Example() {
	b, err := budget.New(budget.Queue())
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) // time.Now() in a worker
	b.Deposit(now, 40)

	// All 40 fail, their backoff of 2 s ends, and the dependency is still down.
	now = now.Add(2 * time.Second)
	started := 0
	var longest time.Duration
	for range 40 {
		wait, ok := b.Withdraw(now, 15*time.Minute, 0.5) // rand.Float64() in a worker
		if ok {
			started++
		}
		longest = max(longest, wait)
	}
	fmt.Println(started, "retries start, the others ask again within", longest.Round(100*time.Millisecond))
	// Output:
	// 5 retries start, the others ask again within 2.4s
}

// A retry that succeeds gives its token back.
func ExampleBudget_Refund() {
	b, _ := budget.New(budget.Config{Share: 0.1, Floor: 0.05})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	_, first := b.Withdraw(now, time.Minute, 0.5)
	now = now.Add(5 * time.Second)
	_, second := b.Withdraw(now, time.Minute, 0.5)
	b.Refund(now) // the first one succeeded
	_, third := b.Withdraw(now, time.Minute, 0.5)
	fmt.Println(first, second, third)
	// Output:
	// true false true
}

// Metrics come from a snapshot.
func ExampleBudget_Snapshot() {
	b, _ := budget.New(budget.Mesh())
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	for range 300 {
		b.Withdraw(now, time.Minute, 0.5)
	}
	s := b.Snapshot(now)
	fmt.Printf("%.0f of %.0f tokens, at most %.0f retries a second\n", s.Tokens, s.Capacity, s.Limit)
	fmt.Printf("%d granted, %d told to wait, by %.1f s on average\n", s.Granted, s.Deferred, s.Waits/float64(s.Deferred))
	// Output:
	// 123 of 150 tokens, at most 110 retries a second
	// 27 granted, 273 told to wait, by 0.9 s on average
}

// All faults come at once, each with its fix.
func ExampleNew() {
	_, err := budget.New(budget.Config{Share: 10, Floor: -1})
	fmt.Println(err)
	// Output:
	// budget: Config.Share: is 10: use a number above 0 and at most 1, such as 0.1 for 10 %
	// budget: Config.Floor: is -1: use a number of retries a second above 0 and at most 1000000, such as 1; without it, no retry could start once traffic stops
}

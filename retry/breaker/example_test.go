package breaker_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/retry/breaker"
)

var errDown = errors.New("503 from payments")

// A worker asks before each run, and reports how it ended.
func Example() {
	b, err := breaker.New(breaker.Config{MinRuns: 4})
	if err != nil {
		fmt.Println(err)
		return
	}
	const random = 0.5 // rand.Float64() in a worker
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	up := now.Add(10 * time.Second)
	handle := func(message int) error { // the dependency is down for 10 s
		if now.Before(up) {
			return errDown
		}
		return nil
	}

	for message := 1; message <= 6; {
		run, ok := b.Start(now)
		if !ok { // in a worker: pause the source until next, or until woken by a change
			_, next := b.Allows(now)
			fmt.Printf("wait %v: %s\n", next.Sub(now), b.Snapshot(now).Reason)
			now = next
			continue
		}
		outcome := breaker.Success
		if handle(message) != nil {
			outcome = breaker.Failure
		}
		of := uint64(message) // a hash of its ID in a worker
		if b.Done(now, run, of, outcome, random) {
			fmt.Println("message", message, "changed it to", b.Snapshot(now).State)
		}
		message++
	}
	// Output:
	// message 4 changed it to open
	// wait 7.5s: 4 of the last 4 messages failed
	// message 5 changed it to open
	// wait 12.5s: 4 of the last 4 messages failed
	// message 6 changed it to closed
}

// A dependency that said when to come back is not asked before.
func ExampleBreaker_NotBefore() {
	b, _ := breaker.New(breaker.Config{})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	b.Trip(now, "429 from payments", 0.5)
	b.NotBefore(now, now.Add(time.Minute)) // Retry-After: 60
	s := b.Snapshot(now)
	fmt.Printf("%v for another %v: %s\n", s.State, s.Next.Sub(now), s.Reason)
	// Output:
	// open for another 1m0s: 429 from payments
}

// An operator keeps everything from a dependency, for as long as it takes.
func ExampleBreaker_Isolate() {
	b, _ := breaker.New(breaker.Config{})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	b.Isolate(now, "moving the database")
	ok, next := b.Allows(now.Add(time.Hour))
	fmt.Println(ok, next.IsZero())

	b.Restore(now.Add(2 * time.Hour))
	probe, ok := b.Start(now.Add(2 * time.Hour))
	fmt.Println(ok, probe.Probe())
	// Output:
	// false true
	// true true
}

// All faults come at once, each with its fix.
func ExampleNew() {
	_, err := breaker.New(breaker.Config{Ratio: 50, MaxOpen: 5 * time.Second})
	fmt.Println(err)
	// Output:
	// breaker: Config.Ratio: is 50: use a number above 0 and at most 1, or 0 for the default of 0.9
	// breaker: Config.MaxOpen: is 5s: use at least twice MinOpen (5s), or the workers of a fleet would all probe at once
}

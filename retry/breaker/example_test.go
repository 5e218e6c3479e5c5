package breaker_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/retry/breaker"
)

// source is a queue in virtual time.
type source struct{ now time.Time }

func (s *source) receive(n int) []string {
	s.now = s.now.Add(time.Second)
	return []string{"a", "b", "c", "d"}[:min(n, 4)]
}

var errDown = errors.New("503 from payments")

// The loop of a worker fetches only what the breaker grants, and asks again
// before each run, because the breaker may have opened since.
func Example() {
	b, err := breaker.New(breaker.Config{MinRuns: 4, Successes: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	const random = 0.5 // rand.Float64() in a worker
	s := &source{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	start := s.now
	handle := func(string) error { // the dependency is down for 10 s
		if s.now.Sub(start) < 10*time.Second {
			return errDown
		}
		return nil
	}

	for range 6 {
		fetched, n, next := b.Fetch(s.now, 10)
		if n == 0 { // in a worker: until next, or until woken by a change
			fmt.Printf("wait %v\n", next.Sub(s.now))
			s.now = next
			continue
		}
		for _, delivery := range s.receive(n) {
			run, ok := b.Start(s.now, fetched)
			if !ok { // give it back, uncounted
				fmt.Println("release", delivery)
				continue
			}
			outcome := breaker.Success
			if handle(delivery) != nil {
				outcome = breaker.Failure
			}
			if b.Done(s.now, run, outcome, random) {
				fmt.Println(delivery, "changed it to", b.Snapshot(s.now).State)
			}
		}
	}
	// Output:
	// d changed it to open
	// wait 7.5s
	// a changed it to open
	// wait 12.5s
	// a changed it to half-open
	// a changed it to closed
}

// A caller that fetches nothing asks before each call only.
func ExampleBreaker_Start() {
	b, _ := breaker.New(breaker.Config{})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	run, ok := b.Start(now, breaker.Permit{})
	fmt.Println("first call:", ok)
	b.Trip(now, run, "401 from payments", 0.5)

	_, ok = b.Start(now, breaker.Permit{})
	s := b.Snapshot(now)
	fmt.Println("second call:", ok)
	fmt.Printf("%v for another %v: %s\n", s.State, s.Next.Sub(now), s.Reason)
	// Output:
	// first call: true
	// second call: false
	// open for another 7.5s: 401 from payments
}

// An operator keeps everything from a dependency, for as long as it takes.
func ExampleBreaker_Isolate() {
	b, _ := breaker.New(breaker.Config{})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	b.Isolate(now, "moving the database")
	_, n, next := b.Fetch(now.Add(time.Hour), 10)
	fmt.Println(n, next.IsZero())

	b.Restore(now.Add(2 * time.Hour))
	probe, n, _ := b.Fetch(now.Add(2*time.Hour), 10)
	fmt.Println(n, probe.Probe())
	// Output:
	// 0 true
	// 1 true
}

// All faults come at once, each with its fix.
func ExampleNew() {
	_, err := breaker.New(breaker.Config{Ratio: 50, MaxOpen: 5 * time.Second})
	fmt.Println(err)
	// Output:
	// breaker: Config.Ratio is 50: use a number above 0 and at most 1, or 0 for the default of 0.5
	// breaker: Config.MaxOpen is 5s: use at least twice MinOpen (5s), or the workers of a fleet would all probe at once
}

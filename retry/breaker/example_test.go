package breaker_test

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/flow"
)

// A client asks before each call, and reports how it ended.
func Example() {
	b := breaker.New(breaker.Config{Random: func() float64 { return 0.5 }}) // without Random in a client
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	up := now.Add(5 * time.Second)
	call := func() flow.Outcome { // the dependency is down for 5 s
		if now.Before(up) {
			return flow.Overload
		}
		return flow.Success
	}

	started, refused, was := 0, 0, breaker.Closed
	for range 600 { // ten calls a second, for a minute
		began := now
		now = now.Add(100 * time.Millisecond)
		if ok, _ := b.Start(began); ok {
			b.Done(now, began, 0, call())
			started++
		} else {
			refused++
		}
		s := b.Snapshot(now)
		if recovered := was == breaker.HalfOpen && s.State == breaker.Closed; recovered || was == breaker.Closed && s.State != was {
			fmt.Printf("%v: %v %q\n", now.Format(time.TimeOnly), s.State, s.Reason)
		}
		was = s.State
	}
	fmt.Println(started, "started,", refused, "were refused")
	// Output:
	// 12:00:00: open "3 of the last 3 messages failed"
	// 12:00:18: closed ""
	// 530 started, 70 were refused
}

// An operator keeps all calls from a dependency, for as long as it takes.
func ExampleBreaker_Isolate() {
	b := breaker.New(breaker.Config{})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

	b.Isolate("moving the database")
	ok, next := b.Start(now.Add(time.Hour))
	fmt.Println(ok, next.IsZero())

	b.Restore(now.Add(2 * time.Hour))
	ok, _ = b.Start(now.Add(2*time.Hour + time.Minute))
	fmt.Println(ok, b.Snapshot(now.Add(2*time.Hour+time.Minute)).State)
	// Output:
	// false true
	// true open
}

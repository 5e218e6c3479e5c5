package retry_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry"
)

// The schedule of a backoff: between which limits each delay falls, and how
// long all of them take at most.
func ExampleBackoff() {
	b := retry.Backoff{Base: time.Second, Cap: 10 * time.Second, Jitter: retry.EqualJitter}

	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "attempt\tshortest\tlongest\tin all")
	var total time.Duration
	for attempt := 1; attempt <= 6; attempt++ {
		longest := b.Envelope(attempt)
		total += longest
		fmt.Fprintf(w, "%d\t%v\t%v\t%v\n", attempt, b.Delay(attempt, 0, 0), longest, total)
	}
	w.Flush()
	// Output:
	// attempt  shortest  longest  in all
	// 1        500ms     1s       1s
	// 2        1s        2s       3s
	// 3        2s        4s       7s
	// 4        4s        8s       15s
	// 5        5s        10s      25s
	// 6        5s        10s      35s
}

// A message that fails, first because its service is busy, then for good.
func ExamplePolicy_Decide() {
	policy := retry.Policy{MaxAttempts: 3}
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	failure := retry.FailedRun{Attempt: 1, FirstFailedAt: now, Now: now}

	failure.Verdict = classify.Verdict{Class: classify.ClassThrottled, RetryAfter: 30 * time.Second}
	fmt.Printf("%+v\n", policy.Decide(failure, 0.5))

	failure.Verdict = classify.Verdict{Class: classify.ClassTransient}
	fmt.Printf("%+v\n", policy.Decide(failure, 0.5))

	failure.Attempt = 3
	fmt.Printf("%+v\n", policy.Decide(failure, 0.5))
	// Output:
	// {Retry:true DeadLetter:false Delay:30s Reason:throttled Counted:false}
	// {Retry:true DeadLetter:false Delay:500ms Reason:transient Counted:true}
	// {Retry:false DeadLetter:true Delay:0s Reason:exhausted Counted:true}
}

// A call that works at the third try, and one that no retry can help.
func ExamplePolicy_Do() {
	tries := 0
	err := retry.Policy{}.Do(context.Background(), func(context.Context) error {
		if tries++; tries < 3 {
			return errors.New("connection reset")
		}
		return nil
	})
	fmt.Println(tries, err)

	declined := errors.New("card declined")
	tries = 0
	err = retry.Policy{}.Do(context.Background(), func(context.Context) error {
		tries++
		return classify.Permanent(declined)
	})
	fmt.Println(tries, errors.Is(err, declined))
	// Output:
	// 3 <nil>
	// 1 true
}

// All faults come at once, each with its fix.
func ExamplePolicy_Validate() {
	p := retry.Policy{
		MaxAttempts: -1,
		Backoff:     retry.Backoff{Base: time.Minute, Cap: 30 * time.Second, Multiplier: 0.5},
	}
	fmt.Println(p.Validate())
	// Output:
	// retry: Policy.MaxAttempts: is -1: use 1 or more, or 0 for the default of 10
	// retry: Policy.Backoff.Multiplier: is 0.5: use a finite number of at least 1, or 0 for the default of 2
	// retry: Policy.Backoff.Cap: is 30s: use at least Backoff.Base (1m0s)
}

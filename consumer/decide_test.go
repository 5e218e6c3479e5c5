package consumer

import (
	"errors"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry"
)

// TestDecide has the limits of a failed run, after so many attempts and uncounted
// failures.
func TestDecide(t *testing.T) {
	transient, unknown := classify.Of(classify.Transient(errors.New("busy"))), classify.Of(errors.New("odd"))
	poison, ambiguous := classify.Of(classify.Permanent(errors.New("declined"))), transient
	ambiguous.Ambiguous = true
	throttled := classify.Of(classify.Throttled(errors.New("slow down"), 0))
	alone, beside, spread := circumstances{}, circumstances{counts: true}, circumstances{counts: true, spread: true}
	early, hardly := circumstances{counts: true, early: 30 * time.Minute}, circumstances{counts: true, early: time.Minute}
	for _, tt := range []struct {
		name               string
		verdict            classify.Verdict
		others             circumstances
		attempt, uncounted int
		old                time.Duration
		noRepeat           bool
		want               string // the reason if it is dead
		counted            bool
		least, most        time.Duration // of the delay, with the least and the most chance
	}{
		{"first failure, nothing succeeds", transient, alone, 1, 0, 0, false, "", false, 750 * time.Millisecond, time.Second},
		{"first failure beside a success", transient, beside, 1, 0, 0, false, "", true, 0, time.Second},
		{"uncounted failures lengthen the delay", transient, alone, 1, 6, 0, false, "", false, 48 * time.Second, 64 * time.Second},
		{"up to nine minutes", transient, alone, 1, 99, 0, false, "", false, 405 * time.Second, 9 * time.Minute},
		{"last attempt, nothing succeeds", transient, alone, 10, 0, 0, false, "", false, 384 * time.Second, 512 * time.Second},
		{"last attempt beside a success", transient, beside, 10, 0, 0, false, "exhausted", true, 0, 0},
		{"last attempt, but retries wait", transient, hardly, 10, 0, time.Minute, false, "", false, 395250 * time.Millisecond, 512 * time.Second},
		{"failed for longer than the longest delay", transient, early, 10, 0, 30 * time.Minute, false, "", false, 485250 * time.Millisecond, 9 * time.Minute},
		{"last but one, and retries wait", transient, early, 9, 0, 30 * time.Minute, false, "", true, 0, 256 * time.Second},
		{"poison, and retries wait", poison, early, 2, 0, 30 * time.Minute, false, "poison", true, 0, 0},
		{"too old, and retries wait", transient, early, 2, 0, 25 * time.Hour, false, "expired", true, 0, 0},
		{"last but one beside a success", transient, beside, 9, 0, 0, false, "", true, 0, 256 * time.Second},
		{"unknown, nothing succeeds", unknown, alone, 6, 0, 0, false, "", false, 24 * time.Second, 32 * time.Second},
		{"unknown, only this message fails", unknown, beside, 6, 0, 0, false, "unclassified", true, 0, 0},
		{"unknown, others fail, too", unknown, spread, 6, 0, 0, false, "", true, 0, 32 * time.Second},
		{"unknown, others fail, too, tenth attempt", unknown, spread, 10, 0, 0, false, "unclassified", true, 0, 0},
		{"throttled beside a success", throttled, beside, 1, 0, 0, false, "", false, 0, time.Second},
		{"throttled beside a success, too often", throttled, beside, 10, 5, 0, false, "exhausted", true, 0, 0},
		{"poison", poison, beside, 1, 0, 0, false, "poison", true, 0, 0},
		{"poison, nothing succeeds", poison, alone, 1, 0, 0, false, "poison", true, 0, 0},
		{"too old, nothing succeeds", transient, alone, 1, 0, 24 * time.Hour, false, "expired", false, 0, 0},
		{"too old beside a success", transient, beside, 2, 0, 25 * time.Hour, false, "expired", true, 0, 0},
		{"ambiguous, not to be repeated", ambiguous, alone, 1, 0, 0, true, "ambiguous", true, 0, 0},
		{"without effect, not to be repeated", transient, alone, 1, 0, 0, true, "", false, 750 * time.Millisecond, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Unix(1e9, 0)
			f := retry.FailedRun{Attempt: tt.attempt, Throttles: tt.uncounted, FirstFailedAt: now.Add(-tt.old), Now: now, Verdict: tt.verdict}
			r := &route{noRepeat: tt.noRepeat}
			low, high := r.decide(f, tt.others, 0), r.decide(f, tt.others, 0.9999)
			reason := ""
			if low.DeadLetter {
				reason = low.Reason
			}
			if reason != tt.want || low.Counted != tt.counted || low.Retry != high.Retry || low.DeadLetter != high.DeadLetter {
				t.Errorf("%+v, want reason %q, counted %v", low, tt.want, tt.counted)
			}
			if low.Delay.Round(time.Millisecond) != tt.least || (high.Delay-tt.most).Abs() > tt.most/100 {
				t.Errorf("a delay of %v to %v, want %v to %v", low.Delay, high.Delay, tt.least, tt.most)
			}
		})
	}
}

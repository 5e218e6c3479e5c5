package kafka

import (
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// The day counts from when the record was made: workers that come and go do not prolong
// it. What the policy allows is believed.
func TestDueTimesAreBounded(t *testing.T) {
	const years = 9 * 365 * 24 * time.Hour
	now := time.Now().Truncate(time.Millisecond)
	for name, tt := range map[string]struct {
		made, due, want time.Duration // from now
		policy          time.Duration
	}{
		"usual":               {due: time.Minute, want: time.Minute},
		"long, by the policy": {due: 99 * time.Hour, policy: 100 * time.Hour, want: 99 * time.Hour},
		"long":                {due: 99 * time.Hour, want: longestNote},
		"a day ago":           {made: -longestNote, due: years, want: 0},
		"made ahead":          {made: time.Hour, due: years, want: longestNote},
		"made far ahead":      {made: longestNote + 1, due: years, want: time.Unix(0, 0).Sub(now)},
		"made with no time":   {made: time.UnixMilli(-1).Sub(now), due: years, want: longestNote},
	} {
		rec := copyOf(noSeal, brokers.Message{ID: "b", Topic: "orders"}, brokers.Meta{DueAt: now.Add(tt.due)})
		rec.time = now.Add(tt.made)
		r := &reader{source: &source{sub: brokers.Subscription{MaxDelay: tt.policy}}}
		if got := time.UnixMilli(r.dueOf(&rec, now)).Sub(now); got != tt.want {
			t.Errorf("%s: due in %v, want %v", name, got, tt.want)
		}
	}
}

package flow_test

import (
	"testing"
	"time"

	"github.com/redrive-go/redrive/retry/flow"
)

// TestIncidents plays incidents whose figures follow from the constants in limiter.go.
// Unless an incident says otherwise, there are ten slots, a run takes 10 ms, and the
// minute before has 20 messages a second, all of which succeed. No work waits in that
// minute, so the limit is still the five that it began with.
func TestIncidents(t *testing.T) {
	for name, tt := range map[string]struct {
		play        func(w *world) float64
		least, most float64
	}{
		// Nothing fails, so that nothing is cut, and nothing waits.
		"runs take twice as long: the limit": {func(w *world) float64 {
			w.call = answers(20 * time.Millisecond)
			w.offer(100, time.Minute)
			return w.limit()
		}, 5, 5},
		"runs take twenty times as long, and work waits: runs a second": {func(w *world) float64 {
			w.call = answers(200 * time.Millisecond)
			w.flood(time.Minute)
			return float64(w.ended[flow.Success]-1200) / 60
		}, 49, 51},

		// The sample has 64 successes. More than nine tenths of it have failed after 58
		// failures, in 3 s. A few cuts later probes come each second: a 20th of the
		// normal rate, and the shortest distance.
		"down for 30 s: failures": {func(w *world) float64 {
			w.call = ends(flow.Overload, 3*time.Millisecond)
			w.offer(20, 30*time.Second)
			return float64(w.ended[flow.Overload])
		}, 75, 110},

		// The ramp begins at an eighth of the normal rate, doubles in 1.25 s, stays below
		// 1.5 times the normal rate for 5 s, and doubles again: 780 messages take 11 s.
		"down for 30 s: seconds until 560 waiting messages are done": {func(w *world) float64 {
			w.call = ends(flow.Overload, 3*time.Millisecond)
			w.offer(20, 30*time.Second)
			clear(w.ended)
			w.call = answers(10 * time.Millisecond)
			start := w.now
			for w.ended[flow.Success] < 780 {
				w.flood(100 * time.Millisecond)
			}
			return w.now.Sub(start).Seconds()
		}, 9, 14},

		// Unknown errors do not go below one run at a time.
		"all runs end with an unknown error: runs in ten minutes": {func(w *world) float64 {
			w.call = ends(flow.Unknown, 10*time.Millisecond)
			w.flood(10 * time.Minute)
			return float64(w.ended[flow.Unknown])
		}, 55_000, 61_000},
		"all messages are poison: the limit": {func(w *world) float64 {
			w.call = ends(flow.Poison, 10*time.Millisecond)
			w.flood(time.Minute)
			return w.limit()
		}, 5, 5},
		"every second run fails: the limit": {func(w *world) float64 {
			w.call = func(_ time.Time, _ int, message uint64) (flow.Outcome, time.Duration) {
				if message%2 == 0 {
					return flow.Overload, 10 * time.Millisecond
				}
				return flow.Success, 10 * time.Millisecond
			}
			w.flood(time.Minute)
			return w.limit()
		}, 10, 10},

		// A fleet of 50 would probe every 50 s, each; 30 s is the most, and more than a
		// 20th of one message in two seconds. Until then 58 of the sample must fail.
		"down, one of 50 workers with a message in two seconds: runs in the last ten minutes of an hour": {func(w *world) float64 {
			w.Adjust(w.now, flow.Change{Workers: 50})
			w.offer(0.5, 30*time.Minute)
			w.call = ends(flow.Overload, 3*time.Millisecond)
			w.offer(0.5, 50*time.Minute)
			clear(w.ended)
			w.offer(0.5, 10*time.Minute)
			return float64(w.ended[flow.Overload])
		}, 18, 25},

		"paused by hand for an hour: starts in the second after": {func(w *world) float64 {
			w.Adjust(w.now, flow.Change{Pause: "maintenance"})
			w.flood(time.Hour)
			w.Adjust(w.now, flow.Change{Resume: true})
			from := w.now.Unix() - epoch.Unix()
			w.flood(time.Second)
			return float64(w.startsIn(from, from+1))
		}, 1, 4},

		// Five runs hang at a time, for 30 s. After 120 s the successes are forgotten and
		// the limit is cut, once a round. From then on a probe starts after 10 s though
		// others hang, and three hang at once: six a minute.
		"all runs time out after 30 s: runs in an hour": {func(w *world) float64 {
			w.call = ends(flow.Timeout, 30*time.Second)
			w.flood(time.Hour)
			return float64(w.ended[flow.Timeout])
		}, 355, 375},

		// Two hang for ever and leave eight places.
		"two runs never end: runs a second": {func(w *world) float64 {
			w.flood(3 * time.Second)
			hang := 2
			w.call = func(time.Time, int, uint64) (flow.Outcome, time.Duration) {
				if hang--; hang >= 0 {
					return flow.Success, 24 * time.Hour
				}
				return flow.Success, 10 * time.Millisecond
			}
			from := w.now.Unix() - epoch.Unix()
			w.flood(time.Minute)
			return float64(w.startsIn(from, from+60)) / 60
		}, 790, 810},

		// The seventh of 64 is the first cut. What it served in the best second of the
		// last four holds the limit at 20 a second for as long; then probes come each
		// second.
		"all are throttled for 30 s: runs": {func(w *world) float64 {
			w.call = ends(flow.Throttled, 3*time.Millisecond)
			w.flood(30 * time.Second)
			return float64(w.ended[flow.Throttled])
		}, 115, 160},

		// The time of the limit goes on from where it was: a probe a second.
		"down, and the clock is set back by an hour: runs in ten minutes after that": {func(w *world) float64 {
			w.call = ends(flow.Overload, 3*time.Millisecond)
			w.flood(time.Minute)
			clear(w.ended)
			w.now = w.now.Add(-time.Hour)
			w.flood(10 * time.Minute)
			return float64(w.ended[flow.Overload])
		}, 560, 640},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(10)
			w.offer(20, time.Minute)
			if got := tt.play(w); got < tt.least || got > tt.most {
				t.Errorf("%v, want %v to %v", got, tt.least, tt.most)
			}
		})
	}

	// A new limit is half of the slots and doubles in 1.25 s, because nothing is normal
	// yet that a ramp would have to stay below.
	t.Run("a hundred slots, and work waits from the first moment: seconds until the limit is full", func(t *testing.T) {
		w := newWorld(100)
		for !w.Status(w.now).Full() {
			w.flood(10 * time.Millisecond)
		}
		if got := w.now.Sub(epoch).Seconds(); got < 1 || got > 2.5 {
			t.Errorf("%v, want 1 to 2.5", got)
		}
	})
}

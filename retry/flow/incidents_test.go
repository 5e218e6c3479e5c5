package flow_test

import (
	"testing"
	"time"

	"github.com/redrive-go/redrive/retry/flow"
)

// incident is one whose figure follows from the constants in limiter.go. Unless it says
// otherwise, there are ten slots, a run takes 10 ms, and the minute before has 20
// messages a second, all of which succeed. No work waits in that minute, so the limit is
// still the five that it began with.
type incident struct {
	play        func(w *world) float64
	least, most float64
}

func playIncidents(t *testing.T, incidents map[string]incident) {
	for name, tt := range incidents {
		t.Run(name, func(t *testing.T) {
			w := newWorld(10)
			w.offer(20, time.Minute)
			if got := tt.play(w); got < tt.least || got > tt.most {
				t.Errorf("%v, want %v to %v", got, tt.least, tt.most)
			}
		})
	}
}

func TestIncidents(t *testing.T) {
	playIncidents(t, map[string]incident{
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
	})

	// A new limit is half of the slots and doubles in 1.25 s, because nothing is normal
	// yet that a ramp would have to stay below.
	t.Run("a hundred slots, and work waits from the first moment: seconds until the limit is full", func(t *testing.T) {
		if got := newWorld(100).untilFull(); got < 1 || got > 2.5 {
			t.Errorf("%v, want 1 to 2.5", got)
		}
	})
}

// TestIncidentsAnsweredFirst plays incidents whose figures were worked out from the
// text of the package before they were played.
func TestIncidentsAnsweredFirst(t *testing.T) {
	playIncidents(t, map[string]incident{
		// Half of one slot is less than one run, so the limit begins at the one slot. A run
		// starts when the last one ends.
		"one slot, and work waits from the first moment: runs in the second minute": {func(*world) float64 {
			w := newWorld(1)
			w.flood(time.Minute)
			clear(w.ended)
			w.flood(time.Minute)
			return float64(w.ended[flow.Success])
		}, 6000, 6000},

		// A 20th of the normal rate is a probe a second. That is more often than a 600th
		// of the silence, which is 5 to 6 s by then.
		"down for an hour: failures in the last ten minutes": {func(w *world) float64 {
			w.call = ends(flow.Overload, 3*time.Millisecond)
			w.offer(20, 50*time.Minute)
			clear(w.ended)
			w.offer(20, 10*time.Minute)
			return float64(w.ended[flow.Overload])
		}, 590, 610},

		// A message has one entry in the sample, so 1 of 64 fails.
		"one message fails 200 times: the limit": {func(w *world) float64 {
			for range 200 {
				began := w.now
				w.Start(began)
				w.now = began.Add(3 * time.Millisecond)
				w.Done(w.now, flow.End{Began: began, Who: 1 << 40, Outcome: flow.Overload})
				w.now = began.Add(100 * time.Millisecond)
			}
			return w.limit()
		}, 5, 5},

		// At most 6 of 64 are throttled, less than a tenth. The first success doubles the
		// limit, because nothing has grown it for longer than 1.25 s.
		"3 of 100 are throttled, and work waits: the limit": {func(w *world) float64 {
			w.call = func(_ time.Time, _ int, message uint64) (flow.Outcome, time.Duration) {
				if message%100%33 == 0 && message%100 != 99 {
					return flow.Throttled, 3 * time.Millisecond
				}
				return flow.Success, 10 * time.Millisecond
			}
			w.flood(time.Minute)
			return w.limit()
		}, 10, 10},

		// Nine tenths of the sample are never bad: of 64 messages in a row, 12 or 13
		// succeed, and at most four of them more are running at the end than at the begin.
		"four of five fail, and work waits: the limit": {func(w *world) float64 {
			w.call = func(_ time.Time, _ int, message uint64) (flow.Outcome, time.Duration) {
				if message%5 == 0 {
					return flow.Success, 10 * time.Millisecond
				}
				return flow.Overload, 3 * time.Millisecond
			}
			w.flood(time.Minute)
			return w.limit()
		}, 10, 10},

		// The limit is 1 then and doubles in 1.25 s. Ten is 3.32 doublings. A limit of one
		// run is above the normal load, so this is no ramp that has to stay below it.
		"ten minutes of unknown errors: seconds from the first success until the limit is full": {func(w *world) float64 {
			w.call = ends(flow.Unknown, 10*time.Millisecond)
			w.flood(10 * time.Minute)
			w.recovers()
			return w.untilFull()
		}, 4.0, 4.3},

		// Poison says nothing about the dependency, and a success raises the limit.
		"19 of 20 messages are poison, and work waits: the limit": {func(w *world) float64 {
			w.call = func(_ time.Time, _ int, message uint64) (flow.Outcome, time.Duration) {
				if message%20 == 0 {
					return flow.Success, 10 * time.Millisecond
				}
				return flow.Poison, 10 * time.Millisecond
			}
			w.flood(time.Minute)
			return w.limit()
		}, 10, 10},

		// Time alone changes no limit. Five start, their first end doubles the limit, and
		// ten start in each of the other 99 hundredths of the second.
		"idle for two hours, then work waits: successes in the first second": {func(w *world) float64 {
			w.now = w.now.Add(2 * time.Hour)
			clear(w.ended)
			w.flood(time.Second)
			return float64(w.ended[flow.Success])
		}, 995, 995},

		// The first success raises the limit to an eighth of the normal rate: 2.5 starts a
		// second, and twice as many after 1.25 s. Without jitter the starts come after
		// 0.39, 0.71, 0.98 and 1.21 s. With it, the third comes in time in 64 of 100.
		"down for five minutes, then work waits: mean of the starts in the second after the first success": {func(*world) float64 {
			const outages = 20
			starts := uint64(0)
			for i := range outages {
				w := newWorld(10)
				w.offer(20, time.Minute)
				w.call = ends(flow.Overload, 3*time.Millisecond)
				w.offer(20, 5*time.Minute+time.Duration(5*i)*time.Second)
				w.recovers()
				from := w.next
				w.flood(time.Second)
				starts += w.next - from
			}
			return float64(starts) / outages
		}, 2.35, 2.95},

		// From an eighth of the normal rate to 1.5 times of it there are 4.5 s of doubling
		// and 50 runs. The rest of the first 5 s has 15. Then 5 s of doubling have 814, and
		// the last five have not ended.
		"paused by hand for ten seconds: runs in the ten seconds after": {func(w *world) float64 {
			w.Adjust(w.now, flow.Change{Pause: "maintenance"})
			w.flood(10 * time.Second)
			w.Adjust(w.now, flow.Change{Resume: true})
			clear(w.ended)
			w.flood(10 * time.Second)
			return float64(w.ended[flow.Success])
		}, 850, 900},

		// Probes come ten times a second, a 20th of the normal rate. The ramp takes 5 s up to
		// 1.5 times the normal rate, which is a limit of 3. A hundred is 5.06 doublings more.
		"a hundred slots and 200 messages a second, down for 20 s: seconds until the limit is full": {func(*world) float64 {
			w := newWorld(100)
			w.offer(200, time.Minute)
			w.call = ends(flow.Overload, 3*time.Millisecond)
			w.offer(200, 20*time.Second)
			w.call = answers(10 * time.Millisecond)
			return w.untilFull()
		}, 11.1, 11.7},

		// Two workers would probe every 2 s, each. A 20th of the normal rate of this one is
		// a probe a second, which is more often.
		"down for a minute, one of two workers: failures in the last half": {func(w *world) float64 {
			w.Adjust(w.now, flow.Change{Workers: 2})
			w.call = ends(flow.Overload, 3*time.Millisecond)
			w.offer(20, 30*time.Second)
			clear(w.ended)
			w.offer(20, 30*time.Second)
			return float64(w.ended[flow.Overload])
		}, 28, 32},
	})
}

// recovers lets all runs succeed, and has messages wait until one did.
func (w *world) recovers() {
	w.call = answers(10 * time.Millisecond)
	for before := w.ended[flow.Success]; w.ended[flow.Success] == before; {
		w.flood(time.Millisecond)
	}
}

// untilFull has messages wait, and returns after how many seconds the limit is full.
func (w *world) untilFull() float64 {
	start := w.now
	for !w.Adjust(w.now, flow.Change{}).Full() {
		w.flood(10 * time.Millisecond)
	}
	return w.now.Sub(start).Seconds()
}

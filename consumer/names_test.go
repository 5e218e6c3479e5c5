package consumer

import (
	"fmt"
	"testing"
	"time"

	"github.com/redrive-go/redrive/retry/flow"
)

// TestNames plays starts and ends of runs for names, one letter each. A row of
// events is "time event name"; the events are start, refused, or an outcome.
func TestNames(t *testing.T) {
	outcomes := map[string]flow.Outcome{
		"success": flow.Success, "timeout": flow.Timeout, "overload": flow.Overload, "unknown": flow.Unknown,
		"throttled": flow.Throttled, "poison": flow.Poison, "lost": flow.Neutral,
	}
	for _, tt := range []struct {
		name   string
		slots  int
		usual  time.Duration
		events []string
	}{
		{"a healthy name has all slots", 3, 0, []string{"0s start a", "0s start a", "0s start a"}},
		{"a name that timed out has one slot", 10, 0, []string{
			"0s start a", "1s timeout a", "1s start a", "1s refused a", "2s timeout a", "2s start a", "2s refused a"}},
		{"a success ends the trouble", 10, 0, []string{
			"0s start a", "1s timeout a", "1s start a", "2s success a", "2s start a", "2s start a"}},
		{"only a timeout is trouble", 10, 0, []string{
			"0s start a", "0s overload a", "0s start a", "0s unknown a", "0s start a", "0s throttled a", "0s start a", "0s poison a",
			"0s start a", "0s lost a", "0s start a", "0s start a"}},
		{"a run that is out for a second", 10, 0, []string{"0s start a", "1s start a", "1.001s refused a", "1.001s start b"}},
		{"a run that is out for ten times the usual", 10, time.Second, []string{"0s start a", "10s start a", "10.001s refused a"}},
		{"a run that is out for twice the longest success", 10, time.Second, []string{
			"0s start b", "20s success b", "20s start a", "60s start a", "60.001s refused a"}},
		{"long runs leave a slot to others", 3, 10 * time.Second, []string{
			"0s start a", "9s success a", "9s start b", "9s start a", "10.001s refused a", "10.001s start c", "10.1s success c", "19s success a", "19s start a"}},
		{"long runs of the only name have all slots", 3, 10 * time.Second, []string{
			"0s start a", "9s success a", "61s start a", "61s start a", "61s start a"}},
		{"a quick name has all slots", 4, 0, []string{"0s start a", "0s start a", "1s start a", "1s start a"}},
		{"a slow run that succeeds", 10, 0, []string{"0s start a", "2s refused a", "5s success a", "5s start a", "5s start a"}},
		{"names in trouble share half of the slots", 5, 0, []string{
			"0s start a", "0s start b", "0s start c", "1s timeout a", "1s timeout b", "1s timeout c",
			"2s start a", "2s start b", "2s refused c", "2s start d", "2s start d", "2s start d", "3s timeout a", "3s start c"}},
		{"slow runs share them, too", 5, 0, []string{
			"0s start c", "0s timeout c", "0s start a", "0s start b", "2s refused c", "2s start d", "3s success a", "3s start c"}},
		{"the only slot", 1, 0, []string{"0s start a", "9s timeout a", "9s start b", "9s timeout b", "9s start a", "9s refused b"}},
		{"a run that never ends", 4, 0, []string{"0s start a", "1000h refused a", "1000h start b", "1000h start c"}},
		{"a clock that is set back", 4, 0, []string{"100h start a", "100h timeout a", "100h start a", "0s refused a", "0s start b", "0s start b", "1s timeout a", "1s start a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, out := newNames(tt.slots, bucketCount), map[string][]time.Time{}
			for _, line := range tt.events {
				var after, event, name string
				if _, err := fmt.Sscan(line, &after, &event, &name); err != nil {
					t.Fatal(err)
				}
				at, _ := time.ParseDuration(after)
				now := time.Unix(1e9, 0).Add(at)
				if o, ended := outcomes[event]; ended {
					n.done(now, out[name][0], identity(name), o)
					out[name] = out[name][1:]
					continue
				}
				ok := n.start(now, identity(name), tt.usual)
				if ok != (event == "start") {
					t.Fatalf("%s: may start: %v", line, ok)
				}
				if ok {
					out[name] = append(out[name], now)
				}
			}
			for name, runs := range out {
				for _, began := range runs {
					n.done(time.Unix(1e9, 0), began, identity(name), flow.Neutral)
				}
			}
			if len(n.out) != 0 {
				t.Errorf("%d runs are out after all have ended", len(n.out))
			}
		})
	}
}

// A million names in trouble take no memory of their own, and let another start.
func TestNamesWithoutEnd(t *testing.T) {
	n, now := newNames(10, bucketCount), time.Unix(1e9, 0)
	if allocated := testing.AllocsPerRun(1, func() {
		for i := range uint64(1_000_000) {
			if n.start(now, 2*i+1, 0) {
				n.done(now, now, 2*i+1, flow.Timeout)
			}
		}
	}); allocated > 10 {
		t.Errorf("%v allocations for a million names", allocated)
	}
	for range 2 {
		if !n.start(now, 2, 0) {
			t.Error("another name has no slot")
		}
	}
}

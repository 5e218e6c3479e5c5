package adapter

import (
	"cmp"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers/inspect"
)

// Clock finds that the clock of host is more than a second off this machine's. It
// showed date, in whole seconds as HTTP has it, at some time from before to after. See
// is the address of a page about it.
func Clock(host, see string, before, after, date time.Time) []inspect.Finding {
	off := skew(before, after, date)
	if off.Abs() <= time.Second {
		return nil
	}
	direction := "ahead of"
	if off < 0 {
		direction = "behind"
	}
	return []inspect.Finding{{Severity: inspect.Noted, Topic: host, Setting: "clock", See: see,
		Value: fmt.Sprintf("%v %s this machine", off.Abs().Round(time.Second), direction), Want: "within a second",
		Why: "workers note by their own clocks when a retry is due: where these differ, retries come early or late",
		Fix: "synchronize both machines, as with chrony: chronyc tracking"}}
}

// skew is how far a clock is ahead of ours at least, if it showed the second date at
// some time from before to after.
func skew(before, after, date time.Time) time.Duration {
	ahead, behind := date.Sub(after), before.Sub(date.Add(time.Second))
	return cmp.Or(max(ahead, 0), -max(behind, 0))
}

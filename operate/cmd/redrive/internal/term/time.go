package term

import (
	"strconv"
	"time"
)

// Ago is how long before now t was, in its largest unit: "12s ago", "5m ago",
// "3h ago", "40d ago"; or "in 5m" if it is still to come. A zero t is "".
func Ago(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := now.Sub(t)
	if d < 0 {
		return "in " + short(-d)
	}
	return short(d) + " ago"
}

func short(d time.Duration) string {
	const day = 24 * time.Hour
	for _, unit := range []struct {
		d    time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= unit.d {
			return strconv.FormatInt(int64(d/unit.d), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(d/time.Second), 10) + "s"
}

// ISO is t as in RFC 3339, to the second and in UTC. A zero t is "".
func ISO(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

package gallery

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Want is what must become of the messages.
type Want struct {
	Text  string
	check func(Report) string // what is wrong, "" if nothing is
}

// served wants all messages of the stream served; of all streams, for "".
func served(stream string) Want {
	return Want{"all of " + named(stream) + " served", func(r Report) string {
		f := r.of(stream)
		return unless(f.Served == f.Published, "%d of %d served, %d dead", f.Served, f.Published, f.dead())
	}}
}

// servedShare wants at least that share of the stream served.
func servedShare(stream string, least float64) Want {
	return Want{fmt.Sprintf("%s served as alone (at least %v)", stream, least), func(r Report) string {
		f := r.of(stream)
		return unless(float64(f.Served) >= least*float64(f.Published), "%d of %d served", f.Served, f.Published)
	}}
}

// noneDead wants no dead letter of the stream.
func noneDead(stream string) Want { return deadUpTo(stream, 0) }

// deadUpTo wants at most that many dead letters of the stream.
func deadUpTo(stream string, most int) Want {
	return Want{fmt.Sprintf("at most %d of %s dead", most, named(stream)), func(r Report) string {
		f := r.of(stream)
		return unless(f.dead() <= most, "%d dead: %v", f.dead(), f.Dead)
	}}
}

// allDead wants every message of the stream dead, for that reason.
func allDead(stream, reason string) Want {
	return Want{"all of " + stream + " dead, " + reason, func(r Report) string {
		f := r.of(stream)
		return unless(f.Dead[reason] == f.Published, "of %d dead: %v", f.Published, f.Dead)
	}}
}

// runsUpTo wants at most that many runs for each message of the stream.
func runsUpTo(stream string, most float64) Want {
	return Want{fmt.Sprintf("at most %v runs for each of %s", most, named(stream)), func(r Report) string {
		f := r.of(stream)
		return unless(float64(f.Runs) <= most*float64(f.Published), "%d runs of %d messages", f.Runs, f.Published)
	}}
}

// waitUpTo wants every message of the stream done that soon.
func waitUpTo(stream string, most time.Duration) Want {
	return Want{"none of " + named(stream) + " waits longer than " + short(most), func(r Report) string {
		f := r.of(stream)
		return unless(f.Wait <= most, "one waited for %s, and %d longer than %s", short(f.Wait), f.Late, short(late))
	}}
}

// doneWithin wants all messages of the incident done that soon after it.
func doneWithin(most time.Duration) Want {
	return Want{"done within " + short(most), func(r Report) string {
		if r.Undone > 0 {
			return fmt.Sprintf("%d never", r.Undone)
		}
		return unless(r.DoneAfter <= most, "after %s", short(r.DoneAfter))
	}}
}

// peakUpTo bounds the runs in a minute after the incident.
func peakUpTo(most float64) Want {
	return Want{fmt.Sprintf("at most %v times the normal rate afterwards, but for the 1/s of the budget and jitter (2 %%)", most), func(r Report) string {
		const floor = 0.02
		return unless(r.Peak <= most+floor, "%.2f times", r.Peak)
	}}
}

// amplifiedUpTo bounds the runs in the incident for each message of it.
func amplifiedUpTo(most float64) Want {
	return Want{fmt.Sprintf("at most %v runs in the incident for each message", most), func(r Report) string {
		return unless(r.Amplification <= most, "%.3f", r.Amplification)
	}}
}

// rampUpTo wants no more than twice the normal load, in runs a second, in the first
// seconds after the incident, and later at most twice the highest load before. A run of
// each worker may fall into this second or the next.
func rampUpTo(normal, workers int) Want {
	const first, jitter = 5, 1.05
	text := fmt.Sprintf("at most %d runs a second for the first %d s after it, then at most doubled in a second (and %d %%, and a run of each worker)", 2*normal, first, 5)
	return Want{text, func(r Report) string {
		highest := normal
		for s, n := range r.Load {
			most := 2 * normal
			if s >= first {
				most = int(jitter*2*float64(highest)) + workers
			}
			if n > most {
				return fmt.Sprintf("%d in second %d, at most %d in a second before", n, s+1, highest)
			}
			highest = max(highest, n)
		}
		return ""
	}}
}

// recoveredWithin wants short waits again that soon after the incident.
func recoveredWithin(most time.Duration) Want {
	return Want{"none waits longer than " + short(slow) + " from " + short(most) + " after it on", func(r Report) string {
		return unless(r.Recovered <= most, "one waited until %s after it", short(r.Recovered))
	}}
}

// collapsesUpTo bounds how often the dependency breaks.
func collapsesUpTo(most int) Want {
	return Want{fmt.Sprintf("at most %d collapses", most), func(r Report) string {
		return unless(r.Collapses <= most, "%d", r.Collapses)
	}}
}

// callsUpTo bounds the calls of the broker.
func callsUpTo(most float64) Want {
	return Want{fmt.Sprintf("at most %v calls of the broker a second in the incident", most), func(r Report) string {
		return unless(r.Calls <= most, "%.2f", r.Calls)
	}}
}

func (r Report) of(stream string) Figures {
	if stream == "" {
		return r.All
	}
	return r.Streams[stream]
}

func named(stream string) string { return cmp.Or(stream, "the messages") }

func unless(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// short is d without what nobody wants to know.
func short(d time.Duration) string {
	unit := time.Minute
	switch {
	case d < time.Second:
		unit = time.Millisecond
	case d < time.Minute:
		unit = time.Second / 10
	case d < 10*time.Minute:
		unit = time.Second
	}
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.Round(unit).String())
}

// deadFrom wants that many messages of the stream dead, for any reason.
func deadFrom(stream string, n int) Want {
	return Want{fmt.Sprintf("all of %s dead", stream), func(r Report) string {
		f := r.of(stream)
		return unless(f.dead() == n, "of %d dead: %v", f.Published, f.Dead)
	}}
}

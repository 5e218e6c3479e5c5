package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

const (
	shownViolations = 8
	shownEvents     = 400
)

// explain writes what is broken, and the life of each message concerned.
func explain(w io.Writer, r *record, v verdict) {
	told := map[string]bool{}
	count := map[promise]int{}
	for _, broken := range v.violations {
		count[broken.promise]++
	}
	for _, p := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(w, "%d times broken: %s\n", count[p], p)
	}
	for i, broken := range v.violations {
		if i == shownViolations {
			fmt.Fprintf(w, "and %d more\n", len(v.violations)-i)
			break
		}
		fmt.Fprintln(w, broken)
		for _, id := range []string{broken.id, broken.other} {
			if id != "" && !told[id] {
				told[id] = true
				timeline(w, r, id)
			}
		}
	}
}

// timeline writes the life of a message, and what happened to its workers.
func timeline(w io.Writer, r *record, id string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	workers := map[int]bool{}
	for _, e := range r.events {
		if e.ID == id {
			workers[e.Worker] = true
		}
	}
	if m := r.scenario.message(id); m != nil {
		policy := r.scenario.topics[m.topic].policy
		fmt.Fprintf(t, "\t%s has the key %q, %d bytes, policy %+v\n", id, m.Key, len(m.Body), policy)
	}
	n := 0
	for _, e := range r.events {
		ofWorker := e.ID == "" && e.Worker != 0 && workers[e.Worker]
		if e.ID != id && !ofWorker || e.Kind == extended && e.Err == fine {
			continue
		}
		if n++; n > shownEvents {
			fmt.Fprintln(t, "\t…")
			return
		}
		fmt.Fprintf(t, "\t%v\tworker %d\t%s\n", e.At, e.Worker, e)
	}
}

// String is the event for people, without its time and worker.
func (e event) String() string {
	var text strings.Builder
	text.WriteString(kindNames[e.Kind])
	say := func(is bool, format string, args ...any) {
		if is {
			fmt.Fprintf(&text, " "+format, args...)
		}
	}
	say(e.Kind == settling || e.Kind == settled, "%s", e.Action)
	say(e.Kind == ended, "with %s", outcomeNames[e.Outcome])
	say(e.Delivery != 0, "(delivery %d)", e.Delivery)
	say(e.Attempt+e.Throttles > 0, "attempt %d", e.Attempt)
	say(e.Throttles > 0, "throttles %d", e.Throttles)
	say(e.Due > 0, "due %v", e.Due)
	say(e.Until > 0, "lease until %v", e.Until)
	say(e.Delay > 0, "(%v)", e.Delay)
	say(e.Abandoned > 0, "abandoned %d", e.Abandoned)
	say(e.Cause != noCause, "context ended by %s", causeNames[e.Cause])
	say(e.Flags&isDone != 0, "done all the same")
	say(e.Flags&isLost != 0, "lease taken")
	say(e.Flags&isDuplicate != 0, "twice")
	say(e.Err != fine, "-> %s", failNames[e.Err])
	say(e.Note != "", "%s", strings.ReplaceAll(e.Note, "\n", " "))
	return text.String()
}

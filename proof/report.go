package main

import (
	"cmp"
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
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	say("%s", kindNames[e.Kind])
	switch e.Kind {
	case settling, settled:
		say("%s", e.Action)
	case ended:
		say("with %s", outcomeNames[e.Outcome])
	}
	if e.Delivery != 0 {
		say("(delivery %d)", e.Delivery)
	}
	if e.Attempt+e.Throttles > 0 {
		say("attempt %d", e.Attempt)
	}
	if e.Throttles > 0 {
		say("throttles %d", e.Throttles)
	}
	if e.Due > 0 {
		say("due %v", e.Due)
	}
	if e.Until > 0 {
		say("lease until %v", e.Until)
	}
	if e.Delay > 0 {
		say("(%v)", e.Delay)
	}
	if e.Abandoned > 0 {
		say("abandoned %d", e.Abandoned)
	}
	if e.Cause != noCause {
		say("context ended by %s", causeNames[e.Cause])
	}
	say("%s", e.faultText())
	if e.Err != fine {
		say("-> %s", failNames[e.Err])
	}
	if e.Note != "" {
		say("%s", strings.ReplaceAll(e.Note, "\n", " "))
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " ")
}

func (e event) faultText() string {
	if e.Kind != faulted {
		return ""
	}
	var parts []string
	for flag, name := range map[flags]string{isDone: "done all the same", isLost: "lease taken", isDuplicate: "twice"} {
		if e.Flags&flag != 0 {
			parts = append(parts, name)
		}
	}
	slices.SortFunc(parts, cmp.Compare[string])
	return strings.Join(parts, ", ")
}

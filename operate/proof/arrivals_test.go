package proof

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redrive-go/redrive/operate/store"
)

// Processes of redrive that are killed write no ledger. What they have sent is what
// arrives: a message that runs for the first time by a token was sent once more,
// since the store gave the token out.

// handout is that of a token.
type handout struct {
	at  time.Time
	job int64
}

// handouts are those of all tokens, without their random part.
func handouts(r record) map[string]handout {
	all := map[string]handout{}
	for _, l := range r.letters {
		n := 0
		for _, h := range l.history {
			if h.To == store.StateSending && h.From != store.StateSending {
				n++
				all[fmt.Sprintf("%d.%d", l.ID, n)] = handout{h.At, h.Job}
			}
		}
	}
	return all
}

// arrivals are the sendings of a record.
func arrivals(r record) (sends []event) {
	all := handouts(r)
	for _, e := range r.events {
		if e.Kind == ran && e.Send != "" && e.Attempt == 1 {
			e.Kind, e.Began, e.Err = returned, all[sendOf(e.Send)].at, ""
			sends = append(sends, e)
		}
	}
	return sends
}

// doubles counts what has arrived twice. Most is the part of a batch that one job has
// sent again after one kill, but for those times when a broker or a store was down,
// and where says which that was.
func doubles(r record) (twice int, most float64, where string) {
	type place struct {
		kill time.Time
		job  int64
	}
	all, again, last := handouts(r), map[place]int{}, map[string]event{}
	var kill time.Time
	for _, e := range r.events {
		if e.Kind == crashed {
			kill = e.At
		}
		if e.Kind != returned {
			continue
		}
		before, seen := last[e.Send]
		last[e.Send] = e
		if !seen {
			continue
		}
		twice++
		if slices.ContainsFunc(r.events, func(t event) bool {
			return t.Kind == troubled && !t.At.Before(before.Began) && !t.Began.After(e.At)
		}) {
			continue
		}
		at := place{kill, all[sendOf(e.Send)].job}
		again[at]++
		for _, j := range r.jobs {
			batch := math.Ceil(j.spec.Rate / 5)
			if part := float64(again[at]) / batch; j.ID == at.job && part > most {
				most, where = part, fmt.Sprintf("job %d has sent %d letters again after the kill at %s, in batches of %g", j.ID, again[at], kill.Format("15:04:05.000"), batch)
			}
		}
	}
	return twice, most, where
}

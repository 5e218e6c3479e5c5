package proof

import (
	"fmt"
	"math"
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
// sent again after one kill of who worked on it, but for those times when a broker or
// a store was down, and where says which that was. What no kill explains is more than
// any batch.
func doubles(r record) (twice int, most float64, where string) {
	type place struct {
		kill time.Time
		job  int64
	}
	all, batches, again, last := handouts(r), map[int64]float64{}, map[place]float64{}, map[string]event{}
	for _, j := range r.jobs {
		batches[j.ID] = math.Ceil(j.spec.Rate / 5)
	}
	for _, e := range r.events {
		if e.Kind != returned {
			continue
		}
		before, seen := last[e.Send]
		last[e.Send] = e
		if !seen {
			continue
		}
		twice++
		kill, down := between(r.events, before, e)
		if down {
			continue
		}
		at := place{kill, all[sendOf(e.Send)].job}
		again[at]++
		part := again[at] / batches[at.job]
		if kill.IsZero() {
			part = math.Inf(1)
		}
		if part > most {
			most, where = part, fmt.Sprintf("job %d has sent %g letters again after the kill at %s, in batches of %g", at.job, again[at], kill.Format("15:04:05.000"), batches[at.job])
		}
	}
	return twice, most, where
}

// between is the last kill between two sendings of who may have sent in that topic,
// and whether anything else was down.
func between(events []event, a, b event) (kill time.Time, down bool) {
	for _, e := range events {
		since := !e.At.Before(a.Began)
		switch {
		case e.Kind == crashed && since && !e.At.After(b.At) && (e.Topic == "" || e.Topic == a.Topic):
			kill = e.At
		case e.Kind == troubled && since && !e.Began.After(b.At):
			down = true
		}
	}
	return kill, down
}

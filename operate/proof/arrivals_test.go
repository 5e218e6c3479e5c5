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

// doubles counts what has arrived twice, and most of it by one job after one kill,
// but for those times when a broker or a store was down. Where that is more than a
// batch, over says so.
func doubles(r record) (twice, most int, over []string) {
	type place struct {
		kill time.Time
		job  int64
	}
	all, by, last := handouts(r), map[place]int{}, map[string]event{}
	var kill time.Time
	for _, e := range r.events {
		if e.Kind == crashed {
			kill = e.At
		}
		if e.Kind != returned {
			continue
		}
		before, again := last[e.Send]
		last[e.Send] = e
		if !again {
			continue
		}
		twice++
		if slices.ContainsFunc(r.events, func(t event) bool {
			return t.Kind == troubled && !t.At.Before(before.Began) && !t.Began.After(e.At)
		}) {
			continue
		}
		at := place{kill, all[sendOf(e.Send)].job}
		by[at]++
		most = max(most, by[at])
		for _, j := range r.jobs {
			if batch := int(math.Ceil(j.spec.Rate / 5)); j.ID == at.job && by[at] == batch+1 {
				over = append(over, fmt.Sprintf("job %d has sent more than a batch of %d again after the kill at %s", j.ID, batch, kill.Format("15:04:05.000")))
			}
		}
	}
	return twice, most, over
}

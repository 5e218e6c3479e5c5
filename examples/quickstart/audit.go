package main

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
)

// report accounts for every order. Its numbers come from the input, the books
// of the payment server, the ledger, and what lies in the topics.
type report struct {
	OK           bool  `json:"ok"`   // nothing lost, early or duplicated
	Read         int   `json:"read"` // = handled + dead_lettered + unfinished + lost
	Handled      int   `json:"handled"`
	DeadLettered int   `json:"dead_lettered"`
	Unfinished   int   `json:"unfinished"` // still queued, after an interruption
	Lost         int   `json:"lost"`
	LostLines    []int `json:"lost_lines,omitempty"`
	Early        int   `json:"early"`      // runs before they were due
	Duplicates   int   `json:"duplicates"` // charges, and dead letters, too many
	Retried      int   `json:"retried"`    // orders with more than one run

	// ChargedDead counts dead letters whose order was charged all the same,
	// because the answer to the last run got lost.
	ChargedDead int `json:"charged_dead"`

	Attempts map[int]int `json:"attempts"` // runs of the handler: orders
	Groups   []group     `json:"groups"`
	Server   tally       `json:"payment_server"`
	Seconds  float64     `json:"seconds"`
}

// group is the dead letters of one fingerprint.
type group struct {
	Fingerprint string  `json:"fingerprint"`
	Count       int     `json:"count"`
	Reason      string  `json:"reason"`
	Class       string  `json:"class"`
	Error       string  `json:"error"` // of the example
	Example     example `json:"example"`
}

type example struct {
	Line        int       `json:"line"`
	Order       string    `json:"order,omitempty"`
	Body        string    `json:"body"` // its beginning
	Attempts    int       `json:"attempts"`
	FirstFailed time.Time `json:"first_failed"`
	LastFailed  time.Time `json:"last_failed"`
}

// audit draws up the report when the worker has stopped.
func audit(lines []line, b *bank, l *ledger, broker *memory.Broker) report {
	_, elapsed := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	letters := broker.Messages(deadTopic)
	r := report{
		Read:     len(lines),
		Early:    l.early,
		Attempts: map[int]int{},
		Groups:   grouped(letters, lines),
		Server:   b.count,
		Seconds:  elapsed.Round(time.Millisecond).Seconds(),
	}
	for _, line := range lines {
		runs := l.runs[line.id]
		r.Attempts[runs]++
		if runs > 1 {
			r.Retried++
		}
	}
	r.balance(lines, b.charges, count(letters), count(broker.Messages(topic)))
	r.OK = r.Lost == 0 && r.Early == 0 && r.Duplicates == 0
	return r
}

// count returns how many messages there are of each ID.
func count(messages []brokers.Message) map[string]int {
	n := make(map[string]int, len(messages))
	for _, m := range messages {
		n[m.ID]++
	}
	return n
}

// balance sets the lines against the money that moved, order by order. A
// charge pays for one line of its order; what is left over is a duplicate.
func (r *report) balance(lines []line, charges map[string]charge, dead, queued map[string]int) {
	paid := map[string]int{}
	for _, c := range charges {
		if c.declined == "" {
			paid[c.order]++
		}
	}
	pays := func(l line) bool {
		id, ok := l.order()
		if !ok || paid[id] == 0 {
			return false
		}
		paid[id]--
		return true
	}
	var open, buried []line
	for _, l := range lines {
		switch {
		case dead[l.id] > 0:
			buried = append(buried, l)
		case queued[l.id] > 0:
			open = append(open, l)
		case pays(l):
			r.Handled++
		default:
			r.Lost++
			r.LostLines = append(r.LostLines, l.number)
		}
	}
	for _, l := range open {
		if pays(l) {
			r.Handled++
		} else {
			r.Unfinished++
		}
	}
	for _, l := range buried {
		r.DeadLettered++
		r.Duplicates += dead[l.id] - 1
		if pays(l) {
			r.ChargedDead++
		}
	}
	for _, n := range paid {
		r.Duplicates += n
	}
}

// order returns the ID of the order, and false if the line is not one.
func (l line) order() (id string, ok bool) {
	var o order
	err := json.Unmarshal(l.body, &o)
	return o.ID, err == nil
}

// grouped puts dead letters of equal fingerprints together, the largest group
// first.
func grouped(letters []brokers.Message, lines []line) []group {
	byID := make(map[string]line, len(lines))
	for _, l := range lines {
		byID[l.id] = l
	}
	groups := []group{}
	index := map[string]int{}
	for _, m := range letters {
		e, err := dlq.Decode(m)
		if err != nil {
			e.Reason, e.ErrorText = "unknown", err.Error()
		}
		i, known := index[e.Fingerprint]
		if !known {
			i = len(groups)
			index[e.Fingerprint] = i
			groups = append(groups, newGroup(e, byID[m.ID]))
		}
		groups[i].Count++
	}
	slices.SortStableFunc(groups, func(a, b group) int { return cmp.Compare(b.Count, a.Count) })
	return groups
}

func newGroup(e dlq.Entry, l line) group {
	id, _ := l.order()
	return group{
		Fingerprint: e.Fingerprint,
		Reason:      e.Reason,
		Class:       e.Meta.Class,
		Error:       e.ErrorText,
		Example: example{
			Line:        l.number,
			Order:       safe(id, 60),
			Body:        safe(string(l.body[:min(len(l.body), 400)]), 100),
			Attempts:    e.Meta.Attempt,
			FirstFailed: e.Meta.FirstFailedAt,
			LastFailed:  e.Meta.LastFailedAt,
		},
	}
}

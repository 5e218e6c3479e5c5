package consumer

import (
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
)

// deathOf is what a message carries of its dead letter while it waits for that;
// short, of one that the broker refuses to keep with all of it.
func deathOf(letter *dlq.Entry, short bool) *brokers.Death {
	l := *letter
	if short {
		l = shortened(letter)
	}
	return &brokers.Death{
		Reason: l.Reason, At: l.DeadAt, By: l.DeadBy, Abandoned: l.Abandoned,
		Attempt: letter.Meta.Attempt, DueAt: letter.Meta.DueAt,
		ErrorType: l.ErrorType, ErrorCode: l.ErrorCode, ErrorText: l.ErrorText, Stack: l.Stack, Fingerprint: l.Fingerprint, Rule: l.Rule,
		Truncated: l.Truncated,
	}
}

// shortened is letter with its texts as short as those of a stub.
func shortened(letter *dlq.Entry) dlq.Entry {
	cut := *letter
	cut.Message, cut.Meta = brokers.Message{}, brokers.Meta{}
	cut = cut.Stub()
	cut.Truncated = append(cut.Truncated, letter.Truncated...)
	if letter.Stack != "" {
		cut.Truncated = append(cut.Truncated, "error-stack")
	}
	if len(letter.Meta.History) > 0 {
		cut.Truncated = append(cut.Truncated, "history")
	}
	return cut
}

// recall makes d, which has waited for its dead letter, what it was when it died.
func (p *pipeline) recall(d *delivery) {
	was := d.Meta.Death
	letter := dlq.Entry{
		Message: d.Message, Meta: d.Meta,
		Reason: was.Reason, DeadAt: was.At, DeadBy: was.By, Abandoned: was.Abandoned, Group: p.group(),
		ErrorType: was.ErrorType, ErrorCode: was.ErrorCode, ErrorText: was.ErrorText, Stack: was.Stack, Fingerprint: was.Fingerprint, Rule: was.Rule,
		Truncated: was.Truncated,
	}
	letter.Meta.Attempt, letter.Meta.DueAt, letter.Meta.Death = was.Attempt, was.DueAt, nil
	meta := letter.Meta
	meta.DueAt = d.Meta.DueAt
	d.letter, d.meta = &letter, &meta
}

// metaToKeep is the Meta that a Retry of d stores. One that is dead comes back
// as such: with its death, and without an attempt left for a worker that knows
// of no deaths.
func (d *delivery) metaToKeep() brokers.Meta {
	m := *d.meta
	if d.letter == nil {
		return m
	}
	m.Attempt = max(m.Attempt, d.sub.attempts)
	m.Death = deathOf(d.letter, d.short)
	if d.short {
		m.History = nil
	}
	return m
}

// pause is how long a dead message waits in the broker, with full jitter: from
// least to as long as it has been dead, which counts as first at least and as
// most at most. So its dead letter is late by about as long as the dead-letter
// topic was down, and long outages cost the broker few deliveries.
type pause struct{ least, first, most time.Duration }

var (
	forRoom    = pause{2 * time.Second, 10 * time.Second, 3 * time.Minute} // in this process
	forMending = pause{time.Minute, 2 * time.Minute, time.Hour}            // what the broker refuses to bury
)

// pauseDead sets when d, which is dead, comes back from the broker.
func (p *pipeline) pauseDead(d *delivery, w pause) {
	now := time.Now()
	longest := min(max(now.Sub(d.letter.DeadAt), w.first), w.most)
	m := *d.meta
	m.DueAt = now.Add(w.least + time.Duration(p.cfg.Random()*float64(longest-w.least)))
	d.setMeta(m)
}

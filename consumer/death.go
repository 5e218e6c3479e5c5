package consumer

import (
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
)

// deathOf returns the Death that a message carries while it waits for its dead
// letter. It is shortened if short is set, for a broker that refuses the message
// with the whole of it.
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

// shortened returns letter with its texts as short as those of a stub.
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

// recall restores the dead letter of d from the Death that d carried while it
// waited. It also restores the Meta of d, except for the due time.
func (p *pipeline) recall(d *delivery) {
	was := d.came().Death
	letter := dlq.Entry{
		Message: d.Message, Meta: d.Meta(),
		Reason: was.Reason, DeadAt: was.At, DeadBy: was.By, Abandoned: was.Abandoned, Group: p.group(),
		ErrorType: was.ErrorType, ErrorCode: was.ErrorCode, ErrorText: was.ErrorText, Stack: was.Stack, Fingerprint: was.Fingerprint, Rule: was.Rule,
		Truncated: was.Truncated,
	}
	letter.Meta.Attempt, letter.Meta.DueAt, letter.Meta.Death = was.Attempt, was.DueAt, nil
	meta := letter.Meta
	meta.DueAt = d.came().DueAt
	d.own().letter = &letter
	d.setMeta(meta)
}

// metaToKeep returns the Meta that a Retry of d stores. For a dead message it has
// the Death, and no attempt left: a worker of a version without Death then does
// not run the message.
func (d *delivery) metaToKeep() brokers.Meta {
	m := d.metaNow()
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

// pause bounds how long a dead message waits in the broker. The time is random,
// between least and the time since its death. The time since its death counts as
// at least first and at most most. So the next try comes within about as long
// after an outage as that lasted, and long outages cost the broker few deliveries.
type pause struct{ least, first, most time.Duration }

var (
	forRoom    = pause{2 * time.Second, 10 * time.Second, 3 * time.Minute} // in the worker
	forMending = pause{time.Minute, 2 * time.Minute, time.Hour}            // of a broker that refuses the dead letter
)

// pauseDead sets the time at which the dead message d comes back from the broker.
func (p *pipeline) pauseDead(d *delivery, w pause) {
	now := time.Now()
	longest := min(max(now.Sub(d.letter.DeadAt), w.first), w.most)
	m := d.metaNow()
	m.DueAt = now.Add(w.least + time.Duration(p.cfg.Random()*float64(longest-w.least)))
	d.setMeta(m)
}

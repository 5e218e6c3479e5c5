package proof

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// promise names what a violation breaks.
type promise string

const (
	nothingLost promise = "nothing is lost"
	inOnePlace  promise = "a dead letter is in the broker or in the store"
	asItWas     promise = "a letter comes back as the message that it was"
	whoFailed   promise = "a letter goes back to whoever gave it up, and to nobody else"
	sentOnce    promise = "a letter is sent again next to a fault only"
	loopGuard   promise = "a letter is sent back as often as allowed"
	bySomebody  promise = "the store believes what workers did"
	onEvidence  promise = "a wave passes on evidence"
	harmless    promise = "what comes back pauses nobody"
)

// violation is a promise that was broken.
type violation struct {
	promise promise
	id      string // of the message, "" if it is none
	text    string
}

func (v violation) String() string { return fmt.Sprintf("%s: %s %s", v.promise, v.id, v.text) }

// maxReturns is how often a letter may be sent back that nobody forces.
const maxReturns = 3

// checker holds a record against the promises.
type checker struct {
	record
	byID     map[int64]*letter
	jobsByID map[int64]*jobRecord
	takers   map[string]*jobRecord // by the letter and the number of the send
	handled  map[string]time.Time  // when a send was, likewise
	dead     map[string]bool       // a send ended as a dead letter
	stored   map[string]bool       // a broker has confirmed a send; nil if nobody listened
	found    []violation
}

// check returns all violations.
func check(r record) []violation {
	c := checker{
		record: r, byID: map[int64]*letter{}, jobsByID: map[int64]*jobRecord{},
		takers: map[string]*jobRecord{}, handled: map[string]time.Time{}, dead: map[string]bool{},
	}
	for i := range r.jobs {
		c.jobsByID[r.jobs[i].ID] = &r.jobs[i]
	}
	for i := range r.letters {
		c.byID[r.letters[i].ID] = &r.letters[i]
	}
	for _, e := range r.events {
		switch {
		case e.Kind == ran && e.Err == "" && c.handled[sendOf(e.Send)].IsZero():
			c.handled[sendOf(e.Send)] = e.At
		case e.Kind == died:
			c.dead[sendOf(e.Send)] = true
		case e.Kind == returned:
			if c.stored == nil {
				c.stored = map[string]bool{}
			}
			c.stored[sendOf(e.Send)] = c.stored[sendOf(e.Send)] || e.Err == ""
		}
	}
	for _, l := range r.letters {
		c.history(l)
	}
	for _, s := range r.snapshots {
		c.places(s)
	}
	c.ends()
	c.runs()
	c.sends()
	for _, j := range r.jobs {
		c.waves(j)
	}
	return c.found
}

func (c *checker) fault(p promise, id, format string, args ...any) {
	c.found = append(c.found, violation{p, id, fmt.Sprintf(format, args...)})
}

// takes reports whether a run by group is one of a message; nil is none.
func (m *message) takes(group string) bool {
	return m != nil && (m.group == group || m.group == allGroups)
}

// places finds what is nowhere.
func (c *checker) places(s snapshot) {
	somewhere := map[string]bool{}
	rows := map[death]int{}
	for _, l := range s.stored {
		open := l.State != store.StateConfirmed && l.State != store.StateReturned
		somewhere[l.MessageID] = somewhere[l.MessageID] || open
		rows[deathOf(l.MessageID, l.DeadAt)]++
	}
	for d, n := range s.dead {
		somewhere[d.id] = true
		rows[d] += n
	}
	for _, e := range s.after {
		if m := c.messages[e.ID]; e.Kind == ran && e.Err == "" && m.takes(e.Group) {
			somewhere[e.ID] = true
		}
	}
	when := "in the end"
	if n := len(s.after); n < len(c.events) {
		when = "at " + c.events[n].At.Format(time.TimeOnly)
	}
	contents := map[death]map[string]bool{}
	for _, e := range s.before {
		if e.Kind != sent && e.Kind != died {
			continue
		}
		if !somewhere[e.ID] && !s.queued[e.ID] {
			c.fault(nothingLost, e.ID, "was not handled, and is nowhere %s", when)
			somewhere[e.ID] = true // once is enough
		}
		if d := deathOf(e.ID, e.DeadAt); e.Kind == died {
			if contents[d] == nil {
				contents[d] = map[string]bool{}
			}
			contents[d][e.Content] = true
			if n := len(contents[d]); rows[d] < n {
				c.fault(inOnePlace, e.ID, "died at %v as %d letters, of which %d are there %s", e.DeadAt, n, rows[d], when)
			}
		}
	}
}

// ends finds messages that nobody has handled in the end, but for those that no job
// may send.
func (c *checker) ends() {
	left := map[string]bool{}
	for id, m := range c.messages {
		left[id] = m.skip == ""
	}
	for _, e := range c.events {
		if e.Kind == ran && e.Err == "" && c.messages[e.ID].takes(e.Group) {
			left[e.ID] = false
		}
	}
	for _, e := range c.events {
		if (e.Kind == sent || e.Kind == died) && left[e.ID] {
			left[e.ID] = false
			c.fault(nothingLost, e.ID, "was never handled")
		}
	}
}

// runs finds messages that ran where they do not belong, and pauses that letters
// have caused.
func (c *checker) runs() {
	const memory = 100 * time.Second // of guards, in live traffic of one a second
	failed := map[string]time.Time{}
	for _, e := range c.events {
		m := c.messages[e.ID]
		switch {
		case e.Kind == ran && (m == nil || m.topic != e.Topic):
			c.fault(asItWas, e.ID, "ran in %s, and does not belong there", e.Topic)
		case e.Kind == ran && e.Redrives > 0 && !m.takes(e.Group):
			c.fault(whoFailed, e.ID, "of the group %q ran in %q", m.group, e.Group)
		case e.Kind == ran && e.Redrives == 0 && e.Err != "":
			failed[e.Topic] = e.At
		case e.Kind == paused && e.At.Sub(failed[e.Topic]) > memory:
			c.fault(harmless, "", "%s was paused at %v: %s", e.Topic, e.At, e.Err)
		}
	}
}

// sends finds letters that were sent where they should not, too often, or twice
// without a fault.
func (c *checker) sends() {
	last := map[string]event{}
	for _, e := range c.events {
		if e.Kind != returned {
			continue
		}
		m, taker, l := c.messages[e.ID], c.takers[sendOf(e.Send)], c.letterOf(e.Send)
		switch {
		case m == nil || l == nil || l.MessageID != e.ID:
			c.fault(asItWas, e.ID, "was sent by the token %s, which is not that of its letter", e.Send)
			continue
		case m.skip != "":
			c.fault(whoFailed, e.ID, "was sent to %s, and should have been skipped: %s", e.Topic, m.skip)
		case m.topic != e.Topic || m.group != e.Group:
			c.fault(whoFailed, e.ID, "was sent to group %q of %s, not to %q of %s", e.Group, e.Topic, m.group, m.topic)
		case taker == nil:
			c.fault(sentOnce, e.ID, "was sent by %s, of which the store knows nothing", e.Send)
		case e.Group == allGroups && !taker.spec.AllGroups:
			c.fault(whoFailed, e.ID, "was sent to all groups by job %d, which was not told to", taker.ID)
		case !taker.spec.Force && (l.RedriveCount >= maxReturns || numberOf(e.Send) > maxReturns):
			c.fault(loopGuard, e.ID, "was sent by %s, after it had come back %d times", e.Send, l.RedriveCount)
		}
		if before, again := last[e.Send]; again && !c.excused(before, e) {
			c.fault(sentOnce, e.ID, "was sent by %s at %v, and again at %v", e.Send, before.At, e.At)
		}
		last[e.Send] = e
	}
}

func (c *checker) letterOf(token string) *letter {
	var id int64
	_, _ = fmt.Sscanf(token, "%d.", &id) // 0 is none
	return c.byID[id]
}

// numberOf is that of a sending among those of its letter.
func numberOf(token string) (n int) {
	_, after, _ := strings.Cut(token, ".")
	_, _ = fmt.Sscanf(after, "%d.", &n)
	return n
}

// excused reports whether there is a fault between two sendings by one token.
func (c *checker) excused(a, b event) bool {
	return a.Err != "" || slices.ContainsFunc(c.events, func(e event) bool {
		switch e.Kind {
		case crashed:
			return e.Process == a.Process && !e.At.Before(a.Began) && !e.At.After(b.At)
		case troubled:
			return !e.At.Before(a.Began) && !e.Began.After(b.At)
		}
		return false
	})
}

// history finds changes of a letter that nothing speaks for.
func (c *checker) history(l letter) {
	sends := 0
	for _, h := range l.history {
		send := fmt.Sprintf("%d.%d", l.ID, sends)
		switch h.To {
		case store.StateSending:
			if h.From != store.StateSending { // a receipt that came early
				sends++
				c.takers[fmt.Sprintf("%d.%d", l.ID, sends)] = c.jobsByID[h.Job]
			}
		case store.StateQueued:
			if !slices.Contains([]store.State{store.StateCollected, store.StateUnknown, store.StateSkipped}, h.From) {
				c.fault(sentOnce, l.MessageID, "is %s, and job %d takes it at %v", h.From, h.Job, h.At)
			}
		case store.StateSent:
			if c.stored != nil && !c.stored[send] {
				c.fault(bySomebody, l.MessageID, "is sent at %v, and no broker had confirmed the send %s", h.At, send)
			}
		case store.StateConfirmed:
			if at := c.handled[send]; at.IsZero() || at.After(h.At.Add(time.Millisecond)) {
				c.fault(bySomebody, l.MessageID, "is confirmed at %v (%s), and nobody had handled the send %s", h.At, h.Note, send)
			}
		case store.StateReturned:
			if !c.dead[send] {
				c.fault(bySomebody, l.MessageID, "is returned at %v (%s), and the send %s did not die", h.At, h.Note, send)
			}
		case store.StateSkipped:
			c.skipped(l, h, sends)
		}
	}
}

func (c *checker) skipped(l letter, h store.Change, sends int) {
	limited := l.RedriveCount >= maxReturns || sends >= maxReturns
	switch m := c.messages[l.MessageID]; {
	case m == nil:
		c.fault(asItWas, l.MessageID, "is skipped for %s, and is the ID of no message", h.Note)
	case h.Note == job.SkipRedriveLimit && !limited:
		c.fault(loopGuard, l.MessageID, "is held back after %d sends, and came back %d times", sends, l.RedriveCount)
	case h.Note != job.SkipRedriveLimit && h.Note != m.skip && (h.Note != job.SkipNoGroup || m.group != allGroups):
		c.fault(whoFailed, l.MessageID, "is skipped for %s, want %q", h.Note, m.skip)
	}
}

// waves finds those that passed without enough of their letters handled. Beyond the
// first waves, which are smaller than any stretch here, none waits for the one
// before.
func (c *checker) waves(j jobRecord) {
	for i, w := range j.waves[:max(len(j.waves)-1, 0)] {
		next := j.waves[i+1]
		taken, good := 0, 0
		for _, l := range c.letters {
			n, ok := takenIn(l, j.ID, w.Since, next.Since)
			if !ok {
				continue
			}
			taken++
			if at := c.handled[fmt.Sprintf("%d.%d", l.ID, n)]; !at.IsZero() && !at.After(next.Since.Add(time.Millisecond)) {
				good++
			}
		}
		first := len(j.spec.Waves) > 0 && taken <= slices.Max(j.spec.Waves)
		quiet := j.spec.WithoutReceipts && next.Since.Sub(w.SentAt) >= j.spec.Wait
		if first && !next.Resumed && !quiet && good < int(math.Ceil(j.spec.Pass*float64(taken)-1e-9)) {
			c.fault(onEvidence, "", "job %d, wave %d: %d of %d letters were handled when the next one began", j.ID, w.N, good, taken)
		}
	}
}

// takenIn reports whether a job has queued a letter in a time, and for which of its
// sends.
func takenIn(l letter, job int64, from, to time.Time) (send int, ok bool) {
	for _, h := range l.history {
		switch {
		case h.To == store.StateSending && h.From != store.StateSending:
			send++
		case h.To == store.StateQueued && h.Job == job && !h.At.Before(from) && h.At.Before(to):
			return send + 1, true
		}
	}
	return 0, false
}

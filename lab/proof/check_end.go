package main

import (
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
)

// takeWorker follows the life of a worker.
func (c *checker) takeWorker(e *event) {
	if e.Kind == up {
		c.workers[e.Worker] = newLife(e, max(0, or(c.scenario.slots[0].config.CrashLimit, 3)))
		return
	}
	w := c.workers[e.Worker]
	switch e.Kind {
	case stopping:
		c.stops++
		w.stopping = max(e.At, 1)
	case crashed:
		c.crashes++
		w.crashed = max(e.At, 1)
		if c.scenario.served {
			for _, f := range c.sever(w) {
				f.struck = f.struck || e.Note != string(byMessage)
			}
		}
	case closing:
		c.takeClosing(w)
	case down:
		c.takeDown(w, e)
	}
}

// busyMachine is how much longer a real process may take to stop than its worker has.
const busyMachine = 20 * time.Second

func newLife(e *event, crashLimit int) *life {
	return &life{number: e.Worker, up: e.At, drain: e.Delay, concurrency: e.Attempt, crashLimit: crashLimit,
		running: map[*topic]int{}, dependencies: map[string]*dependency{}, letters: map[*fate]int{}, burying: map[*fate]int{},
		lanes: map[string]int{}, busy: map[string]*delivery{}, hands: map[string]*hand{}, skips: map[*fate]*skip{}}
}

// takeClosing gives back what a worker still holds. What its handlers have
// finished must not be among it.
func (c *checker) takeClosing(w *life) {
	w.closing = max(c.now, 1)
	for _, d := range w.deliveries {
		if d.settled || d.freed || w.crashed > 0 {
			continue
		}
		unseen := c.storm > 0 && d.ended <= c.calm // may be the end of its session
		inTime := w.stopping > 0 && d.ended < w.stopping+w.drain && d.high > d.ended && !unseen
		finished := d.runs > 0 && !d.running && d.asked == 0 && !d.buried && d.concluded() && !c.lapsed(d)
		if inTime && finished {
			w.unfinished = append(w.unfinished, d)
		}
		c.free(d)
	}
}

// lapsed reports whether the lease of d was over before it ran again, in a
// smaller batch.
func (c *checker) lapsed(d *delivery) bool { return d.high <= c.now && d.next[0].split }

// concluded reports whether anything follows the last run: not if its lease was
// lost.
func (d *delivery) concluded() bool {
	for _, j := range d.next {
		if j.acks || j.retries || j.dies || j.releases {
			return true
		}
	}
	return false
}

func (c *checker) takeDown(w *life, e *event) {
	w.down = true
	if w.crashed > 0 {
		return
	}
	clean := !strings.Contains(e.Note, consumer.ErrUnclean.Error())
	for _, d := range w.unfinished {
		if clean {
			c.violate(promiseShutdown, d.fate.id, "was finished by worker %d with %s at %v, and neither settled nor given back (delivery %d)",
				w.number, outcomeNames[d.last], d.ended, d.number)
		}
	}
	// What keeps a worker from opening its source is a fault, or a broker that has
	// no time: its process is started again.
	silent := c.scenario.served && e.Err == trouble && !strings.Contains(e.Note, brokers.ErrMisconfigured.Error())
	unconnected := w.received == 0 && (c.stormy() || silent)
	limit := w.drain + time.Second + c.scenario.pace.closing + c.scenario.pace.slack
	if c.storm > 0 && w.stopping <= c.calm { // it began to stop in a fault, be that over now
		limit += 2 * callTimeout // to close the source without answers
	}
	if c.scenario.served {
		limit += busyMachine
	}
	switch {
	case unconnected && (w.stopping == 0 || e.At-w.stopping <= limit):
	case w.stopping == 0:
		c.violate(promiseShutdown, "", "worker %d stopped by itself: %s", w.number, e.Note)
	case e.At-w.stopping > limit && !(c.stormy() && w.stopping >= c.storm): // in which it may stand still
		c.violate(promiseShutdown, "", "worker %d took %v to stop, allowed are %v", w.number, e.At-w.stopping, limit)
	case e.Note != "" && clean:
		c.violate(promiseShutdown, "", "worker %d stopped with %s", w.number, e.Note)
	}
}

// finish holds what is left at the end against the promises.
func (c *checker) finish() {
	c.checkLetters()
	for _, w := range c.workers {
		if !w.down {
			c.violate(promiseShutdown, "", "worker %d never stopped", w.number)
		}
	}
	for _, f := range c.order {
		c.finishMessage(f)
	}
	for topic, n := range c.left {
		if n > 0 {
			c.violate(promiseLiveness, "", "%d messages are left in %s", n, topic)
		}
	}
	c.checkEvents()
	c.measure()
}

// checkLetters holds the dead-letter topics against the ledger.
func (c *checker) checkLetters() {
	stored := map[string]int{}
	for topic, letters := range c.letters {
		for _, m := range letters {
			stored[m.ID]++
			c.checkLetter(topic, m)
		}
	}
	for _, f := range c.order {
		n := stored[f.id]
		if n > 0 {
			c.dead++
		}
		if n < f.letters {
			c.violate(promiseConfirm, f.id, "has %d dead letters, although %d were confirmed", n, f.letters)
		}
		if n > f.letters && !f.doubt {
			c.violate(promiseDuplicate, f.id, "has %d dead letters, %d were confirmed", n, f.letters)
		}
		f.letters = n
	}
}

func (c *checker) checkLetter(topic string, m brokers.Message) {
	f := c.fate(m.ID)
	if f.message == nil {
		c.violate(promiseStranger, m.ID, "is in %s", topic)
		return
	}
	t := c.scenario.topics[f.message.topic]
	entry, err := dlq.Decode(m)
	moved := err != nil && c.outrun(f)
	if moved {
		entry.Message = m
		entry.Message.Topic = t.name
	} else if err != nil {
		c.violate(promiseLetter, m.ID, "cannot be read in %s: %v", topic, err)
		return
	}
	got, sent := entry.Message, f.message.Message
	got.Headers, sent.Headers = own(got.Headers), own(sent.Headers)
	if fault := differs(got, sent, t.name); fault != "" {
		c.violate(promiseContent, m.ID, "is in %s with another %s", topic, fault)
	}
	looped := entry.Reason == "crash-loop"
	if kills := f.message.fatal(); !moved && c.scenario.served && looped != kills && (kills || !f.struck) {
		c.violate(promiseInnocent, m.ID, "is in %s with the reason %q; does it kill: %v", topic, entry.Reason, kills)
	}
	whole := len(entry.Truncated) == 0
	failed := entry.Meta.Attempt > 0 && !c.unseen(entry)
	switch meta := entry.Meta; {
	case topic != t.dead:
		c.violate(promiseLetter, m.ID, "is in %s, not in %s", topic, t.dead)
	case moved:
	case entry.Reason == "" || entry.ErrorText == "" && whole || entry.Fingerprint == "":
		c.violate(promiseLetter, m.ID, "does not say why it died: %+v", entry)
	case strings.Contains(entry.ErrorText, "no dead letter was confirmed"):
		c.violate(promiseLetter, m.ID, "does not say why it died before it had to wait: %+v", entry)
	case entry.DeadAt.IsZero() || entry.DeadBy == "" || len(meta.Origin) == 0 && whole:
		c.violate(promiseLetter, m.ID, "does not say when or where it died: %+v", entry)
	case failed && (meta.FirstFailedAt.IsZero() || meta.LastFailedAt.Before(meta.FirstFailedAt) || meta.Class == ""):
		c.violate(promiseLetter, m.ID, "does not say when it failed: %+v", meta)
	}
}

// outrun reports whether the broker may have moved a message to its dead letters, which
// then tell nothing, before a worker could: one that kills, of a topic whose order is
// kept, where only the first of a session is charged. At its crashLoop-th delivery a
// worker would have known.
func (c *checker) outrun(f *fate) bool {
	const crashLoop = 18 // docs/explanation/rabbitmq.md
	ordered := c.scenario.slots[0].config.OrderByKey
	return c.moved[f.id] && f.message.fatal() && ordered && len(f.deliveries) >= crashLoop
}

// unseen reports whether a dead letter is of a message whose failures its worker
// may not have seen: those that it counts are an estimate, and it ran nothing.
func (c *checker) unseen(letter dlq.Entry) bool {
	ranNothing := letter.Reason == "oversize" || letter.Reason == "crash-loop"
	return c.scenario.broker == "sqs" && !c.scenario.copies && letter.Meta.FirstFailedAt.IsZero() && ranNothing
}

func (c *checker) finishMessage(f *fate) {
	ends := f.successes + f.letters
	if f.published > 0 {
		c.sent++
	}
	if f.successes > 0 {
		c.handled++
	}
	if f.forgotten {
		c.discarded++
		ends++
	}
	if f.confirmed > 0 && ends == 0 {
		c.lost++
		c.violate(promiseLost, f.id, "was confirmed, and is neither handled nor dead")
	}
	explained := f.doubt || f.disturbed+f.calls > 1
	if ends > 1 {
		c.duplicates += ends - 1
		if explained {
			c.explained += ends - 1
		} else {
			c.violate(promiseDuplicate, f.id, "was handled %d times and has %d dead letters, and no fault explains it", f.successes, f.letters)
		}
	}
	allowed := c.attempts(f)*f.calls + f.free + f.disturbed
	if f.message != nil && f.runs > allowed && !f.doubt {
		c.violate(promiseAttempts, f.id, "was run %d times, explained are %d", f.runs, allowed)
	}
}

// checkEvents compares how often observers were told of things with how often
// they happened.
func (c *checker) checkEvents() {
	if c.told == nil {
		return
	}
	for kind, want := range map[string]int{
		consumer.EventReceived:     c.counts[received],
		consumer.EventStarted:      c.counts[started],
		"ack":                      c.settledBy[brokers.Ack],
		"retry":                    c.settledBy[brokers.Retry],
		"release":                  c.settledBy[brokers.Release],
		consumer.EventDeadLettered: c.buried,
	} {
		if got := c.told[kind]; got != want {
			c.violate(promiseEvents, "", "observers were told %d times of %q, it happened %d times", got, kind, want)
		}
	}
}

// measure takes the progress from the first end of a worker to the calm, or to the
// last end where the machine is too busy for the plan.
func (c *checker) measure() {
	if !c.scenario.served || len(c.scenario.incidents) == 0 {
		return
	}
	from, to := c.scenario.incidents[0].at, c.scenario.calm
	ends := 0
	for _, e := range c.events {
		if e.Kind == stopping || e.Kind == crashed {
			ends++
			to = max(to, e.At)
		}
	}
	last, done := from, 0
	for _, e := range c.events {
		if e.Kind == ended && e.Outcome == okay && from <= e.At && e.At <= to {
			done++
			c.pause = max(c.pause, e.At-last)
			last = e.At
		}
	}
	c.perEnd = done / max(1, ends)
}

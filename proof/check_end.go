package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/consumer"
)

// takeWorker follows the life of a worker.
func (c *checker) takeWorker(e *event) {
	if e.Kind == up {
		config := c.scenario.slots[0].config
		c.workers[e.Worker] = &life{number: e.Worker, up: e.At, drain: e.Delay, concurrency: e.Attempt,
			crashLimit: max(0, or(config.CrashLimit, 3)), letters: map[*fate]int{}, burying: map[*fate]int{}, lanes: map[string]int{}, busy: map[string]*delivery{},
			running: map[*topic]int{}, guards: map[string]*guarded{}}
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
				if e.Note != string(byMessage) {
					f.struck++
				}
			}
			clear(w.burying)
		}
	case closing:
		c.takeClosing(w)
	case down:
		c.takeDown(w, e)
	}
}

// takeStorm follows faults that hit connections.
func (c *checker) takeStorm(e *event) {
	slack := c.scenario.pace.slack
	if e.Flags&isBegin != 0 {
		c.storm = storm{from: c.now - slack, to: c.scenario.limit, frozen: strings.HasSuffix(e.Note, "frozen")}
	} else {
		c.storm.to = c.now + slack
	}
	if c.leased() {
		if e.Flags&isBegin != 0 {
			c.repeatAll()
		}
		return
	}
	for _, w := range c.workers {
		c.sever(w)
	}
}

// takeConsuming notes that w consumes on a new connection. What it received on the
// one before comes again if a fault had cut that, also if it received it when the
// fault was over: both ends notice late.
func (c *checker) takeConsuming(w *life) {
	c.sessions++
	if c.stormy() {
		c.sever(w)
	}
}

// unaware reports whether w may not have seen yet that it was told to stop.
func (c *checker) unaware(w *life) bool {
	return c.storm.frozen && c.stormy() && w.stopping >= c.storm.from
}

func (c *checker) stormy() bool { return c.storm.to > 0 && c.now <= c.storm.to }

// sever notes what may come of the sudden end of the connections of w, and
// returns what may come again.
func (c *checker) sever(w *life) (again []*fate) {
	for _, d := range w.deliveries {
		if c.severDelivery(d) {
			again = append(again, d.fate)
		}
	}
	for f, n := range w.burying { // they may be stored
		f.spare += n
		f.disturbed += n
	}
	return again
}

// severDelivery notes whether d may come again: what is held does, and also what
// was settled a moment ago, as an ack may get lost on its way.
func (c *checker) severDelivery(d *delivery) bool {
	since := c.unsure(d.worker)
	switch {
	case d.severed:
	case d.ok && d.okAt >= since:
		d.severed = true
		d.fate.excuse(1)
		d.fate.losses++
		return true
	case !d.settled && !d.freed:
		if d.asked > 0 && d.action == brokers.Retry { // its copy may live beside it, each with its attempts
			d.fate.wilds++
		}
		c.free(d)
		return true
	}
	return false
}

// takeClosing gives back what a worker still holds. What its handlers have
// finished must not be among it.
func (c *checker) takeClosing(w *life) {
	w.closing = max(c.now, 1)
	for _, d := range w.deliveries {
		if d.settled || d.freed {
			continue
		}
		inTime := w.stopping > 0 && d.ended < w.stopping+w.drain && !c.stormy() // its session may have ended, unseen
		if w.crashed == 0 && inTime && !d.told && d.runs > 0 && !d.running && d.asked == 0 && !d.buried && !d.lost() && d.high > d.ended && !c.lapsed(d) {
			w.unfinished = append(w.unfinished, d)
		}
		if w.crashed == 0 {
			c.free(d)
		}
	}
}

// lapsed reports whether the lease of d was over before it ran again, in a
// smaller batch.
func (c *checker) lapsed(d *delivery) bool {
	return d.high <= c.now && slices.ContainsFunc(d.next, func(j judgement) bool { return j.split })
}

// lost reports whether the last run ended because the lease was lost.
func (d *delivery) lost() bool {
	for _, j := range d.next {
		if j.acks || j.retries || j.dies || j.releases {
			return false
		}
	}
	return true
}

func (c *checker) takeDown(w *life, e *event) {
	w.down = true
	if w.crashed > 0 {
		return
	}
	if !strings.Contains(e.Note, consumer.ErrUnclean.Error()) {
		for _, d := range w.unfinished {
			c.violate(promiseShutdown, d.fate.id, "was finished by worker %d with %s at %v, and neither settled nor given back (delivery %d)",
				w.number, outcomeNames[d.last], d.ended, d.number)
		}
	}
	unconnected := w.received == 0 && c.stormy() // a fault may have kept it from opening its source
	if unconnected && (w.stopping == 0 || c.unaware(w)) {
		return
	}
	if w.stopping == 0 {
		c.violate(promiseShutdown, "", "worker %d stopped by itself: %s", w.number, e.Note)
		return
	}
	limit := w.drain + time.Second + c.scenario.pace.closing + c.scenario.pace.slack
	if c.storm.to > 0 && w.stopping <= c.storm.to { // it began to stop in a fault, be that over now
		limit += 2 * callTimeout // to close the source without answers
	}
	if e.At-w.stopping > limit {
		c.violate(promiseShutdown, "", "worker %d took %v to stop, allowed are %v", w.number, e.At-w.stopping, limit)
	}
	if e.Note != "" && !unconnected && !strings.Contains(e.Note, consumer.ErrUnclean.Error()) {
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
	for _, f := range c.all() {
		c.finishMessage(f)
	}
	for topic, n := range c.left {
		if n > 0 {
			c.violate(promiseLiveness, "", "%d messages are left in %s", n, topic)
		}
	}
	c.checkEvents()
	c.checkOffsets()
	c.measure()
}

// measure takes the progress between the first end of a worker and the calm.
func (c *checker) measure() {
	if !c.scenario.served || len(c.scenario.incidents) == 0 {
		return
	}
	from, to := c.scenario.incidents[0].at, c.scenario.calm
	last, done := from, 0
	for _, e := range c.events {
		if e.Kind == ended && e.Outcome == okay && from <= e.At && e.At <= to {
			done++
			c.pause = max(c.pause, e.At-last)
			last = e.At
		}
	}
	c.rate = float64(done) / (to - from).Seconds()
}

func (c *checker) finishMessage(f *fate) {
	if f.published > 0 {
		c.sent++
	}
	if f.successes > 0 {
		c.handled++
	}
	if f.forgotten {
		c.discarded++
	}
	if f.confirmed > 0 && f.successes == 0 && f.letters == 0 && !f.forgotten {
		c.lost++
		c.violate(promiseLost, f.id, "was confirmed, and is neither handled nor dead")
	}
	ends := f.successes + f.letters
	if f.forgotten {
		ends++
	}
	if ends > 1 {
		c.duplicates += ends - 1
		if f.disturbed+f.spare+f.calls-1 == 0 {
			c.violate(promiseDuplicate, f.id, "was handled %d times and has %d dead letters, and no fault explains it", f.successes, f.letters)
		} else {
			c.explained += ends - 1
		}
	}
	if c.scenario.message(f.id) == nil {
		return
	}
	if allowed := c.attempts(f)*(f.calls+f.wilds) + f.free + f.disturbed; f.runs > allowed {
		c.violate(promiseAttempts, f.id, "was run %d times, explained are %d", f.runs, allowed)
	}
}

// checkEvents compares how often observers were told of things with how often
// they happened.
func (c *checker) checkEvents() {
	if c.told == nil {
		return
	}
	for _, line := range []struct {
		event consumer.EventKind
		want  int
	}{
		{consumer.EventReceived, c.counts[received]},
		{consumer.EventStarted, c.counts[started]},
		{consumer.EventAcked, c.settledBy[brokers.Ack]},
		{consumer.EventRetried, c.settledBy[brokers.Retry]},
		{consumer.EventReleased, c.settledBy[brokers.Release]},
		{consumer.EventDeadLettered, c.counts[buriedFine]},
	} {
		if got := c.told[line.event]; got != line.want {
			c.violate(promiseEvents, "", "observers were told %d times of %q, it happened %d times", got, line.event, line.want)
		}
	}
}

// differs says in what got is not want, "" if it is the same.
func differs(got, want brokers.Message, topic string) string {
	switch {
	case got.Topic != topic:
		return "topic " + got.Topic
	case string(got.Body) != string(want.Body):
		return "body"
	case got.Key != want.Key:
		return "key " + got.Key
	case !equalHeaders(got.Headers, want.Headers):
		return fmt.Sprintf("headers %q instead of %q", got.Headers, want.Headers)
	}
	return ""
}

// own leaves out the headers that belong to the framework: a dead letter has
// room for one story.
func own(h brokers.Headers) brokers.Headers {
	user, _ := wire.Partition(h)
	return user
}

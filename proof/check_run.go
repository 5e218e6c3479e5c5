package main

import (
	"math"
	"slices"
	"time"
)

const forever = math.MaxInt64 / 2

// takeReceived holds a delivery against what its topic should have held.
func (c *checker) takeReceived(e *event) {
	f, w := c.fate(e.ID), c.workers[e.Worker]
	c.expire(f)
	if c.stormy() && !c.leased() {
		for _, d := range f.deliveries {
			c.severDelivery(d)
		}
	}
	d := &delivery{
		number: e.Delivery, fate: f, topic: c.scenario.topic(e.Topic), worker: w,
		got:     token{attempt: e.Attempt, throttles: e.Throttles, due: e.Due, least: e.Attempt},
		attempt: e.Attempt, throttles: e.Throttles, first: e.First, due: e.Due, abandoned: e.Abandoned,
		received: e.At, low: e.Until, high: e.Until,
		place: partition{e.Topic, e.Partition}, offset: e.Offset,
	}
	if e.Until == 0 { // held for as long as its session
		d.low, d.high = forever, forever
	}
	w.received++
	d.order = w.received
	w.deliveries = append(w.deliveries, d)
	f.deliveries = append(f.deliveries, d)
	f.open = append(f.open, d)
	c.deliveries[d.number] = d
	if m := c.scenario.message(e.ID); m != nil {
		d.bodySize = len(m.Body)
	}
	switch {
	case c.scenario.message(e.ID) == nil || f.published == 0:
		c.violate(promiseStranger, e.ID, "was received")
	case e.Note != "":
		c.violate(promiseContent, e.ID, "was received with another %s", e.Note)
	}
	c.earn(d, e)
	c.account(d)
	if known := c.knownLosses(f); e.Abandoned > known {
		c.violate(promiseDelivery, e.ID, "is said to have been abandoned %d times, known are at most %d", e.Abandoned, known)
	}
}

// knownLosses is the most that Abandoned may be. RabbitMQ counts what is given
// back, and with a connection everything that was on it, also what no worker
// has taken from its buffer yet.
func (c *checker) knownLosses(f *fate) int {
	switch c.scenario.broker {
	case "rabbitmq":
		return max(0, c.sessions+f.released-bystandersOnRabbitMQ)
	case "sqs":
		return max(0, c.strays(f)-bystandersOnSQS)
	}
	return f.losses + c.crashes + c.refused // a crash takes with it what is on its way, too
}

// account takes a token for d.
func (c *checker) account(d *delivery) {
	f := d.fate
	same := func(t token) bool {
		undated := c.scenario.broker == "kafka" && t.due == 0 && t.attempt+t.throttles > 0 // its adapter sets when
		return t.attempt == d.got.attempt && t.throttles == d.got.throttles && (undated || c.near(t.due, d.got.due) || c.shortened(t, d.got.due))
	}
	i := f.closest(d.got.due, same)
	if i < 0 {
		i = c.closestEstimate(f, d.got)
	}
	if i >= 0 {
		if !c.ambiguous(f) {
			d.due = max(d.due, min(f.tokens[i].due, max(f.tokens[i].soon, d.got.due)))
		}
		d.excess = max(0, d.got.attempt-f.tokens[i].least)
		f.free += max(0, f.tokens[i].least-d.got.attempt)
		d.got = f.tokens[i]
		f.tokens = slices.Delete(f.tokens, i, i+1)
		return
	}
	of := func(t token) bool { return same(t) || c.explains(f, t, d.got) }
	if j := slices.IndexFunc(f.seen, of); j >= 0 && f.wild > 0 {
		f.wild--
		d.excess = d.got.attempt - f.seen[j].least
		d.got.least = f.seen[j].least
		return
	}
	switch {
	case len(f.tokens) == 0:
		c.violate(promiseDelivery, f.id, "was delivered once more (delivery %d), while it was held or settled", d.number)
	default:
		c.violate(promiseCount, f.id, "was delivered as %+v, stored was %+v", d.got, f.tokens)
	}
}

// closest returns the index of the token that is meant: due times are rounded
// up on their way, and two copies may differ in little else. It is -1 if there
// is none.
func (f *fate) closest(due time.Duration, same func(token) bool) int {
	best := -1
	for i, t := range f.tokens {
		if same(t) && (best < 0 || t.due <= due && (f.tokens[best].due > due || f.tokens[best].due < t.due)) {
			best = i
		}
	}
	return best
}

// shortened reports whether due may be what a reader makes of the due time of t,
// which is longer than it believes: guards may have messages wait for longer
// than any policy.
func (c *checker) shortened(t token, due time.Duration) bool {
	rounding := c.scenario.pace.rounding
	return t.soon+rounding < t.due && t.soon-rounding <= due && due <= t.due
}

// near allows for the rounding of times on their way through a broker.
func (c *checker) near(a, b time.Duration) bool {
	return a == b || a != 0 && b != 0 && (a-b).Abs() <= c.scenario.pace.rounding
}

func (s *scenario) topic(name string) *topic {
	for i := range s.topics {
		if s.topics[i].name == name {
			return &s.topics[i]
		}
	}
	return nil
}

// takeStarted holds the start of a handler run against what came before.
func (c *checker) takeStarted(e *event) {
	c.runs++
	d := c.deliveries[e.Delivery]
	if d == nil {
		c.violate(promiseContent, e.ID, "was given to a handler with a body that was not received")
		return
	}
	f, w := d.fate, d.worker
	f.runs++
	if d.freed {
		f.free++ // what it counts is forgotten with the delivery
	}
	if d.fate.id != e.ID || e.Note != "" {
		c.violate(promiseContent, f.id, "was given to a handler with another %s (as %s)", e.Note, e.ID)
	}
	c.startProbe(d)
	c.startPaced(d, e)
	c.startCount(d, e)
	if d.attempt+1 > or(d.topic.policy.MaxAttempts, 10) {
		c.violate(promiseAttempts, f.id, "starts attempt %d of at most %d", d.attempt+1, d.topic.policy.MaxAttempts)
	}
	if d.due = max(d.due, e.Due); e.At < d.due {
		c.early++
		c.violate(promiseEarly, f.id, "was due at %v and started %v before", d.due, d.due-e.At)
	} else if d.due > 0 {
		c.latest = max(c.latest, e.At-d.due)
	}
	slack := c.scenario.pace.slack
	switch {
	case d.running:
		c.violate(promiseAttempts, f.id, "is run twice at once from delivery %d", d.number)
	case d.runs > 0 && !slices.ContainsFunc(d.next, func(j judgement) bool { return j.retries }):
		c.violate(promiseAttempts, f.id, "is run again after %s", outcomeNames[d.last])
	case d.asked > 0:
		c.violate(promiseSettlement, f.id, "is run after its settlement was asked for")
	case d.told && d.toldAt+slack < e.At:
		c.violate(promiseStale, f.id, "is run by worker %d, which was told at %v that its lease is lost", w.number, d.toldAt)
	case w.crashed > 0 && w.crashed+slack < e.At, w.stopping > 0 && w.stopping+slack < e.At && !c.unaware(w):
		c.violate(promiseShutdown, f.id, "is started by worker %d, which was told to stop at %v", w.number, max(w.stopping, w.crashed))
	case d.crashLoop():
		c.violate(promiseAttempts, f.id, "is run although it was abandoned %d times", d.abandoned)
	}
	d.running, d.began, d.decided, d.buried, d.dueBefore = true, e.At, false, false, e.Due
	d.runs++
	if e.Flags&isFirst != 0 {
		if w.running[d.topic]++; w.running[d.topic] > w.concurrency {
			c.violate(promiseHarm, f.id, "is one of %d runs at once, allowed are %d", w.running[d.topic], w.concurrency)
		}
	}
	c.startLane(d)
}

// startCount takes over which of the possible judgements on the last run the
// consumer made, and checks the number of this one.
func (c *checker) startCount(d *delivery, e *event) {
	for _, j := range d.next {
		if j.retries && j.attempt == e.Attempt-1 && j.throttles == e.Throttles {
			d.attempt, d.throttles = j.attempt, j.throttles
			return
		}
	}
	if len(d.next) > 0 {
		d.attempt, d.throttles = d.next[0].attempt, d.next[0].throttles
	}
	if e.Attempt-1 != d.attempt || e.Throttles != d.throttles {
		c.violate(promiseCount, d.fate.id, "is run as attempt %d after %d throttles, by the ledger it is attempt %d after %d",
			e.Attempt, e.Throttles, d.attempt+1, d.throttles)
	}
}

// startLane checks that one key is worked on in order.
func (c *checker) startLane(d *delivery) {
	m := c.scenario.message(d.fate.id)
	ordered := c.scenario.options.Ordered
	if m == nil || m.Key == "" || !ordered && !c.scenario.slots[0].config.OrderByKey {
		return
	}
	key, w := d.topic.name+"\x00"+m.Key, d.worker
	if busy := w.busy[key]; busy != nil && busy != d && busy.running {
		c.misplace(d.fate.id, busy.fate.id, "is run beside %s of the same key, by the same worker", busy.fate.id)
	}
	if last := w.lanes[key]; last > d.order {
		c.violate(promiseOrder, d.fate.id, "is run after another of its key that was received later")
	}
	w.busy[key], w.lanes[key] = d, d.order
	if !ordered {
		return
	}
	for _, f := range c.keys[key] {
		for _, other := range f.open {
			if f.wilds+d.fate.wilds == 0 && other.fate != d.fate && other.running && !other.excused && !other.freed && other.low > c.now && other.worker.crashed == 0 {
				c.misplace(d.fate.id, f.id, "is run beside %s of the same key, by workers %d and %d", f.id, w.number, other.worker.number)
			}
		}
	}
}

// takeEnded judges how a run ended.
func (c *checker) takeEnded(e *event) {
	d := c.deliveries[e.Delivery]
	if d == nil {
		return
	}
	f, w := d.fate, d.worker
	d.running, d.last, d.ended = false, e.Outcome, e.At
	if e.Flags&isFirst != 0 {
		w.running[d.topic]--
	}
	d.next = d.next[:0]
	for _, why := range c.causes(d, e) {
		d.next = append(d.next, c.judge(d, e, why)...)
	}
	c.report(d, e, e.Outcome.class(e.Cause))
	if k := e.Outcome.class(e.Cause); e.Outcome != okay && (k == classLost || k == classShutdown || slices.ContainsFunc(d.next, func(j judgement) bool { return !j.counted })) {
		f.free++
	}
	if retries := func(j judgement) bool { return j.retries }; slices.ContainsFunc(d.next, retries) {
		d.due = forever
		for _, j := range d.next {
			if j.retries {
				d.due = min(d.due, e.At+j.low)
			}
		}
	}
	if !d.next[0].split && (d.next[0].retries || d.next[0].dies) {
		d.first, f.failedAt = or(d.first, e.At), e.At
	}
	if e.Outcome == okay {
		f.successes++
		c.endLane(d)
	}
	if e.Outcome == skipping {
		f.forgotten = true
	}
}

// causes are what may have ended the context of a run by the time that the
// consumer looked.
func (c *checker) causes(d *delivery, e *event) []cause {
	causes := []cause{e.Cause}
	slack := c.scenario.pace.slack
	if e.Cause == noCause && e.At-d.began >= d.topic.timeout-slack {
		causes = append(causes, timedOut)
	}
	if w := d.worker; e.Cause == noCause && w.stopping > 0 && e.At >= w.stopping+w.drain-slack {
		causes = append(causes, shutDown)
	}
	return causes
}

// endLane checks the order of first successes where the broker keeps it.
func (c *checker) endLane(d *delivery) {
	m := c.scenario.message(d.fate.id)
	if m == nil || m.Key == "" || !c.scenario.options.Ordered || d.fate.successes > 1 || !d.fate.plain() {
		return
	}
	for _, f := range c.keys[d.topic.name+"\x00"+m.Key] {
		if f == d.fate {
			return
		}
		if c.precedes(f, d.fate) && f.plain() && f.successes == 0 && !f.forgotten && f.letters == 0 && !f.dying() {
			c.misplace(d.fate.id, f.id, "is handled before %s, which has the same key and was published earlier", f.id)
		}
	}
}

// precedes reports whether a message comes before another one in their topic:
// both are of one call, or the other one was published when it was confirmed.
// Calls of producers that work at the same time have no order.
func (c *checker) precedes(f, other *fate) bool {
	together := c.scenario.message(f.id).call == c.scenario.message(other.id).call
	return f.confirmed > 0 && f.published < other.published && (together || f.confirmed < other.published)
}

// plain reports whether nothing has disturbed the order of a message.
func (f *fate) plain() bool { return f.calls == 1 && f.disturbed == 0 && f.wilds == 0 }

// dying reports whether the message is on its way to the dead letters.
func (f *fate) dying() bool {
	return slices.ContainsFunc(f.deliveries, (*delivery).dying)
}

// takeDecided takes the due time from the decision, if it keeps to the policy.
func (c *checker) takeDecided(e *event) {
	d := c.deliveries[e.Delivery]
	if d == nil || e.Note != "retry" {
		return
	}
	c.checkDelay(d, e)
	d.due, d.decided = e.Due, true
}

// checkDelay compares a due time with what the policy allows.
func (c *checker) checkDelay(d *delivery, e *event) {
	slack := c.scenario.pace.slack
	var low, high time.Duration = -1, -1
	for _, j := range d.next {
		if !j.retries {
			continue
		}
		if at := d.ended + j.low; low < 0 || at < low {
			low = at
		}
		high = max(high, d.ended+j.high)
	}
	switch {
	case low < 0:
		c.violate(promiseSettlement, d.fate.id, "is to be retried after %s, attempt %d", outcomeNames[d.last], d.attempt+1)
	case e.Due < low:
		c.violate(promiseEarly, d.fate.id, "is due %v after its run, the policy wants at least %v", e.Due-d.ended, low-d.ended)
	case e.Due > high+slack:
		c.violate(promiseLate, d.fate.id, "is due %v after its run, the policy allows at most %v", e.Due-d.ended, high-d.ended)
	}
}

package main

import (
	"math"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

const forever = math.MaxInt64 / 2

// takeReceived holds a delivery against what its topic should have held.
func (c *checker) takeReceived(e *event) {
	f, w := c.fate(e.ID), c.workers[e.Worker]
	c.expire(f)
	w.received++
	d := &delivery{
		number: e.Delivery, fate: f, topic: c.scenario.topic(e.Topic), worker: w, order: w.received,
		got:     token{attempt: e.Attempt, throttles: e.Throttles, due: e.Due, soon: e.Due, least: e.Attempt, death: e.Death},
		attempt: e.Attempt, throttles: e.Throttles, first: e.First, failed: e.Last, due: e.Due, abandoned: e.Abandoned, onTrial: e.Crashes > 0,
		received: e.At, low: or(e.Until, forever), high: or(e.Until, forever), // or held for as long as its session
	}
	d.lost = e.Abandoned
	if d.onTrial {
		d.lost += e.Crashes - 1 // by copies of it that went back
	}
	d.suspect = c.suspects(d)
	w.deliveries = append(w.deliveries, d)
	f.deliveries = append(f.deliveries, d)
	f.open = append(f.open, d)
	c.deliveries[d.number] = d
	switch {
	case f.message == nil || f.published == 0:
		c.violate(promiseStranger, e.ID, "was received")
	case e.Note != "":
		c.violate(promiseContent, e.ID, "was received with another %s", e.Note)
	}
	if e.First == 0 && e.Due == 0 {
		w.dependency(d.topic.name).delivered++
	}
	c.account(d)
	if known := c.interruptions(f); e.Abandoned > known && !f.doubt {
		c.violate(promiseDelivery, e.ID, "is said to have been abandoned %d times, known are at most %d", e.Abandoned, known)
	}
}

// account takes a token for d.
func (c *checker) account(d *delivery) {
	f, got := d.fate, d.got
	if i := c.closest(f, got); i >= 0 {
		t := f.tokens[i]
		if t.death != got.death { // it is forgotten
			t.least = t.death.Attempt
			f.disturbed++
		}
		if !f.doubt {
			d.due = max(d.due, min(t.due, max(t.soon, got.due)))
		}
		d.excess = max(0, got.attempt-t.least)
		f.free += max(0, t.least-got.attempt)
		f.unheard += c.unheard(f, t)
		d.got = t
		f.tokens = slices.Delete(f.tokens, i, i+1)
		return
	}
	known := func(t token) bool { return c.same(t, got) || c.estimated(f, t, got) }
	switch {
	case f.doubt && slices.ContainsFunc(f.seen, known):
	case len(f.tokens) == 0:
		c.violate(promiseDelivery, f.id, "was delivered once more (delivery %d), while it was held or settled", d.number)
	default:
		c.violate(promiseCount, f.id, "was delivered as %+v, stored was %+v", got, f.tokens)
	}
}

// closest returns the index of the token that is meant, of those that are due the
// last. It is -1 if there is none.
func (c *checker) closest(f *fate, got token) int {
	best := -1
	rank := func(t token) time.Duration {
		if t.due > c.now {
			return -t.due
		}
		return t.due
	}
	for _, fits := range []func(t token) bool{
		func(t token) bool { return c.same(t, got) },
		func(t token) bool { return c.estimated(f, t, got) },
	} {
		for i, t := range f.tokens {
			if fits(t) && (best < 0 || rank(t) > rank(f.tokens[best])) {
				best = i
			}
		}
		if best >= 0 {
			break
		}
	}
	return best
}

// same reports whether got is what a worker reads of t. Its due time is rounded on
// the way, and a reader makes less of one that is longer than it believes: guards
// may have messages wait for longer than any policy.
func (c *checker) same(t, got token) bool {
	undated := c.scenario.broker == "kafka" && t.due == 0 && t.attempt+t.throttles > 0 // its adapter sets when
	rounding := c.scenario.pace.rounding
	due := undated || t.due == got.due || got.due != 0 && t.soon-rounding <= got.due && got.due <= t.due+rounding
	return t.attempt == got.attempt && t.throttles == got.throttles && t.death == got.death && due
}

// estimated reports whether got may be what a worker of SQS makes of t.
//
// SQS counts receives, and stores nothing with a message that waits in place. So
// what a worker reads of a retry that another one asked for is an estimate: its
// attempt may be too high by each receive that was no failed attempt, never too
// low, and never the end of the message; and it has the throttles and the due time
// of the message as it was last copied, or as this worker knew it before. On a
// FIFO queue runs that do not count wait in place as well, what waits in the worker
// is one receive, and of a message that waits for its dead letter another worker
// does not know that it is dead. With sqs.Options.Copies nothing is estimated. See
// docs/explanation/sqs.md.
func (c *checker) estimated(f *fate, t, got token) bool {
	if c.scenario.broker != "sqs" || c.scenario.copies || got.attempt >= c.attempts(f) {
		return false
	}
	held, strays := 0, c.interruptions(f)+f.unheard+c.unheard(f, t)
	if t.death != got.death {
		if !c.scenario.fifo || got.death != (death{}) {
			return false
		}
		t.least = t.death.Attempt
	}
	if c.scenario.fifo {
		strays += f.free
		for _, d := range f.deliveries {
			held += max(0, d.runs-1)
		}
	}
	base := func(base token) bool {
		return base.attempt <= got.attempt && base.throttles == got.throttles && c.near(base.due, got.due)
	}
	return t.least-held <= got.attempt && got.attempt <= t.least+strays && slices.ContainsFunc(f.seen, base)
}

// unheard is how often t may have been received until now by workers that handed it to
// nobody: its answer came late, or it lay in their buffer, until less than half of the
// lease was left, and they gave it back. So each took the other half.
func (c *checker) unheard(f *fate, t token) int {
	return int(max(0, c.now-max(f.since, t.due)) / (sqsLease / 2))
}

// near allows for the rounding of times on their way through a broker.
func (c *checker) near(a, b time.Duration) bool {
	return a == b || a != 0 && b != 0 && (a-b).Abs() <= c.scenario.pace.rounding
}

// takeStarted holds the start of a handler run against what came before.
func (c *checker) takeStarted(e *event, d *delivery) {
	c.runs++
	if d == nil {
		c.violate(promiseContent, e.ID, "was given to a handler with a body that was not received")
		return
	}
	f, w := d.fate, d.worker
	f.runs++
	if d.freed {
		f.free++ // what it counts is forgotten with the delivery
	}
	if f.id != e.ID || e.Note != "" {
		c.violate(promiseContent, f.id, "was given to a handler with another %s (as %s)", e.Note, e.ID)
	}
	c.startPaced(d, e)
	c.startCount(d, e)
	c.startsByHand(d)
	if d.due = max(d.due, e.Due); e.At < d.due {
		c.early++
		c.violate(promiseEarly, f.id, "was due at %v and started %v before", d.due, d.due-e.At)
	} else if d.due > 0 {
		c.latest = max(c.latest, e.At-d.due)
	}
	slack, end := c.scenario.pace.slack, or(w.crashed, w.stopping)
	late := d.asked > 0 && c.scenario.served && w.stopping > 0 // a handler may be given up before it gets to say that it starts
	f.doubt = f.doubt || late
	switch {
	case d.running:
		c.violate(promiseAttempts, f.id, "is run twice at once from delivery %d", d.number)
	case d.runs > 0 && !slices.ContainsFunc(d.next, func(j judgement) bool { return j.retries }):
		c.violate(promiseAttempts, f.id, "is run again after %s", outcomeNames[d.last])
	case d.asked > 0 && !late:
		c.violate(promiseSettlement, f.id, "is run after its settlement was asked for")
	case d.toldAt > 0 && d.toldAt+slack < e.At:
		c.violate(promiseStale, f.id, "is run by worker %d, which was told at %v that its lease is lost", w.number, d.toldAt)
	case end > 0 && end+slack < e.At && !late && !c.stormy(): // in which it may stand still
		c.violate(promiseShutdown, f.id, "is started by worker %d, which was told to stop at %v", w.number, end)
	case d.isDead():
		c.violate(promiseAttempts, f.id, "is run although it is dead of %q, and waits for its dead letter", d.got.death.Reason)
	case d.suspect:
		c.violate(promiseAttempts, f.id, "is run although it was abandoned %d times, on trial: %v", d.lost, d.onTrial)
	}
	d.running, d.began, d.buried, d.dueBefore = true, e.At, false, e.Due
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
	made := func(j judgement) bool { return j.retries && j.attempt == e.Attempt-1 && j.throttles == e.Throttles }
	if i := slices.IndexFunc(d.next, made); i >= 0 {
		d.attempt, d.throttles = d.next[i].attempt, d.next[i].throttles
	} else if len(d.next) > 0 {
		d.attempt, d.throttles = d.next[0].attempt, d.next[0].throttles
	}
	if e.Attempt-1 != d.attempt || e.Throttles != d.throttles {
		c.violate(promiseCount, d.fate.id, "is run as attempt %d after %d throttles, by the ledger it is attempt %d after %d",
			e.Attempt, e.Throttles, d.attempt+1, d.throttles)
	}
	if d.exhausted() {
		c.violate(promiseAttempts, d.fate.id, "starts attempt %d of at most %d", d.attempt+1, d.topic.policy.MaxAttempts)
	}
}

// hasTurns reports whether messages of the key of d wait for each other.
func (c *checker) hasTurns(d *delivery) bool {
	m := d.fate.message
	return m != nil && m.Key != "" && (c.scenario.options.Ordered || c.scenario.slots[0].config.OrderByKey)
}

// startLane checks that one key is worked on in order.
func (c *checker) startLane(d *delivery) {
	m, ordered := d.fate.message, c.scenario.options.Ordered
	if !c.hasTurns(d) {
		return
	}
	key, w := d.topic.name+"\x00"+m.Key, d.worker
	if busy := w.busy[key]; busy != nil && busy != d && busy.running && !busy.isSkipped() {
		c.misplace(d.fate.id, busy.fate.id, "is run beside %s of the same key, by the same worker", busy.fate.id)
	}
	if last := w.lanes[key]; last > d.order {
		c.violate(promiseOrder, d.fate.id, "is run after another of its key that was received later")
	}
	w.busy[key], w.lanes[key] = d, d.order
	if !ordered || d.fate.doubt {
		return
	}
	for _, f := range c.keys[key] {
		for _, other := range f.open {
			held := other.running && !other.isSkipped() && !other.excused && !other.freed && other.low > c.now && other.worker.crashed == 0
			if held && !f.doubt && f != d.fate {
				c.misplace(d.fate.id, f.id, "is run beside %s of the same key, by workers %d and %d", f.id, w.number, other.worker.number)
			}
		}
	}
}

// takeEnded judges how a run ended.
func (c *checker) takeEnded(e *event, d *delivery) {
	f := d.fate
	d.running, d.last, d.ended = false, e.Outcome, e.At
	if e.Flags&isFirst != 0 {
		d.worker.running[d.topic]--
	}
	d.next = d.next[:0]
	causes := c.causes(d, e)
	for _, why := range causes {
		d.next = append(d.next, c.judge(d, e, why)...)
	}
	c.skippedOrBeside(d)
	c.report(d, e)
	uncounted := func(j judgement) bool { return !j.counted && !j.acks }
	if slices.ContainsFunc(d.next, uncounted) {
		f.free++
	}
	d.due = forever
	for _, j := range d.next {
		if j.retries {
			d.due = min(d.due, e.At+j.low)
		}
	}
	if first := d.next[0]; !first.split && (first.retries || first.dies) {
		d.first, d.failed = or(d.first, e.At), e.At
	}
	switch e.Outcome {
	case okay:
		f.successes++
		c.endLane(d)
	case skipping:
		f.forgotten = true
	}
}

// takeDecided takes the due time from the decision, if it keeps to the policy.
func (c *checker) takeDecided(e *event, d *delivery) {
	if e.Note == "retry" {
		c.checkDelay(d, e)
		d.due = e.Due
	}
}

// causes are what may have ended the context of a run by the time that the
// consumer looked.
func (c *checker) causes(d *delivery, e *event) []cause {
	causes, slack := []cause{e.Cause}, c.scenario.pace.slack
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
	m := d.fate.message
	if m == nil || m.Key == "" || !c.scenario.options.Ordered || d.fate.successes > 1 || !d.fate.plain() {
		return
	}
	for _, f := range c.keys[d.topic.name+"\x00"+m.Key] {
		if f == d.fate {
			return
		}
		ended := f.successes+f.letters > 0 || f.forgotten || slices.ContainsFunc(f.deliveries, (*delivery).dying)
		if c.precedes(f, d.fate) && f.plain() && !ended {
			c.misplace(d.fate.id, f.id, "is handled before %s, which has the same key and was published earlier", f.id)
		}
	}
}

// precedes reports whether a message comes before another one in their topic:
// both are of one call, or the other one was published when it was confirmed.
// Calls of producers that work at the same time have no order.
func (c *checker) precedes(f, other *fate) bool {
	together := f.message.call == other.message.call
	return f.confirmed > 0 && f.published < other.published && (together || f.confirmed < other.published)
}

// plain reports whether nothing has disturbed the order of a message.
func (f *fate) plain() bool { return f.calls == 1 && f.disturbed == 0 && !f.doubt }

// takeSettling holds the action that the consumer asks for against what the
// handler did. It may take effect from now on.
func (c *checker) takeSettling(e *event, d *delivery) {
	if d == nil {
		c.violate(promiseSettlement, e.ID, "is settled without having been received")
		return
	}
	f := d.fate
	if d.settled {
		c.violate(promiseSettlement, e.ID, "is settled twice (delivery %d)", d.number)
	}
	if e.Worker != d.worker.number {
		c.violate(promiseStale, e.ID, "is settled by worker %d, but was received by %d", e.Worker, d.worker.number)
	}
	switch e.Action {
	case brokers.Ack:
		c.mayAck(d)
	case brokers.Retry:
		c.mayRetry(d, e)
		d.maybe = token{attempt: e.Attempt, throttles: e.Throttles, due: e.Due, soon: min(e.Due, e.At+e.Delay), least: e.Attempt - d.excess, death: e.Death}
		c.give(f, d.maybe)
	case brokers.Release:
		c.mayRelease(d)
		f.released++
		d.maybe = d.got
		c.give(f, d.maybe)
	}
	d.asked++
	d.askedAt = e.At
}

func (c *checker) mayAck(d *delivery) {
	f, refused := d.fate, d.runs == 0 && d.refused() || d.isSkipped()
	acks := func(j judgement) bool { return j.acks }
	dies := func(j judgement) bool { return j.dies }
	switch {
	case d.running && !d.isSkipped():
		c.violate(promiseSettlement, f.id, "is acked while its handler runs")
	case slices.ContainsFunc(d.next, acks):
	case !refused && !slices.ContainsFunc(d.next, dies):
		c.violate(promiseSettlement, f.id, "is acked after %d runs, the last with %s", d.runs, outcomeNames[d.last])
	case d.topic.dead == "":
		f.forgotten = true
	case d.asked > 0: // this is another try
	case d.worker.letters[f] == 0:
		c.violate(promiseConfirm, f.id, "is acked after %s (delivery %d), without a dead letter that is confirmed", outcomeNames[d.last], d.number)
	default:
		d.worker.letters[f]--
	}
}

func (c *checker) mayRetry(d *delivery, e *event) {
	f, rounding := d.fate, c.scenario.pace.rounding
	keeps := e.Attempt == d.attempt && e.Throttles == d.throttles
	retries := func(j judgement) bool { return j.retries }
	counts := func(j judgement) bool { return j.retries && j.attempt == e.Attempt && j.throttles == e.Throttles }
	switch {
	case e.Death.Reason != "":
		c.diesLater(d, e)
	case d.isDead():
		c.violate(promiseLetter, f.id, "is sent to wait for its dead letter, and does not say any more that it is dead of %q", d.got.death.Reason)
	case keeps && d.runs > 0 && c.near(e.Due, d.dueBefore): // what has failed or waited before is given back so
		c.mayRelease(d)
	case d.running:
		c.violate(promiseSettlement, f.id, "is sent to a retry while its handler runs")
	case d.runs == 0:
		asked := c.now
		if c.scenario.served { // it may have waited behind a settlement that hung
			asked = d.received
		}
		early := d.got.due+c.scenario.pace.slack > asked
		waits := c.sentToWait(d, e) || d.worker.halting()
		trial := e.Crashes > 0 && (d.onTrial || d.abandoned >= d.worker.crashLimit-1)
		if !keeps || !early && !waits && !trial {
			c.violate(promiseSettlement, f.id, "is sent to a retry without having been handled")
		}
	case !slices.ContainsFunc(d.next, retries):
		c.violate(promiseSettlement, f.id, "is to be retried after %s, attempt %d", outcomeNames[d.last], d.attempt+1)
	case !slices.ContainsFunc(d.next, counts):
		c.violate(promiseCount, f.id, "is retried with attempt %d and %d throttles, the ledger says %+v", e.Attempt, e.Throttles, d.next)
	case c.sentToWait(d, e):
	case e.At+e.Delay < e.Due-rounding:
		c.violate(promiseEarly, f.id, "is asked for in %v, which is before it is due at %v", e.Delay, e.Due)
	default:
		c.checkDelay(d, e)
	}
}

// checkDelay compares a due time with what the policy allows.
func (c *checker) checkDelay(d *delivery, e *event) {
	var high time.Duration
	for _, j := range d.next {
		if j.retries {
			high = max(high, d.ended+j.high)
		}
	}
	switch {
	case e.Due < d.due:
		c.violate(promiseEarly, d.fate.id, "is due %v after its run, the policy wants at least %v", e.Due-d.ended, d.due-d.ended)
	case e.Due > high+c.scenario.pace.slack:
		c.violate(promiseLate, d.fate.id, "is due %v after its run, the policy allows at most %v", e.Due-d.ended, high-d.ended)
	}
}

func (c *checker) mayRelease(d *delivery) {
	f, w := d.fate, d.worker
	if d.runs > 0 && d.asked == 0 {
		f.disturbed++
		f.free += d.runs
	}
	late := w.stopping > 0 && d.ended >= w.stopping+w.drain && c.scenario.pace.slack > 0 // it was given up as stuck while it returned
	may := func(j judgement) bool {
		return j.releases || w.halting() && (j.split || j.dies) || c.hasTurns(d) && j.split // its part of the batch waits as if it had not run
	}
	switch {
	case d.running:
		if !w.halting() || w.stopping > 0 && c.now < w.stopping+w.drain {
			c.violate(promiseSettlement, f.id, "is released while its handler runs")
		}
	case d.runs == 0:
		if !w.halting() && !c.hasTurns(d) && !d.pausedFor() { // whose dependency is down, and so that they keep their order
			c.violate(promiseSettlement, f.id, "is released without a reason")
		}
	case !late && !slices.ContainsFunc(d.next, may):
		c.violate(promiseSettlement, f.id, "is released after %s", outcomeNames[d.last])
	}
}

func (w *life) halting() bool { return w.stopping > 0 || w.crashed > 0 || w.closing > 0 }

// takeSettled takes in what became of a settlement.
func (c *checker) takeSettled(e *event, d *delivery) {
	f, w := d.fate, d.worker
	d.excused, d.stale = d.excused || d.stale, false // it may have been extended since the fault
	if e.Err == alreadySettled {                     // by an earlier call whose answer got lost
		c.settledBy[e.Action]++
	}
	if e.Err != fine {
		if c.scenario.served || e.Err == unknownOutcome && f.doubt { // there may be a copy, or the original may come again
			f.doubt = true
			f.disturbed++
		}
		if e.Action != brokers.Ack && !f.takeBack(d.maybe) {
			c.violate(promiseStale, f.id, "is settled although worker %d was told that it was not: %s", w.number, failNames[e.Err])
		}
		if e.Err == leaseLost || e.Err == isClosed {
			c.tell(d)
		}
		return
	}
	if c.scenario.broker == "sqs" && e.Action == brokers.Retry && (d.asked > 1 || d.low <= c.now) { // only the copy is known to be done
		f.doubt = true
		d.high = max(d.high, d.askedAt+1)
	}
	if d.high <= d.askedAt || w.crashed > 0 && w.crashed < d.askedAt {
		c.violate(promiseStale, f.id, "is settled by worker %d, whose lease ended at %v", w.number, d.high)
	}
	if d.freed {
		f.takeBack(d.got)
	}
	c.settledBy[e.Action]++
	d.settled, d.settledAt = true, c.now
	if e.Action == brokers.Retry {
		c.retries++
	}
}

// takeExtended moves the end of a lease, or notes why it stays.
func (c *checker) takeExtended(e *event, d *delivery) {
	if e.Err != fine {
		d.excused, d.worker.trouble = true, max(c.now, 1)
		d.high = max(d.high, e.At+e.Delay) // it may have been extended all the same
		if e.Err == leaseLost || e.Err == isClosed {
			c.tell(d)
		}
		return
	}
	if d.high <= e.Until-e.Delay {
		c.violate(promiseStale, d.fate.id, "has its lease extended after its end at %v", d.high)
	}
	d.excused = false
	low, high := e.Until, e.At+e.Delay
	if longest := c.scenario.options.MaxLease; longest > 0 {
		low, high = min(low, d.received+longest), min(high, d.received+longest)
	}
	d.low, d.high = max(d.low, low), max(d.high, high)
}

// takeBurying follows the publication of a dead letter.
func (c *checker) takeBurying(e *event) {
	f := c.fate(e.ID)
	if f.message != nil && e.Topic != c.scenario.topics[f.message.topic].dead {
		c.violate(promiseLetter, e.ID, "is sent to %s", e.Topic)
	}
	if d := c.story(e); d != nil {
		d.buried = true
		if d.running { // and its handler may succeed
			f.disturbed++
		}
	}
	c.workers[e.Worker].burying[f]++
}

func (c *checker) takeBuried(e *event) {
	f, w := c.fate(e.ID), c.workers[e.Worker]
	if w.burying[f]--; w.burying[f] == 0 {
		delete(w.burying, f)
	}
	if c.scenario.served && e.Err == unknownOutcome {
		f.doubt = true
		f.disturbed++
	}
	if e.Err == fine {
		f.letters++
		c.buried++
		w.letters[f]++
	}
}

// story checks a dead letter against the deliveries that it may end, and
// returns the delivery.
func (c *checker) story(e *event) *delivery {
	var near *delivery
	for _, d := range c.fate(e.ID).deliveries {
		if d.worker.number != e.Worker || d.running && !d.isSkipped() || d.settled || d.buried && d.asked > 0 {
			continue
		}
		if d.diesOf(death{e.Note, e.Attempt, e.Abandoned}, e.Throttles) {
			return d
		}
		for _, j := range d.next {
			if j.dies {
				near = d
			}
		}
	}
	if near != nil {
		c.violate(promiseLetter, e.ID, "dies of %q after %d attempts, the ledger says %+v", e.Note, e.Attempt, near.next)
	} else {
		c.violate(promiseSettlement, e.ID, "dies of %q after %d attempts, which nothing explains", e.Note, e.Attempt)
	}
	return nil
}

// mostCounted is the highest count that a header carries.
const mostCounted = 10_000

// diesOf reports whether d is dead as said: since before it was received, without a
// run, or of the last one.
func (d *delivery) diesOf(of death, throttles int) bool {
	if d.isDead() {
		return of == d.got.death
	}
	if of.Abandoned != d.lost {
		return false
	}
	if d.runs == 0 && of.Attempt == d.attempt && d.refusedFor(of.Reason) {
		return true
	}
	if d.running && of.Reason == reasonSkipped && of.Attempt == d.attempt+1 { // its handler ignores that
		return d.isSkipped()
	}
	return slices.ContainsFunc(d.next, func(j judgement) bool {
		return j.dies && of.Reason == j.reason && of.Attempt == j.attempt && throttles == min(j.throttles, mostCounted)
	})
}

// isDead reports whether d was received as one that waits for its dead letter.
func (d *delivery) isDead() bool { return d.got.death.Reason != "" }

// refused reports whether d may be dead-lettered without a run.
func (d *delivery) refused() bool {
	return d.isDead() || d.crashLoop() || d.oversize() || d.exhausted()
}

func (d *delivery) refusedFor(reason string) bool {
	switch reason {
	case "crash-loop":
		return d.crashLoop()
	case "oversize":
		return d.oversize()
	case "exhausted", "poison":
		return d.exhausted()
	case reasonSkipped:
		return d.isSkipped()
	case reasonAmbiguous:
		return d.exhausted() && d.topic.noRepeat
	}
	return false
}

// crashLoop reports whether d may be dead-lettered as one that kills its worker. A
// broker that keeps the order takes no mark that a message is on trial.
func (d *delivery) crashLoop() bool {
	return d.worker.crashLimit > 0 && d.lost >= d.worker.crashLimit
}

// suspects reports whether d, just received, must not run: it goes on trial, or died
// there. While leases are lost without a fault of handlers, no message is suspected.
func (c *checker) suspects(d *delivery) bool {
	const troubleLasts = 10 * time.Minute
	w, limit := d.worker, d.worker.crashLimit
	if w.trouble > 0 && c.now < w.trouble+troubleLasts+c.scenario.pace.slack {
		return false
	}
	if !d.onTrial && !c.scenario.options.Ordered {
		limit = max(1, limit-1)
	}
	return w.crashLimit > 0 && d.lost >= limit
}

// exhausted reports whether d came back after its last attempt, because the
// dead letter could not be written.
func (d *delivery) exhausted() bool { return d.attempt >= or(d.topic.policy.MaxAttempts, 10) }

func (d *delivery) oversize() bool {
	m := d.topic.maxBody
	return m > 0 && d.fate.message != nil && len(d.fate.message.Body) > m
}

// dying reports whether the delivery is on its way to the dead letters.
func (d *delivery) dying() bool {
	return !d.running && slices.ContainsFunc(d.next, func(j judgement) bool { return j.dies }) || d.runs == 0 && d.refused()
}

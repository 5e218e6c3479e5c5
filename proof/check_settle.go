package main

import (
	"slices"

	"github.com/redrive-go/redrive/brokers"
)

// takeSettling holds the action that the consumer asks for against what the
// handler did. It may take effect from now on.
func (c *checker) takeSettling(e *event) {
	d := c.deliveries[e.Delivery]
	if d == nil {
		c.violate(promiseSettlement, e.ID, "is settled without having been received")
		return
	}
	if d.ok {
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
		d.maybe = token{attempt: e.Attempt, throttles: e.Throttles, due: e.Due, soon: min(e.Due, e.At+e.Delay), least: e.Attempt - d.excess}
		d.fate.give(d.maybe)
	case brokers.Release:
		c.mayRelease(d)
		d.fate.released++
		d.maybe = d.got
		d.fate.give(d.maybe)
	}
	if e.Action != brokers.Ack {
		f := d.fate
		f.unasked--
	}
	d.asked++
	d.askedAt, d.action = e.At, e.Action
	if e.Action != brokers.Release && d.took == 0 {
		d.took = e.At
	}
	d.fate.asking[e.Action]++
	if e.Action == brokers.Retry {
		d.fate.excuse(c.repeats())
	}
}

func (c *checker) mayAck(d *delivery) {
	f := d.fate
	letter := func() {
		switch letters := d.worker.letters; {
		case d.topic.dead == "":
			f.forgotten = true
		case d.asked > 0: // this is another try
		case letters[f] == 0:
			c.violate(promiseConfirm, f.id, "is acked after %s (delivery %d), without a dead letter that is confirmed", outcomeNames[d.last], d.number)
		default:
			letters[f]--
		}
	}
	switch {
	case d.running:
		c.violate(promiseSettlement, f.id, "is acked while its handler runs")
	case d.runs == 0 && d.refused():
		letter()
	case d.runs == 0:
		c.violate(promiseSettlement, f.id, "is acked without having been handled")
	case slices.ContainsFunc(d.next, func(j judgement) bool { return j.acks }):
	case slices.ContainsFunc(d.next, func(j judgement) bool { return j.dies }):
		letter()
	default:
		c.violate(promiseSettlement, f.id, "is acked after %s, attempt %d of %d", outcomeNames[d.last], d.attempt+1, or(d.topic.policy.MaxAttempts, 10))
	}
}

func (c *checker) mayRetry(d *delivery, e *event) {
	f := d.fate
	// What has failed or waited before is given back as a retry, which keeps the
	// count.
	keeps := e.Attempt == d.attempt && e.Throttles == d.throttles
	if keeps && d.runs > 0 && c.near(e.Due, d.dueBefore) {
		c.mayRelease(d)
		return
	}
	switch {
	case d.running:
		c.violate(promiseSettlement, f.id, "is sent to a retry while its handler runs")
		return
	case c.diesLater(d, e):
		return
	case d.runs == 0:
		asked := c.now
		if c.scenario.served { // it may have waited behind a settlement that hung
			asked = d.received
		}
		early := d.got.due+c.scenario.pace.slack > asked
		waits := c.sentToWait(d, e) || d.worker.halting()
		if !keeps || !early && !(waits && c.mayWait(d)) {
			c.violate(promiseSettlement, f.id, "is sent to a retry without having been handled")
		}
		return
	}
	dies := func(j judgement) bool { return j.dies && j.attempt == e.Attempt }
	if d.worker.halting() && slices.ContainsFunc(d.next, dies) { // its dead letter could not be published in time
		f.disturbed++
		return
	}
	counts := func(j judgement) bool {
		return j.retries && j.attempt == e.Attempt && j.throttles == e.Throttles
	}
	if slices.ContainsFunc(d.next, counts) && c.sentToWait(d, e) {
		return
	}
	c.checkDelay(d, e)
	if slices.ContainsFunc(d.next, func(j judgement) bool { return j.retries }) && !slices.ContainsFunc(d.next, counts) {
		c.violate(promiseCount, f.id, "is retried with attempt %d and %d throttles, the ledger says %+v", e.Attempt, e.Throttles, d.next)
	}
	if d.decided && !c.near(e.Due, d.due) {
		c.violate(promiseEarly, f.id, "is due at %v, the decision said %v", e.Due, d.due)
	}
	if e.At+e.Delay < e.Due-c.scenario.pace.rounding && !d.mayProbe { // for whom it may come back before, and is sent on
		c.violate(promiseEarly, f.id, "is asked for in %v, which is before it is due at %v", e.Delay, e.Due)
	}
}

func (c *checker) mayRelease(d *delivery) {
	f, w, s := d.fate, d.worker, c.scenario
	halting := w.halting()
	if d.runs > 0 && d.asked == 0 {
		f.disturbed++
		f.free += d.runs
	}
	switch {
	case d.running:
		if !halting || w.stopping > 0 && c.now < w.stopping+w.drain {
			c.violate(promiseSettlement, f.id, "is released while its handler runs")
		}
	case d.runs == 0:
		if !halting && !s.options.Ordered {
			c.violate(promiseSettlement, f.id, "is released without a reason")
		}
	case slices.ContainsFunc(d.next, func(j judgement) bool { return j.releases || j.split && halting }):
	case halting && slices.ContainsFunc(d.next, func(j judgement) bool { return j.dies }):
	case s.pace.slack > 0 && w.stopping > 0 && d.ended >= w.stopping+w.drain: // it was given up as stuck while it returned
	default:
		c.violate(promiseSettlement, f.id, "is released after %s", outcomeNames[d.last])
	}
}

func (w *life) halting() bool { return w.stopping > 0 || w.crashed > 0 || w.closing > 0 }

// operation tells the settlements of one message apart, of which an ack and a
// retry may be under way at the same time.
func operation(name string, action brokers.Action) string {
	if name != "settle" {
		return name
	}
	return name + " " + action.String()
}

// takeSettled takes in what became of a settlement.
func (c *checker) takeSettled(e *event) {
	d := c.deliveries[e.Delivery]
	if d == nil {
		return
	}
	f, w := d.fate, d.worker
	if f.asking[e.Action]--; f.asking[brokers.Retry]+f.asking[brokers.Release] == 0 {
		f.unasked = 0 // whatever was to be copied is, or never will be
	}
	if e.Err == fine {
		c.takeDone(e, d)
		return
	}
	if e.Err != alreadySettled {
		d.took = 0
	}
	if e.Err == alreadySettled { // by an earlier call whose answer got lost
		c.settledBy[e.Action]++
	}
	this := operation("settle", e.Action)
	switch done := f.done[this]; {
	case e.Err.final(): // it came too late to take effect
		f.done[this] = min(done, f.asking[e.Action])
	case done > 0:
		f.done[this]--
		d.settled = true
		f.disturbed++
		return
	}
	half := c.leased() && e.Action == brokers.Retry                              // the copy may be stored, and the original not deleted
	if c.scenario.served && (e.Err == unknownOutcome || e.Err.final() || half) { // there may be a copy
		f.disturbed++
		if e.Action == brokers.Retry {
			f.wilds++
		}
		if e.Err == leaseLost || e.Err == isClosed {
			c.tell(d)
		}
		return
	}
	if e.Action != brokers.Ack && !f.takeBack(d.maybe) && f.wilds == 0 {
		c.violate(promiseStale, f.id, "is settled although worker %d was told that it was not: %s", w.number, failNames[e.Err])
	}
	if e.Err == leaseLost || e.Err == isClosed {
		c.tell(d)
	}
}

// takeDone takes in a settlement that the worker knows to be done.
func (c *checker) takeDone(e *event, d *delivery) {
	f, w := d.fate, d.worker
	if copied := c.leased() && e.Action == brokers.Retry; copied && d.asked > 1 { // nothing but the copy is asked for
		f.excuse(1) // the original
		d.high = max(d.high, d.askedAt+1)
	} else if copied && d.low <= c.now { // there was no time for more
		f.excuse(1)
	}
	if d.high <= d.askedAt || w.crashed > 0 && w.crashed < d.askedAt {
		c.violate(promiseStale, f.id, "is settled by worker %d, whose lease ended at %v", w.number, d.high)
	}
	if d.freed {
		f.takeBack(d.got)
	}
	c.settledBy[e.Action]++
	d.ok, d.settled, d.okAt = true, true, c.now
	if c.stormy() && c.scenario.broker == "rabbitmq" { // its acks are not confirmed, and the original may come again much later
		c.severDelivery(d)
	}
	if e.Action == brokers.Retry {
		c.retries++
		f.excuse(c.again())
	}
}

// takeCopy notes a copy that a worker makes of a message. RabbitMQ's adapter
// also makes some by itself, of what the broker has counted too often: then
// there may be two, if the worker does not come to ack the original.
func (c *checker) takeCopy(f *fate) {
	if f.unasked++; f.unasked > 0 {
		f.unasked = 0
		f.excuse(1)
	}
}

// tell notes that a worker knows that its lease is lost.
func (c *checker) tell(d *delivery) {
	if !d.told {
		d.told, d.toldAt = true, c.now
	}
	c.free(d)
}

// takeExtended moves the end of a lease, or notes why it stays.
func (c *checker) takeExtended(e *event) {
	d := c.deliveries[e.Delivery]
	if d == nil {
		return
	}
	if e.Err != fine {
		d.excused = true
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

// takeLetter follows the publication of a dead letter.
func (c *checker) takeLetter(e *event) {
	f := c.fate(e.ID)
	if e.Kind == burying {
		if m := c.scenario.message(e.ID); m != nil && e.Topic != c.scenario.topics[m.topic].dead {
			c.violate(promiseLetter, e.ID, "is sent to %s", e.Topic)
		}
		if d := c.story(e); d != nil {
			d.buried = true
		}
		c.workers[e.Worker].burying[f]++
		f.spare += c.repeats()
		return
	}
	if burying := c.workers[e.Worker].burying; burying[f] > 0 {
		if burying[f]--; c.scenario.served && e.Err == unknownOutcome {
			f.spare++
			f.disturbed++
		}
	}
	if e.Err == fine {
		f.letters++
		c.counts[buriedFine]++
		c.workers[e.Worker].letters[f]++
		f.spare += c.again()
	}
}

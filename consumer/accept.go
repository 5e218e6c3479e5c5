package consumer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// block is how many deliveries share a piece of memory, which fits a size class
// with its header of 8 bytes: one that is held for long keeps the others, too.
const block = 26

// accept takes deliveries over from the source.
func (p *pipeline) accept(received []*brokers.Delivery) {
	ds := slices.DeleteFunc(p.track(received), p.turnAway)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys != nil { // all at once, so that one that does not stay finds who is behind it
		ds = slices.DeleteFunc(ds, p.behindKey)
	}
	for _, d := range ds {
		p.enqueue(d)
	}
}

// behindKey reports whether d has to wait for the turn of its key. It does so
// outside the window, so that other keys go on, as long as there is room. mu is
// held.
func (p *pipeline) behindKey(d *delivery) bool {
	if p.keys.enter(d) {
		return false
	}
	if d.sub.roomToWait(d) {
		p.to(d, waiting)
	}
	return true
}

// track begins to look after received.
func (p *pipeline) track(received []*brokers.Delivery) []*delivery {
	ds := make([]*delivery, len(received))
	var some []delivery
	for i, from := range received {
		if len(some) == 0 {
			some = make([]delivery, min(block, len(received)-i))
		}
		d := &some[0]
		some = some[1:]
		d.rare, d.first.one[0] = &nothing, d
		d.Delivery, d.sub = from, p.byTopic[from.Message.Topic]
		d.meta = d.came()
		if death := d.meta.Death; death != nil && death.Reason != "" {
			p.letters.recall(d)
		}
		if p.observed() && d.meta == &unfailed { // each event has the Origin
			d.meta = new(d.Meta())
		}
		ds[i] = d
	}
	p.leases.track(ds)
	p.mu.Lock()
	for _, d := range ds {
		if d.sub == nil {
			d.sub = p.stray(d.Message.Topic)
		}
		d.sub.active.Add(1)
		d.sub.bodies.add(len(d.Message.Body))
		d.sub.ages.count(d.sub.since(d), 1)
	}
	p.mu.Unlock()
	now := time.Now()
	for _, d := range ds {
		if d.sub.dependencyOf != nil && !d.returned() { // which has slots apart
			name, err := d.nameOf()
			if err != nil {
				p.observe(d, Event{Kind: EventError, Operation: "dependency-of", Err: err})
			} else if name != 0 {
				d.own().name = name
			}
		}
		if d.Anonymous {
			d.sub.anonymous.Do(func() { p.log.anonymous(d.Message.Topic) })
		}
		if p.observed() {
			p.observe(d, Event{Kind: EventReceived})
		}
		at, err := d.deadlineOf(now)
		if err != nil && first(d.meta) {
			p.observe(d, Event{Kind: EventError, Operation: "deadline", Err: err})
		}
		if !at.IsZero() {
			d.own().deadline, d.expiring = at, true
		}
	}
	deposit(ds, now)
	return ds
}

// deposit has budgets earn by messages that are delivered for the first time.
func deposit(ds []*delivery, now time.Time) {
	for len(ds) > 0 {
		g, n, firsts := ds[0].sub.dependency, 0, 0
		for ; n < len(ds) && ds[n].sub.dependency == g; n++ {
			if first(ds[n].meta) && !ds[n].returned() {
				firsts++
			}
		}
		ds = ds[n:]
		if firsts > 0 && g.budget != nil {
			g.budget.Deposit(now, firsts)
		}
	}
}

// stray returns the subscription of a topic without a handler, should a source
// deliver any of it. mu is held.
func (p *pipeline) stray(topic string) *subscription {
	s := p.byTopic[topic]
	if s == nil {
		r := &route{topic: topic, dependency: topic, stray: true, deadLetter: deadLetterOf(topic, p.cfg.DeadLetter), policy: p.cfg.Retry, timeout: p.cfg.HandlerTimeout}
		s = p.newSubscription(r, len(p.subs))
		s.dependency = p.admission.newDependency(topic, Guard{Off: true}, 0)
		p.byTopic[topic] = s
	}
	return s
}

// turnAway dead-letters a message that must not run, at once or when it is due, and puts
// off one that has to wait before its first run. It reports whether it did.
func (p *pipeline) turnAway(d *delivery) bool {
	reason, err := "", error(nil)
	if d.letter == nil {
		if reason, err = p.unfit(d); err == nil {
			return p.postpone(d) || p.putOnTrial(d)
		}
	}
	early := time.Until(d.meta.DueAt) > earlyLimit // the broker was asked for no longer delay
	if d.letter == nil && !early {
		p.letters.markDead(d, reason, p.letters.write(d, err, refusedVerdict))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if early {
		p.settle(brokers.Retry, d)
	} else {
		p.bury(d)
	}
	return true
}

// unfit returns why d must not run; no error if it may.
func (p *pipeline) unfit(d *delivery) (reason string, err error) {
	m := &d.Message
	_, guilty := p.suspicion(d)
	switch {
	case d.sub.stray:
		return reasonUnroutable, fmt.Errorf("no handler is registered for topic %q", m.Topic)
	case d.Unreadable != nil:
		return reasonUnreadable, d.Unreadable
	case guilty:
		return reasonCrashLoop, fmt.Errorf("%d deliveries ended without a settlement: the message seems to kill its worker", d.unsettled())
	case d.sub.maxBody > 0 && len(m.Body) > d.sub.maxBody:
		return reasonOversize, fmt.Errorf("the body of %d bytes is over the limit of %d bytes", len(m.Body), d.sub.maxBody)
	case d.meta.Attempt >= d.sub.attempts:
		return d.spent()
	}
	return "", nil
}

// spent says why d has no attempt left. Versions before brokers.Death stored no
// other reason with a message whose dead letter found no room.
func (d *delivery) spent() (reason string, err error) {
	switch last := d.lastFailure(); {
	case d.meta.Class == classify.ClassPoison:
		return "poison", errors.New("it was found to be poison before this delivery, but no dead letter was confirmed; the history has the failure")
	case d.sub.noRepeat && last.Ambiguous:
		return reasonAmbiguous, errors.New("its last run may have had its effect, but no dead letter was confirmed then; the history has the failure")
	case last.Attempt > 0 && last.Attempt < d.sub.attempts:
		return "exhausted", errors.New("it had to be dead-lettered before this delivery, but no dead letter was confirmed; the history has its failures")
	}
	return "exhausted", fmt.Errorf("all %d attempts were used before this delivery, but no dead letter was confirmed", d.meta.Attempt)
}

// earlyLimit is how early a delivery may be and is still held, even if
// HoldLimit is less: a broker that came that close may come no closer.
const earlyLimit = 2 * time.Second

var notYet = deferral{"start-after", errors.New("TopicConfig.StartAfter has not passed since the message was published: it waits, uncounted")}

// postpone puts off the first run of d until TopicConfig.StartAfter has passed. It
// reports whether it did.
func (p *pipeline) postpone(d *delivery) bool {
	if d.sub.startAfter == 0 || !first(d.meta) || d.returned() {
		return false
	}
	now := time.Now()
	wait := d.publishedAt(now).Add(d.sub.startAfter).Sub(now)
	if wait > 0 {
		p.putOff(d, now, wait, notYet)
	}
	return wait > 0
}

// A broker counts every delivery that ended without a settlement, and cannot say
// whether a handler had begun. So a message whose count is one below CrashLimit
// goes on trial: it goes back to its queue, with a mark, and when it comes again it
// runs at once or goes back. It waits in the process neither for a slot, nor for its
// limit, nor for a token, but for those before it of its key, and for up to earlyLimit
// where a broker delivers early. So most deliveries that are lost from then on had begun
// to run.
// A copy that goes back begins a count of its own, so the mark adds up the lost
// deliveries of earlier copies.
//
// Leases that began together end together. So a message that ran beside one that kills
// its worker can come again beside it each time, and is lost as often. On the way to
// its trial each message waits for a time of its own, which parts the two. It has never
// been lost more often than the one that kills, so before the loss that would end it
// the two are parted for certain: of messages with one loss left, one runs at a time.
var onSuspicion = deferral{reasonCrashLoop, errors.New("several deliveries ended without a settlement: the message goes back to its queue, to run at once when it comes again")}

// suspicion says what the lost deliveries of d say about it.
func (p *pipeline) suspicion(d *delivery) (suspect, guilty bool) {
	limit := p.cfg.CrashLimit
	switch {
	case limit <= 0 || d.unsettled() == 0 || p.leases.inTrouble(time.Now()):
		return false, false
	case d.onTrial() || p.caps.Ordered: // which stores no mark
		return false, d.unsettled() >= limit
	}
	return d.unsettled() >= limit-1, false
}

// trialWait is the longest time that a message waits before its trial.
const trialWait = time.Minute

// putOnTrial sends d back to its queue if it is suspect, and reports whether it did.
func (p *pipeline) putOnTrial(d *delivery) bool {
	if suspect, _ := p.suspicion(d); !suspect {
		return false
	}
	now := time.Now()
	m := d.metaNow()
	wait := time.Duration(p.cfg.Random() * float64(min(trialWait, p.longestDelay)))
	m.Crashes, m.DueAt = 1, now.Add(wait)
	d.setMeta(m)
	p.observe(d, Event{Kind: EventDeferred, Time: now, Err: onSuspicion.err, Decision: retry.Decision{Retry: true, Delay: wait, Reason: onSuspicion.reason}})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle(brokers.Retry, d)
	return true
}

// mayTry reports whether d, which is on trial, may run now. mu is held.
func (p *pipeline) mayTry(d *delivery) bool {
	if !p.pool.free(d.sub.queue) {
		return false
	}
	if d.unsettled() < p.cfg.CrashLimit-1 {
		return true
	}
	if p.tried != nil && p.tried.atWork() {
		return false
	}
	p.tried = d
	return true
}

// ErrDeadline is the cause with which the context of a run ends at the deadline
// of its message. The run is the last one, and says nothing about its dependency.
var ErrDeadline = errors.New("the deadline of the message has passed")

var expiredVerdict = classify.Verdict{Class: classify.ClassUnknown, Rule: "deadline"}

// deadlineOf returns the time until which d may run; zero if there is no limit.
// A message that was dead before has no deadline, whether a tool or a person
// sent it back. The error is that of a header that is ignored.
func (d *delivery) deadlineOf(now time.Time) (deadline time.Time, ignored error) {
	own, err := d.Message.Deadline()
	if own.IsZero() && err == nil && d.sub.deadline == 0 || d.returned() {
		return deadline, nil
	}
	if _, err := dlq.Decode(d.Message); err == nil {
		return deadline, nil
	}
	if d.sub.deadline > 0 {
		deadline = d.publishedAt(now).Add(d.sub.deadline)
	}
	if err != nil {
		return deadline, fmt.Errorf("%w: it is ignored", err)
	}
	if deadline.IsZero() || !own.IsZero() && own.Before(deadline) {
		deadline = own
	}
	return deadline, nil
}

// publishedAt returns the time at which d was published. If that is unknown, or in
// the future, it is now, and the copies of d keep this time.
func (d *delivery) publishedAt(now time.Time) time.Time {
	if at := d.Message.PublishedAt; at.IsZero() || at.After(now) {
		d.Message.PublishedAt = now
	}
	return d.Message.PublishedAt
}

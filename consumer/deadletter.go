package consumer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/internal/deadletter"
)

var refusedVerdict = classify.Verdict{Class: classify.ClassPoison, Rule: "refused"}

// deadLetters writes and publishes the dead letters of messages that have no more
// runs, with a sender for each dead-letter topic. It hands each original to the
// settlers once its dead letter is durable, or has it come back from the broker.
type deadLetters struct {
	*reporter
	*lifetime
	cfg         Config
	group       string
	broker      brokers.Broker
	headerLimit int
	settlers    *settlers
	drop        func(d *delivery, cause error) // of what others have
	stubs       stubs
	senders     map[string]*sender[*delivery] // by topic; under the mu of the pipeline
}

// write begins the dead letter of d, in case it comes to that.
func (l *deadLetters) write(d *delivery, err error, v classify.Verdict) dlq.Entry {
	letter := dlq.Entry{Message: d.Message}
	deadletter.SetError(&letter, err, v, l.cfg.Redact, l.cfg.Stacks)
	return letter
}

// markDead records why d is dead. Its dead letter may be published much later.
func (l *deadLetters) markDead(d *delivery, reason string, letter dlq.Entry) {
	letter.Reason, letter.Meta, letter.Abandoned = reason, d.metaNow(), d.unsettled()
	letter.Group, letter.DeadBy, letter.DeadAt = l.group, l.cfg.Instance, time.Now()
	d.own().letter = &letter
}

// deadLetter ends the life of d: d has no more runs, and the worker publishes its
// dead letter. mu is held.
func (p *pipeline) deadLetter(d *delivery, reason string, letter dlq.Entry) {
	p.letters.markDead(d, reason, letter)
	p.bury(d)
}

// bury publishes the dead letter of d, and acks d when the dead letter is durable.
// Until then d waits outside the window, so that a dead-letter topic that is down
// stops no other message. If there is no room for d, it waits in its queue, with
// its Death. mu is held.
func (p *pipeline) bury(d *delivery) {
	if d.sub.roomToDie(d) {
		p.die(d)
		return
	}
	p.letters.delay(d, forRoom)
	p.settle(brokers.Retry, d)
}

// die is bury for a delivery that has room. mu is held.
func (p *pipeline) die(d *delivery) {
	if p.to(d, dying) {
		d.sub.letters.add(d)
		p.advance(d, false)
	}
}

// roomToDie reports whether the dead letter of d, too, may wait. There is always
// room for as many as the window holds. The mu of the pipeline is held.
func (s *subscription) roomToDie(d *delivery) bool {
	dying := int(s.dying.Load())
	return dying < s.window || int(s.waiting.Load())+dying < s.maxHeld && s.heldBytes+size(d) <= s.maxBytes
}

// refused deals with a message whose retry or reject the broker will never take.
// It reports whether to try the same again. If the retry of a message that was
// alive is refused, the message is dead now, with the broker's reason and not the
// handler's. A dead message is retried once more with a shortened Death. If the
// broker refuses that, too, the message waits in the worker; if it came from
// there, it stays there or is left to its lease.
func (p *pipeline) refused(d *delivery, err error) (again bool) {
	if d.action == brokers.Reject {
		return p.letters.letterRefused(d, err)
	}
	p.mu.Lock()
	kept := true
	switch {
	case d.letter != nil && !d.short:
		d.own().short = true
		p.letters.reschedule(d)
	case state(d.state.Load()) == dying:
		kept = p.stay(d)
	case d.letter != nil:
		p.die(d)
	default:
		p.letters.markDead(d, reasonRefused, p.letters.write(d, err, refusedVerdict))
		p.die(d)
	}
	p.mu.Unlock()
	if !kept {
		p.drop(d, leaseLost(errLeftToItsLease))
	}
	return false
}

// maxKept bounds the messages of a topic that are held because the broker does
// not even take them back for later.
const maxKept = 64

var errLeftToItsLease = errors.New("the broker refuses its dead letter, to reject it, and to take it back for later: it is left until its lease ends")

// stay holds a dead message that the broker does not even take back for later, if
// there are not too many of these yet, or nothing else would bring it back. It
// reports false if it has to be left to its lease. mu is held.
func (p *pipeline) stay(d *delivery) bool {
	switch {
	case p.draining.Load():
		p.settlers.sendLate(d, brokers.Release)
		return true
	case !d.kept && d.sub.kept >= maxKept && p.caps.Lease > 0:
		return false
	case !d.kept:
		d.own().kept = true
		d.sub.kept++
	}
	if d.stub == (stubKey{}) { // which is refused, too
		d.sub.letters.add(d)
	} else {
		p.settlers.send(d, brokers.Reject)
	}
	return true
}

// reschedule has the broker deliver the dead message d again.
func (l *deadLetters) reschedule(d *delivery) {
	if l.draining.Load() {
		l.settlers.sendLate(d, brokers.Retry)
	} else {
		l.settlers.send(d, brokers.Retry)
	}
}

// letterRefused deals with a dead message that the broker takes neither as a dead
// letter, be it a stub, nor rejected, or that must not be discarded: the broker
// delivers it again in minutes, without a place in the process, and then it dies
// again. It reports whether to try the same again instead.
func (l *deadLetters) letterRefused(d *delivery, cause error) (again bool) {
	l.observe(d, Event{Kind: EventDeadLetterRefused, DeadLetter: d.published(),
		Err: fmt.Errorf("%w; the message is kept, and comes back in minutes", cause)})
	if d.kept {
		return true
	}
	l.delay(d, forMending)
	l.reschedule(d)
	return false
}

// to returns the sender to topic. The mu of the pipeline is held.
func (l *deadLetters) to(topic string) *sender[*delivery] {
	s := l.senders[topic]
	if s == nil {
		s = newSender(letterBackoff, l.pulses.add("dead letters to "+topic), func(ctx context.Context, ds []*delivery) []*delivery { return l.send(ctx, topic, ds) })
		l.senders[topic] = s
		l.stages.Go(func() { s.run(l.life) })
	}
	return s
}

// send publishes the dead letters of ds to topic and returns those to publish
// again. The originals are settled only after the confirmation. What is refused
// is published with less, at once.
func (l *deadLetters) send(ctx context.Context, topic string, ds []*delivery) (failed []*delivery) {
	ds = l.unpublished(ds)
	if topic == "" {
		return l.discard(ds)
	}
	for len(ds) > 0 {
		letters := make([]brokers.Message, len(ds))
		for i, d := range ds {
			if d.form == bare {
				letters[i] = d.letter.Encode(1)
			} else {
				letters[i] = d.published().Encode(l.headerLimit)
			}
		}
		expectAnswer(ctx)
		err := l.broker.Publish(ctx, topic, letters...)
		answered(ctx)
		causes := publishErrors(err, len(ds))
		if causes == nil {
			l.dead(ds, topic)
			return failed
		}
		var confirmed, smaller []*delivery
		for i, d := range ds {
			cause, refused := causes[i], errors.Is(causes[i], brokers.ErrRefused)
			switch {
			case cause == nil:
				confirmed = append(confirmed, d)
				continue
			case refused && d.form == stub:
				if l.letterRefused(d, fmt.Errorf("stub in %q: %w", topic, cause)) {
					failed = append(failed, d)
				}
				continue
			}
			l.observe(d, Event{Kind: EventError, Operation: "dead-letter", DeadLetter: d.published(),
				Err: fmt.Errorf("dead letter to %q: %w; the message is kept and the dead letter tried again", topic, cause)})
			switch {
			case refused:
				d.own().form++
				smaller = append(smaller, d)
			case d.lasts(time.Now().Add(letterBackoff.Cap)):
				failed = append(failed, d)
			default: // its lease would end, and another worker would run it
				l.delay(d, forRoom)
				l.reschedule(d)
			}
		}
		l.dead(confirmed, topic)
		ds = smaller
	}
	return failed
}

var errNotDiscarded = errors.New("it is a dead letter itself, and dlq.Discard would destroy what is left of its message: " +
	`name a topic for it, as DeadLetter: "*-refused" does`)

// discard drops ds, as dlq.Discard asks, but for those that are dead letters
// themselves: these are kept. It returns those to deal with again.
func (l *deadLetters) discard(ds []*delivery) (failed []*delivery) {
	var dropped []*delivery
	for _, d := range ds {
		if _, err := dlq.Decode(d.Message); err != nil {
			dropped = append(dropped, d)
		} else if l.letterRefused(d, errNotDiscarded) {
			failed = append(failed, d)
		}
	}
	l.dead(dropped, dlq.Discard)
	return failed
}

// unpublished returns those of ds whose dead letter is to be published: what is
// lost is somebody else's, and that of which a stub is out needs no other.
func (l *deadLetters) unpublished(ds []*delivery) []*delivery {
	kept := ds[:0:0]
	for _, d := range ds {
		loss := d.lost()
		switch {
		case loss != nil:
			l.drop(d, loss)
		case l.stubs.has(d):
			d.own().form = stub
			l.settlers.send(d, brokers.Reject)
		default:
			kept = append(kept, d)
		}
	}
	return kept
}

// form is how much of a dead letter is published. With each refusal it is less.
type form uint8

const (
	whole form = iota
	bare       // the message with next to no metadata
	stub       // what stands for the message
)

// published returns the dead letter of d, or the stub that stands for d.
func (d *delivery) published() *dlq.Entry {
	if d.form != stub {
		return d.letter
	}
	return new(deadletter.Stub(*d.letter))
}

// publishErrors returns one error per message, nil if all are durable.
func publishErrors(err error, n int) []error {
	if err == nil {
		return nil
	}
	causes := make([]error, n)
	partial, ok := errors.AsType[*brokers.PublishError](err)
	for i := range causes {
		causes[i] = err
		if ok {
			causes[i] = partial.Failed[i]
		}
	}
	return causes
}

// dead settles deliveries whose dead letter is durable in topic, or not wanted. The
// original of a stub is left to the broker's own dead-lettering.
func (l *deadLetters) dead(ds []*delivery, topic string) {
	now := time.Now()
	for _, d := range ds {
		if topic != dlq.Discard {
			d.sub.buried.add(d.sub.began, now)
		}
		l.observe(d, Event{Kind: EventDeadLettered, DeadLetter: d.published(), DeadLetterTopic: topic})
		if d.form == stub {
			l.stubs.add(d)
			l.settlers.send(d, brokers.Reject)
		} else {
			l.settlers.send(d, brokers.Ack)
		}
	}
}

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
	cut = deadletter.Stub(cut)
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
func (l *deadLetters) recall(d *delivery) {
	was := d.came().Death
	letter := dlq.Entry{
		Message: d.Message, Meta: d.Meta(),
		Reason: was.Reason, DeadAt: was.At, DeadBy: was.By, Abandoned: was.Abandoned, Group: l.group,
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

// comeback bounds how long a dead message waits in the broker. The time is random,
// between least and the time since its death. The time since its death counts as
// at least first and at most most. So the next try comes within about as long
// after an outage as that lasted, and long outages cost the broker few deliveries.
type comeback struct{ least, first, most time.Duration }

var (
	forRoom    = comeback{2 * time.Second, 10 * time.Second, 3 * time.Minute} // in the worker
	forMending = comeback{time.Minute, 2 * time.Minute, time.Hour}            // of a broker that refuses the dead letter
)

// delay sets the time at which the dead message d comes back from the broker.
func (l *deadLetters) delay(d *delivery, w comeback) {
	now := time.Now()
	longest := min(max(now.Sub(d.letter.DeadAt), w.first), w.most)
	m := d.metaNow()
	m.DueAt = now.Add(w.least + time.Duration(l.cfg.Random()*float64(longest-w.least)))
	d.setMeta(m)
}

// stubs remembers of which messages a stub is in the dead-letter topic while the
// original comes back, so that it gets no other. It forgets the oldest of too
// many, and all at the end of the process.
type stubs struct {
	mu    sync.Mutex
	known map[stubKey]bool
	order []stubKey // may hold forgotten ones
}

const maxStubs = 10_000

// stubKey stands for a message.
type stubKey [sha256.Size]byte

func stubKeyOf(m *brokers.Message) stubKey {
	body := sha256.Sum256(m.Body)
	return sha256.Sum256(fmt.Appendf(body[:], "%q %q", m.Topic, m.ID))
}

// has reports whether a stub of d is out, and notes that on d.
func (s *stubs) has(d *delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) == 0 {
		return false
	}
	key := stubKeyOf(&d.Message)
	if !s.known[key] {
		return false
	}
	d.own().stub = key
	return true
}

// add notes that a stub of d is out.
func (s *stubs) add(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) >= maxStubs {
		delete(s.known, s.order[0])
		s.order = s.order[1:]
	}
	if s.known == nil {
		s.known = map[stubKey]bool{}
	}
	d.own().stub = stubKeyOf(&d.Message)
	s.known[d.stub] = true
	s.order = append(s.order, d.stub)
}

// forget forgets a stub whose original is gone.
func (s *stubs) forget(key stubKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, key)
}

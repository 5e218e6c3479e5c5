package rabbitmq

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// lookPace is the longest wait between two looks for a queue that a source
// cannot consume from. The shortest is half of it, except that the first two
// failures are followed by shortestRest.
const lookPace = 20 * time.Second

// deletion is how long a broker may take to delete a quorum queue: on a busy machine,
// more than 5 s.
const deletion = 30 * time.Second

// cancelled notes that the broker has ended a consumer of in, as it does when the
// queue is deleted. The worker handles the messages that it holds to their end.
func (n *session) cancelled(in *intake) {
	n.source.mu.Lock()
	in.ended, in.feed.unsure = true, true
	in.wanted.Store(0) // no flush is to widen it
	in.dying = time.Now().Add(n.source.broker.deletion)
	n.source.mu.Unlock()
	in.lookLater()
}

// lookLater has steer look after electionPause for a queue whose consumer has ended.
func (in *intake) lookLater() {
	s := in.session.source
	s.mu.Lock()
	in.feed.again = time.Now().Add(electionPause)
	s.mu.Unlock()
	time.AfterFunc(electionPause, in.session.kick.Wake)
}

// mayDie reports whether the queue of in, whose consumer has ended, may be in the
// middle of its deletion. A broker ends the consumers of a quorum queue first, and
// forgets the queue later. To consume from it in between costs the channel, or the
// connection. A queue with messages or consumers is not in deletion, and an empty one
// can wait for its consumer.
func (n *session) mayDie(in *intake) bool {
	if !time.Now().Before(in.dying) {
		return false
	}
	q, err := n.lookAt(in.queue)
	return err == nil && q.Messages == 0 && q.Consumers == 0
}

// isGone reports whether the queue of in is deleted, of which the broker is about to
// tell its consumers. Another consumer would cost the channel.
func (n *session) isGone(in *intake) bool {
	return errors.Is(explain(n.try(passively(in.queue, nil))), brokers.ErrNotFound)
}

// start consumes from the queue if it is there. Otherwise in stays parked until it is
// time to look again.
func (in *intake) start() error {
	n, s := in.session, in.session.source
	s.mu.Lock()
	ended, unsure := in.ended, in.feed.unsure
	s.mu.Unlock()
	if ended { // the worker keeps its messages: they have no queue to go back to
		if err := in.leave(false); err != nil {
			return err
		}
		if n.mayDie(in) {
			in.lookLater()
			return nil
		}
	}
	s.mu.Lock()
	in.ended, in.parked, in.taken = false, false, 0
	in.spills.Store(false)
	s.mu.Unlock()
	if in.vacate(); !n.find(in, ended, unsure) {
		return nil
	}
	prefetch := scout
	if in.single || s.readOnly { // no larger one can follow
		prefetch = s.prefetch
	}
	return in.serve(min(prefetch, n.fitting(in)))
}

// find reports whether in is to consume from its queue again. If the queue has
// an error, find parks the intake and calls miss. An error of the connection
// ends the session by itself.
func (n *session) find(in *intake, ended, unsure bool) bool {
	s, f := n.source, in.feed
	var found survey
	var err error
	if unsure {
		found, err = n.lookAgain(f)
	} else {
		err = explain(n.try(passively(f.queue, nil)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.ctx.Err() != nil {
		return false
	}
	if err != nil {
		in.parked, f.unsure = true, true
		f.kept.Store(false)
		f.deleted.Store(errors.Is(err, brokers.ErrNotFound) && !s.readOnly)
		s.miss(f, err)
		return false
	}
	switch {
	case len(found.missing) > 0:
		s.failures = append(s.failures, fmt.Errorf("the queue %q was deleted: the retries that were in it are lost, and it is declared anew; "+
			"retries that came due meanwhile are in the queue %q (%s)", f.queue, s.broker.names.unroutable(), stopped))
	case ended && f.misses == 0:
		s.failures = append(s.failures, fmt.Errorf("the broker has ended the consumers of the queue %q, from which the worker receives again: "+
			"the queue has moved to another node, or was deleted and made anew; if it was deleted, the messages that were in it are lost", f.queue))
	}
	if unsure {
		s.learn(f, n.link, found)
	}
	f.misses, f.unsure = 0, false
	in.parked = !f.paused.IsZero()
	return !in.parked
}

// miss notes that the source could not consume from the queue of f. A broker
// that is going down returns the same errors, so Receive returns an error only
// from the third failure in a row on. The lock of the source is held.
func (s *source) miss(f *feed, err error) {
	wait := s.broker.look/2 + rand.N(s.broker.look/2)
	if f.misses++; f.misses < patience {
		wait = shortestRest
	} else {
		s.failures = append(s.failures, &brokers.TopicError{Topic: f.topic, Err: s.lost(f, err)})
	}
	f.again = time.Now().Add(wait)
	time.AfterFunc(wait, s.woken.Wake)
}

// lost is err, of the queue of f, with its effect on messages and the fix.
func (s *source) lost(f *feed, err error) error {
	const goesOn = "the worker looks for it a few times a minute"
	switch {
	case !errors.Is(err, brokers.ErrNotFound):
		return fmt.Errorf("the queue %q cannot be used, and its messages stay in it; %s: %w", f.queue, goesOn, err)
	case s.readOnly:
		return fmt.Errorf("the queue %q does not exist any more, and the messages that were in it are lost: create it again; %s", f.queue, goesOn)
	case f.retried:
		return fmt.Errorf("the queue %q does not exist any more, and the retries that were in it are lost; retries that come due wait in the queue %q (%s): "+
			"import the definitions that redrive doctor --topology prints, or start a worker that may declare it; %s: %w",
			f.queue, s.broker.names.unroutable(), stopped, goesOn, err)
	}
	return fmt.Errorf("the queue %q does not exist any more, and the messages that were in it are lost; workers handle the messages that they hold, "+
		"and their retries, to the end: create it again, or start a worker, which declares it unless Options.Verify is set; %s", f.queue, goesOn)
}

// lookAgain checks that the queue of f loses no messages: it may have been made
// anew with other arguments. If the queue of a topic is missing, lookAgain
// returns brokers.ErrNotFound. It declares a missing queue of retries, which is
// the worker's own, if it may. That queue is then among found.missing.
func (n *session) lookAgain(f *feed) (found survey, err error) {
	s := n.source
	if s.readOnly {
		return found, n.link.find(f.queue)
	}
	t := s.broker.names.plan(s.sub, nil).part(f.queue)
	if found, err = n.survey(n.ctx, t, s.broker); err != nil {
		return found, err
	}
	if len(found.missing) > 0 && !f.retried {
		return found, brokers.ErrNotFound
	}
	return found, n.complete(t, &found, s.broker)
}

// restore looks for messages that an exchange could not route. If an open
// source needs the queue behind the exchange, restore declares and binds it
// again, so that the next try gets through. If the user may not declare queues,
// or with Options.Verify, restore makes only bindings.
func (b *Broker) restore(o *outlet, out []outgoing, errs []error) {
	type way struct{ exchange, key string }
	restored := make(map[way]bool)
	for i, m := range out {
		if m.exchange == "" || !errors.Is(errs[i], errUnrouted) {
			continue
		}
		w := way{m.exchange, m.key}
		if _, tried := restored[w]; !tried {
			restored[w] = b.lay(o, m.exchange, m.key)
		}
		if restored[w] {
			errs[i] = fmt.Errorf("%w: the queue behind the exchange %q was deleted, or its binding was; it is declared and bound again, and the next try gets through", errUnrouted, m.exchange)
		}
	}
}

// lay declares and binds the queue that a message with this key reaches from
// exchange. It reports whether that succeeded.
func (b *Broker) lay(o *outlet, exchange, key string) bool {
	queue := exchange // of a delay
	if exchange == b.names.copies() {
		queue = key
	}
	for _, s := range b.sources.Open() {
		if t := b.names.plan(s.sub, s.delays).part(queue); t.queues != nil {
			_, err := o.establish(o.ctx, t, b)
			return err == nil
		}
	}
	return false
}

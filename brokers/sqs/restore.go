package sqs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// lookPace is the longest time until a source looks again for a queue that it cannot
// receive from. The shortest is half of it.
const lookPace = 20 * time.Second

// mayCreate reports whether queues of the source that are gone are created again, as
// those of a development server that keeps nothing over a restart.
func (s *source) mayCreate() bool { return s.broker.options.Create && !s.readOnly }

// miss has the next Receive report that the queue of f cannot be received from, and
// lets the feed rest. mu is held.
func (s *source) miss(f *feed, err error, now time.Time) {
	what := "its messages stay in it"
	if f.gone {
		what = "the messages that were in it are lost"
	}
	s.losses = append(s.losses, &brokers.TopicError{Topic: f.topic,
		Err: fmt.Errorf("sqs: receive from %q: %s; the worker looks for it a few times a minute: %w", printable(f.topic)[0], what, err)})
	f.pace.polls = 1
	f.rest = now.Add(lookPace/2 + rand.N(lookPace/2))
}

// restore looks for the queues that are gone, and creates them if it may. It works in
// the background, once at a time, and the next Receive reports the result. mu is held.
func (s *source) restore() {
	if s.restoring || s.closed {
		return
	}
	s.restoring = true
	var topics []string
	for _, f := range s.feeds {
		if f.gone && f.idle() || !f.gone && s.mayCreate() {
			topics = append(topics, f.topic)
		}
	}
	s.calls.Go(func() {
		var all []string
		for _, topic := range topics {
			all = append(all, s.restoreTopic(topic)...)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.restoring = false
		if len(all) > 0 {
			s.failure = fmt.Errorf("sqs: the queues %q were gone, with what was in them: they are created anew (Options.Create)", printable(all...))
		}
		s.woken.Wake()
	})
}

// restoreTopic looks at the queue of a topic and at the queues that this one needs, as
// Open does: a queue of the same name may have other settings by now. It returns the
// queues that it has created.
func (s *source) restoreTopic(topic string) []string {
	sub := s.sub
	sub.Topics = []string{topic}
	sub.DeadLetters = map[string]string{}
	if dead := s.sub.DeadLetters[topic]; dead != "" {
		sub.DeadLetters[topic] = dead
	}
	sites, _, created, err := s.broker.establish(context.Background(), sub)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.feeds, func(f *feed) bool { return f.topic == topic })
	f := s.feeds[i]
	switch {
	case err != nil && f.gone:
		s.miss(f, err, now)
	case err != nil: // the topic itself flows; each send to a queue that is missing reports that, too
		s.failure = fmt.Errorf("sqs: a queue that %q needs cannot be created: %v", printable(topic)[0], err)
	case f.gone && f.idle(): // else it is looked at again when its polls have ended
		if len(created) == 0 && s.mayCreate() { // another program has created it, or the service contradicts itself
			s.failure = fmt.Errorf("sqs: the queue of %q was gone for a moment, perhaps with what was in it", printable(topic)[0])
		}
		f.gone, f.failures, f.rest = false, 0, now.Add(shortestRest)
		next := s.newFeed(s.broker.learnAll(sub, sites)[0])
		next.paused, next.since, next.rest = f.paused, f.since, f.rest
		s.feeds[i] = next
	}
	return created
}

// missed has a queue created again that is gone, as a send to topic has found, if it
// is one of a source that may.
func (b *Broker) missed(topic string, errs []error) []error {
	if !slices.ContainsFunc(errs, isGone) {
		return errs
	}
	for _, s := range b.sources.Open() {
		if s.mayCreate() && slices.Contains(slices.Concat(s.sub.Topics, lasting(s.sub)), topic) {
			s.mu.Lock()
			s.restore()
			s.mu.Unlock()
		}
	}
	return errs
}

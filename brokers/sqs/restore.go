package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redrive-go/redrive/brokers"
)

// mayCreate reports whether queues of the source that are gone are created again, as
// those of a development server that keeps nothing over a restart.
func (s *source) mayCreate() bool { return s.broker.options.Create && !s.readOnly }

// restore creates what is gone, in the background and once at a time. The next
// Receive tells of it. mu is held.
func (s *source) restore() {
	if s.restoring || s.closed {
		return
	}
	s.restoring = true
	s.calls.Go(func() {
		_, _, created, err := s.broker.establish(context.Background(), s.sub)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.restoring = false
		switch {
		case err != nil:
			s.failure = fmt.Errorf("sqs: a queue of %q is gone, with what was in it: %w", s.sub.Topics, err)
			if errors.Is(err, brokers.ErrMisconfigured) {
				s.fatal = s.failure
			}
		case len(created) > 0:
			s.failure = fmt.Errorf("sqs: the queues %q were gone, with what was in them: they are created anew (Options.Create)", created)
		default: // somebody else has created it, or the service contradicts itself
			s.failure = fmt.Errorf("sqs: a queue of %q was gone for a moment, perhaps with what was in it", s.sub.Topics)
		}
		s.woken.Wake()
	})
}

// missed takes in what a send to topic ended with. What is gone and belongs to a
// source that may create it is nothing that an operator need see to.
func (b *Broker) missed(topic string, errs []error) []error {
	i := slices.IndexFunc(errs, isGone)
	if i < 0 {
		return errs
	}
	owned := false
	for _, s := range b.sources.Open() {
		if s.mayCreate() && slices.Contains(slices.Concat(s.sub.Topics, lasting(s.sub)), topic) {
			owned = true
			s.mu.Lock()
			s.restore()
			s.mu.Unlock()
		}
	}
	for i, err := range errs {
		if owned && isGone(err) {
			errs[i] = fmt.Errorf("the queue %q does not exist any more, and is created again (Options.Create)", topic) // which cures it
		}
	}
	return errs
}

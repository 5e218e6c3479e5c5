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

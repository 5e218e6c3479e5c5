package kafka

import "slices"

// isolate chooses the reader of the next suspect: a message on trial that an owner was
// lost with. It runs with nothing else in the hands of its worker, whatever partition
// that is of, so that nothing beside it is charged again. Until it is settled no other
// reader hands out anything but what it has marked already. quiet reports whether all of
// that is settled, too.
func (s *source) isolate() (alone *reader, quiet bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.alone
	if s.alone != nil && !s.alone.hasSuspect() {
		s.alone = nil
	}
	quiet = true
	for _, r := range s.readers {
		if s.alone == nil && r.hasSuspect() {
			s.alone = r
		}
		quiet = quiet && r.isQuiet()
	}
	if before != nil && s.alone != before {
		s.woken.Wake()
	}
	return s.alone, quiet
}

// isSuspect reports whether a record is a message on trial that an owner was lost with.
// mu is held.
func (r *reader) isSuspect(record *record) bool {
	return r.progress.abandoned(record.offset) > 0 && record.note(crashHeader) != nil
}

// hasSuspect reports whether a suspect runs, or is ready.
func (r *reader) hasSuspect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sole != nil && r.progress.out.has(r.sole.offset) || !r.leaving && slices.ContainsFunc(r.suspects, r.isFlowing)
}

// isFlowing reports whether the topic of a record is not paused. mu is held.
func (r *reader) isFlowing(record *record) bool { return !r.laneOf(record).paused }

// isQuiet reports whether nothing is handed out, or about to be.
func (r *reader) isQuiet() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.progress.out.size == 0
}

// markAlone takes a suspect that is ready, and marks it. The caller commits the mark.
func (r *reader) markAlone() []*record {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.suspects, r.isFlowing)
	if i < 0 || r.leaving {
		return nil
	}
	r.sole = r.suspects[i]
	r.suspects = slices.Delete(r.suspects, i, i+1)
	r.progress.start(r.sole.offset)
	return []*record{r.sole}
}

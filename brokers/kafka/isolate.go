package kafka

import "slices"

// grave is from how many lost owners on a suspect is tried with nothing else in
// the hands of its worker, whatever partition that is of: what dies beside the
// one that kills must not be charged again and again.
const grave = 2

// isolate chooses the reader of the next grave suspect. Until that is settled no
// other one hands out anything but what it has marked already. It is quiet
// when all of that is settled, too.
func (s *source) isolate() (alone *reader, quiet bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.alone
	if s.alone != nil && !s.alone.isGrave() {
		s.alone = nil
	}
	quiet = true
	for _, r := range s.readers {
		if s.alone == nil && r.isGrave() {
			s.alone = r
		}
		quiet = quiet && r.out.Load() == 0 && !r.isTrying()
	}
	if before != nil && s.alone != before {
		s.woken.Wake()
	}
	return s.alone, quiet
}

// allowed are the readers that may hand out something. The lock is held.
func (s *source) allowed() []*reader {
	if s.alone == nil {
		return s.readers
	}
	var rs []*reader
	for _, r := range s.readers {
		if r.isTrying() {
			rs = append(rs, r)
		}
	}
	return rs
}

// isGrave reports whether a grave suspect is ready, or on trial. While its partition is
// revoked only one that runs is.
func (r *reader) isGrave() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leaving {
		return r.progress.isTrying(grave) && r.out.Load() > 0
	}
	return !r.wary.IsZero() && (r.progress.isTrying(grave) || r.gravest() >= grave)
}

// suspect sets a record apart if it is a suspect, and reports whether it is. mu is held.
func (r *reader) suspect(record *record) bool {
	is := r.progress.abandoned(record.offset) > 0
	if is {
		r.suspects = append(r.suspects, record)
	}
	return is
}

// gravest returns how many owners were lost with the worst suspect that is
// ready, 0 if there is none. mu is held.
func (r *reader) gravest() (count int) {
	for _, record := range r.suspects {
		if !r.laneOf(record).paused {
			count = max(count, r.progress.abandoned(record.offset))
		}
	}
	return count
}

// takeSuspects takes at most n that are ready, and that at least so many owners were
// lost with. mu is held.
func (r *reader) takeSuspects(n, least int) (taken []*record) {
	r.suspects = slices.DeleteFunc(r.suspects, func(record *record) bool {
		if len(taken) >= n || r.laneOf(record).paused || r.progress.abandoned(record.offset) < least {
			return false
		}
		taken = append(taken, record)
		return true
	})
	return taken
}

// isTrying reports whether something is on trial.
func (r *reader) isTrying() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trial() > 0 && !r.leaving
}

package kafka

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

// gravest returns how many owners were lost with the worst suspect that is
// ready, 0 if there is none. mu is held.
func (r *reader) gravest() (count int) {
	if len(r.progress.lost) == 0 {
		return 0
	}
	for _, l := range r.active {
		for record := range l.records() {
			count = max(count, r.progress.abandoned(record.offset))
		}
	}
	return count
}

// isTrying reports whether something is on trial.
func (r *reader) isTrying() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trial() > 0 && !r.leaving
}

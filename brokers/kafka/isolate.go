package kafka

// grave is from how many lost owners on a suspect is tried with nothing else in
// the hands of its worker, whatever partition that is of: what dies beside the
// one that kills must not be charged again and again.
const grave = 2

// isolate chooses the reader of the next grave suspect. Until that is settled no
// other one hands out anything but what it has marked already. It is quiet
// when all of that is settled, too.
func (g *generation) isolate() (alone *reader, quiet bool) {
	s := g.source
	s.mu.Lock()
	defer s.mu.Unlock()
	before := g.alone
	if g.alone != nil && !g.alone.isGrave() {
		g.alone = nil
	}
	quiet = g.out.Load() == 0
	for _, r := range g.readers {
		if g.alone == nil && r.isGrave() {
			g.alone = r
		}
		quiet = quiet && !r.isTrying()
	}
	if before != nil && g.alone != before {
		s.woken.Wake()
	}
	return g.alone, quiet
}

// allowed are the readers that may hand out something. The lock of the source
// is held.
func (g *generation) allowed() []*reader {
	if g.alone == nil {
		return g.readers
	}
	var rs []*reader
	for _, r := range g.readers {
		if r.isTrying() {
			rs = append(rs, r)
		}
	}
	return rs
}

// isGrave reports whether a grave suspect is ready, or on trial.
func (r *reader) isGrave() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.wary.IsZero() && (r.progress.isTrying(grave) || r.gravest() >= grave)
}

// gravest returns how many owners were lost with the worst suspect that is
// ready, 0 if there is none. mu is held.
func (r *reader) gravest() (count int) {
	if len(r.progress.suspects()) == 0 {
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
	return r.trial() > 0
}

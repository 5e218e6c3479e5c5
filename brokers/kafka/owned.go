package kafka

import (
	"context"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// kept is how far this source came with a partition when it could not commit that. If
// it is assigned the partition again at once, it goes on there, unless another member
// has committed since: what it had is not repeated, and its own marks are no evidence.
type kept struct {
	last     commitment
	progress *progress
	seen     epochEnd
}

func (r *reader) keep() kept {
	r.mu.Lock()
	defer r.mu.Unlock()
	return kept{r.last, r.progress, r.seen}
}

// owned gives up what is lost, and returns the readers of what this member owns.
func (s *source) owned() []*reader {
	s.revoke(slices.DeleteFunc(s.all(), func(r *reader) bool { return r.ctx.Err() == nil }))
	return s.all()
}

// all are the readers, also of what is lost and not given up yet.
func (s *source) all() []*reader {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.readers)
}

// assign begins with those of all partitions that have no reader, where their last
// owners have left off.
func (s *source) assign(g *generation, all []partition) error {
	have := make(map[partition]bool)
	for _, r := range s.all() {
		have[r.partition] = true
	}
	delays := 0
	var fresh []partition
	for _, p := range all {
		if !s.topics[p.topic] {
			delays++
		}
		if !have[p] {
			fresh = append(fresh, p)
		}
	}
	limits := s.broker.memory.share(len(all), delays)
	for _, r := range s.all() {
		r.limit(limits)
	}
	if err := s.start(g, fresh, limits); err != nil {
		if g.ctx.Err() != nil || isRegrouping(err) {
			return nil // the next generation begins with them
		}
		return err
	}
	s.attempted(nil)
	s.woken.Wake()
	return nil
}

// start makes a reader for each partition. From its commit on, a death of this worker
// is seen.
func (s *source) start(g *generation, ps []partition, limits memory) error {
	if len(ps) == 0 {
		return g.ctx.Err()
	}
	stored, err := s.broker.client.committed(g.ctx, s.plan.group, ps)
	if err != nil {
		return err
	}
	spans, err := s.broker.client.bounds(g.ctx, ps)
	if err != nil {
		return err
	}
	if err := s.broker.begin(g.ctx, s.plan.known, stored, spans); err != nil {
		return err
	}
	var rs []*reader
	for _, p := range ps {
		r, err := newReader(s, p, stored[p], spans[p], limits)
		if err != nil {
			s.alarm(err)
		}
		rs = append(rs, r)
	}
	if err := s.commit(g.ctx, whatChanged, rs...); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rs {
		delete(s.kept, r.partition)
		for topic := range r.lanes { // before anything is fetched
			_, paused := s.paused[topic]
			r.pause(topic, paused)
		}
		r.tasks.Go(r.read)
		if r.delayed != nil {
			r.tasks.Go(r.feed)
		}
	}
	s.readers = slices.Concat(s.readers, rs)
	return nil
}

// revoke gives partitions up: it hands out nothing more of them, lets handlers come to
// their end, and commits for the last time. What was handed out and is not settled then
// is no evidence against any message: this worker lives.
func (s *source) revoke(rs []*reader) {
	if len(rs) == 0 {
		return
	}
	s.mu.Lock() // nothing is being handed out
	for _, r := range rs {
		r.leave()
	}
	s.mu.Unlock()
	s.drain(rs)
	for _, r := range rs {
		r.tasks.Wait()
		r.abandon()
		r.cancel(brokers.ErrLeaseLost)
	}
	s.mu.Lock()
	s.readers = slices.DeleteFunc(slices.Clone(s.readers), func(r *reader) bool { return slices.Contains(rs, r) })
	if slices.Contains(rs, s.alone) {
		s.alone = nil
	}
	s.mu.Unlock()
	s.woken.Wake()
	ctx, cancel := context.WithTimeout(context.Background(), lastCommit)
	defer cancel()
	s.writeDone(ctx, rs)
	if err := s.commit(ctx, atTheEnd, rs...); err != nil {
		for _, r := range rs {
			s.kept[r.partition] = r.keep()
		}
	}
}

// drain waits for what is handed out to be settled, for a third of the time that the
// group waits for this member. Commits go on meanwhile.
func (s *source) drain(rs []*reader) {
	limit := time.NewTimer(s.broker.options.RebalanceTimeout / 3)
	defer limit.Stop()
	for slices.ContainsFunc(rs, func(r *reader) bool { return r.ctx.Err() == nil && r.out.Load() > 0 }) {
		select {
		case <-s.idle:
		case <-limit.C:
			return
		case <-s.ctx.Done():
			return
		}
	}
}

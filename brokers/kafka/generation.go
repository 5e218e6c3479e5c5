package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

const (
	// watchPace is how often the topics are looked at: one may have grown, or
	// be there again.
	watchPace = 5 * time.Second

	// missedPace is the least time between two reports of a missing topic.
	missedPace = 15 * time.Second
)

// generation is what a group has agreed on last: who has which partitions. Heartbeats
// and commits name it. A partition that its member keeps goes on over generations: its
// reader, its deliveries and its fetches end only when it is revoked, or lost.
type generation struct {
	id          int32
	member      string
	cooperative bool
	left        bool // the member joins the next one; guarded by the lock of the source

	ctx context.Context // ends when the group is to be joined again
	end context.CancelCauseFunc
}

// current is the generation that heartbeats and commits name; nil before the first.
func (s *source) current() *generation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// leave notes that this member joins the group again, and returns what it claims.
func (s *source) leave() claim {
	c := claim{topics: s.plan.consumed()}
	for _, r := range s.owned() {
		c.owned = append(c.owned, r.partition)
	}
	slices.SortFunc(c.owned, comparePartitions)
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.generation; g != nil {
		g.left, c.generation = true, g.id
	}
	return c
}

// rename has heartbeats and commits name a generation that ended before the member was
// assigned its share: the group refuses any other. What the member owns it still owns,
// as a cooperative group gives nothing of it to others before the member revokes it.
func (s *source) rename(a assignment) {
	if !a.cooperative || a.missed {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.generation; g != nil && g.cooperative {
		next := *g
		next.id = a.generation
		s.generation = &next
	}
}

// serve takes part in one generation, until the group is to be joined again: it revokes
// what belongs to others now, and begins with what is new. In the eager protocol it
// revokes all in the end. Whatever was lost is given up in the name of the generation
// before, so that nothing is committed for it in this one. serve returns why it ended.
func (s *source) serve(a assignment, claimed []partition) error {
	mine := make(map[partition]bool, len(a.partitions))
	for _, p := range a.partitions {
		mine[p] = true
	}
	isGone := func(p partition) bool { return !mine[p] }
	switch {
	case a.missed: // others may have had any of them
		s.lose(s.current(), anyPartition)
	case !a.heeds: // others have them already
		s.lose(s.current(), isGone)
	}
	leaving := slices.DeleteFunc(s.owned(), func(r *reader) bool { return mine[r.partition] })
	maps.DeleteFunc(s.kept, func(p partition, _ kept) bool { return isGone(p) })

	g := &generation{id: a.generation, member: a.member, cooperative: a.cooperative}
	g.ctx, g.end = context.WithCancelCause(s.ctx)
	s.mu.Lock()
	s.generation = g
	s.mu.Unlock()
	s.foreign.Clear()
	if a.led == nil {
		s.layout = nil // what this generation was made for is no news
	}
	var work sync.WaitGroup
	work.Go(func() { s.watch(g, a.led) })
	work.Go(func() { s.meet(g.ctx) })
	defer work.Wait()

	err := s.assign(g, a.partitions)
	s.revoke(leaving)
	if a.heeds && slices.ContainsFunc(claimed, isGone) {
		g.end(errors.New("partitions are revoked, and can be given to others"))
	}
	var overdue <-chan time.Time
	if a.withheld {
		overdue = time.After(s.broker.options.RebalanceTimeout)
	}
	for g.ctx.Err() == nil {
		var again <-chan time.Time
		if err != nil {
			s.attempted(err)
			s.fail(err)
			again = time.After(rejoinPause)
		}
		select {
		case <-g.ctx.Done():
		case <-overdue: // its owner may not know that it is to revoke one
			g.end(errors.New("partitions that are to move are not revoked"))
		case <-again:
			err = s.assign(g, a.partitions)
		case <-s.broken:
			s.revoke(slices.DeleteFunc(s.owned(), func(r *reader) bool { return r.work.Err() == nil }))
			err = s.assign(g, a.partitions)
		}
	}
	if !g.cooperative {
		s.revoke(s.owned())
	}
	return context.Cause(g.ctx)
}

// beat keeps the membership until ctx ends, also while the group forms again. It gives
// all partitions up when the group has gone on without this member, or must have: then
// it has not answered for a session. A broker that restarts in the meantime changes
// nothing.
func (s *source) beat(ctx context.Context) {
	o := s.broker.options
	heard := time.Now()
	for adapter.Rest(ctx, s.broker.pace) {
		g, sent := s.current(), time.Now()
		if g == nil {
			heard = sent
			continue
		}
		err := s.member.beat(ctx, min(o.CallTimeout, o.SessionTimeout/3), g.id, g.member)
		if ctx.Err() != nil {
			return
		}
		if err == nil || s.goesOn(g, err) {
			heard = sent
		} else if !isRegrouping(err) && time.Since(heard) >= o.SessionTimeout {
			s.lose(g, anyPartition)
		}
	}
}

// goesOn takes in that the group refuses what this member says of a generation. It
// reports whether the member is one of the group still. If it is none, all partitions
// are lost.
func (s *source) goesOn(g *generation, err error) bool {
	s.mu.Lock()
	joins := s.generation != g || g.left
	s.mu.Unlock()
	switch {
	case errors.Is(err, kafka.RebalanceInProgress):
		g.end(err)
		return true
	case errors.Is(err, kafka.IllegalGeneration) && joins:
		return true
	case isRegrouping(err):
		s.lose(g, anyPartition)
	}
	return false
}

// lose ends the sessions of those partitions that have other owners: nothing of them is
// settled or committed any more. It does nothing if a generation came after g.
func (s *source) lose(g *generation, which func(partition) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g == nil || s.generation != g {
		return
	}
	for _, r := range s.readers {
		if which(r.partition) {
			r.leave()
			r.cancel(brokers.ErrLeaseLost)
		}
	}
	g.end(brokers.ErrLeaseLost)
	signal(s.idle)
}

func anyPartition(partition) bool { return true }

// watch ends the generation when the partitions of a topic are not what they
// were: only a new one assigns those that were added. The leader goes by what it
// has spread over the group, for all topics of all members: a topic may have come
// back, or answered again, between that and the first look.
func (s *source) watch(g *generation, led map[string]int) {
	own := s.plan.consumed()
	names := slices.Concat(own, slices.Collect(maps.Keys(led)))
	slices.Sort(names)
	names = slices.Compact(names)
	for ok := true; ok; ok = adapter.Rest(g.ctx, watchPace) {
		states, err := s.broker.client.topics(g.ctx, names...)
		if err != nil {
			continue // readers and commits tell of it
		}
		before := s.layout
		s.layout = states
		for name, state := range states {
			assigned, known := led[name]
			if !known {
				var seen topicState
				seen, known = before[name]
				assigned = seen.partitions
			}
			switch {
			case !state.missing && known && state.partitions != assigned:
				g.end(fmt.Errorf("the topic %q has %d partitions now", name, state.partitions))
			case !state.missing:
				delete(s.missed, name)
			case slices.Contains(own, name) && time.Since(s.missed[name]) >= missedPace:
				delete(s.plan.known, name) // what comes back is read from its first record
				s.missed[name] = time.Now()
				err := fmt.Errorf("the topic %q does not exist any more, and its records are lost: create it again, and it is read within seconds", name)
				if s.topics[name] { // and not a delay topic
					err = &brokers.TopicError{Topic: name, Err: err}
				}
				s.alarm(err)
			}
		}
	}
}

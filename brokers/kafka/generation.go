package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
)

const (
	// commitPace is how long what is settled waits to be committed, and
	// commitBatch how many settled records do not wait.
	commitPace  = 200 * time.Millisecond
	commitBatch = 10_000

	// commitPause is the wait after a commit that has failed.
	commitPause = time.Second

	// donePace is how long what is settled on a delay partition waits for its
	// done record.
	donePace = time.Second

	// watchPace is how often the topics are looked at: one may have grown, or
	// be there again.
	watchPace = 5 * time.Second

	// missedPace is the least time between two reports of a missing topic.
	missedPace = 15 * time.Second

	// lastCommit bounds the commit at the end of a generation.
	lastCommit = 3 * time.Second
)

// State of a partition, before its progress in the commit metadata. Whoever
// finds one open knows that its owner was lost.
const (
	ownerOpen  = "o"
	ownerClean = "c"
)

// generation is one assignment of partitions to this member. Settling belongs
// to it: when it is over, they are somebody else's.
type generation struct {
	source *source
	id     int32
	member string

	ctx    context.Context // the Session of its deliveries
	cancel context.CancelCauseFunc
	work   context.Context // of the goroutines that read, ends before
	stop   context.CancelCauseFunc
	kick   chan struct{} // commit now

	fetches *fetches
	memory  memory   // of each partition
	foreign sync.Map // topics of retries that were passed on, as keys
	readers []*reader
	alone   *reader       // of a grave suspect, guarded by the lock of the source
	out     atomic.Int64  // deliveries that are handed out
	idle    chan struct{} // signalled when there are none

	committing sync.Mutex
}

// serve is one generation, from assignment to the last commit.
func (s *source) serve(ctx context.Context, a assignment) {
	g := &generation{source: s, id: a.generation, member: a.member, kick: make(chan struct{}, 1), idle: make(chan struct{}, 1)}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	g.work, g.stop = context.WithCancelCause(ctx)
	g.fetches = newFetches(g.work, s.broker.client)
	defer g.cancel(brokers.ErrLeaseLost)
	var heart sync.WaitGroup
	defer heart.Wait()
	beating, still := context.WithCancel(context.Background())
	defer still()
	heart.Go(func() { g.beat(beating) }) // also while the generation ends
	if err := g.assign(a.partitions); err != nil {
		if g.work.Err() == nil && !isRegrouping(err) {
			s.attempted(err)
			s.fail(err)
			rest(g.work, rejoinPause)
		}
		return
	}
	g.pause() // before anything is fetched
	var work sync.WaitGroup
	for _, r := range g.readers {
		work.Go(func() { r.read(g.work) })
		if r.delayed != nil {
			work.Go(func() { r.feed(g.work) })
		}
	}
	work.Go(func() { g.watch(g.work, a.led) })
	work.Go(func() { g.meet(g.work) })
	work.Go(func() { g.commitAlways(g.work) })
	work.Go(func() { // apart, as commits must not wait for a topic that takes no records
		for rest(g.work, donePace) {
			g.writeDone(g.work)
		}
	})
	g.begin()

	<-g.work.Done()
	s.mu.Lock()
	s.generation = nil // nothing more is handed out
	s.mu.Unlock()
	g.drain()
	g.stop(nil)
	work.Wait()
	g.fetches.work.Wait()
	g.close()
}

// beat keeps the membership until ctx ends. It ends the generation when the group
// changes, and at once when the group has gone on without this member, or must have:
// then it has not answered for a session. A broker that restarts in the meantime
// changes nothing.
func (g *generation) beat(ctx context.Context) {
	o := g.source.broker.options
	heard := time.Now()
	for rest(ctx, g.source.broker.pace) {
		sent := time.Now()
		err := g.source.member.beat(ctx, min(o.CallTimeout, o.SessionTimeout/3), g.id, g.member)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			heard = sent
		case errors.Is(err, kafka.RebalanceInProgress):
			heard = sent
			g.end(err)
		case isRegrouping(err) || time.Since(heard) >= o.SessionTimeout:
			g.end(err)
			g.cancel(brokers.ErrLeaseLost)
			return
		}
	}
}

// drain waits for what is handed out to be settled, for a third of the time that the
// group waits for this member, and goes on committing.
func (g *generation) drain() {
	ctx, cancel := context.WithTimeout(g.source.ctx, g.source.broker.options.RebalanceTimeout/3)
	defer cancel()
	ticker := time.NewTicker(commitPace)
	defer ticker.Stop()
	for g.out.Load() > 0 {
		select {
		case <-g.idle:
		case <-ticker.C:
			if errors.Is(g.commit(ctx, whatChanged), brokers.ErrLeaseLost) {
				return
			}
		case <-g.ctx.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// close commits for the last time. What was handed out and is not settled is no
// evidence against anybody: this worker lives.
func (g *generation) close() {
	ctx, cancel := context.WithTimeout(context.Background(), lastCommit)
	defer cancel()
	for _, r := range g.readers {
		r.abandon()
	}
	g.cancel(brokers.ErrLeaseLost)
	g.writeDone(ctx)
	err := g.commit(ctx, atTheEnd)
	clear(g.source.kept)
	for _, r := range g.readers {
		if err != nil {
			g.source.kept[r.partition] = kept{r.last, r.progress}
		}
	}
}

// kept is how far a generation of this source came with a partition when it
// could not commit that. It goes on there, unless somebody else has committed
// since: what it had is not repeated, and its own marks are no evidence.
type kept struct {
	last     commitment
	progress *progress
}

// begin has its source hand out what its readers have.
func (g *generation) begin() {
	s := g.source
	s.mu.Lock()
	defer s.mu.Unlock()
	g.pauseAll() // as it is now
	s.generation = g
	s.attempted(nil)
	s.woken.Wake()
}

// pause pauses what its source has paused.
func (g *generation) pause() {
	g.source.mu.Lock()
	defer g.source.mu.Unlock()
	g.pauseAll()
}

func (g *generation) pauseAll() {
	for _, r := range g.readers {
		for topic := range r.lanes {
			_, paused := g.source.paused[topic]
			r.pause(topic, paused)
		}
	}
}

// pauseTopic pauses a topic, or resumes it. The lock of the source is held, and
// there may be no generation.
func (g *generation) pauseTopic(topic string, paused bool) {
	if g == nil {
		return
	}
	for _, r := range g.readers {
		r.pause(topic, paused)
	}
	if g.alone != nil { // perhaps it is of that topic, and keeps the others
		g.commitSoon()
	}
}

// end gives the generation up, so that the group is joined again.
func (g *generation) end(cause error) { g.stop(cause) }

// assign makes a reader for each partition, where the last owner has left off.
func (g *generation) assign(ps []partition) error {
	s := g.source
	stored, err := s.broker.client.committed(g.work, s.plan.group, ps)
	if err != nil {
		return err
	}
	spans, err := s.broker.client.bounds(g.work, ps)
	if err != nil {
		return err
	}
	if err := s.broker.begin(g.work, s.plan.known, stored, spans); err != nil {
		return err
	}
	delays := 0
	for _, p := range ps {
		if !s.topics[p.topic] {
			delays++
		}
	}
	g.memory = s.broker.memory.share(len(ps), delays)
	for _, p := range ps {
		r, err := newReader(g, p, stored[p], spans[p])
		if err != nil {
			s.alarm(err)
		}
		g.readers = append(g.readers, r)
	}
	// From here on a death of this worker is seen.
	return g.commit(g.work, whatChanged)
}

// watch ends the generation when the partitions of a topic are not what they
// were: only a new one assigns those that were added. The leader goes by what it
// has spread over the group, for all topics of all members: a topic may have come
// back, or answered again, between that and the first look.
func (g *generation) watch(ctx context.Context, led map[string]int) {
	s := g.source
	own := s.plan.consumed()
	names := slices.Concat(own, slices.Collect(maps.Keys(led)))
	slices.Sort(names)
	names = slices.Compact(names)
	for ok := true; ok; ok = rest(ctx, watchPace) {
		states, err := s.broker.client.topics(ctx, names...)
		if err != nil {
			continue // readers and commits tell of it
		}
		before := s.layout
		s.layout = states
		for name, state := range states {
			assigned, leads := led[name]
			if !leads {
				assigned = before[name].partitions
			}
			switch {
			case !state.missing && state.partitions != assigned:
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

// commitAlways commits at a steady pace, and sooner when much is settled.
func (g *generation) commitAlways(ctx context.Context) {
	ticker := time.NewTicker(commitPace)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-g.kick:
		case <-ctx.Done():
			return
		}
		err := g.commit(ctx, whatChanged)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, brokers.ErrLeaseLost):
			g.end(err)
			return
		case err != nil:
			g.source.fail(err)
			rest(ctx, commitPause)
		}
	}
}

// commitScope says what a commit stores.
type commitScope int

const (
	whatChanged commitScope = iota
	everything              // also what is stored already
	atTheEnd                // what changed, and that this owner ends well
)

// commit stores the progress of the partitions. It returns the first error, and
// one that is brokers.ErrLeaseLost if there is such a one.
func (g *generation) commit(ctx context.Context, scope commitScope) error {
	g.committing.Lock()
	defer g.committing.Unlock()
	state := ownerOpen
	if scope == atTheEnd {
		state = ownerClean
	}
	changed := make(map[partition]commitment)
	trials := make(map[partition][]*record)
	alone, quiet := g.isolate()
	for _, r := range g.readers {
		var trial []*record
		if scope != atTheEnd && (alone == nil || alone == r && quiet) {
			trial = r.try(time.Now())
		}
		if c, ok := r.changed(state); ok || len(trial) > 0 || scope == everything {
			changed[r.partition] = c
			if len(trial) > 0 {
				trials[r.partition] = trial
			}
		}
	}
	if len(changed) == 0 {
		return nil
	}
	s := g.source
	failed, err := s.broker.client.commit(ctx, s.plan.group, g.id, g.member, changed)
	first := err
	for _, r := range g.readers {
		c, ok := changed[r.partition]
		e := cmp.Or(err, failed[r.partition])
		switch {
		case !ok:
		case e == nil:
			r.committed(c, trials[r.partition])
		default:
			r.notCommitted(trials[r.partition])
			if first == nil || errors.Is(e, brokers.ErrLeaseLost) {
				first = e
			}
		}
	}
	if len(trials) > 0 {
		s.woken.Wake()
	}
	return first
}

// writeDone writes done records for what was settled on delay partitions.
func (g *generation) writeDone(ctx context.Context) {
	var out []outgoing
	var from []*reader
	for _, r := range g.readers {
		if r.delayed == nil {
			continue
		}
		for _, value := range r.doneValues() {
			done := doneRecord(g.source.broker.seal, r.partition, value.encoded)
			out = append(out, outgoing{topic: r.partition.topic, partition: r.partition.number, record: done})
			from = append(from, r)
			r.writing = append(r.writing, value)
		}
	}
	if len(out) == 0 {
		return
	}
	errs := g.source.broker.producer.produce(ctx, out)
	for i, r := range from {
		value := r.writing[0]
		r.writing = r.writing[1:]
		if errs != nil && errs[i] != nil {
			r.notWritten(value.offsets)
		}
	}
}

// settled notes that n deliveries came back.
func (g *generation) settled(n int) {
	if g.out.Add(-int64(n)) == 0 {
		select {
		case g.idle <- struct{}{}:
		default:
		}
	}
}

func (g *generation) commitSoon() {
	select {
	case g.kick <- struct{}{}:
	default:
	}
}

// rest waits for d, and reports whether ctx goes on.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

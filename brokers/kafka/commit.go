package kafka

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

const (
	// commitPace is how long what is done waits to be committed, and
	// commitBatch how many done records do not wait.
	commitPace  = 200 * time.Millisecond
	commitBatch = 10_000

	// commitPause is the wait after a commit that has failed.
	commitPause = time.Second

	// donePace is how long a record that is done on a delay partition waits for
	// its done record.
	donePace = time.Second

	// lastCommit bounds the last commit of a partition.
	lastCommit = 3 * time.Second
)

// State of a partition, before its progress in the commit metadata. Whoever
// finds one open knows that its owner was lost.
const (
	ownerOpen  = "o"
	ownerClean = "c"
)

// commitAlways commits at a steady pace until ctx ends, and sooner when much is
// done. What a generation refuses is committed in the next one.
func (s *source) commitAlways(ctx context.Context) {
	ticker := time.NewTicker(commitPace)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.kick:
		case <-ctx.Done():
			return
		}
		call, cancel := linger(ctx, 8*s.broker.options.CallTimeout, lastCommit) // or it may overtake the last commit
		err := s.commit(call, whatChanged)
		cancel()
		if ctx.Err() == nil && err != nil && !isRegrouping(err) {
			s.fail(err)
			adapter.Rest(ctx, commitPause)
		}
	}
}

// linger returns a context for a call of at most length that goes on for grace
// after ctx has ended.
func linger(ctx context.Context, length, grace time.Duration) (context.Context, context.CancelFunc) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), length)
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(call, func() { timer.Stop() })
	})
	return call, func() { stop(); cancel() }
}

// commitScope says what a commit stores.
type commitScope int

const (
	whatChanged commitScope = iota
	everything              // also what is stored already
	atTheEnd                // what changed, and that this owner ends well
)

// commit stores the progress of partitions: of all, unless it is told of which. It
// returns the first error, and one that is brokers.ErrLeaseLost if there is such a one.
func (s *source) commit(ctx context.Context, scope commitScope, of ...*reader) error {
	select {
	case s.committing <- struct{}{}: // none overtakes another
		defer func() { <-s.committing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	state := ownerOpen
	if scope == atTheEnd {
		state = ownerClean
	}
	changed := make(map[partition]commitment)
	marked := make(map[partition][]*record)
	alone, quiet := s.isolate()
	s.mu.Lock()
	g := s.generation
	if of == nil {
		of = s.readers
	}
	s.mu.Unlock()
	for _, r := range of {
		var fresh []*record
		switch {
		case scope == atTheEnd:
		case alone == nil:
			fresh = r.mark(time.Now())
		case alone == r && quiet:
			fresh = r.markAlone()
		}
		if c, ok := r.changed(state); ok || len(fresh) > 0 || scope == everything {
			changed[r.partition] = c
			if len(fresh) > 0 {
				marked[r.partition] = fresh
			}
		}
	}
	if len(changed) == 0 {
		return nil
	}
	failed, err := s.broker.client.commit(ctx, s.plan.group, g.id, g.member, changed)
	first := err
	for _, r := range of {
		c, ok := changed[r.partition]
		e := cmp.Or(err, failed[r.partition])
		switch {
		case !ok:
		case e == nil:
			r.committed(c, marked[r.partition])
		default:
			r.notCommitted(marked[r.partition])
			if first == nil || errors.Is(e, brokers.ErrLeaseLost) {
				first = e
			}
		}
	}
	if len(marked) > 0 {
		s.woken.Wake()
	}
	if isRegrouping(first) {
		s.goesOn(g, first)
	}
	return first
}

// commitSoon has the next commit not wait.
func (s *source) commitSoon() { signal(s.kick) }

// writeDone writes done records for what is done on delay partitions.
func (s *source) writeDone(ctx context.Context, rs []*reader) {
	var out []outgoing
	var notWritten []func() // for each of out
	for _, r := range rs {
		if r.delayed == nil {
			continue
		}
		for _, offsets := range r.unwritten() {
			done := doneRecord(s.broker.seal, r.partition, doneValue(offsets))
			out = append(out, outgoing{topic: r.partition.topic, partition: r.partition.number, record: done})
			notWritten = append(notWritten, func() { r.notWritten(offsets) })
		}
	}
	if len(out) == 0 {
		return
	}
	for i, err := range s.broker.producer.produce(ctx, out) {
		if err != nil {
			notWritten[i]()
		}
	}
}

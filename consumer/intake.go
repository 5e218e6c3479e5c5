package consumer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/pulse"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

// intake receives from the source what there is room for, and hands it to accept.
// It knows what of each topic is in the process, and asks the admission what may
// start.
type intake struct {
	*reporter
	source    brokers.Source
	subs      []*subscription
	admission *admission
	accept    func([]*brokers.Delivery)
	random    func() float64

	pulse   *pulse.Pulse
	failure atomic.Pointer[failure]                 // of the last Receive that failed
	end     atomic.Pointer[context.CancelCauseFunc] // of the Receive under way; nil if none is

	mu      *sync.Mutex   // of the pipeline, for the counters of subs
	changed chan struct{} // plan again
	stale   bool          // the plan is
	paused  []string      // topics, as the source was told
	timer   *time.Timer   // to plan again; nil if it does not run
}

// receive takes deliveries in until ctx ends or the source fails for good.
func (in *intake) receive(ctx context.Context) error {
	defer in.pulse.End()
	backoff := retry.Backoff{Base: 100 * time.Millisecond, Cap: 2 * time.Second, Floor: 10 * time.Millisecond}
	for failures := 0; ; {
		n := in.awaitRoom(ctx)
		if ctx.Err() != nil {
			return nil
		}
		deliveries, err := in.fetch(ctx, n)
		switch {
		case err == nil:
			failures = 0
			in.accept(deliveries)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errReplan):
		case errors.Is(err, brokers.ErrClosed), errors.Is(err, brokers.ErrMisconfigured):
			return fmt.Errorf("consumer: receive: %w", err)
		default:
			failures++
			e := Event{Kind: EventError, Operation: "receive", Err: fmt.Errorf("receive: %w", err)}
			if lost, ok := errors.AsType[*brokers.TopicError](err); ok {
				e.Topic = lost.Topic
			}
			in.report(e)
			in.failure.Store(&failure{time.Now(), err})
			until(time.Now().Add(backoff.Delay(failures, 0, in.random())), ctx.Done())
		}
	}
}

// receiveLimit bounds one Receive, so that a batch stays in the cache.
const receiveLimit = 256

// awaitRoom returns how many deliveries may be received, at least 1 unless ctx
// has ended, and has the source pause the topics that none may be received of.
func (in *intake) awaitRoom(ctx context.Context) int {
	for {
		now := time.Now()
		in.pulse.Expect(now)
		in.mu.Lock()
		n, paused := in.plan(now)
		news := !slices.Equal(paused, in.paused)
		in.paused = paused
		in.mu.Unlock()
		if news {
			in.source.Pause(paused...)
		}
		if n > 0 {
			return n
		}
		in.pulse.Rest()
		select {
		case <-ctx.Done():
			return 0
		case <-in.changed:
		}
	}
}

// plan returns how many deliveries there is room for in every topic that is not
// to be paused, 0 if all are. mu is held.
func (in *intake) plan(now time.Time) (n int, paused []string) {
	in.stale = false
	full := false
	for _, g := range in.admission.dependencies {
		g.seen = in.admission.follow(g, now)
	}
	for _, s := range in.subs {
		g := s.dependency
		room := in.room(s)
		s.full = false
		switch {
		case s.byHand.Load() != nil, g.seen.Held && g.seen.Limit < 1:
			paused = append(paused, s.topic)
		case room < s.enough(g.seen):
			s.full, full = true, true
		case n == 0:
			n = room
		default:
			n = min(n, room)
		}
	}
	if n > 0 && full {
		for _, s := range in.subs {
			if s.full {
				paused = append(paused, s.topic)
			}
		}
	}
	return min(n, receiveLimit), paused
}

// room returns how many more deliveries of a topic there is room for in the
// window. While a limit holds runs back the window is no larger than the next runs
// need. mu is held.
func (in *intake) room(s *subscription) int {
	v, window, size := s.dependency.seen, s.window, max(1, s.batchSize)
	inLine, active := in.admission.inLine(s.dependency), int(s.active.Load())
	switch {
	case v.Full():
		window += s.ahead()
	case v.Limit < 1:
		most := inLineMost
		if inLine[fresh] == 0 { // look behind those that have failed for one that has not
			most *= 2
		}
		return min(1, most-inLine[fresh]-inLine[retried]-inLine[sentBack]-max(0, (active-s.hung)/size-v.Running))
	default:
		window = min(window, 2*size*int(math.Ceil(v.Limit))+s.hung)
	}
	// Messages that were sent back let others pass.
	return in.roomForLetters(s, window-size*(inLine[fresh]+inLine[retried])-active)
}

// aheadTime is how long a broker may take to bring messages and to confirm their ends
// while handlers have work. What is taken ahead waits behind handlers that begin to
// hang, so it is short: a handler that takes more than 10 ms takes nothing ahead.
const aheadTime = 20 * time.Millisecond

// ahead is how many deliveries the window takes beyond its size: what the handlers do in
// aheadTime, within a half of what may still be held. None if the user has set a
// prefetch. mu is held.
func (s *subscription) ahead() int {
	took := time.Duration(s.took.Load())
	if s.fixed || took <= 0 || took >= aheadTime {
		return 0
	}
	held := int(s.waiting.Load() + s.dying.Load())
	n := min(s.concurrency*max(1, s.batchSize)*int(aheadTime/took)-s.prefetch, (s.maxHeld-held)/2)
	if s.bodies.n > 0 {
		n = min(n, (s.maxBytes-s.heldBytes)/2/max(1, s.bodies.bytes/s.bodies.n))
	}
	return max(n, 0)
}

// sizes is of the bodies that came lately.
type sizes struct{ n, bytes int }

// add takes in a body of so many bytes.
func (s *sizes) add(bytes int) {
	const lately = 1000
	if s.n >= lately {
		s.n, s.bytes = s.n/2, s.bytes/2
	}
	s.n++
	s.bytes += bytes
}

// roomForLetters returns how much of room is left while dead letters are under
// way: there must also be room for those of the whole window, because handlers may
// fail faster than a healthy dead-letter topic confirms. mu is held.
func (in *intake) roomForLetters(s *subscription, room int) int {
	dying := int(s.dying.Load())
	if dying == 0 || room <= 0 {
		return room
	}
	left := s.window - dying
	if s.heldBytes <= s.maxBytes/2 {
		left = max(left, s.maxHeld-int(s.waiting.Load())-dying)
	}
	if left -= int(s.active.Load()); left >= room || !s.letters.moves(time.Now()) {
		return room
	}
	if left < s.least { // if the dead letters stop moving, nothing else has the intake look
		in.replanIn(movesWithin)
	}
	return left
}

// enough returns the room for which it is worth to receive.
func (s *subscription) enough(v flow.Status) int {
	if v.Full() {
		return s.least
	}
	return 1
}

// roomFor has the intake plan again if a topic that was full has room. mu is
// held.
func (in *intake) roomFor(s *subscription) {
	if s.full && in.room(s) >= s.enough(s.dependency.seen) {
		in.replan()
	}
}

// replanIn is replan after d. mu is held.
func (in *intake) replanIn(d time.Duration) {
	if in.timer != nil {
		return
	}
	in.timer = time.AfterFunc(d, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.timer = nil
		in.replan()
	})
}

// close stops the timer. mu is held.
func (in *intake) close() {
	if in.timer != nil {
		in.timer.Stop()
	}
}

// errReplan ends a Receive, because others may be received now.
var errReplan = errors.New("consumer: what may be received has changed")

// replan has the intake look again at what may be received, even if a Receive is
// under way. mu is held.
func (in *intake) replan() {
	in.stale = true
	in.interrupt()
}

// interrupt has the intake look again, unless a Receive is about to begin.
func (in *intake) interrupt() {
	if end := in.end.Load(); end != nil {
		(*end)(errReplan)
	}
	select {
	case in.changed <- struct{}{}:
	default:
	}
}

// fetch receives up to n deliveries, unless replan ends that.
func (in *intake) fetch(ctx context.Context, n int) ([]*brokers.Delivery, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	in.mu.Lock()
	if in.stale {
		in.mu.Unlock()
		return nil, errReplan
	}
	in.end.Store(&end)
	in.mu.Unlock()
	in.pulse.Rest()
	deliveries, err := in.source.Receive(ctx, n)
	in.pulse.Expect(time.Now())
	in.end.Store(nil)
	return deliveries, err
}

// until waits for done, and reports false if that takes longer than t.
func until(t time.Time, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-time.After(time.Until(t)):
		return false
	}
}

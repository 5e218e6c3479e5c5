package consumer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

// intake is what may be received, and the Receive under way. It belongs to the
// pipeline, under its mu.
type intake struct {
	changed chan struct{}      // look again
	stale   bool               // since the last look
	end     context.CancelFunc // of the Receive under way; nil if none is
	paused  []string           // topics, as the source was told
	timer   *time.Timer        // to look again; nil before its first use
	due     bool               // timer runs
}

// receive takes deliveries in until ctx ends or the source fails for good.
func (p *pipeline) receive(ctx context.Context) error {
	backoff := retry.Backoff{Base: 100 * time.Millisecond, Cap: 2 * time.Second, Floor: 10 * time.Millisecond}
	for failures := 0; ; {
		n := p.awaitRoom(ctx)
		if ctx.Err() != nil {
			return nil
		}
		deliveries, err := p.fetch(ctx, n)
		switch {
		case err == nil:
			failures = 0
			p.accept(deliveries)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errLookAgain):
		case errors.Is(err, brokers.ErrClosed), errors.Is(err, brokers.ErrMisconfigured):
			return fmt.Errorf("consumer: receive: %w", err)
		default:
			failures++
			p.report(p.values, Event{Kind: EventError, Operation: "receive", Topic: lostTopic(err), Err: fmt.Errorf("receive: %w", err)})
			sleep(ctx, backoff.Delay(failures, 0, p.cfg.Random()))
		}
	}
}

// lostTopic returns the topic of err, an error of Receive: "" if err is about all
// topics.
func lostTopic(err error) string {
	if lost, ok := errors.AsType[*brokers.TopicError](err); ok {
		return lost.Topic
	}
	return ""
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// receiveLimit bounds one Receive, so that a batch stays in the cache.
const receiveLimit = 256

// awaitRoom returns how many deliveries may be received, at least 1 unless ctx
// has ended, and has the source pause the topics that none may be received of.
func (p *pipeline) awaitRoom(ctx context.Context) int {
	for {
		p.mu.Lock()
		n, paused := p.look(time.Now())
		news := !slices.Equal(paused, p.intake.paused)
		p.intake.paused = paused
		p.mu.Unlock()
		if news {
			p.source.Pause(paused...)
		}
		if n > 0 {
			return n
		}
		select {
		case <-ctx.Done():
			return 0
		case <-p.intake.changed:
		}
	}
}

// look returns how many deliveries there is room for in every topic that is not
// to be paused, 0 if all are. mu is held.
func (p *pipeline) look(now time.Time) (n int, paused []string) {
	p.intake.stale = false
	full := false
	for _, g := range p.dependencies {
		if g.seen = g.look(now); !g.seen.Full() {
			g.limiter.Adjust(now, flow.Change{Waits: true})
		}
	}
	for _, s := range p.subs {
		g := s.dependency
		room := p.room(s, now)
		s.full = false
		switch {
		case g.seen.Held && g.seen.Limit < 1:
			paused = append(paused, s.topic)
			p.wake(g, now, g.seen.Next)
		case room < s.enough(g.seen):
			s.full, full = true, true
		case n == 0:
			n = room
		default:
			n = min(n, room)
		}
	}
	if n > 0 && full {
		for _, s := range p.subs {
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
func (p *pipeline) room(s *subscription, now time.Time) int {
	v, window, line, size := s.dependency.seen, s.window, &s.dependency.line, max(1, s.batchSize)
	switch {
	case v.Full():
	case v.Limit < 1:
		most := inLineMost
		if len(line[fresh]) == 0 { // look behind those that have failed for one that has not
			most *= 2
		}
		return min(1, most-line.len()-max(0, (s.active-s.hung)/size-v.Running))
	default:
		window = min(window, 2*size*int(math.Ceil(v.Limit))+s.hung)
	}
	inLine := len(line[fresh]) + len(line[retried]) // messages that were sent back let others pass
	return p.roomForLetters(s, window-size*inLine-s.active, now)
}

// roomForLetters returns how much of room is left while dead letters are under
// way: there must also be room for those of the whole window, because handlers may
// fail faster than a healthy dead-letter topic confirms. mu is held.
func (p *pipeline) roomForLetters(s *subscription, room int, now time.Time) int {
	letters := p.letters[s.deadLetter]
	if letters == nil || s.dying == 0 || room <= 0 {
		return room
	}
	left := s.window - s.dying
	if s.held <= s.maxBytes/2 {
		left = max(left, s.maxHeld-s.waiting-s.dying)
	}
	if left -= s.active; left >= room || !letters.moves(now) {
		return room
	}
	if left < s.least { // if the dead letters stop moving, nothing else has the intake look
		p.lookIn(movesWithin)
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

// roomFor has the intake look again if a topic that was full has room. mu is
// held.
func (p *pipeline) roomFor(s *subscription) {
	if s.full && p.room(s, time.Now()) >= s.enough(s.dependency.seen) {
		p.lookAgain()
	}
}

// lookIn has the intake look again after d. mu is held.
func (p *pipeline) lookIn(d time.Duration) {
	t := &p.intake.timer
	if *t == nil {
		*t = time.AfterFunc(d, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.intake.due = false
			p.lookAgain()
		})
	} else if !p.intake.due {
		(*t).Reset(d)
	}
	p.intake.due = true
}

// errLookAgain ends a Receive, because others may be received now.
var errLookAgain = errors.New("consumer: what may be received has changed")

// lookAgain has the intake look what may be received, even if a Receive is under
// way. mu is held.
func (p *pipeline) lookAgain() {
	p.intake.stale = true
	if p.intake.end != nil {
		p.intake.end()
	}
	select {
	case p.intake.changed <- struct{}{}:
	default:
	}
}

// fetch receives up to n deliveries, unless lookAgain ends that.
func (p *pipeline) fetch(ctx context.Context, n int) ([]*brokers.Delivery, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	p.mu.Lock()
	if p.intake.stale {
		p.mu.Unlock()
		return nil, errLookAgain
	}
	p.intake.end = func() { end(errLookAgain) }
	p.mu.Unlock()
	deliveries, err := p.source.Receive(ctx, n)
	p.mu.Lock()
	p.intake.end = nil
	p.mu.Unlock()
	return deliveries, err
}

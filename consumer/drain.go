package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// ErrUnclean is wrapped by the error of Run when the worker could not stop
// cleanly: a handler ignored its context, or a settlement was not confirmed in
// time. No message is lost; the broker delivers the unsettled ones again.
var ErrUnclean = errors.New("the worker did not stop cleanly")

const (
	// grace is how long interrupted handlers, and then the last settlements,
	// may take after DrainTimeout.
	grace = 500 * time.Millisecond

	// closing is how long the source may take to close.
	closing = 30 * time.Second
)

// drain finishes what the handlers have begun and gives everything else back,
// within DrainTimeout and twice the grace.
func (p *pipeline) drain() error {
	end := time.Now().Add(p.cfg.DrainTimeout)
	p.giveBack()
	stuck := p.awaitHandlers(end)
	return errors.Join(stuck, p.awaitOutboxes(end.Add(grace), end.Add(2*grace)))
}

// until waits for done, and reports false if that takes longer than t.
func until(t time.Time, done <-chan struct{}) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// giveBack ends the waiting of everything that does not run.
func (p *pipeline) giveBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining.Store(true)
	for _, timer := range []*time.Timer{p.held.timer, p.gated.timer, p.gated.look} {
		if timer != nil {
			timer.Stop()
		}
	}
	for _, r := range p.heldRuns() {
		p.unhold(r)
		p.settleLocked(r, r.parting())
	}
	p.held.due = nil // for a resume that is about to begin
	for _, c := range p.batches {
		p.complete(c)
	}
	for _, job := range p.crew.close() {
		for _, r := range job {
			p.settleLocked(r, brokers.Release)
		}
	}
}

// awaitHandlers waits for the workers, interrupts them when the time is up,
// and in the end gives back what they still hold.
func (p *pipeline) awaitHandlers(end time.Time) error {
	worked := make(chan struct{})
	go func() {
		p.crew.working.Wait()
		close(worked)
	}()
	defer func() {
		for _, w := range p.crew.members() {
			w.stop()
		}
	}()
	if until(end, worked) {
		return nil
	}
	for _, w := range p.crew.members() {
		w.interrupt(ErrShutdown)
	}
	if until(end.Add(grace), worked) {
		return nil
	}
	var stuck []error
	for _, w := range p.crew.members() {
		a := w.forsake()
		if a == nil {
			continue
		}
		for _, r := range a.runs {
			p.observe(r, Event{Kind: EventStuck, Duration: time.Since(a.started), Err: errStuck})
			stuck = append(stuck, fmt.Errorf("%w: the handler of %q ignores its context; message %q is given back while it still runs",
				ErrUnclean, r.delivery.Message.Topic, r.delivery.Message.ID))
			p.settle(r, brokers.Release)
		}
	}
	return errors.Join(stuck...)
}

// awaitOutboxes sends what is left: retries first, because a refused one
// becomes a dead letter, then dead letters, which become acks, then those. Dead
// letters that cannot be published by lettersEnd are given back.
func (p *pipeline) awaitOutboxes(lettersEnd, end time.Time) error {
	p.retrier.close()
	until(lettersEnd, p.retrier.emptied)
	p.mu.Lock()
	letters := slices.Collect(maps.Values(p.letters))
	p.mu.Unlock()
	for _, o := range letters {
		o.close()
		if !until(lettersEnd, o.emptied) {
			for _, r := range o.abandon() {
				r.action = r.unhandled(brokers.Release)
				p.settler.add(r) // the retrier may have gone home
			}
		}
	}
	p.settler.close()
	until(end, p.settler.emptied)
	until(end, p.retrier.emptied)
	unsent := p.settler.unsent() + p.retrier.unsent()
	for _, o := range letters {
		unsent += o.unsent()
	}
	if unsent > 0 {
		return fmt.Errorf("%w: %d settlements were not confirmed in time; the broker delivers their messages again", ErrUnclean, unsent)
	}
	return nil
}

// closeSource releases what is left with the source.
func (p *pipeline) closeSource() error {
	p.unwatch()
	ctx, cancel := context.WithTimeout(p.values, closing)
	defer cancel()
	if err := p.source.Close(ctx); err != nil {
		return fmt.Errorf("consumer: close the source: %w", err)
	}
	return nil
}

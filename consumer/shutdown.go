package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/retry/flow"
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
// within DrainTimeout and twice the grace. Receipts have what is left of that.
func (p *pipeline) drain() error {
	end := time.Now().Add(p.cfg.DrainTimeout)
	p.control.close()
	p.endWaiting()
	p.admission.telling.Wait()
	stuck := p.awaitHandlers(end)
	p.endDoubts()
	unsent := p.awaitSenders(end.Add(grace), end.Add(2*grace))
	if p.receipts != nil {
		p.receipts.close()
		until(end.Add(2*grace), p.receipts.emptied)
	}
	p.leases.close()
	return errors.Join(stuck, unsent)
}

// endWaiting ends the waiting of everything that does not run.
func (p *pipeline) endWaiting() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining.Store(true)
	p.intake.close()
	p.admission.close()
	for _, d := range p.allWaiting() {
		if d.judgement == nil { // a handler that still runs may end the doubt
			p.settle(d.actionOnStop(), d)
		}
	}
	p.waitlist.close()
	for _, s := range p.subs {
		for i := range s.batches {
			s.batches[i].flush()
		}
	}
	for _, job := range p.pool.close() {
		p.admission.takeBack(job[0].sub, takeTicket(job), time.Now(), flow.End{}) // another Consumer may share the limiter
		p.settle(brokers.Release, job...)
	}
}

// endDoubts decides on the verdicts that are still in doubt.
func (p *pipeline) endDoubts() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.subs {
		for _, d := range p.inDoubt(s) {
			p.decideNow(d, time.Now())
		}
	}
}

// awaitHandlers waits for the workers, interrupts them when the time is up,
// and in the end gives back what they still hold.
func (p *pipeline) awaitHandlers(end time.Time) error {
	worked := make(chan struct{})
	go func() {
		p.pool.working.Wait()
		close(worked)
	}()
	defer func() {
		for _, w := range p.pool.members() {
			w.stop()
		}
	}()
	if until(end, worked) {
		return nil
	}
	for _, w := range p.pool.members() {
		if a := w.attempt(); a != nil {
			a.end(ErrShutdown)
		}
	}
	if until(end.Add(grace), worked) {
		return nil
	}
	var stuck []error
	for _, w := range p.pool.members() {
		a := w.abandon()
		if a == nil {
			continue
		}
		p.admission.takeBack(a.runs()[0].sub, takeTicket(a.runs()), time.Now(), flow.End{})
		runs := those(a.runs(), (*delivery).isRunning)
		if len(runs) == 0 {
			stuck = append(stuck, fmt.Errorf("%w: the handler of %q ignores its context; its message was skipped by hand", ErrUnclean, a.runs()[0].Message.Topic))
		}
		for _, d := range runs {
			p.observe(d, Event{Kind: EventStuck, Duration: time.Since(a.started), Err: errStuck})
			stuck = append(stuck, fmt.Errorf("%w: the handler of %q ignores its context; message %q is given back while it still runs",
				ErrUnclean, d.Message.Topic, d.Message.ID))
		}
		p.mu.Lock()
		p.settle(brokers.Release, runs...)
		p.mu.Unlock()
	}
	return errors.Join(stuck...)
}

// awaitSenders sends what is left: retries first, because a refused one
// becomes a dead letter, then dead letters, which become acks or rejects, then
// those. What cannot be published or rejected by lettersEnd is given back.
func (p *pipeline) awaitSenders(lettersEnd, end time.Time) error {
	settler, retrier := p.settlers.settler, p.settlers.retrier
	retrier.close()
	until(lettersEnd, retrier.emptied)
	p.mu.Lock()
	letters := append(slices.Collect(maps.Values(p.letters.senders)), p.settlers.rejecter)
	p.mu.Unlock()
	for _, s := range letters {
		s.close()
		if !until(lettersEnd, s.emptied) {
			for _, d := range s.abandon() {
				p.settlers.sendLate(d, d.keepMeta(brokers.Release))
			}
		}
	}
	settler.close()
	until(end, settler.emptied)
	until(end, retrier.emptied)
	unsent := settler.unsent() + retrier.unsent()
	for _, s := range letters {
		unsent += s.unsent()
	}
	if unsent > 0 {
		return fmt.Errorf("%w: %d settlements were not confirmed in time; the broker delivers their messages again", ErrUnclean, unsent)
	}
	return nil
}

// closeSource releases what is left with the source.
func closeSource(ctx context.Context, source brokers.Source) error {
	ctx, cancel := context.WithTimeout(ctx, closing)
	defer cancel()
	if err := source.Close(ctx); err != nil {
		return fmt.Errorf("consumer: close the source: %w", err)
	}
	return nil
}

package consumer

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/internal/pulse"
	"github.com/redrive-go/redrive/retry/flow"
)

// Pause lets no message start of the topic, dependency or tenant that p names, until
// p.Until, or until Resume if that is zero. Another call changes the end, By and Why.
// Handlers that run go on.
//
// A topic that is paused is not received from. Its messages go back to the broker,
// uncounted. Messages of a tenant are received, and put off for 5 s to 10 min each. At
// the end of a pause of all topics of a dependency the load comes back in a ramp, as
// after an outage, unless several Consumers share the Limiter, or there is none.
//
// The pause is of this process, and ends with it. It wraps health.ErrUnknown if there
// is no such topic or dependency, or if no topic has a DependencyOf. It fails unless
// the worker is running.
func (c *Consumer) Pause(p health.ByHand) error {
	control, err := c.control("pause", p)
	if err != nil {
		return err
	}
	return control.pause(p)
}

// Resume ends the pause of what p names. It does nothing if there is none. Its errors
// are those of Pause.
func (c *Consumer) Resume(p health.ByHand) error {
	control, err := c.control("resume", p)
	if err != nil {
		return err
	}
	return control.resume(p)
}

// Drain stops the worker, as the end of the context of Run does. It does not wait for
// that. It fails before Run, and does nothing more after the first time.
func (c *Consumer) Drain() error {
	c.mu.Lock()
	stop := c.stop
	c.mu.Unlock()
	if stop == nil {
		return errors.New("consumer: drain: Run was not called yet")
	}
	stop()
	return nil
}

// control returns that of the pipeline, if it can do what p names.
func (c *Consumer) control(do string, p health.ByHand) (*control, error) {
	control, err := c.controlled(do)
	if err == nil {
		err = control.missing(do, p)
	}
	return control, err
}

// controlled returns the control of the pipeline, if that runs.
func (c *Consumer) controlled(do string) (*control, error) {
	l := c.stage.Load()
	switch {
	case l == nil:
		return nil, fmt.Errorf("consumer: %s: the worker is new: Run was not called yet", do)
	case l.state != health.Running:
		return nil, fmt.Errorf("consumer: %s: the worker is %s, and nothing of it can be controlled then", do, l.state)
	}
	return l.pipeline.control, nil
}

const (
	remindEvery = 30 * time.Second // the log names what is paused by hand
	byHandMost  = 1000             // pauses
)

var errDraining = errors.New("consumer: the worker drains: nothing of it can be controlled any more")

// control has the pauses that people ask for. A pause of topics is known to their
// subscriptions, which have the admission hold their messages back. It is known to
// the limiter, too, if that is of these topics alone, so that a ramp follows. Pauses
// of tenants are known to the admission.
//
// The lock comes before all others, and no message waits for it.
type control struct {
	p     *pipeline
	pulse *pulse.Pulse

	pauses atomic.Pointer[[]health.ByHand] // replaced under mu, never changed

	mu       sync.Mutex
	closed   bool
	timer    *time.Timer // for the next end or reminder; nil until something is paused
	reminded time.Time
}

// list returns what is paused, oldest first.
func (c *control) list() []health.ByHand {
	if pauses := c.pauses.Load(); pauses != nil && len(*pauses) > 0 {
		return *pauses
	}
	return nil
}

// missing says that the worker does not have what p names.
func (c *control) missing(do string, p health.ByHand) error {
	var topics, dependencies []string
	tenants := false
	for _, s := range c.p.subs {
		topics, dependencies = append(topics, s.topic), append(dependencies, s.dependency.name)
		tenants = tenants || s.dependencyOf != nil
	}
	slices.Sort(dependencies)
	unknown := func(kind, name string, known []string) error {
		return fmt.Errorf("consumer: %s: %s %q is %w: it has %q", do, kind, name, health.ErrUnknown, slices.Compact(known))
	}
	given := slices.DeleteFunc([]string{p.Topic, p.Dependency, p.Tenant}, func(name string) bool { return name == "" })
	switch {
	case len(given) != 1:
		return fmt.Errorf("consumer: %s: name one topic, one dependency or one tenant", do)
	case p.Topic != "" && !slices.Contains(topics, p.Topic):
		return unknown("topic", p.Topic, topics)
	case p.Dependency != "" && !slices.Contains(dependencies, p.Dependency):
		return unknown("dependency", p.Dependency, dependencies)
	case p.Tenant != "" && !tenants:
		return fmt.Errorf("consumer: %s: tenant %q is %w: no topic has a DependencyOf that names tenants", do, p.Tenant, health.ErrUnknown)
	}
	return nil
}

// same reports whether p and q name the same.
func same(p, q health.ByHand) bool {
	return p.Topic == q.Topic && p.Dependency == q.Dependency && p.Tenant == q.Tenant
}

func (c *control) pause(p health.ByHand) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, pauses := time.Now(), slices.Clone(c.list())
	p.Since = now
	i := slices.IndexFunc(pauses, func(q health.ByHand) bool { return same(p, q) })
	switch {
	case c.closed:
		return errDraining
	case !p.Until.IsZero() && !p.Until.After(now):
		return fmt.Errorf("consumer: pause: %s is over already: it is %s", p.Until.Format(time.RFC3339), now.Format(time.RFC3339))
	case i >= 0:
		p.Since = pauses[i].Since
		pauses[i] = p
	case len(pauses) >= byHandMost:
		return fmt.Errorf("consumer: pause: %d things are paused already: pause their topic or dependency instead", len(pauses))
	default:
		pauses = append(pauses, p)
	}
	c.apply(pauses, now)
	return nil
}

func (c *control) resume(p health.ByHand) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errDraining
	}
	left := slices.DeleteFunc(slices.Clone(c.list()), func(q health.ByHand) bool { return same(p, q) })
	if len(left) < len(c.list()) {
		c.apply(left, time.Now())
	}
	return nil
}

// tick is called by the timer: it ends what is over, and reminds of the rest.
func (c *control) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	now := time.Now()
	left := slices.DeleteFunc(slices.Clone(c.list()), func(q health.ByHand) bool { return !q.Until.IsZero() && !q.Until.After(now) })
	if len(left) < len(c.list()) {
		c.apply(left, now)
		return
	}
	if now.Sub(c.reminded) >= remindEvery {
		c.remind(now)
	}
	c.wake(now)
}

// apply has pauses hold, and no others. mu is held.
func (c *control) apply(pauses []health.ByHand, now time.Time) {
	c.pauses.Store(&pauses)
	c.remind(now)
	c.wake(now)
	a := c.p.admission
	a.pauseTenants(pauses)
	for _, g := range a.dependencies {
		whole, subs := g.limiter != nil && !g.shared, []*subscription(nil)
		for _, s := range c.p.subs {
			if s.dependency == g {
				subs = append(subs, s)
				whole = whole && pauseOf(s, pauses) != nil
			}
		}
		if g.byHand && !whole {
			g.adjust(now, flow.Change{Resume: true})
		}
		for _, s := range subs {
			s.byHand.Store(pauseOf(s, pauses))
		}
		if whole {
			g.adjust(now, flow.Change{Pause: pauseOf(subs[0], pauses).String()})
		}
		news := g.byHand || whole
		g.byHand = whole
		for _, s := range subs {
			if s.byHand.Load() != nil {
				a.giveBack(s, now)
			}
		}
		if news {
			a.open(g, now, true)
		}
	}
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.p.intake.replan()
}

// pauseOf returns the pause of s that ends last, nil if there is none.
func pauseOf(s *subscription, pauses []health.ByHand) (last *health.ByHand) {
	for i := range pauses {
		p := &pauses[i]
		if p.Topic != s.topic && p.Dependency != s.dependency.name {
			continue
		}
		if last == nil || !last.Until.IsZero() && (p.Until.IsZero() || p.Until.After(last.Until)) {
			last = p
		}
	}
	return last
}

// remind tells the log and the Observers what is paused. mu is held.
func (c *control) remind(now time.Time) {
	c.reminded = now
	c.p.report(Event{Kind: EventByHand, Time: now, ByHand: c.list()})
}

// wake sets the timer. mu is held.
func (c *control) wake(now time.Time) {
	if len(c.list()) == 0 {
		c.pulse.Rest()
		if c.timer != nil {
			c.timer.Stop()
		}
		return
	}
	next := c.reminded.Add(remindEvery)
	for _, p := range c.list() {
		if !p.Until.IsZero() && p.Until.Before(next) {
			next = p.Until
		}
	}
	c.pulse.Expect(next)
	if c.timer == nil {
		c.timer = time.AfterFunc(next.Sub(now), c.tick)
		return
	}
	c.timer.Reset(next.Sub(now))
}

// close ends all pauses, without letting anything start.
func (c *control) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if len(c.list()) > 0 {
		c.pauses.Store(nil)
		c.remind(time.Now())
	}
	c.wake(time.Now())
}

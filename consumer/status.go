package consumer

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/health"
	"github.com/redrive-go/redrive/internal/pulse"
	"github.com/redrive-go/redrive/retry/flow"
)

// Status returns the status of the worker. It may be called at any time and from any
// goroutine, before Run and after it, too. It takes microseconds, however many
// messages are in flight, and waits for no lock that is held while something else is
// waited for. A worker that has received nothing for 5 s is asked to show that it
// still could, which costs the broker nothing.
func (c *Consumer) Status() health.Status {
	now, l := time.Now(), c.stage.Load()
	if l == nil {
		return health.Status{At: now, State: health.New}
	}
	s := health.Status{At: now, State: l.state, Since: l.since, Opened: l.opened, Error: c.told(l.err)}
	p := l.pipeline
	if p == nil {
		return s
	}
	if s.State == health.Running && p.told() != nil {
		s.State, s.Since = health.Draining, time.Time{}
	}
	p.intake.prove(now)
	s.Loops, s.ByHand = p.pulses.late(now), p.control.list()
	s.Broker = p.connection()
	s.Topics = make([]health.Topic, len(p.subs))
	for i, sub := range p.subs {
		s.Topics[i] = sub.status(now)
	}
	return s
}

// Backlogs asks the broker how many messages it has, of each topic and in each topic
// for dead letters, as far as it can tell: see [brokers.Backlog]. It waits for the
// broker, until ctx ends. An error is reported to the observers, too, and may come with
// the answers about some topics. An adapter that cannot tell is errors.ErrUnsupported.
// Before the worker receives, and after, there are none.
func (c *Consumer) Backlogs(ctx context.Context) ([]brokers.Backlog, error) {
	l := c.stage.Load()
	if l == nil || l.state != health.Running {
		return nil, nil
	}
	in := l.pipeline.intake
	all, err := in.source.Backlogs(ctx)
	if err != nil {
		err = fmt.Errorf("ask for the backlog: %w", err)
		in.report(Event{Kind: EventError, Operation: "backlog", Err: err})
	}
	return all, err
}

// stage is where a Consumer is in its life.
type stage struct {
	state         health.State
	since, opened time.Time
	err           error
	pipeline      *pipeline // nil before opened
}

// enter begins the next stage, in which the worker keeps its pipeline.
func (c *Consumer) enter(state health.State, p *pipeline, err error) {
	next := stage{state: state, since: time.Now(), err: err, pipeline: p}
	if last := c.stage.Load(); last != nil {
		next.opened, next.pipeline = last.opened, cmp.Or(p, last.pipeline)
	}
	if next.opened.IsZero() && p != nil {
		next.opened = next.since
	}
	c.stage.Store(&next)
}

// told is the text of err without secrets, in the lines that it has.
func (c *Consumer) told(err error) string {
	if err == nil {
		return ""
	}
	var b strings.Builder
	for line := range strings.Lines(err.Error()) {
		if b.Len() > logRaw {
			return b.String() + "\n..."
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString((&logObserver{redact: c.cfg.Redact}).textOf(strings.TrimSuffix(line, "\n")))
	}
	return b.String()
}

// connection asks the source for its connection. The last error is that of the source,
// or the last failure of Receive if that came later.
func (p *pipeline) connection() (c health.Connection) {
	if s, ok := p.intake.source.(health.Connected); ok {
		if c = s.Connection(); c.Error != "" {
			c.Error = p.log.textOf(c.Error)
		}
	}
	if f := p.intake.failure.Load(); f != nil && f.at.After(c.ErrorAt) {
		c.Error, c.ErrorAt = p.log.textOf(f.err), f.at
	}
	return c
}

// failure is an error, and when it came.
type failure struct {
	at  time.Time
	err error
}

func (s *subscription) status(now time.Time) health.Topic {
	waiting, dying := int(s.waiting.Load()), int(s.dying.Load())
	attempts, delay, age := s.policy.Limits()
	t := health.Topic{
		Name:           s.topic,
		Slots:          s.slots,
		Running:        int(s.queue.busy.Load()),
		Stuck:          int(s.stuckRuns.Load()),
		StuckSince:     timeAt(s.stuckSince.Load()),
		InFlight:       int(s.active.Load()) + waiting + dying,
		Waiting:        waiting,
		Dying:          dying,
		LastSuccess:    timeAt(s.lastSuccess.Load()),
		Attempts10m:    s.attempted.sum(s.began, now),
		DeadLetters10m: s.buried.sum(s.began, now),
		Dependency:     s.dependency.name,
		Limit:          float64(s.slots),
		Policy:         health.Policy{MaxAttempts: attempts, MaxDelay: health.Duration(delay), MaxAge: health.Duration(age), Timeout: health.Duration(s.timeout)},
	}
	if second := s.ages.oldest.Load(); second > 0 {
		t.Oldest = s.began.Add(time.Duration(second-1) * time.Second)
	}
	if v := s.dependency.status(now); v.Slots > 0 {
		t.Limit, t.Pause = v.Limit, s.dependency.pause(v)
	}
	if p := s.byHand.Load(); p != nil {
		t.Pause = &health.Pause{Cause: "paused by hand: " + p.String(), Since: p.Since, Next: p.Until, ByHand: true}
	}
	if pacer := s.dependency.budget; pacer != nil {
		b := pacer.Snapshot(now)
		t.Budget = &health.Budget{Tokens: b.Tokens, Capacity: b.Capacity, Waiting: b.Waiting}
	}
	return t
}

// pause describes the pause that EventPaused reported, as of v.
func (g *dependency) pause(v flow.Status) *health.Pause {
	since := g.paused.Load()
	if since == 0 {
		return nil
	}
	return &health.Pause{Cause: pauseCause(v), Since: timeAt(since), Next: v.Next, ByHand: v.Paused != ""}
}

// timeAt is the time of so many nanoseconds, zero for none.
func timeAt(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// pulses are those of all loops of a pipeline.
type pulses struct {
	mu  sync.Mutex
	all []*pulse.Pulse
}

// add returns the pulse of one more loop.
func (ps *pulses) add(name string) *pulse.Pulse {
	p := &pulse.Pulse{Name: name}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.all = append(ps.all, p)
	return p
}

// late returns the loops that should have ticked.
func (ps *pulses) late(now time.Time) (loops []health.Loop) {
	ps.mu.Lock()
	all := ps.all
	ps.mu.Unlock()
	for _, p := range all {
		if late := p.Overdue(now); late >= lateLeast {
			loops = append(loops, health.Loop{Name: p.Name, Late: health.Duration(late)})
		}
	}
	return loops
}

const (
	lateLeast  = time.Second     // by less a loop may be late because it works
	proveAfter = 5 * time.Second // the receive loop is asked to tick
)

// prove has the receive loop tick if it has waited for proveAfter.
func (in *intake) prove(now time.Time) {
	if in.pulse.Ask(now, proveAfter) {
		in.interrupt()
	}
}

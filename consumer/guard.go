package consumer

import (
	"container/list"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
)

// Guard says how what handlers depend on is spared when it fails. Each topic is
// a dependency of its own, with a guard of its own, unless its
// [Topic.Dependency] names another, or its [Topic.DependencyOf] names one for
// each message. The zero value protects: with a budget for retries, a breaker,
// and a stop when practically all messages are poison.
//
// Waiting is not an attempt. Nothing here drops a message or dead-letters one.
//
// What came back from a dead-letter queue (brokers.Meta.RedriveCount) closes no
// guard and keeps none closed, whatever becomes of it. It has half of the slots of
// its topic at most, its retries have a budget of their own, of 1/s, and where a
// guard is closed, it is tried at that rate, beside the probes.
type Guard struct {
	// Budget paces retries: each spends a token when it starts, deliveries earn
	// tokens, and a retry that succeeds gives its own back. A retry without a
	// token waits, uncounted. Nil means a budget of the guard's own with
	// budget.Queue: 10 % of the deliveries and 1/s. One that is set here is
	// shared by all dependencies that this Guard is for.
	Budget budget.Pacer

	// NoBudget lets failures be retried however many there are, but for those of
	// what came back from a dead-letter queue.
	NoBudget bool

	// Breaker pauses the topics of the dependency when practically nothing
	// succeeds, and then lets single messages through, new ones first, to find
	// out when that is over. Failures of every class count that are not the
	// message's own: transient, throttled, environment and unknown; one success
	// speaks for the dependency. Nil means one of the guard's own with the zero
	// breaker.Config, but that a probe may take as long as the longest
	// HandlerTimeout: see to that yourself (breaker.Config.Lease) in one that
	// you make. What others do to that is seen within a second. One that is set
	// here is shared by all dependencies that this Guard is for.
	Breaker *breaker.Breaker

	// NoBreaker goes on whatever fails.
	NoBreaker bool

	// NoPoisonStop goes on when 60 messages in a row, 95 of the last 100, or the
	// first 20 are poison, as after a faulty deployment. Otherwise their topics
	// pause for a minute or longer, and then single messages are tried.
	NoPoisonStop bool

	// Adaptive lowers the number of handlers of a topic that run at once when
	// they are throttled or take twice as long as usual, and raises it again,
	// up to Concurrency, as they succeed.
	Adaptive bool
}

func (g Guard) faults(field string) error {
	var faults []error
	if g.NoBudget && g.Budget != nil {
		faults = append(faults, faulty(field+".NoBudget", "is set beside a Budget", "set one of them"))
	}
	if g.NoBreaker && g.Breaker != nil {
		faults = append(faults, faulty(field+".NoBreaker", "is set beside a Breaker", "set one of them"))
	}
	return errors.Join(faults...)
}

// guard is a Guard at work for one dependency. It decides what may start: both
// breakers must agree, and a retry needs a token.
type guard struct {
	name    string
	topic   string           // of the single messages that it is for; "" if it is for topics
	breaker *breaker.Breaker // nil if switched off
	poison  *breaker.Breaker // nil if switched off
	budget  budget.Pacer     // nil if switched off
	shared  bool             // others may change the breaker
	random  func() float64
	most    int // slots of a bulkhead
	parts   int // of each, so that the messages of a batch share one

	succeeded atomic.Int64 // when a run last did, Unix time in ns
	under     atomic.Int64 // parts of slots in use
	crowd     atomic.Int32 // messages that wait for one of those to end

	// The rest belongs to the pipeline, under its mu.
	waiting []*delivery // until it opens, or for a slot if it is for single messages; oldest first
	timer   *time.Timer // looks again when it may have opened
	fires   time.Time   // when timer does
	allowed bool        // whether a run might start, when the intake looked last
	flowed  bool        // whether all might
	opened  time.Time   // when it was first seen to let a probe through, since it closed
	paused  bool        // EventPaused was the last to be reported
	gone    bool        // another has its name, or may have it: nothing more is reported
}

// newGuard makes what is unset of g and not switched off, for handlers that run
// for up to timeout.
func (p *pipeline) newGuard(name string, g Guard, timeout time.Duration) *guard {
	made := &guard{name: name, breaker: g.Breaker, shared: g.Breaker != nil, random: p.cfg.Random}
	if !g.NoBudget {
		made.budget = must(budget.New(budget.Queue()))
	}
	if g.Budget != nil {
		made.budget = &given{g.Budget, made.budget, func(err error) {
			p.report(p.values, Event{Kind: EventError, Dependency: name, Operation: "budget", Err: err})
		}}
	}
	if made.breaker == nil && !g.NoBreaker {
		made.breaker = must(breaker.New(breaker.Config{Lease: timeout}))
	}
	if !g.NoPoisonStop {
		made.poison = must(breaker.New(breaker.Config{
			Window: 100, Ratio: 0.95, Streak: 60, // poison is dead at once: much contrast, and few dead letters
			MinOpen: time.Minute, MaxOpen: 5 * time.Minute, Lease: timeout,
		}))
	}
	return made
}

// must returns what a preset makes, which is valid.
func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("consumer: a preset is not valid: %v", err))
	}
	return v
}

// permit is the leave of one run by the guard of its topic and, if the message
// has one, its own. The zero permit is none.
type permit struct {
	topic, own leave
	entered    int64 // parts of a slot of its bulkhead
	tried      bool  // without a leave, since the message came back, though a guard is closed
}

type leave struct{ breaker, poison breaker.Permit }

func (l leave) probe() bool { return l.breaker.Probe() || l.poison.Probe() }

// probe reports whether the run is one of the few of a guard that is closed but
// for them.
func (p permit) probe() bool { return p.topic.probe() || p.own.probe() }

// start returns the leave for a run that is about to start, if it may.
func (g *guard) start(now time.Time) (l leave, ok bool) {
	if g.breaker != nil {
		if l.breaker, ok = g.breaker.Start(now); !ok {
			return leave{}, false
		}
	}
	if g.poison != nil {
		if l.poison, ok = g.poison.Start(now); !ok {
			g.giveBack(now, leave{breaker: l.breaker})
			return leave{}, false
		}
	}
	return l, true
}

// giveBack reports that the run of l did not take place, or says nothing.
func (g *guard) giveBack(now time.Time, l leave) (changed bool) {
	return g.done(now, l, 0, breaker.Ignored, breaker.Ignored)
}

// done reports outcomes to both breakers. It reports whether the guard may
// answer differently now.
func (g *guard) done(now time.Time, l leave, of uint64, health, poison breaker.Outcome) (changed bool) {
	if g.breaker != nil {
		changed = g.breaker.Done(now, l.breaker, of, health, g.draw(health))
	}
	if g.poison != nil && g.poison.Done(now, l.poison, of, poison, g.draw(poison)) {
		changed = true
	}
	return changed
}

// draw returns what the length of a pause is drawn with. Only failures open a
// breaker.
func (g *guard) draw(o breaker.Outcome) float64 {
	if o != breaker.Failure && o != breaker.Severe {
		return 0
	}
	return g.random()
}

// report takes in what a run says. Of tells messages apart, or what they depend
// on.
func (g *guard) report(now time.Time, l leave, of uint64, e evidence) (changed bool) {
	if e.health == breaker.Success && e.poison == breaker.Success {
		g.succeeded.Store(now.UnixNano())
	}
	changed = g.done(now, l, of, e.health, e.poison)
	return g.notBefore(now, e.notBefore) || changed
}

// evidence is what a run says about the dependency, and about the messages.
type evidence struct {
	health, poison breaker.Outcome
	notBefore      time.Duration // what the dependency asked for
}

var healthy = evidence{health: breaker.Success, poison: breaker.Success}

// evidenceOf a failed run. Limit bounds the time that a dependency may ask for.
func evidenceOf(v classify.Verdict, timedOut bool, limit time.Duration) evidence {
	switch {
	case v.Skip, v.Deferred, v.Class == classify.ClassShutdown, v.Class == classify.ClassLost:
		return evidence{}
	case v.Class == classify.ClassPoison:
		return evidence{poison: breaker.Failure}
	case v.Class == classify.ClassThrottled:
		return evidence{breaker.Severe, breaker.Success, min(v.RetryAfter, limit)}
	case v.Class == classify.ClassEnvironment, timedOut:
		return evidence{health: breaker.Severe, poison: breaker.Success}
	}
	return evidence{health: breaker.Failure, poison: breaker.Success}
}

// notBefore keeps a closed guard closed for as long as the dependency asked
// for, and a little longer, so that a fleet does not come back together.
func (g *guard) notBefore(now time.Time, hint time.Duration) (changed bool) {
	if g.breaker == nil || hint <= 0 {
		return false
	}
	return g.breaker.NotBefore(now, now.Add(hint+time.Duration(g.random()*float64(min(hint/10, 5*time.Second)))))
}

// hasSucceeded reports whether a run has succeeded since t. One that seems to be
// yet to come is from before the clock was set back.
func (g *guard) hasSucceeded(t, now time.Time) bool {
	at := g.succeeded.Load()
	return at != 0 && at > t.UnixNano() && at <= now.UnixNano()
}

// breakers returns those that are not switched off, with what they say when
// they are open.
func (g *guard) breakers() []warden {
	all := make([]warden, 0, 2)
	if g.breaker != nil {
		all = append(all, warden{g.breaker, "%s (breaker %s)"})
	}
	if g.poison != nil {
		all = append(all, warden{g.poison, "practically all messages are poison, as after a faulty deployment: %s (%s); " +
			"mend it and they go on by themselves; what is dead-lettered already has to be sent back"})
	}
	return all
}

type warden struct {
	*breaker.Breaker
	what string
}

// allows reports whether a run may start; if not, it returns when to ask again.
func (g *guard) allows(now time.Time) (ok bool, next time.Time) {
	if g.breaker != nil {
		if ok, next = g.breaker.Allows(now); !ok {
			return false, soonest(now, next)
		}
	}
	if g.poison != nil {
		if ok, next = g.poison.Allows(now); !ok {
			return false, soonest(now, next)
		}
	}
	return true, time.Time{}
}

// recheck is how often a guard is asked again that may change without our
// doing.
const recheck = time.Second

// soonest is next, but now and recheck if that is unknown.
func soonest(now, next time.Time) time.Time {
	if next.IsZero() || !next.After(now) {
		return now.Add(recheck)
	}
	return next
}

// flows reports whether everything may start.
func (g *guard) flows() bool {
	return (g.breaker == nil || g.breaker.Closed()) && (g.poison == nil || g.poison.Closed())
}

// closed says why nothing may start at now, and until when at least; nil if
// something may.
func (g *guard) closed(now time.Time) (until time.Time, why error) {
	for _, b := range g.breakers() {
		if s := b.Snapshot(now); s.State == breaker.Open || s.State == breaker.Isolated {
			return s.Next, fmt.Errorf(b.what, s.Reason, s.State)
		}
	}
	return time.Time{}, nil
}

// identity tells messages, or the names of dependencies, apart: FNV-1a, as in
// httpretry, with which a breaker may be shared.
func identity(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// maxOwn bounds the guards of single messages of a topic.
const maxOwn = 1000

// maxName bounds the name of a dependency that a message has.
const maxName = 256

// ownGuards are the guards that DependencyOf has named; of too many, those go
// that were used least recently.
type ownGuards struct {
	make func(name string) *guard

	mu     sync.Mutex
	byName map[string]*list.Element // of *guard
	recent list.List                // used last first
}

// named returns the guard of a dependency, and the one that had to go for it, if
// any.
func (o *ownGuards) named(name string) (g, gone *guard) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e := o.byName[name]; e != nil {
		o.recent.MoveToFront(e)
		return e.Value.(*guard), nil
	}
	if o.recent.Len() >= maxOwn {
		gone = o.recent.Remove(o.recent.Back()).(*guard)
		delete(o.byName, gone.name)
	}
	name = strings.Clone(name) // it may be a part of the body
	g = o.make(name)
	o.byName[name] = o.recent.PushFront(g)
	return g, gone
}

// guardOf returns the guard that the message of d has of its own, nil if it has
// none. A function that panics is the user's fault, not the message's: the guard
// of the topic is enough then.
func (p *pipeline) guardOf(d *delivery) (g *guard) {
	if d.sub.own == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			g = nil
			p.observe(d, Event{Kind: EventError, Operation: "dependency-of",
				Err: fmt.Errorf("Topic.DependencyOf panicked: %v; the guard of the topic stands in for that of the message", v)})
		}
	}()
	name := d.sub.dependencyOf(&d.Message)
	if len(name) > maxName {
		name = fmt.Sprintf("%s… (%x)", strings.ToValidUTF8(name[:maxName], ""), identity(name))
	}
	if name == "" {
		return nil
	}
	g, gone := d.sub.own.named(name)
	if gone != nil {
		p.retire(gone)
	}
	return g
}

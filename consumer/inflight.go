package consumer

import (
	"context"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry/budget"
)

// state says where a delivery is on its way. It is in one at a time.
type state uint32

const (
	queued   state = iota // for a slot, behind others of its topic or batch
	running               // in its handler
	waiting               // outside the window: the table says for what
	dying                 // until its dead letter is durable and it is acked, or the broker has it back for later
	settling              // until the broker confirms any other end
	gone                  // ended, or somebody else's
	states
)

// What a delivery can wait for. If there is no room for it in the process, or its lease
// would not last, it waits in the broker instead, by a Retry with its due time.
//
//	for what                       where                   what wakes it         in a drain
//	its due time                   pipeline.waitlist       resumeDue             Retry
//	a token for its retry          pipeline.waitlist       resumeDue             Retry
//	a verdict in doubt             waitlist and inDoubt    believe, resumeDue    decideNow
//	the limit of its dependency    dependency.line         admission.open        Release, Retry
//	a slot for what was sent back  subscription.returned   admission.openSlot    Release, Retry
//	those before it of its key     pipeline.keys           advance               Release
//
// Those behind their key stay queued if there is no room to wait.

// transitions has a bit for each state that may follow. The end of a delivery
// is decided once: what is settling only comes back if the broker refuses its
// retry for good, and then dies.
var transitions = [states]uint32{
	queued:   1<<running | 1<<waiting | 1<<dying | 1<<settling | 1<<gone,
	running:  1<<queued | 1<<waiting | 1<<dying | 1<<settling | 1<<gone,
	waiting:  1<<queued | 1<<settling | 1<<gone,
	dying:    1 << gone,
	settling: 1<<dying | 1<<gone,
}

// inWindow reports whether a delivery counts against the window of its topic,
// which bounds what is received. What waits or dies is bounded apart.
func (s state) inWindow() bool { return s == queued || s == running || s == settling }

// delivery is a message on its way through the pipeline. Who moved it to its
// state owns it. Only the fields under mu are shared with those who may take its
// lease away.
type delivery struct {
	*brokers.Delivery
	sub  *subscription
	meta *brokers.Meta // as of the last failure; replaced under mu, never changed
	*rare

	state    atomic.Uint32
	last     int32          // number of the run of current; under mu
	turn     bool           // it is the turn of its key
	ticket   ticket         // of the job that it is the first of
	token    bool           // its run is a retry that spent a token
	split    bool           // from a batch that failed as a whole
	action   brokers.Action // how it is settled
	changed  bool           // meta is not what it came with; under mu
	expiring bool           // it has a deadline; from the start, as contexts of runs may always ask

	first attempt // saves an allocation; later attempts have their own

	loss    atomic.Pointer[error] // why the lease is lost; set once
	mu      sync.Mutex
	current *attempt // of the handler that runs
}

// rare is what few deliveries have. The others share nothing, and own makes one
// that may be changed.
type rare struct {
	name      uint64     // what it depends on besides (TopicConfig.DependencyOf); 0 if nothing
	deadline  time.Time  // no run starts at or after it, if it is expiring
	wakes     int64      // when its wait in the waitlist ends, in nanoseconds: earlier appointments of it are void
	judgement *judgement // what it dies of if that is believed
	letter    *dlq.Entry // its dead letter; nil if it is not dead
	form      form       // what of that the broker has not refused
	short     bool       // its Death is shortened: the broker refused the whole
	stub      stubKey    // of the stub that is out
	kept      bool       // the broker refuses to take it back, too
}

var nothing rare // is never changed

// own returns the rare part of d, to be changed.
func (d *delivery) own() *rare {
	if d.rare == &nothing {
		d.rare = new(rare)
	}
	return d.rare
}

// alone is the job of this delivery alone.
func (d *delivery) alone() []*delivery { return d.first.one[:] }

// move moves d to next, from where it was. It reports false, and does nothing, if
// what was decided before excludes that.
func (d *delivery) move(next state) (from state, ok bool) {
	for {
		from := state(d.state.Load())
		if transitions[from]&(1<<next) == 0 {
			return from, false
		}
		if d.state.CompareAndSwap(uint32(from), uint32(next)) {
			return from, true
		}
	}
}

// to is move for any delivery, and reports whether it did. It alone changes the
// counters of the topic: mu is held if d enters or leaves the window.
func (p *pipeline) to(d *delivery, next state) bool {
	from, ok := d.move(next)
	if ok && (!from.inWindow() || !next.inWindow()) {
		d.sub.count(from, -1, d)
		d.sub.count(next, 1, d)
		if next == gone {
			p.skips.forget(d)
		}
		p.intake.roomFor(d.sub)
	}
	return ok
}

// count adds n deliveries in a state, of which d is one.
func (s *subscription) count(in state, n int, d *delivery) {
	switch in {
	case waiting:
		s.waiting.Add(int32(n))
		s.heldBytes += n * size(d)
	case dying:
		s.dying.Add(int32(n))
		s.heldBytes += n * size(d)
	case gone:
		s.ages.count(s.since(d), -1)
		if d.kept {
			s.kept--
		}
	default:
		s.active.Add(int32(n))
	}
}

// roomToWait reports whether d may wait outside the window. The mu of the pipeline
// is held.
func (s *subscription) roomToWait(d *delivery) bool {
	share := 1
	if d.returned() {
		share = 2
	}
	return int(s.waiting.Load()+s.dying.Load()) < s.maxHeld/share && s.heldBytes+size(d) <= s.maxBytes/share
}

// lasts reports whether d can be held until a run that begins at start is over.
func (d *delivery) lasts(start time.Time) bool {
	most := d.sub.maxLease
	return most == 0 || start.Add(d.sub.timeout).Before(d.ReceivedAt.Add(most))
}

// size is about what d occupies in memory beside its fixed part.
func size(d *delivery) int { return len(d.Message.Body) }

// first reports whether meta is that of a first delivery.
func first(meta *brokers.Meta) bool { return meta.FirstFailedAt.IsZero() && meta.DueAt.IsZero() }

// onTrial reports whether d goes back to its queue if it cannot run at once, for want
// of a slot, a token or room below the limit.
func (d *delivery) onTrial() bool { return d.meta.Crashes > 0 }

// unsettled counts the deliveries of d that ended without a settlement. It includes
// those of earlier copies on the same trial.
func (d *delivery) unsettled() int { return d.Abandoned + max(0, d.came().Crashes-1) }

// returned reports whether d was sent back from a dead-letter queue.
func (d *delivery) returned() bool { return d.came().RedriveCount > 0 }

// yields reports whether the messages behind d of its key go on while d waits.
func (d *delivery) yields() bool { return d.turn && d.returned() }

// expires reports whether d may not run any more at t.
func (d *delivery) expires(t time.Time) bool { return d.expiring && !t.Before(d.deadline) }

// atWork reports whether d runs, or does so as soon as it has a slot.
func (d *delivery) atWork() bool    { s := state(d.state.Load()); return s == queued || s == running }
func (d *delivery) isRunning() bool { return state(d.state.Load()) == running }

func (d *delivery) isWaiting() bool { return state(d.state.Load()) == waiting }

// whoSeed is for who: the identities of messages are this process's own.
var whoSeed = maphash.MakeSeed()

// who tells messages, or the names that they depend on, apart.
func (d *delivery) who() uint64 {
	if d.name != 0 {
		return d.name
	}
	return maphash.String(whoSeed, keyOf(&d.Message))
}

// lastFailure returns the last one in the history of d; zero if there is none.
func (d *delivery) lastFailure() (last brokers.Failure) {
	if n := len(d.meta.History); n > 0 {
		last = d.meta.History[n-1]
	}
	return last
}

// sharesSlot returns the name with which d shares a slot while that is in trouble; 0
// if it shares none.
func (d *delivery) sharesSlot() uint64 {
	if d.name == 0 && d.lastFailure().TimedOut && !d.returned() && d.sub.dependency.limiter != nil {
		return timedOut
	}
	return d.name
}

// budget is the one for retries of d; nil if they need no tokens.
func (d *delivery) budget() budget.Pacer {
	if d.returned() {
		return d.sub.returned.budget
	}
	return d.sub.dependency.budget
}

// refund gives back the token of d, which succeeded or did not run.
func (d *delivery) refund(now time.Time) {
	if d.token {
		d.budget().Refund(now)
	}
	d.token = false
}

// refundSoon is refund under a lock, as a budget may be slow.
func (d *delivery) refundSoon(now time.Time) {
	if d.token {
		d.token = false
		go d.budget().Refund(now)
	}
}

// succeededSince reports whether a run of the dependency of d, or of the name that
// d depends on, has succeeded since t, and not long before or after now: another
// goroutine may have been a moment later, and faster to say so.
func (d *delivery) succeededSince(t, now time.Time) bool {
	var at time.Time
	switch {
	case d.name != 0:
		at = d.sub.names.lastSuccess(d.name)
	case d.sub.dependency.limiter != nil:
		at = d.sub.dependency.status(now).LastSuccess
	}
	return !at.IsZero() && !at.Before(t) && now.Sub(at).Abs() <= successLasts
}

// successLasts is how long a success speaks for the dependency.
const successLasts = 2 * time.Minute

// isRetry reports whether a handler has failed with this message before.
func (d *delivery) isRetry() bool { return !d.meta.FirstFailedAt.IsZero() }

// metaOfRun is what the handler sees. It may be asked after the run.
func (d *delivery) metaOfRun() brokers.Meta {
	d.mu.Lock()
	m := d.metaNow()
	d.mu.Unlock()
	m.Attempt++
	if m.IdempotencyKey == "" {
		m.IdempotencyKey = keyOf(&d.Message)
	}
	return m
}

// keyOf is the idempotency key that the producer gave a message in the header
// that HTTP APIs know it by, or else the ID.
func keyOf(m *brokers.Message) string {
	key := m.ID
	for _, h := range m.Headers {
		if h.Value != "" && strings.EqualFold(h.Name, "Idempotency-Key") {
			key = h.Value
		}
	}
	return key
}

// unfailed is the Meta of deliveries that carry none. It is never changed.
var unfailed brokers.Meta

// came returns what d carried when it was received, but for the Origin.
func (d *delivery) came() *brokers.Meta {
	if d.Carried == nil {
		return &unfailed
	}
	return d.Carried
}

// metaNow returns a copy of meta, with the Origin. mu is held, unless d is the
// caller's own.
func (d *delivery) metaNow() brokers.Meta {
	if d.meta == &unfailed {
		return d.Meta()
	}
	return *d.meta
}

// setMeta has the next delivery of the message carry m.
func (d *delivery) setMeta(m brokers.Meta) {
	d.mu.Lock()
	d.meta, d.changed = &m, true
	d.mu.Unlock()
}

// note is setMeta where the next delivery may do without m.
func (d *delivery) note(m brokers.Meta) {
	d.mu.Lock()
	d.meta = &m
	d.mu.Unlock()
}

// lose marks the lease as lost and stops the work on it.
func (d *delivery) lose(cause error) {
	d.loss.CompareAndSwap(nil, &cause)
	d.mu.Lock()
	current := d.current
	d.mu.Unlock()
	if current != nil && current.allLost() {
		current.end(cause)
	}
}

// lost returns why the delivery belongs to somebody else, nil if it does not.
func (d *delivery) lost() error {
	if d.Session != nil && d.Session.Err() != nil {
		d.loss.CompareAndSwap(nil, new(leaseLost(context.Cause(d.Session))))
	}
	if loss := d.loss.Load(); loss != nil {
		return *loss
	}
	return nil
}

func (d *delivery) setCurrent(a *attempt) {
	d.mu.Lock()
	d.current, d.last = a, int32(d.meta.Attempt)+1
	d.mu.Unlock()
}

// actionOnStop is how a delivery ends that waits in the process when that stops:
// one that waits for its time is rescheduled, one for its guard was not handled.
func (d *delivery) actionOnStop() brokers.Action {
	if d.meta.DueAt.After(time.Now()) {
		return brokers.Retry
	}
	return brokers.Release
}

// skips are the messages that people have skipped and that have not ended.
type skips struct {
	any atomic.Int32 // how many
	mu  sync.Mutex
	all map[*delivery]*skipping
}

// skipping is why a message is skipped.
type skipping struct {
	err    error
	letter dlq.Entry
}

// of returns why d is skipped, nil if it is not.
func (s *skips) of(d *delivery) *skipping {
	if s.any.Load() == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[d]
}

func (s *skips) set(d *delivery, why *skipping) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*delivery]*skipping{}
	}
	s.all[d] = why
	s.any.Store(int32(len(s.all)))
}

func (s *skips) forget(d *delivery) {
	if s.any.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, d)
	s.any.Store(int32(len(s.all)))
}

// has reports whether a message is skipped and has not ended.
func (s *skips) has(topic, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.all {
		if d.Message.Topic == topic && d.Message.ID == id {
			return true
		}
	}
	return false
}

// isSkipped reports whether a person has skipped d, which cannot start or wait then,
// and dies. mu is held.
func (p *pipeline) isSkipped(d *delivery) bool {
	why := p.skips.of(d)
	if why != nil {
		p.deadLetter(d, reasonSkipped, why.letter)
	}
	return why != nil
}

// isGivenUp reports whether a person has skipped d, for a worker.
func (p *pipeline) isGivenUp(d *delivery) bool { return p.skips.of(d) != nil }

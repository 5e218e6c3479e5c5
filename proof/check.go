package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// promise names what a violation breaks.
type promise string

const (
	promiseLost       promise = "nothing is lost"
	promiseStranger   promise = "nothing appears that was not sent"
	promiseContent    promise = "messages arrive as they were sent"
	promiseEarly      promise = "never early"
	promiseLate       promise = "delays keep to their policy"
	promiseConfirm    promise = "the original is settled after the copy is confirmed"
	promiseSettlement promise = "messages are settled by what their handler returned"
	promiseDelivery   promise = "every delivery is explained"
	promiseDuplicate  promise = "every duplicate is explained"
	promiseAttempts   promise = "no more runs than attempts and interruptions"
	promiseCount      promise = "attempts are counted as the policy has it"
	promiseLease      promise = "a lease is kept while its message is worked on"
	promiseStale      promise = "a stale worker settles nothing"
	promiseForward    promise = "a committed offset passes no open record and never goes back"
	promiseOrder      promise = "one key at a time and in order"
	promiseLetter     promise = "a dead letter tells its story"
	promiseInnocent   promise = "only messages that kill their worker are taken for crash loops"
	promiseShutdown   promise = "a worker stops in time and finishes what it began"
	promiseLiveness   promise = "everything ends"
	promiseHarm       promise = "no more handlers at once than allowed"
	promiseContrast   promise = "a pause needs contrast"
	promisePace       promise = "retries are paced"
	promiseEvents     promise = "observers are told what happens"
)

// violation is a promise that was broken.
type violation struct {
	promise promise
	at      time.Duration
	id      string // of the message, "" if it is none
	other   string // of another message that has a part in it, likewise
	text    string
}

func (v violation) String() string {
	if v.id == "" {
		return fmt.Sprintf("%s: %s (at %v)", v.promise, v.text, v.at)
	}
	return fmt.Sprintf("%s: message %s %s (at %v)", v.promise, v.id, v.text, v.at)
}

// verdict is what a checker makes of a run.
type verdict struct {
	violations []violation
	figures
}

// figures count what happened.
type figures struct {
	sent, handled, dead, discarded, lost int
	runs, retries, early, broken         int
	duplicates, explained                int
	faults, crashes, stops               int
	commits, refused                     int           // that changed an offset; that did not
	rate                                 float64       // handled a second while workers came and went
	pause                                time.Duration // the longest without one
	latest                               time.Duration // worst lateness of a retry
}

// token is a message that is in its topic, to be delivered.
type token struct {
	attempt, throttles int
	due                time.Duration
	soon               time.Duration // what is left of due, if it is longer than any retry asks for
	least              int           // attempt, without what was only estimated
}

// fate is what the checker knows of a message.
type fate struct {
	id         string
	published  int // when it was first published, by the count of the checker
	confirmed  int // when it was first confirmed, likewise; 0 if it was not
	tokens     []token
	seen       []token // all that there were
	wild       int     // deliveries that a fault explains, with any of seen
	wilds      int     // how many there were
	open       []*delivery
	deliveries []*delivery
	done       map[string]int // operations that took effect although they failed
	publishing int            // calls without an answer yet
	asking     [3]int         // settlements without an answer yet, by action
	disturbed  int            // what explains another run: lost leases, crashes, failed settlements
	losses     int            // what Abandoned may count
	struck     int            // workers that had it when they were killed, by no message
	released   int            // settlements by which the message was given back
	polled     int            // by worker processes of SQS
	unasked    int            // copies that nobody asked for, less those that may be asked for
	runs       int
	free       int // runs that do not count
	successes  int
	forgotten  bool          // skipped or discarded
	letters    int           // known to be stored
	spare      int           // may be stored
	failedAt   time.Duration // the last time that it did
	calls      int           // of Publish
}

// delivery is one that a worker received.
type delivery struct {
	number    int
	fate      *fate
	topic     *topic
	worker    *life
	got       token
	order     int // among those of its worker
	excess    int // of its attempt, which is an estimate
	abandoned int

	attempt, throttles int
	first              time.Duration
	due                time.Duration // of the next run
	dueBefore          time.Duration // of the last one
	decided            bool
	began              time.Duration
	runs               int
	running            bool
	last               outcome
	mayProbe           bool        // the last run may have been one that a closed guard let through,
	mustProbe          bool        // and must
	paid               bool        // it took a token
	next               []judgement // after a run that failed
	ended              time.Duration
	buried             bool           // a dead letter was written
	asked              int            // settlements
	action             brokers.Action // of the last one
	askedAt            time.Duration
	bodySize           int
	place              partition
	offset             int64         // -1 if it is a copy, or not known
	took               time.Duration // when a settlement began that may have had an effect

	received time.Duration
	low      time.Duration // the lease runs until then at least,
	high     time.Duration // and at most
	excused  bool          // the lease may run out
	told     bool          // the worker knows that it is lost
	toldAt   time.Duration
	freed    bool // its token is back
	settled  bool // it had its effect
	ok       bool // and the worker knows
	severed  bool // its connection was lost a moment after
	okAt     time.Duration
	maybe    token // given back by a settlement under way
}

// life is one worker.
type life struct {
	number                         int
	up, stopping, crashed, closing time.Duration // 0 is not yet
	down                           bool
	drain                          time.Duration
	concurrency, crashLimit        int
	received                       int
	running                        map[*topic]int
	guards                         map[string]*guarded
	deliveries, unfinished         []*delivery
	letters                        map[*fate]int  // confirmed and not yet followed by an ack
	burying                        map[*fate]int  // on their way
	lanes                          map[string]int // the last to start, by topic and key
	busy                           map[string]*delivery
	commit                         time.Duration // when the last one was answered
	committed                      time.Duration // what was settled before that is
}

// checker goes through the events in order.
type checker struct {
	*record
	verdict
	fates      map[string]*fate
	deliveries map[int]*delivery
	workers    map[int]*life
	counts     map[kind]int
	settledBy  map[brokers.Action]int
	keys       map[string][]*fate
	publishes  int // sends, confirms and failures
	now        time.Duration
	storm      storm
	sessions   int // in which worker processes have consumed
	deafPolls  int // of SQS, whose answer no worker has read
	advances   []*event
}

// storm is a time in which any connection may be lost. A frozen worker sees what
// it was told meanwhile when it goes on, and not before.
type storm struct {
	from, to time.Duration
	frozen   bool
}

// check holds a record against the promises. It is pure.
func check(r *record) verdict {
	c := &checker{
		record:     r,
		fates:      map[string]*fate{},
		deliveries: map[int]*delivery{},
		workers:    map[int]*life{},
		counts:     map[kind]int{},
		settledBy:  map[brokers.Action]int{},
		keys:       map[string][]*fate{},
	}
	for i := range r.events {
		e := &r.events[i]
		c.now = e.At
		c.take(e)
	}
	c.finish()
	c.broken = len(c.violations)
	return c.verdict
}

func (c *checker) violate(p promise, id, format string, args ...any) {
	c.violations = append(c.violations, violation{promise: p, at: c.now, id: id, text: fmt.Sprintf(format, args...)})
}

// misplace is violate for the order of two messages of a key.
func (c *checker) misplace(id, other, format string, args ...any) {
	c.violate(promiseOrder, id, format, args...)
	c.violations[len(c.violations)-1].other = other
}

// take applies one event.
func (c *checker) take(e *event) {
	c.counts[e.Kind]++
	switch e.Kind {
	case sent, confirmed, unsent:
		c.takePublish(e)
	case received:
		c.takeReceived(e)
	case started:
		c.takeStarted(e)
	case ended:
		c.takeEnded(e)
	case decided:
		c.takeDecided(e)
	case settling:
		c.takeSettling(e)
	case settled:
		c.takeSettled(e)
	case extended:
		c.takeExtended(e)
	case burying, buried:
		c.takeLetter(e)
	case faulted:
		c.takeFault(e)
	case consuming:
		c.takeConsuming(c.workers[e.Worker])
	case copying:
		c.takeCopy(c.fate(e.ID))
	case committed:
		c.takeCommitted(e)
	case polled:
		if c.fate(e.ID).polled++; e.Err != fine {
			c.deafPolls++
		}
	case advanced:
		c.advances = append(c.advances, e)
	case paused, resumed:
		c.takePaused(e)
	case ousted:
		if d := c.deliveries[e.Delivery]; d != nil && !d.ok {
			c.tell(d)
		}
	case overdue:
		c.violate(promiseLiveness, "", "messages are left after %v: %v", c.scenario.limit, c.left)
	default:
		c.takeWorker(e)
	}
}

func (c *checker) fate(id string) *fate {
	f := c.fates[id]
	if f == nil {
		f = &fate{id: id, done: map[string]int{}}
		c.fates[id] = f
	}
	return f
}

// give makes a message available as t says.
func (f *fate) give(t token) {
	f.tokens = append(f.tokens, t)
	if !slices.Contains(f.seen, t) {
		f.seen = append(f.seen, t)
	}
}

// takeBack undoes give, unless the message was delivered meanwhile.
func (f *fate) takeBack(t token) bool {
	if i := slices.Index(f.tokens, t); i >= 0 {
		f.tokens = slices.Delete(f.tokens, i, i+1)
		return true
	}
	return false
}

func (f *fate) excuse(n int) {
	f.wild += n
	f.wilds += n
	f.disturbed += n
}

// takePublish follows the producer. A publish may take effect from its start.
func (c *checker) takePublish(e *event) {
	f := c.fate(e.ID)
	c.publishes++
	switch e.Kind {
	case sent:
		if f.published == 0 {
			f.published = c.publishes
			if m := c.scenario.message(e.ID); m != nil && m.Key != "" {
				key := e.Topic + "\x00" + m.Key
				c.keys[key] = append(c.keys[key], f)
			}
		}
		f.calls++
		f.give(token{})
		f.publishing++
		f.excuse(c.repeats())
	case confirmed:
		f.publishing--
		f.confirmed = or(f.confirmed, c.publishes)
		f.excuse(c.again())
	case unsent:
		f.publishing--
		if f.done["publish"] > 0 {
			f.done["publish"]--
			f.disturbed++
			return
		}
		if c.scenario.served && e.Err == unknownOutcome {
			f.disturbed++
			return
		}
		if !f.takeBack(token{}) {
			c.violate(promiseDelivery, e.ID, "was delivered although its publish failed without effect")
		}
	}
}

// takeFault notes what a fault explains.
func (c *checker) takeFault(e *event) {
	c.faults++
	if e.ID == "" {
		if c.scenario.served {
			c.takeStorm(e)
		}
		return
	}
	f := c.fate(e.ID)
	effect := e.Err == fine || e.Flags&isDone != 0
	if c.scenario.isDead(e.Topic) {
		if e.Flags&isDone != 0 {
			f.spare++
		}
		if e.Flags&isDuplicate != 0 && effect {
			f.spare++
		}
		f.disturbed++
		return
	}
	if e.Flags&isDone != 0 {
		f.done[operation(e.Note, e.Action)]++
	}
	if e.Flags&isDone != 0 && e.Note == "deliver" {
		f.losses++
	}
	if e.Flags&isLost != 0 {
		f.losses++
		f.excuse(1)
	}
	if e.Flags&isDuplicate != 0 && (effect || e.Note == "settle") {
		f.excuse(1)
	}
	if e.Err != fine || e.Flags&isLost != 0 {
		f.disturbed++
	}
	if e.Err == leaseLost || e.Flags&isLost != 0 || e.Err != fine && e.Note == "extend" {
		for _, d := range f.open {
			d.excused = true
		}
	}
}

// expire gives back what the leases that have run out held.
func (c *checker) expire(f *fate) {
	for _, d := range f.open {
		if d.low <= c.now {
			c.free(d)
		}
	}
	f.open = slices.DeleteFunc(f.open, func(d *delivery) bool { return d.freed || d.settled })
}

// free gives back the token of a delivery that ended without a settlement.
func (c *checker) free(d *delivery) {
	if d.freed || d.settled {
		return
	}
	d.freed = true
	d.fate.disturbed++
	d.fate.free += d.runs // whatever they counted is forgotten
	d.fate.losses++
	d.fate.give(d.got)
	w := d.worker
	longest := c.scenario.options.MaxLease
	used := longest > 0 && d.high+time.Second >= d.received+longest // the keeper asks for whole seconds there
	stalled := c.scenario.pace.slack > 0                            // a busy machine may be too slow for short leases
	if !d.excused && !used && !stalled && w.crashed == 0 && w.closing == 0 && d.fate.wilds == 0 {
		c.violate(promiseLease, d.fate.id, "was taken from worker %d, which held it (delivery %d) and did not fail to extend its lease", w.number, d.number)
	}
}

// all returns the fates by message.
func (c *checker) all() []*fate {
	return slices.SortedFunc(maps.Values(c.fates), func(a, b *fate) int { return cmp.Compare(a.published, b.published) })
}

// add sums up figures.
func (f *figures) add(g figures) {
	f.sent += g.sent
	f.handled += g.handled
	f.dead += g.dead
	f.discarded += g.discarded
	f.lost += g.lost
	f.runs += g.runs
	f.retries += g.retries
	f.early += g.early
	f.broken += g.broken
	f.duplicates += g.duplicates
	f.explained += g.explained
	f.faults += g.faults
	f.crashes += g.crashes
	f.stops += g.stops
	f.commits += g.commits
	f.refused += g.refused
	f.rate, f.pause = max(f.rate, g.rate), max(f.pause, g.pause)
	f.latest = max(f.latest, g.latest)
}

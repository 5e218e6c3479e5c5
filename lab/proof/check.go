package main

import (
	"fmt"
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
	promiseOrder      promise = "one key at a time and in order"
	promiseLetter     promise = "a dead letter tells its story"
	promiseInnocent   promise = "only messages that kill their worker are taken for crash loops"
	promiseShutdown   promise = "a worker stops in time and finishes what it began"
	promiseLiveness   promise = "everything ends"
	promiseHarm       promise = "no more handlers at once than allowed"
	promiseContrast   promise = "a pause needs contrast"
	promisePace       promise = "retries are paced"
	promiseEvents     promise = "observers are told what happens"
	promiseByHand     promise = "what a person has paused or skipped does not start"
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

// token is a message that is in its topic, to be delivered.
type token struct {
	attempt, throttles int
	due                time.Duration
	soon               time.Duration // what is left of due, if it is longer than any retry asks for
	least              int           // attempt, without what was only estimated
	death              death
}

// fate is what the checker knows of a message.
//
// Where nothing goes wrong, every delivery takes a token that something put
// there. Once a fault has touched the message, so that nobody knows what had its
// effect, it is in doubt: how often it comes is not counted any more, but still
// what it is, when, and what is made of it.
type fate struct {
	id         string
	message    *message      // nil if nobody sent it
	published  int           // when it was first published, by the count of the checker
	confirmed  int           // when it was first confirmed, likewise; 0 if it was not
	begun      time.Duration // when the Publish began that is not confirmed yet; 0 if there is none
	calls      int           // of Publish
	tokens     []token
	since      time.Duration // that there are tokens
	unheard    int           // receives that may have been before those of the deliveries
	seen       []token       // all that there were
	open       []*delivery
	deliveries []*delivery
	doubt      bool
	disturbed  int  // what explains another run: lost leases, crashes, failed settlements
	losses     int  // what Abandoned may count
	released   int  // settlements by which the message was given back
	struck     bool // a worker had it when it was killed, by no message
	runs, free int  // all, and those that do not count
	successes  int
	forgotten  bool // skipped or discarded
	letters    int  // known to be stored
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
	lost      int // abandoned, or on the whole trial
	onTrial   bool
	suspect   bool // must not run

	attempt, throttles int
	first, failed      time.Duration // when it failed first, and last
	due, dueBefore     time.Duration // of the next run, and of the last one
	began, ended       time.Duration
	runs               int
	running            bool
	last               outcome
	paid               bool        // it took a token of the budget
	next               []judgement // after a run that failed
	buried             bool        // a dead letter was written
	asked              int         // settlements
	askedAt            time.Duration

	received  time.Duration
	low, high time.Duration // the lease runs until then at least, and at most
	excused   bool          // the lease may run out
	stale     bool          // the settlement under way is to be told so, by a fault
	toldAt    time.Duration // the worker knows that it is lost
	freed     bool          // its token is back
	settled   bool          // and the worker knows
	settledAt time.Duration
	maybe     token // given back by a settlement under way
}

// life is one worker.
type life struct {
	number                         int
	up, stopping, crashed, closing time.Duration // 0 is not yet
	down                           bool
	drain                          time.Duration
	concurrency, crashLimit        int
	received                       int
	trouble                        time.Duration // when a lease was lost or not extended last
	running                        map[*topic]int
	dependencies                   map[string]*dependency // by topic
	deliveries, unfinished         []*delivery
	letters                        map[*fate]int  // confirmed and not yet followed by an ack
	burying                        map[*fate]int  // on their way
	lanes                          map[string]int // the last to start, by topic and key
	busy                           map[string]*delivery
	hands                          map[string]*hand // pauses by hand, by what is paused
	skips                          map[*fate]*skip  // by hand
}

// checker goes through the events in order.
type checker struct {
	*record
	verdict
	fates       map[string]*fate
	order       []*fate // as they were first heard of
	deliveries  map[int]*delivery
	workers     map[int]*life
	counts      map[kind]int
	settledBy   map[brokers.Action]int
	keys        map[string][]*fate
	publishes   int // sends, confirms and failures
	buried      int // dead letters that were confirmed
	now         time.Duration
	index       int           // of the event that is taken
	storm, calm time.Duration // when any connection may be lost, 0 is never
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
		c.now, c.index = r.events[i].At, i
		c.take(&r.events[i])
	}
	c.finish()
	c.broken = len(c.violations)
	return c.verdict
}

// most violations are kept: a bug that has messages come again for ever breaks
// millions.
const most = 10_000

func (c *checker) violate(p promise, id, format string, args ...any) {
	if len(c.violations) == most {
		return
	}
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
	if e.ID != "" && (c.stormy() || c.hangs(c.fate(e.ID))) {
		c.fate(e.ID).doubt = true
	}
	d := c.deliveries[e.Delivery]
	if d == nil && (e.Kind == ended || e.Kind == decided || e.Kind == settled || e.Kind == extended) {
		return // its begin was a violation
	}
	switch e.Kind {
	case sent, confirmed, unsent:
		c.takePublish(e)
	case received:
		c.takeReceived(e)
	case started:
		c.takeStarted(e, d)
	case ended:
		c.takeEnded(e, d)
	case decided:
		c.takeDecided(e, d)
	case settling:
		c.takeSettling(e, d)
	case settled:
		c.takeSettled(e, d)
	case extended:
		c.takeExtended(e, d)
	case burying:
		c.takeBurying(e)
	case buried:
		c.takeBuried(e)
	case faulted:
		c.takeFault(e)
	case paused:
		c.takePaused(e)
	case resumed:
	case pauseAsked, pausedByHand, resumedByHand, skipAsked, skippedByHand:
		c.takeByHand(e)
	case ousted:
		c.sever(c.workers[e.Worker])
	case overdue:
		c.violate(promiseLiveness, "", "messages are left after %v: %v", c.scenario.limit, c.left)
	default:
		c.takeWorker(e)
	}
}

func (c *checker) fate(id string) *fate {
	f := c.fates[id]
	if f == nil {
		f = &fate{id: id, message: c.scenario.message(id)}
		c.fates[id] = f
		c.order = append(c.order, f)
	}
	return f
}

// attempts is how many f may have.
func (c *checker) attempts(f *fate) int {
	if f.message == nil {
		return 0
	}
	return or(c.scenario.topics[f.message.topic].policy.MaxAttempts, 10)
}

// interruptions is the most receives of f that may have ended in no settlement by
// which it counts. What was on its way to a worker that ended is in no ledger.
func (c *checker) interruptions(f *fate) int {
	if !c.scenario.served {
		return f.losses + c.crashes
	}
	return f.losses + f.released + c.crashes + c.stops + c.faults
}

// give makes a message available as t says.
func (c *checker) give(f *fate, t token) {
	if len(f.tokens) == 0 {
		f.since = c.now
	}
	f.tokens = append(f.tokens, t)
	if !slices.Contains(f.seen, t) {
		f.seen = append(f.seen, t)
	}
}

// takeBack undoes give. It reports false if the message was delivered meanwhile.
func (f *fate) takeBack(t token) bool {
	i := slices.Index(f.tokens, t)
	if i >= 0 {
		f.tokens = slices.Delete(f.tokens, i, i+1)
	}
	return i >= 0 || f.doubt
}

// hangs reports whether a message is being published to a server for so long that the
// client may have asked again, and it may be there twice.
func (c *checker) hangs(f *fate) bool {
	return c.scenario.served && f.begun > 0 && c.now-f.begun >= callTimeout
}

// takePublish follows the producer. A publish may take effect from its start.
func (c *checker) takePublish(e *event) {
	f := c.fate(e.ID)
	c.publishes++
	switch e.Kind {
	case sent:
		if f.published == 0 {
			f.published = c.publishes
			if f.message != nil && f.message.Key != "" {
				key := e.Topic + "\x00" + f.message.Key
				c.keys[key] = append(c.keys[key], f)
			}
		}
		f.calls++
		f.begun = max(c.now, 1)
		c.give(f, token{})
	case confirmed:
		f.begun = 0
		f.confirmed = or(f.confirmed, c.publishes)
	case unsent:
		f.begun = 0
		f.doubt = f.doubt || c.scenario.served && e.Err == unknownOutcome
		if !f.takeBack(token{}) {
			c.violate(promiseDelivery, e.ID, "was delivered although its publish failed without effect")
		}
	}
}

// takeFault notes what a fault explains: of the memory broker, one operation; of
// others, what happens to all connections until it is over.
func (c *checker) takeFault(e *event) {
	c.faults++
	switch {
	case e.ID != "":
		f := c.fate(e.ID)
		f.doubt = f.doubt || e.Flags&(isDone|isLost|isDuplicate) != 0
		if e.Err != fine || f.doubt {
			f.disturbed++
		}
		if e.Err == leaseLost || e.Err != fine && e.Note == "extend" {
			for _, d := range f.open {
				d.excused = true
				d.stale = e.Err == leaseLost && e.Note == "settle" && d.asked > 0
			}
		}
	case !c.scenario.served:
	case e.Flags&isBegin != 0:
		c.storm, c.calm = max(c.now, 1), c.scenario.limit
		for _, w := range c.workers {
			c.sever(w)
		}
		for _, f := range c.order { // what is being sent
			f.doubt = f.doubt || f.confirmed == 0
		}
	default:
		c.calm = c.now + c.scenario.pace.slack
	}
}

func (c *checker) stormy() bool { return c.storm > 0 && c.now <= c.calm }

// sever has in doubt what may come of the sudden end of a worker's connections:
// what it held, what it was burying, and what it settled a moment ago, as an ack
// may get lost on its way. It returns the messages. What an SQS has confirmed
// stays so.
func (c *checker) sever(w *life) (concerned []*fate) {
	const lately = 5 * time.Second // also until a Kafka has committed it
	for _, d := range w.deliveries {
		if d.settled && (d.settledAt+lately < c.now || c.scenario.broker == "sqs") || d.freed && !d.settled {
			continue
		}
		d.fate.doubt = true
		d.fate.losses++
		if !d.settled {
			c.free(d)
		}
		concerned = append(concerned, d.fate)
	}
	for f := range w.burying {
		f.doubt = true
	}
	return concerned
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
	f, w := d.fate, d.worker
	d.freed, w.trouble = true, max(c.now, 1)
	f.disturbed++
	f.free += d.runs // whatever they counted is forgotten
	f.losses++
	c.give(f, d.got)
	f.since = min(f.since, d.low) // when it was there again
	longest := c.scenario.options.MaxLease
	used := longest > 0 && d.high+time.Second >= d.received+longest // the keeper asks for whole seconds there
	stalled := c.scenario.pace.slack > 0                            // a busy machine may be too slow for short leases
	if !d.excused && !used && !stalled && w.crashed == 0 && w.closing == 0 && !f.doubt {
		c.violate(promiseLease, f.id, "was taken from worker %d, which held it (delivery %d) and did not fail to extend its lease", w.number, d.number)
	}
}

// tell notes that a worker knows that its lease is lost.
func (c *checker) tell(d *delivery) {
	d.toldAt = or(d.toldAt, max(c.now, 1))
	c.free(d)
}

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// kind says what an event of the ledger is about.
type kind uint8

const (
	sent          kind = iota // the producer is about to publish
	confirmed                 // the broker said that it is durable
	unsent                    // the publish failed, see Err
	received                  // a delivery came out of Receive
	started                   // a handler run starts
	ended                     // a handler run is about to return
	decided                   // the consumer told its observer what it decided
	settling                  // the consumer asks for a settlement
	settled                   // its result
	extended                  // the result of an extension
	burying                   // the consumer publishes a dead letter
	buried                    // its result
	faulted                   // the broker was made to fail
	up                        // a worker starts
	stopping                  // a worker is told to stop
	crashed                   // a worker is killed
	closing                   // the consumer closes its source
	down                      // Run has returned
	overdue                   // the run was given up: messages are left
	ousted                    // the session of a worker has ended
	paused                    // the consumer told its observer that single runs try out what Note names
	resumed                   // and that it serves again
	pauseAsked                // a person asks a worker for a pause of what Note names
	pausedByHand              // and has it
	resumedByHand             // a person ends it
	skipAsked                 // a person asks a worker to skip a message
	skippedByHand             // and it does
)

var kindNames = [...]string{"sent", "confirmed", "not confirmed", "received", "handler starts", "handler ends",
	"decided", "settle", "settle result", "extend result", "dead letter", "dead letter result", "FAULT", "worker up",
	"worker told to stop", "worker KILLED", "source closing", "worker down", "OVERDUE",
	"session over", "PAUSED", "resumed", "pause asked for by hand", "paused by hand", "resumed by hand", "skip asked for by hand", "skipped by hand"}

// event is one line of the ledger. Times are counted from the start of the
// run, so that lines of several processes can be merged.
type event struct {
	At       time.Duration
	Kind     kind
	Action   brokers.Action // of settling, settled and faulted
	Outcome  outcome        // of ended
	Cause    cause          // why the handler's context had ended
	Err      fail
	Flags    flags
	Worker   int // a new one for each life of a worker; 0 is the producer
	Delivery int // 0 is none
	ID       string
	Topic    string

	// What the framework carries.
	Attempt, Throttles, Abandoned int
	Crashes                       int           // above 0 on trial: it runs at once or goes back
	First, Last, Due              time.Duration // 0 is none
	Death                         death         // of a message that waits for its dead letter
	Died                          time.Duration // when; 0 is none

	Until time.Duration // of the lease, at least
	Delay time.Duration // of a settlement or decision; the length of an extension; a throttle's hint
	Note  string
}

// death is what a message that waits for its dead letter says of that.
type death struct {
	Reason             string // "" is none
	Attempt, Abandoned int
}

type flags uint8

const (
	isDone      flags = 1 << iota // of faulted: it took effect
	isLost                        // of faulted: the lease was taken away
	isDuplicate                   // of faulted: it was done twice
	isFirst                       // of started and ended: the first of its batch
	isBegin                       // of faulted: it goes on until the next one
	isWhole                       // of ended: all of its batch failed so
)

// fail is what a checker needs to know of an error.
type fail uint8

const (
	fine fail = iota
	leaseLost
	alreadySettled
	isClosed
	unknownOutcome
	refused
	trouble
)

var failNames = [...]string{"ok", "lease lost", "already settled", "closed", "unknown outcome", "refused", "error"}

func failOf(err error) fail {
	switch {
	case err == nil:
		return fine
	case errors.Is(err, brokers.ErrLeaseLost):
		return leaseLost
	case errors.Is(err, brokers.ErrSettled):
		return alreadySettled
	case errors.Is(err, brokers.ErrClosed):
		return isClosed
	case errors.Is(err, brokers.ErrUnknownOutcome):
		return unknownOutcome
	case errors.Is(err, brokers.ErrRefused):
		return refused
	}
	return trouble
}

// cause is why a handler's context had ended.
type cause uint8

const (
	noCause cause = iota
	timedOut
	shutDown
	lost
)

var causeNames = [...]string{"", "timeout", "shutdown", "lost"}

func causeOf(ctx context.Context) cause {
	if ctx.Err() == nil {
		return noCause
	}
	err := context.Cause(ctx)
	switch {
	case errors.Is(err, brokers.ErrLeaseLost):
		return lost
	case errors.Is(err, consumer.ErrShutdown):
		return shutDown
	case errors.Is(err, classify.ErrAttemptTimeout):
		return timedOut
	}
	return noCause
}

// ledger is what really happened, in order, written down by the producer, the
// handlers and the wrapper around the broker; nothing in it comes from the
// consumer's own counters.
type ledger struct {
	start time.Time

	mu         sync.Mutex
	events     []event
	deliveries int
	workers    int
	runs       map[string]int // handler runs by message
	told       map[string]int // an EventSettled counts by its Action, and a discarded dead letter apart

	// Of a worker that is a process of its own:
	tell  func(event)         // takes the events
	count func(id string) int // asks the driver for runs
}

func newLedger(events []event) *ledger {
	return &ledger{start: time.Now(), events: events[:0], runs: map[string]int{}, told: map[string]int{}}
}

func (l *ledger) now() time.Duration { return time.Since(l.start) }

// since counts t from the start; 0 stays none.
func (l *ledger) since(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return t.Sub(l.start)
}

func (l *ledger) add(e event) { l.addAll(1, func(int) event { return e }) }

// addAll adds events that belong together, at one time.
func (l *ledger) addAll(n int, at func(i int) event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for i := range n {
		e := at(i)
		e.At = now
		l.keep(e)
	}
}

// keep stores an event; the caller holds the lock.
func (l *ledger) keep(e event) {
	if l.tell != nil {
		l.tell(e)
		return
	}
	l.events = append(l.events, e)
}

func (l *ledger) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events)
}

// run returns how often handlers had started on a message, and counts this
// start.
func (l *ledger) run(id string) int {
	if l.count != nil {
		return l.count(id)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.runs[id]
	l.runs[id] = n + 1
	return n
}

func (l *ledger) newDelivery() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deliveries++
	return l.deliveries
}

func (l *ledger) newWorker() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.workers++
	return l.workers
}

func (e *event) meta(l *ledger, m brokers.Meta) {
	e.Attempt, e.Throttles, e.Crashes = m.Attempt, m.Throttles, m.Crashes
	// As the message carries them, by the wall clock alone: a thread that is held
	// up while it reads the time has the two clocks milliseconds apart.
	e.First, e.Last, e.Due = l.since(m.FirstFailedAt.Round(0)), l.since(m.LastFailedAt.Round(0)), l.since(m.DueAt.Round(0))
	if d := m.Death; d != nil {
		e.Death, e.Died = death{d.Reason, d.Attempt, d.Abandoned}, l.since(d.At.Round(0))
	}
}

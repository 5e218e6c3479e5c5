// Package proof holds the way of dead letters, out of a broker, into a store and
// back to whoever gave them up, against what is promised. It is tests: workers,
// collectors, jobs and crashes write down what happens in a ledger that outlives
// them, and a checker asks nobody else but the store and the broker, in the end.
//
// TestScenarios draws scenarios from a seed and plays them on the memory broker,
// with an SQLite file, in virtual time. TestLetters kills the command redrive on
// real brokers.
package proof

import (
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

// kind says what an event of the ledger is about.
type kind string

const (
	sent     kind = "sent"     // a broker has confirmed a message of the producer
	ran      kind = "ran"      // a handler is about to return, with Err
	died     kind = "died"     // a broker has confirmed a dead letter
	returned kind = "returned" // a process put a letter back since Began, with Err
	crashed  kind = "crashed"  // a process is gone from one moment to the other
	troubled kind = "troubled" // a store or a broker did not work since Began
	paused   kind = "paused"   // a worker pauses Topic
)

// event is a line of the ledger. Fields that do not belong to its kind are zero.
type event struct {
	At, Began time.Time
	Kind      kind
	Process   int
	ID        string // of the message
	Send      string // the token by which it was sent back last
	Topic     string
	Group     string // allGroups for a letter that goes to all
	Redrives  int
	Attempt   int
	DeadAt    time.Time
	Content   string // of a dead letter: what tells it from others of its ID and time
	Err       string
}

const allGroups = "*"

// ledger is what really happened, in order.
type ledger struct {
	mu     sync.Mutex
	events []event
}

func (l *ledger) add(e event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.At = time.Now()
	l.events = append(l.events, e)
}

// until returns the events so far. They do not change any more.
func (l *ledger) until() []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events[:len(l.events):len(l.events)]
}

// message is one of a scenario, and where its letters belong.
type message struct {
	id, topic, group string
	skip             string // why no job may send them
}

// death tells dead letters apart, but for those of one ID and time.
type death struct {
	id string
	at int64 // in milliseconds
}

func deathOf(id string, at time.Time) death {
	if at.IsZero() {
		return death{id: id}
	}
	return death{id, at.UnixMilli()}
}

// snapshot is where everything is at a moment: at a crash, or in the end.
type snapshot struct {
	before, after []event         // those until it was begun, and until it was taken
	queued        map[string]bool // messages in queues, by ID
	dead          map[death]int   // dead letters in queues
	stored        []store.Letter
}

// record is what is left of a run for the checker.
type record struct {
	messages  map[string]*message
	events    []event
	snapshots []snapshot
	letters   []letter
	jobs      []jobRecord
}

// letter is one of the store, and what became of it.
type letter struct {
	store.Letter
	history []store.Change
}

// jobRecord is a job of the store.
type jobRecord struct {
	store.Job
	spec  job.Spec
	waves []store.Wave
}

// sendOf is the part of a token that names the letter and the sending.
func sendOf(token string) string {
	end := strings.LastIndex(token, ".")
	return token[:max(end, 0)]
}

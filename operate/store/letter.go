package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// State is where a letter is on its way.
type State string

// The states, and who brings a letter there.
const (
	StateCollected State = "collected" // Collect, or whoever ended the job that had it queued
	StateQueued    State = "queued"    // a job, to be sent
	StateSending   State = "sending"   // a job; it may have been sent, or not
	StateSent      State = "sent"      // the broker, which confirmed that it has it
	StateConfirmed State = "confirmed" // a receipt: it was handled
	StateUnknown   State = "unknown"   // a job, to which no receipt came in time
	StateReturned  State = "returned"  // it is dead again: a receipt says so, or another letter stands for it
	StateSkipped   State = "skipped"   // a job that would not send it; Letter.Note says why
	StateDiscarded State = "discarded" // Discard; Restore takes it back
)

// States returns all states, in the order of their life.
func States() []State {
	return []State{
		StateCollected, StateQueued, StateSending, StateSent, StateConfirmed,
		StateUnknown, StateReturned, StateSkipped, StateDiscarded,
	}
}

// code is how a state is stored; the indexes know some of them.
func (s State) code() int64 { return int64(slices.Index(States(), s)) }

func stateOf(code int64) State { return States()[code] }

// codeOf is how states among the arguments of a statement are stored.
func codeOf(arg any) any {
	switch v := arg.(type) {
	case State:
		return v.code()
	case []State:
		codes := make(ids, len(v))
		for i, s := range v {
			codes[i] = s.code()
		}
		return codes
	}
	return arg
}

func intoState(s *State) sqldb.Stored { return func(n int64) { *s = stateOf(n) } }

// isOpen reports whether a letter's message still needs somebody.
func (s State) isOpen() bool {
	return s != StateConfirmed && s != StateReturned && s != StateDiscarded
}

// Counts are numbers of letters by state.
type Counts struct {
	Collected, Queued, Sending, Sent, Confirmed, Unknown, Returned, Skipped, Discarded int64
}

// Open counts the letters whose message still needs somebody: all but those
// that are confirmed, returned or discarded.
func (c Counts) Open() (n int64) {
	for i, p := range c.all() {
		if States()[i].isOpen() {
			n += *p
		}
	}
	return n
}

// Of returns the number of letters in a state.
func (c Counts) Of(s State) int64 { return *c.all()[s.code()] }

// all are the counters in the order of the states.
func (c *Counts) all() [9]*int64 {
	return [9]*int64{
		&c.Collected, &c.Queued, &c.Sending, &c.Sent, &c.Confirmed,
		&c.Unknown, &c.Returned, &c.Skipped, &c.Discarded,
	}
}

// total is the sum over all states.
func (c Counts) total() (sum int64) {
	for _, n := range c.all() {
		sum += *n
	}
	return sum
}

// dest is where a row of counters is read to.
func (c *Counts) dest() []any {
	list := make([]any, 0, 9)
	for _, n := range c.all() {
		list = append(list, n)
	}
	return list
}

// Letter is a dead letter without its content. Its texts are what the letter
// says and may hold any bytes: escape them before you show them. Each is at most
// 512 bytes, ErrorText 2 KiB: a longer one is cut, and ends in "…" and its
// SHA-256.
type Letter struct {
	// ID rises in the order of collecting. No number is used twice.
	ID    int64
	State State

	Broker   string // its name in the configuration
	Source   string // the dead-letter topic that it came from
	Position string // where a log has it, such as 3/4711; empty elsewhere
	Format   string // whose dead letter it is, such as redrive or spring-kafka

	MessageID string
	Key       string
	Topic     string // where it died; a claim of the letter
	Group     string // the consumer group that gave it up

	// Why it is dead, in the terms of dlq.Entry.
	Reason, Class, Rule, ErrorType, ErrorCode, ErrorText, Fingerprint string

	Attempts, RedriveCount, Abandoned  int
	FirstFailedAt, DeadAt, PublishedAt time.Time
	DeadBy                             string

	Stub    bool  // it stands for a message that is elsewhere
	Size    int64 // of the message as received: body, names and values of headers, in bytes
	Cluster int64 // the letters that failed alike

	Previous int64  // the letter that came back as this one
	Next     int64  // the letter that this one came back as
	Sends    int    // how often it was sent from here
	Job      int64  // the last one that took it
	Note     string // what the last change says about it

	CollectedAt, ChangedAt time.Time
}

const letterColumns = `l.id, l.state, t.broker, t.source, l.position, c.format, l.message_id, l.message_key, t.topic, c.consumers,
	c.reason, c.class, l.rule, c.error_type, l.error_code, l.error_text, c.fingerprint, l.attempts, l.redrives, l.abandoned,
	l.first_failed_at, l.dead_at, l.published_at, l.dead_by, l.stub, l.size, l.cluster, l.previous, l.next, l.sends,
	l.note, l.collected_at, l.changed_at, coalesce(w.job, 0)`

const letterTables = ` from letters l join clusters c on c.id = l.cluster join topics t on t.id = c.topic left join waves w on w.id = l.wave `

func (l *Letter) columns() []any {
	return []any{
		&l.ID, intoState(&l.State), &l.Broker, &l.Source, &l.Position, &l.Format, &l.MessageID, &l.Key, &l.Topic, &l.Group,
		&l.Reason, &l.Class, &l.Rule, &l.ErrorType, &l.ErrorCode, &l.ErrorText, &l.Fingerprint, &l.Attempts, &l.RedriveCount, &l.Abandoned,
		sqldb.IntoTime(&l.FirstFailedAt), sqldb.IntoTime(&l.DeadAt), sqldb.IntoTime(&l.PublishedAt), &l.DeadBy, sqldb.IntoBool(&l.Stub), &l.Size, &l.Cluster, &l.Previous, &l.Next, &l.Sends,
		&l.Note, sqldb.IntoTime(&l.CollectedAt), sqldb.IntoTime(&l.ChangedAt), &l.Job,
	}
}

// letters reads letters by their numbers, in their order. Those that are gone are
// left out.
func (c conn) letters(ctx context.Context, list ids) (letters []Letter, err error) {
	letters, err = sqldb.All(ctx, c.Tx, "select "+letterColumns+letterTables+"where l.id in (?)", []any{list}, (*Letter).columns)
	nth := make(map[int64]int, len(list))
	for i, id := range list {
		nth[id] = i
	}
	slices.SortFunc(letters, func(a, b Letter) int { return nth[a.ID] - nth[b.ID] })
	return letters, err
}

// Letter returns a letter by its number, or [ErrNotFound].
func (s *Store) Letter(ctx context.Context, id int64) (Letter, error) {
	return sqldb.Result(ctx, s.read, func(tx conn) (Letter, error) {
		found, err := tx.letters(ctx, ids{id})
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("letter %d: %w", id, ErrNotFound)
		}
		if err != nil {
			return Letter{}, err
		}
		return found[0], nil
	})
}

// Last returns the largest ID that a letter has had, for Filter.UpTo; -1 if there
// was none.
func (s *Store) Last(ctx context.Context) (int64, error) {
	return sqldb.Result(ctx, s.read, func(tx conn) (int64, error) {
		return tx.last(ctx)
	})
}

func (c conn) last(ctx context.Context) (id int64, err error) {
	_, err = c.Get(ctx, "select coalesce(max(last), -1) from ids where name = ?", []any{"letters"}, &id)
	return id, err
}

// Content returns the message of a letter as it was received, and what it was
// taken for when it was collected; or [ErrNotFound].
func (s *Store) Content(ctx context.Context, id int64) (raw brokers.Message, entry dlq.Entry, err error) {
	err = s.read(ctx, func(tx conn) error {
		raw, entry, err = tx.content(ctx, id)
		return err
	})
	return raw, entry, err
}

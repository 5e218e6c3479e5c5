package service

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// Store keeps tasks, policies and attempts in an SQLite file or in Postgres. It may
// be used by several goroutines, and several processes may open the same one.
//
// What a call has stored is durable when it returns. After an error nothing is
// stored, or, if the connection to Postgres broke or the context ended meanwhile,
// all of it: a call may be repeated. What is wrong with the store is one of the
// errors ErrFull, ErrLocked, ErrNewer, ErrDamaged and ErrReadOnly.
//
// Times and durations are kept in milliseconds. Each task has a version, which
// changes with it, so nobody overwrites what he has not read.
type Store struct {
	db        *sqldb.DB
	id        string
	creations *group[*creation]
	outcomes  *group[*settlement]
}

// What can be wrong with a store, for errors.Is. The error says more.
var (
	// ErrNewer reports a store that a newer version of the program has brought
	// to a schema which this one does not know. Nothing was changed.
	ErrNewer = sqldb.ErrNewer

	// ErrLocked reports that another process kept the store locked for longer
	// than a call waits, 10 seconds. Nothing was changed; call again.
	ErrLocked = sqldb.ErrLocked

	// ErrFull reports a full disk. Nothing was changed.
	ErrFull = sqldb.ErrFull

	// ErrReadOnly reports a store that this process may not write.
	ErrReadOnly = sqldb.ErrReadOnly

	// ErrDamaged reports a file that is no store, or no longer.
	ErrDamaged = sqldb.ErrDamaged
)

//go:embed migrations
var migrations embed.FS

// Open opens the store at url, creates it if there is none, and brings an older
// one up to date.
//
//	tasks.db, sqlite:tasks.db       a file, created with the mode 0600
//	postgres://user@host/database   tables in the schema redrive_service, or the
//	host=… user=… dbname=…          first one of the parameter search_path
func Open(ctx context.Context, url string) (*Store, error) {
	db, err := sqldb.Open(ctx, url, sqldb.Options{
		Schema: "redrive_service", Migrations: migrations, Meta: "retry_meta", Value: stored,
	})
	if err != nil {
		return nil, err
	}
	s := &Store{db: db}
	if err := s.identify(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.creations = &group[*creation]{do: s.create, refused: sqldb.Refused}
	s.outcomes = &group[*settlement]{do: s.settle, refused: sqldb.Refused}
	return s, nil
}

// identify reads the ID, which is given once. A store that has one is not written, so
// that one on a full disk opens.
func (s *Store) identify(ctx context.Context) error {
	read := func(tx sqldb.Tx) error {
		_, err := tx.Get(ctx, "select store_id from retry_meta", nil, &s.id)
		return err
	}
	if err := s.db.Look(ctx, read); err != nil || s.id != "" {
		return err
	}
	return s.db.Write(ctx, func(tx sqldb.Tx) error {
		_, err := tx.Exec(ctx, "update retry_meta set store_id = ? where store_id = ''", rand.Text())
		if err != nil {
			return err
		}
		return read(tx)
	})
}

// ID tells this store from all others: 26 letters and digits, made at random when its
// tables are. A copy of the database has the same.
func (s *Store) ID() string { return s.id }

// Close waits for calls that are under way, and closes the store. Nobody calls it
// any more.
func (s *Store) Close() error {
	s.creations.wait()
	s.outcomes.wait()
	return s.db.Close()
}

// TryWrite writes a few bytes that change nothing, and returns why they cannot be
// written: ErrFull or ErrReadOnly as a rule. A lock of another writer is no reason.
func (s *Store) TryWrite(ctx context.Context) error { return s.db.TryWrite(ctx) }

// stored is how states and durations are stored.
func stored(arg any) any {
	switch v := arg.(type) {
	case Status:
		return v.code()
	case time.Duration:
		return v.Milliseconds()
	}
	return arg
}

func intoStatus(s *Status) sqldb.Stored {
	return func(n int64) { *s = statuses()[n] }
}

func intoDuration(d *time.Duration) sqldb.Stored {
	return func(n int64) { *d = time.Duration(n) * time.Millisecond }
}

// notNil makes b empty rather than null.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

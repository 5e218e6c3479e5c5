// Package sqldb keeps tables in an SQLite file or in Postgres: it opens the
// database, brings its schema up to date, runs transactions, and says what errors
// mean. Statements are written once, for both; see [Tx].
package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"

	"github.com/redrive-go/redrive/operate/internal/pgaddress"
)

// Options say what the tables are.
type Options struct {
	// Schema is where the tables are on Postgres, unless the URL names another one.
	Schema string

	// Migrations holds migrations/0001.sql and so on. The version of the schema is
	// how many of them it has seen, and is kept in the table Meta.
	Migrations fs.FS
	Meta       string

	// Value makes a value that can be stored of an argument of a type that this
	// package does not know. It returns others as they are. It may be nil.
	Value func(arg any) any

	// Lock is a table that whoever writes locks on Postgres, so that transactions
	// follow each other there as they do in SQLite. Without one they overlap.
	Lock string
}

// DB is an open database. It may be used by several goroutines, and several
// processes may open the same one.
type DB struct {
	db       *sql.DB
	options  Options
	name     string // for errors: where it is, without a password
	postgres bool
	schema   string                // on Postgres
	writing  chan struct{}         // held by whoever writes, if writers follow each other
	failed   atomic.Pointer[error] // why the store could not be written, since the last TryWrite
}

// Open opens the database at url, creates the tables if there are none, and brings
// older ones up to date.
//
//	letters.db, sqlite:letters.db   a file, created with the mode 0600
//	postgres://user@host/database   tables in the schema of the options, or the
//	host=… user=… dbname=…          first one of the parameter search_path
//
// What is wrong with the place is one of [ErrNewer], [ErrDamaged],
// [ErrReadOnly], [ErrLocked] and [ErrFull], or says why it cannot be reached.
func Open(ctx context.Context, url string, o Options) (*DB, error) {
	s := &DB{options: o, writing: make(chan struct{}, 1)}
	var err error
	switch scheme, _, found := strings.Cut(url, "://"); {
	case pgaddress.Is(url):
		err = s.openPostgres(ctx, url)
	case found && scheme != "sqlite":
		err = fmt.Errorf("store: %q is no store: use the name of a file, or postgres://", scheme+"://")
	default:
		err = s.openSQLite(ctx, strings.TrimPrefix(strings.TrimPrefix(url, "sqlite:"), "//"))
	}
	if err != nil {
		return nil, err
	}
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// Close waits for calls that are under way, and closes the database.
func (s *DB) Close() error { return s.Failed(s.db.Close()) }

// Postgres reports whether the database is one.
func (s *DB) Postgres() bool { return s.postgres }

// Name says where the database is, without a password: of a file, its name.
func (s *DB) Name() string { return s.name }

// Write runs f in a transaction that no other overlaps, in this process or
// another; on Postgres only if there is a table to lock. What f has done is durable
// when Write returns nil. After an error nothing has been done, or, if the
// connection broke in the end, all of it.
func (s *DB) Write(ctx context.Context, f func(Tx) error) error {
	err := s.write(ctx, f)
	if errors.Is(err, ErrFull) || errors.Is(err, ErrReadOnly) || errors.Is(err, ErrDamaged) {
		s.failed.Store(&err)
	}
	return err
}

func (s *DB) write(ctx context.Context, f func(Tx) error) error {
	if s.postgres && s.options.Lock == "" {
		return s.transact(ctx, nil, f)
	}
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return s.Failed(ctx.Err())
	}
	return s.transact(ctx, nil, func(tx Tx) error {
		if s.postgres { // in SQLite the transaction has begun as a writer
			if _, err := tx.Exec(ctx, "lock table "+s.options.Lock+" in exclusive mode"); err != nil {
				return err
			}
		}
		return f(tx)
	})
}

// TryWrite writes a few bytes, which change nothing, and returns why they cannot be
// written, or why a larger write since the last TryWrite could not: a full disk may
// have room for a few bytes. A lock that another writer holds when ctx ends is no
// reason.
func (s *DB) TryWrite(ctx context.Context) error {
	statement := "pragma user_version = 1" // SQLite does not write a row that is the same
	if s.postgres {
		statement = "update " + s.options.Meta + " set version = version"
	}
	err := s.Write(ctx, func(tx Tx) error {
		_, err := tx.Exec(ctx, statement)
		return err
	})
	if failed := s.failed.Swap(nil); failed != nil {
		return *failed
	}
	if ctx.Err() != nil || errors.Is(err, ErrLocked) {
		return nil
	}
	return err
}

// Read runs f on one state of the database, whatever is written meanwhile.
func (s *DB) Read(ctx context.Context, f func(Tx) error) error {
	o := &sql.TxOptions{ReadOnly: true}
	if s.postgres { // in SQLite every transaction does
		o.Isolation = sql.LevelRepeatableRead
	}
	return s.transact(ctx, o, f)
}

// Result returns what f does in a transaction, which run begins: nothing after an
// error.
func Result[Tx, T any](ctx context.Context, run func(context.Context, func(Tx) error) error, f func(Tx) (T, error)) (T, error) {
	var result T
	err := run(ctx, func(tx Tx) (err error) {
		result, err = f(tx)
		return err
	})
	if err != nil {
		return *new(T), err
	}
	return result, nil
}

// Look runs f, which makes one query: several would not see the same state. It costs
// one way to a server and back, where Read costs three.
func (s *DB) Look(ctx context.Context, f func(Tx) error) error {
	line, err := s.db.Conn(ctx)
	if err != nil {
		return s.Failed(err)
	}
	defer line.Close() // gives it back
	return s.Failed(f(Tx{line, line, s}))
}

func (s *DB) transact(ctx context.Context, o *sql.TxOptions, f func(Tx) error) error {
	line, err := s.db.Conn(ctx)
	if err != nil {
		return s.Failed(err)
	}
	defer line.Close() // gives it back
	tx, err := line.BeginTx(ctx, o)
	if err != nil {
		return s.Failed(err)
	}
	if err := f(Tx{tx, line, s}); err != nil {
		_ = tx.Rollback() // what matters is in err
		return s.Failed(err)
	}
	return s.Failed(tx.Commit())
}

// Wipe moves what an SQLite file has in its log into the file, and empties the log:
// what was deleted is then in neither.
func (s *DB) Wipe(ctx context.Context) error {
	if s.postgres {
		return nil
	}
	_, err := s.db.ExecContext(ctx, "pragma wal_checkpoint(truncate)")
	return s.Failed(err)
}

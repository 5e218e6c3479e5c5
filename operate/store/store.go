package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// Store keeps dead letters in an SQLite file or in Postgres. It may be used by
// several goroutines, and several processes may open the same one; they write
// one after the other.
type Store struct {
	db      *sql.DB
	dialect dialect
	name    string        // for errors: where it is, without a password
	writing chan struct{} // held by whoever writes
}

// Open opens the store at url, creates it if there is none, and brings an older
// one up to date.
//
//	letters.db, sqlite:letters.db   a file, created with the mode 0600
//	postgres://user@host/database   tables in the schema redrive, or the first
//	                                one of the parameter search_path
//
// What is wrong with the place is one of [ErrNewer], [ErrDamaged],
// [ErrReadOnly], [ErrLocked] and [ErrFull], or says why it cannot be reached.
func Open(ctx context.Context, url string) (*Store, error) {
	s := &Store{writing: make(chan struct{}, 1)}
	var err error
	switch scheme, _, found := strings.Cut(url, "://"); {
	case scheme == "postgres" || scheme == "postgresql":
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

// Close waits for calls that are under way, and closes the store.
func (s *Store) Close() error { return s.failed(s.db.Close()) }

// write runs f in a transaction that no other overlaps, in this process or
// another. What f has done is durable when write returns nil. After an error
// nothing has been done, or, if the connection broke in the end, all of it.
func (s *Store) write(ctx context.Context, f func(conn) error) error {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return s.failed(ctx.Err())
	}
	return s.transact(ctx, nil, func(tx conn) error {
		if _, err := tx.exec(ctx, tx.lock); err != nil {
			return err
		}
		return f(tx)
	})
}

// read runs f on one state of the store, whatever is written meanwhile.
func (s *Store) read(ctx context.Context, f func(conn) error) error {
	return s.transact(ctx, &sql.TxOptions{ReadOnly: true, Isolation: s.dialect.snapshot}, f)
}

func (s *Store) transact(ctx context.Context, o *sql.TxOptions, f func(conn) error) error {
	line, err := s.db.Conn(ctx)
	if err != nil {
		return s.failed(err)
	}
	defer line.Close() // gives it back
	tx, err := line.BeginTx(ctx, o)
	if err != nil {
		return s.failed(err)
	}
	if err := f(conn{tx, line, s.dialect}); err != nil {
		_ = tx.Rollback() // what matters is in err
		return s.failed(err)
	}
	return s.failed(tx.Commit())
}

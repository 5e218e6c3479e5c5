package store

import (
	"context"
	"embed"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// Store keeps dead letters in an SQLite file or in Postgres. It may be used by
// several goroutines, and several processes may open the same one; they write
// one after the other.
type Store struct{ db *sqldb.DB }

//go:embed migrations
var migrations embed.FS

// Open opens the store at url, creates it if there is none, and brings an older
// one up to date.
//
//	letters.db, sqlite:letters.db   a file, created with the mode 0600
//	postgres://user@host/database   tables in the schema redrive, or the first
//	host=… user=… dbname=…          one of the parameter search_path
//
// What is wrong with the place is one of [ErrNewer], [ErrDamaged],
// [ErrReadOnly], [ErrLocked] and [ErrFull], or says why it cannot be reached.
func Open(ctx context.Context, url string) (*Store, error) {
	db, err := sqldb.Open(ctx, url, sqldb.Options{
		Schema: "redrive", Migrations: migrations, Meta: "meta", Value: codeOf, Lock: "ids",
	})
	if err != nil {
		return nil, err
	}
	return &Store{db}, nil
}

// Close waits for calls that are under way, and closes the store.
func (s *Store) Close() error { return s.db.Close() }

// TryWrite writes a few bytes that change nothing, and returns why they cannot be
// written: ErrFull or ErrReadOnly as a rule. A lock of another writer is no reason.
func (s *Store) TryWrite(ctx context.Context) error { return s.db.TryWrite(ctx) }

// conn is a transaction.
type conn struct{ sqldb.Tx }

type (
	ids  = []int64
	keys = [][]byte
)

// write runs f in a transaction that no other overlaps, in this process or
// another. What f has done is durable when write returns nil. After an error
// nothing has been done, or, if the connection broke in the end, all of it.
func (s *Store) write(ctx context.Context, f func(conn) error) error {
	return s.db.Write(ctx, func(tx sqldb.Tx) error { return f(conn{tx}) })
}

// read runs f on one state of the store, whatever is written meanwhile.
func (s *Store) read(ctx context.Context, f func(conn) error) error {
	return s.db.Read(ctx, func(tx sqldb.Tx) error { return f(conn{tx}) })
}

// next returns the first of n numbers that no row of this kind has had.
func (c conn) next(ctx context.Context, name string, n int) (first int64, err error) {
	_, err = c.Get(ctx, `insert into ids (name, last) values (?, ?)
		on conflict (name) do update set last = ids.last + excluded.last returning last`, []any{name, n}, &first)
	return first - int64(n) + 1, err
}

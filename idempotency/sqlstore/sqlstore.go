// Package sqlstore keeps idempotency keys in a table of a SQL database, for
// all workers that use it: Postgres from version 9.5 on, or SQLite from 3.42
// on. It imports no driver; open the database with one of your choice.
//
// It keeps the contract of idempotency.Store with single statements, so that
// it needs no transactions and no particular isolation level. The database
// measures leases and records with its own clock, and the clocks of the
// workers need not agree.
//
// What has ended stays in the table until somebody calls [Store.Sweep], and
// counts as absent meanwhile.
//
// # What is not promised
//
// The record is not part of the handler's own transaction. A handler whose
// whole effect is in the same database does better without this package: it
// stores the key in its transaction.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/redrive-go/redrive/idempotency"
)

const defaultTable = "redrive_idempotency"

// Dialect is the kind of a database.
type Dialect uint8

const (
	// Postgres is PostgreSQL, and what speaks its language.
	Postgres Dialect = iota + 1
	// SQLite is SQLite. Give its connections a busy_timeout; those to
	// ":memory:" have a database each, so allow one only.
	SQLite
)

// Store is an idempotency.Store in a table.
type Store struct {
	db      *sql.DB
	dialect Dialect
	table   string

	claim, look, record, release, sweep string // statements
}

// New makes a Store and does not talk to the database. The table need not
// exist yet, see [Store.CreateTable]; "" means "redrive_idempotency". A name
// has letters, digits and underscores, and may have that of a schema and a dot
// before it.
func New(db *sql.DB, dialect Dialect, table string) (*Store, error) {
	if table == "" {
		table = defaultTable
	}
	var faults []error
	if db == nil {
		faults = append(faults, errors.New("sqlstore: the database is nil: pass what sql.Open returns"))
	}
	if dialect != Postgres && dialect != SQLite {
		faults = append(faults, fmt.Errorf("sqlstore: %d is no dialect: use Postgres or SQLite", dialect))
	}
	if !tableName.MatchString(table) {
		faults = append(faults, fmt.Errorf("sqlstore: the table name %q is not made of letters, digits and underscores: choose another", table))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	s := &Store{db: db, dialect: dialect, table: table}
	s.prepare(dialect.now())
	return s, nil
}

var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,40}$`)

// now is an expression for the clock of the database, in milliseconds since
// 1970.
func (d Dialect) now() string {
	if d == SQLite {
		return "cast(unixepoch('subsec') * 1000 as integer)"
	}
	return "(extract(epoch from clock_timestamp()) * 1000)::bigint"
}

// prepare makes the statements. An upsert that finds a row it must not touch
// affects none.
func (s *Store) prepare(now string) {
	const upsert = `
insert into TABLE as held (key, token, fingerprint, done, ends) values ($1, $2, $3, DONE, NOW + $4)
on conflict (key) do update set token = excluded.token, fingerprint = excluded.fingerprint, done = excluded.done, ends = excluded.ends
where held.ends <= NOW or held.token = excluded.token`
	build := func(statement string) string {
		statement = strings.NewReplacer("TABLE", s.table, "NOW", now).Replace(statement)
		if s.dialect == SQLite {
			statement = strings.ReplaceAll(statement, "$", "?")
		}
		return statement
	}
	s.claim = build(strings.ReplaceAll(upsert, "DONE", "0") + " and held.done = 0")
	s.record = build(strings.ReplaceAll(upsert, "DONE", "1"))
	s.look = build("select done, fingerprint, ends - NOW from TABLE where key = $1 and ends > NOW")
	s.release = build("delete from TABLE where key = $1 and token = $2 and done = 0")
	s.sweep = build("delete from TABLE where key in (select key from TABLE where ends <= NOW order by ends limit $1) and ends <= NOW")
}

// Schema returns the statements that create the table and its index unless
// they exist, for those who keep their schema elsewhere.
func (s *Store) Schema() string {
	_, index, found := strings.Cut(s.table, ".")
	if !found {
		index = s.table
	}
	on := s.table
	if s.dialect == SQLite && found { // there the index has the schema, not the table
		index, on = s.table, index
	}
	return fmt.Sprintf(`create table if not exists %s (
	key text primary key,
	token text not null,
	fingerprint text not null,
	done smallint not null, -- 0 while the handler runs, 1 after its success
	ends bigint not null -- of the lease, or of the record: milliseconds since 1970
);
create index if not exists %s_ends on %s (ends);`, s.table, index, on)
}

// CreateTable creates the table and its index unless they exist.
func (s *Store) CreateTable(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, s.Schema())
	if err != nil && s.dialect == Postgres { // another worker may have created it at the same time
		_, err = s.db.ExecContext(ctx, s.Schema())
	}
	return failed("create the table of", err)
}

// Sweep removes at most limit claims and records that have ended, oldest
// first, and returns how many it has removed. One worker that calls it now
// and then is enough; several do no harm.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	n, err := s.exec(ctx, s.sweep, limit)
	return int(n), failed("sweep", err)
}

// looks is how often Begin tries to find out who has a key that is set free
// just when it looks.
const looks = 5

// Begin implements idempotency.Store.
func (s *Store) Begin(ctx context.Context, c idempotency.Claim, lease time.Duration) (idempotency.Record, error) {
	for range looks {
		n, err := s.exec(ctx, s.claim, c.Key, c.Token, c.Fingerprint, milliseconds(lease))
		if err != nil {
			return idempotency.Record{}, failed("claim", err)
		}
		if n > 0 {
			return idempotency.Record{State: idempotency.Claimed, Fingerprint: c.Fingerprint, Left: lease}, nil
		}
		record, err := s.lookUp(ctx, c.Key)
		if !errors.Is(err, sql.ErrNoRows) {
			return record, failed("look up", err)
		}
	}
	return idempotency.Record{State: idempotency.InProgress}, nil
}

func (s *Store) lookUp(ctx context.Context, key string) (idempotency.Record, error) {
	var record idempotency.Record
	var done, left int64
	if err := s.db.QueryRowContext(ctx, s.look, key).Scan(&done, &record.Fingerprint, &left); err != nil {
		return idempotency.Record{}, err
	}
	if done != 0 {
		record.State = idempotency.Done
	}
	record.Left = time.Duration(left) * time.Millisecond
	return record, nil
}

// Complete implements idempotency.Store.
func (s *Store) Complete(ctx context.Context, c idempotency.Claim, ttl time.Duration) error {
	n, err := s.exec(ctx, s.record, c.Key, c.Token, c.Fingerprint, milliseconds(ttl))
	if err == nil && n == 0 {
		return idempotency.ErrClaimLost
	}
	return failed("record", err)
}

// Release implements idempotency.Store.
func (s *Store) Release(ctx context.Context, c idempotency.Claim) error {
	_, err := s.exec(ctx, s.release, c.Key, c.Token)
	return failed("release", err)
}

func (s *Store) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := s.db.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func milliseconds(d time.Duration) int64 { return max(d.Milliseconds(), 1) }

func failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sqlstore: %s an idempotency key: %w", what, err)
}

var _ idempotency.Store = (*Store)(nil)

package sqldb

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// What can be wrong with a store, for errors.Is. The error says more.
var (
	// ErrNewer reports a store that a newer version of the program has brought
	// to a schema which this one does not know. Nothing was changed.
	ErrNewer = errors.New("the store is newer than this program")

	// ErrLocked reports that another process kept the store locked for longer
	// than a call waits, 10 seconds. Nothing was changed; call again.
	ErrLocked = errors.New("another process holds the store locked")

	// ErrFull reports a full disk. Nothing was changed.
	ErrFull = errors.New("the disk of the store is full: make room, and call again")

	// ErrReadOnly reports a store that this process may not write.
	ErrReadOnly = errors.New("the store cannot be written: check the rights of the file and its directory, or of the role")

	// ErrDamaged reports a file that is no store, or no longer.
	ErrDamaged = errors.New("the file is no store, or it is damaged: keep it, and restore a copy beside it")
)

// Failed wraps an error of the database: where it was, and what it means.
func (s *DB) Failed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("store %s: %w", s.name, err)
	}
	if meaning := meaningOf(err); meaning != nil && !errors.Is(err, meaning) {
		return fmt.Errorf("store %s: %w (%w)", s.name, meaning, err)
	}
	return fmt.Errorf("store %s: %w", s.name, err)
}

// meanings are those of the codes of SQLite, without their details, and of Postgres.
var meanings = map[any]error{
	sqlite3.SQLITE_BUSY: ErrLocked, sqlite3.SQLITE_LOCKED: ErrLocked,
	sqlite3.SQLITE_FULL:     ErrFull,
	sqlite3.SQLITE_READONLY: ErrReadOnly, sqlite3.SQLITE_CANTOPEN: ErrReadOnly, sqlite3.SQLITE_PERM: ErrReadOnly,
	sqlite3.SQLITE_CORRUPT: ErrDamaged, sqlite3.SQLITE_NOTADB: ErrDamaged,
	"55P03": ErrLocked,                         // lock_not_available
	"53100": ErrFull,                           // disk_full
	"25006": ErrReadOnly, "42501": ErrReadOnly, // read_only_sql_transaction, insufficient_privilege
	"XX001": ErrDamaged, "XX002": ErrDamaged, // data_corrupted, index_corrupted
}

func meaningOf(err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return meanings[e.Code()&0xff]
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return meanings[e.Code]
	}
	return nil
}

// Refused reports whether the database has refused a row, so that nothing was done,
// and the same may be done without that row.
func Refused(err error) bool {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		code := e.Code() & 0xff
		return code == sqlite3.SQLITE_CONSTRAINT || code == sqlite3.SQLITE_TOOBIG
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && len(e.Code) == 5 {
		switch e.Code[:2] {
		case "22", "23", "40", "54": // its data, a constraint, a deadlock, a limit
			return true
		}
	}
	return false
}

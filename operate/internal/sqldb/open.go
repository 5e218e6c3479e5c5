package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver

	"github.com/redrive-go/redrive/operate/internal/pgaddress"
)

const (
	// patience is how long a call waits for a lock that another process holds.
	patience = 10 * time.Second

	// idle is after how long connections that nobody uses are closed.
	idle = time.Minute
)

// openSQLite opens the file, which only its owner may read. A commit is on the
// disk when it returns (synchronous), and what is deleted is overwritten
// (secure_delete).
func (s *DB) openSQLite(ctx context.Context, path string) error {
	s.name = path
	if err := privateFile(path); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	settings := url.Values{"_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", patience.Milliseconds()),
		"journal_mode(wal)",
		"synchronous(full)",
		"foreign_keys(1)",
		"secure_delete(1)",
		"cache_size(-2048)",
		"wal_autocheckpoint(4000)",
		"journal_size_limit(67108864)",
	}}
	source := url.URL{Scheme: "file", Opaque: (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath(), RawQuery: settings.Encode()}
	db, err := sql.Open("sqlite", source.String())
	if err != nil {
		return s.Failed(err)
	}
	s.use(db, 4)
	// SQLite says nothing when it does not take a setting. It does not wait for
	// another process that makes the log of a new file.
	var journal string
	var synchronous, foreignKeys, secureDelete int
	const settled = "select * from pragma_journal_mode, pragma_synchronous, pragma_foreign_keys, pragma_secure_delete"
	for end := time.Now().Add(patience); ; time.Sleep(patience / 1000) {
		err = db.QueryRowContext(ctx, settled).Scan(&journal, &synchronous, &foreignKeys, &secureDelete)
		if meaningOf(err) != ErrLocked || time.Now().After(end) || ctx.Err() != nil {
			break
		}
	}
	if err == nil && (journal != "wal" || synchronous != 2 || foreignKeys != 1 || secureDelete != 1) {
		err = fmt.Errorf("the file system does not allow what the store needs (journal %s, synchronous %d): use a local disk", journal, synchronous)
	}
	if err != nil {
		return errors.Join(s.Failed(err), db.Close())
	}
	return nil
}

func (s *DB) use(db *sql.DB, connections int) {
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	db.SetConnMaxIdleTime(idle)
	s.db = db
}

// privateFile creates the file unless it is there, and makes sure that it is
// nobody else's to read: messages are as secret as their topics.
func privateFile(path string) error {
	switch {
	case path == "" || strings.HasPrefix(path, ":memory:"):
		return fmt.Errorf("%q keeps nothing: use the name of a file", path)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%q is no name of a file", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("others may read %s (mode %#o), and it holds the contents of messages: chmod 600 %s", path, mode, path)
	}
	return nil
}

// openPostgres connects. The tables are in a schema of their own unless the URL
// names one.
func (s *DB) openPostgres(ctx context.Context, source string) error {
	config, err := pgx.ParseConfig(source)
	if err != nil {
		return fmt.Errorf("store: the address %w", pgaddress.Failure(err))
	}
	s.name, s.postgres = fmt.Sprintf("%s@%s/%s", config.User, config.Host, config.Database), true
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // most statements are written anew
	for name, value := range map[string]string{
		"search_path":                         s.options.Schema,
		"application_name":                    "redrive",
		"lock_timeout":                        strconv.FormatInt(patience.Milliseconds(), 10),
		"idle_in_transaction_session_timeout": "60000", // a process that froze locks nobody out
	} {
		if _, given := config.RuntimeParams[name]; !given {
			config.RuntimeParams[name] = value
		}
	}
	schema, _, _ := strings.Cut(config.RuntimeParams["search_path"], ",")
	s.schema = pgx.Identifier{strings.TrimSpace(schema)}.Sanitize()
	s.use(stdlib.OpenDB(*config), 8)
	var durable string
	if err := s.db.QueryRowContext(ctx, "show synchronous_commit").Scan(&durable); err != nil {
		return errors.Join(s.Failed(err), s.db.Close())
	}
	if durable == "off" {
		return errors.Join(fmt.Errorf("store: %s acknowledges what a crash would lose (synchronous_commit=off): alter role %s set synchronous_commit = on", s.name, config.User), s.db.Close())
	}
	return nil
}

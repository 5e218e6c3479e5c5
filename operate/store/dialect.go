package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// dialect is what differs between the databases. Statements are written with ?
// for an argument, and with a few words more:
//
//	IDS       a table of one column, v, of the numbers in an argument of type ids
//	KEYS      likewise, of the values in an argument of type keys
//	BYTES     the type of all texts; EMPTY is an empty one
//	KEY       in a schema, the type of a number by which rows are found
//	COUNTERS  in a schema, a column for each state; OPEN is the sum of those of open letters
type dialect struct {
	postgres bool
	schema   string // on Postgres
	lock     string // a statement that waits until nobody else writes
	snapshot sql.IsolationLevel
	words    *strings.Replacer
}

type (
	ids  []int64
	keys [][]byte
)

func sqliteDialect() dialect {
	return dialect{
		lock: "select 1", // the transaction has begun as a writer
		words: strings.NewReplacer(append(schemaWords(),
			"IDS", "select value as v from json_each(?)",
			"KEYS", "select unhex(value) as v from json_each(?)",
			"KEY", "integer primary key",
			"BYTES", "blob",
			"EMPTY", "x''")...),
	}
}

func postgresDialect() dialect {
	return dialect{
		postgres: true,
		lock:     "lock table ids in exclusive mode",
		snapshot: sql.LevelRepeatableRead,
		words: strings.NewReplacer(append(schemaWords(),
			"IDS", "select unnest(?::bigint[]) as v",
			"KEYS", "select unnest(?::bytea[]) as v",
			"KEY", "bigint primary key",
			"BYTES", "bytea",
			"EMPTY", "''")...),
	}
}

func schemaWords() []string {
	columns := strings.ReplaceAll(counters(""), ",", " bigint not null default 0,") + " bigint not null default 0"
	return []string{"COUNTERS", columns, "OPEN", openSum("")}
}

// conn is a transaction, and the connection that it is on.
type conn struct {
	tx   *sql.Tx
	line *sql.Conn
	dialect
}

func (c conn) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := c.tx.ExecContext(ctx, c.spell(statement), c.values(args)...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// each calls row for each row of the result, with a function that reads it, which
// fails when ctx ends.
func (c conn) each(ctx context.Context, query string, args []any, row func(scan func(...any) error) error) error {
	rows, err := c.tx.QueryContext(ctx, c.spell(query), c.values(args)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// get reads the only row of a result, and reports whether there was one.
func (c conn) get(ctx context.Context, query string, args []any, dest ...any) (found bool, err error) {
	err = c.each(ctx, query, args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	return found, err
}

// numbers reads a result of one column.
func (c conn) numbers(ctx context.Context, query string, args ...any) (list ids, err error) {
	err = c.each(ctx, query, args, func(scan func(...any) error) error {
		var n int64
		err := scan(&n)
		list = append(list, n)
		return err
	})
	return list, err
}

// spell puts a statement into the language of the database.
func (c conn) spell(statement string) string {
	statement = c.words.Replace(statement)
	if !c.postgres {
		return statement
	}
	var b strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(statement, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString("$" + strconv.Itoa(n))
		statement = after
	}
}

// values puts arguments into the types of the database.
func (c conn) values(args []any) []any {
	out := make([]any, len(args))
	for i, arg := range args {
		out[i] = c.value(arg)
	}
	return out
}

func (c conn) value(arg any) any {
	switch v := arg.(type) {
	case string:
		return []byte(v)
	case time.Time:
		return millis(v)
	case bool:
		if v {
			return int64(1)
		}
		return int64(0)
	case int:
		return int64(v)
	case State:
		return v.code()
	case []State:
		codes := make(ids, len(v))
		for i, s := range v {
			codes[i] = s.code()
		}
		return c.value(codes)
	case ids:
		if c.postgres {
			return []int64(v)
		}
		b, _ := json.Marshal(v) // numbers always can be
		return string(b)
	case keys:
		if c.postgres {
			return [][]byte(v)
		}
		list := make([]string, len(v))
		for i, key := range v {
			list[i] = hex.EncodeToString(key)
		}
		b, _ := json.Marshal(list) // so can these
		return string(b)
	}
	return arg
}

// Bounds of a statement that has many rows. SQLite allows 32766 arguments.
const (
	maxRows  = 200
	maxBytes = 4 << 20
)

// insert adds rows to a table.
func (c conn) insert(ctx context.Context, table string, columns []string, rows [][]any) error {
	if c.postgres {
		return c.copyRows(ctx, table, columns, rows)
	}
	// The caller ends the transaction after an error, so SQLite need not be able
	// to undo one statement.
	const into = "insert or rollback into "
	return c.chunks(ctx, into+table+" ("+strings.Join(columns, ", ")+") values ROWS", "(?"+strings.Repeat(", ?", len(columns)-1)+")", rows)
}

// copyRows adds rows by Postgres's COPY, which is made for many.
func (c conn) copyRows(ctx context.Context, table string, columns []string, rows [][]any) error {
	if len(rows) == 0 {
		return nil
	}
	return c.line.Raw(func(driver any) error {
		source := pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) { return c.values(rows[i]), nil })
		_, err := driver.(*stdlib.Conn).Conn().CopyFrom(ctx, pgx.Identifier{table}, columns, source)
		return err
	})
}

// update runs a statement with rows of numbers, in place of its word ROWS.
func (c conn) update(ctx context.Context, statement string, rows [][]any) error {
	if len(rows) == 0 {
		return nil
	}
	const number = "cast(? as bigint)"
	return c.chunks(ctx, statement, "("+number+strings.Repeat(", "+number, len(rows[0])-1)+")", rows)
}

// chunks runs a statement with as many rows at a time as are good for it. Where
// nothing else tells the types, the first row does.
func (c conn) chunks(ctx context.Context, statement, first string, rows [][]any) error {
	for len(rows) > 0 {
		args := make([]any, 0, min(len(rows), maxRows)*len(rows[0]))
		n, bytes := 0, 0
		for ; n < min(len(rows), maxRows) && bytes < maxBytes; n++ {
			args = append(args, rows[n]...)
			for _, v := range rows[n] {
				if b, ok := v.([]byte); ok {
					bytes += len(b)
				}
			}
		}
		list := first + strings.Repeat(", (?"+strings.Repeat(", ?", len(rows[0])-1)+")", n-1)
		if _, err := c.exec(ctx, strings.Replace(statement, "ROWS", list, 1), args...); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// next returns the first of n numbers that no row of this kind has had.
func (c conn) next(ctx context.Context, name string, n int) (first int64, err error) {
	_, err = c.get(ctx, `insert into ids (name, last) values (?, ?)
		on conflict (name) do update set last = ids.last + excluded.last returning last`, []any{name, n}, &first)
	return first - int64(n) + 1, err
}

const maxMillis = 253_402_300_799_999 // the end of year 9999

// millis is how a time is stored: 0 for none, and for what was before 1970.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return min(max(t.UnixMilli(), 0), maxMillis)
}

func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// stored reads a column into a value of another type.
type stored func(n int64)

// Scan implements sql.Scanner.
func (f stored) Scan(src any) error {
	var n sql.NullInt64
	if err := n.Scan(src); err != nil {
		return err
	}
	f(n.Int64)
	return nil
}

func intoTime(t *time.Time) stored { return func(n int64) { *t = timeOf(n) } }
func intoBool(b *bool) stored      { return func(n int64) { *b = n != 0 } }
func intoState(s *State) stored    { return func(n int64) { *s = stateOf(n) } }

package sqldb

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// dialect is what differs between the databases.
type dialect struct {
	postgres bool
	schema   string // on Postgres
	snapshot sql.IsolationLevel
	words    *strings.Replacer
	other    func(arg any) any // values of the other types
}

// IDs are the numbers that the word IDS stands for.
type IDs []int64

// Keys are the values that the word KEYS stands for.
type Keys [][]byte

func sqliteDialect(o Options) dialect {
	return dialect{
		other: o.Value,
		words: strings.NewReplacer(slices.Concat(o.Words, []string{
			"IDS", "select value as v from json_each(?)",
			"KEYS", "select unhex(value) as v from json_each(?)",
			"KEY", "integer primary key",
			"BYTES", "blob",
			"EMPTY", "x''"})...),
	}
}

func postgresDialect(o Options) dialect {
	return dialect{
		postgres: true,
		other:    o.Value,
		snapshot: sql.LevelRepeatableRead,
		words: strings.NewReplacer(slices.Concat(o.Words, []string{
			"IDS", "select unnest(?::bigint[]) as v",
			"KEYS", "select unnest(?::bytea[]) as v",
			"KEY", "bigint primary key",
			"BYTES", "bytea",
			"EMPTY", "''"})...),
	}
}

// Tx is a transaction, and the connection that it is on. Statements are written
// with ? for an argument, and with a few words more:
//
//	IDS    a table of one column, v, of the numbers in an argument of type [IDs]
//	KEYS   likewise, of the values in an argument of type [Keys]
//	ROWS   the rows that [Tx.Update] or [Tx.Batch] is given
//	BYTES  the type of all texts; EMPTY is an empty one
//	KEY    in a schema, the type of a number by which rows are found
//
// Texts are stored as bytes, times in milliseconds, and bool as 0 and 1.
type Tx struct {
	tx   *sql.Tx
	line *sql.Conn
	dialect
}

// Exec runs a statement, and returns how many rows it changed.
func (c Tx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := c.tx.ExecContext(ctx, c.spell(statement), c.values(args)...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Query returns the result of a query.
func (c Tx) Query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return c.tx.QueryContext(ctx, c.spell(query), c.values(args)...)
}

// Each calls row for each row of the result, with a function that reads it, which
// fails when ctx ends.
func (c Tx) Each(ctx context.Context, query string, args []any, row func(scan func(...any) error) error) error {
	rows, err := c.Query(ctx, query, args...)
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

// Get reads the only row of a result, and reports whether there was one.
func (c Tx) Get(ctx context.Context, query string, args []any, dest ...any) (found bool, err error) {
	err = c.Each(ctx, query, args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	return found, err
}

// Numbers reads a result of one column.
func (c Tx) Numbers(ctx context.Context, query string, args ...any) (list IDs, err error) {
	err = c.Each(ctx, query, args, func(scan func(...any) error) error {
		var n int64
		err := scan(&n)
		list = append(list, n)
		return err
	})
	return list, err
}

// spell puts a statement into the language of the database.
func (c Tx) spell(statement string) string {
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
func (c Tx) values(args []any) []any {
	out := make([]any, len(args))
	for i, arg := range args {
		out[i] = c.value(arg)
	}
	return out
}

func (c Tx) value(arg any) any {
	if c.other != nil {
		arg = c.other(arg)
	}
	switch v := arg.(type) {
	case string:
		return []byte(v)
	case time.Time:
		return Millis(v)
	case bool:
		if v {
			return int64(1)
		}
		return int64(0)
	case int:
		return int64(v)
	case IDs:
		if c.postgres {
			return []int64(v)
		}
		b, _ := json.Marshal(v) // Numbers always can be
		return string(b)
	case Keys:
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
	MaxBytes = 4 << 20
)

// Insert adds rows to a table.
func (c Tx) Insert(ctx context.Context, table string, columns []string, rows [][]any) error {
	if c.postgres {
		return c.copyRows(ctx, table, columns, rows)
	}
	// The caller ends the transaction after an error, so SQLite need not be able
	// to undo one statement.
	const into = "insert or rollback into "
	return c.Batch(ctx, into+table+" ("+strings.Join(columns, ", ")+") values ROWS", nil, rows, nil)
}

// copyRows adds rows by Postgres's COPY, which is made for many.
func (c Tx) copyRows(ctx context.Context, table string, columns []string, rows [][]any) error {
	if len(rows) == 0 {
		return nil
	}
	return c.line.Raw(func(driver any) error {
		source := pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) { return c.values(rows[i]), nil })
		_, err := driver.(*stdlib.Conn).Conn().CopyFrom(ctx, pgx.Identifier{table}, columns, source)
		return err
	})
}

// Update runs a statement with rows of numbers, in place of its word ROWS.
func (c Tx) Update(ctx context.Context, statement string, rows [][]any) error {
	if len(rows) == 0 {
		return nil
	}
	return c.Batch(ctx, statement, slices.Repeat([]string{"bigint"}, len(rows[0])), rows, nil)
}

// Batch runs a statement with rows in place of its word ROWS, as many at a time as
// are good for it. Types are those of the columns, where nothing else tells them.
// It calls row for each row of the results, as [Tx.Each] does, unless row is nil.
func (c Tx) Batch(ctx context.Context, statement string, types []string, rows [][]any, row func(scan func(...any) error) error) error {
	for len(rows) > 0 {
		args := make([]any, 0, min(len(rows), maxRows)*len(rows[0]))
		n, bytes := 0, 0
		for ; n < min(len(rows), maxRows) && bytes < MaxBytes; n++ {
			args = append(args, rows[n]...)
			for _, v := range rows[n] {
				if b, ok := v.([]byte); ok {
					bytes += len(b)
				}
			}
		}
		one := "(?" + strings.Repeat(", ?", len(rows[0])-1) + ")"
		first := one
		if types != nil { // the first row tells the types of the others
			first = "(cast(? as " + strings.Join(types, "), cast(? as ") + "))"
		}
		text := strings.Replace(statement, "ROWS", first+strings.Repeat(", "+one, n-1), 1)
		if err := c.run(ctx, text, args, row); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func (c Tx) run(ctx context.Context, statement string, args []any, row func(scan func(...any) error) error) error {
	if row != nil {
		return c.Each(ctx, statement, args, row)
	}
	_, err := c.Exec(ctx, statement, args...)
	return err
}

const maxMillis = 253_402_300_799_999 // the end of year 9999

// Millis is how a time is stored: 0 for none, and for what was before 1970.
func Millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return min(max(t.UnixMilli(), 0), maxMillis)
}

// TimeOf is the time of so many milliseconds, zero for 0.
func TimeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// Stored reads a column into a value of another type.
type Stored func(n int64)

// Scan implements [sql.Scanner].
func (f Stored) Scan(src any) error {
	var n sql.NullInt64
	if err := n.Scan(src); err != nil {
		return err
	}
	f(n.Int64)
	return nil
}

// IntoTime reads a column into a time.
func IntoTime(t *time.Time) Stored { return func(n int64) { *t = TimeOf(n) } }

// IntoBool reads a column into a bool.
func IntoBool(b *bool) Stored { return func(n int64) { *b = n != 0 } }

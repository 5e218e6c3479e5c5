package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// ErrNotEmpty reports a store that Copy does not write to, because it holds
// something, or once did.
var ErrNotEmpty = errors.New("the store is not empty")

// Copy writes all that s holds into another store, which must be new: for a
// backup, or to change from a file to Postgres. The copy is what s was at one
// moment, with all numbers, while others go on writing; it is complete, or, after
// an error, still empty.
//
// A copy into a file needs twice its room until it is done, and a file that is
// copied does not give room back meanwhile.
func (s *Store) Copy(ctx context.Context, to *Store) error {
	return s.read(ctx, func(from conn) error {
		return to.write(ctx, func(tx conn) error {
			used, err := tx.Get(ctx, "select last from ids limit 1", nil, new(int64))
			if err != nil {
				return err
			}
			if used {
				return fmt.Errorf("%w: copy into a new one", ErrNotEmpty)
			}
			for _, table := range []string{"ids", "topics", "clusters", "letters", "contents", "parts", "acts", "changes", "jobs", "waves", "skips"} {
				if err := copyTable(ctx, from, tx, table); err != nil {
					return fmt.Errorf("copying %s: %w", table, err)
				}
			}
			return nil
		})
	})
}

func copyTable(ctx context.Context, from, to conn, table string) error {
	rows, err := from.Query(ctx, "select * from "+table+" order by 1")
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	var batch [][]any
	bytes := 0
	for rows.Next() {
		row, dest := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			dest[i] = &row[i]
		}
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		for i, value := range row {
			if b, ok := value.([]byte); ok {
				row[i] = notNil(b) // SQLite returns nil for what is empty, too
				bytes += len(b)
			}
		}
		if batch = append(batch, row); len(batch) < 1000 && bytes < sqldb.MaxBytes {
			continue
		}
		if err := to.Insert(ctx, table, columns, batch); err != nil {
			return err
		}
		batch, bytes = batch[:0], 0
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return to.Insert(ctx, table, columns, batch)
}

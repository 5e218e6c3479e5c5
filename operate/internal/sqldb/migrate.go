package sqldb

import (
	"context"
	"fmt"
	"io/fs"
)

// migrate creates the tables, or brings them up to date, in one transaction.
func (s *DB) migrate(ctx context.Context) error {
	files, err := fs.Glob(s.options.Migrations, "migrations/*.sql") // in order
	if err != nil {
		return err
	}
	return s.transact(ctx, nil, func(tx Tx) error {
		if err := tx.prepareSchema(ctx, s.options.Meta); err != nil {
			return err
		}
		var at int
		if _, err := tx.Get(ctx, "select version from "+s.options.Meta, nil, &at); err != nil {
			return err
		}
		if at > len(files) {
			return fmt.Errorf("%w: it has version %d of the schema, this program knows %d: use the program that wrote it, or a newer one", ErrNewer, at, len(files))
		}
		for ; at < len(files); at++ {
			text, err := fs.ReadFile(s.options.Migrations, files[at])
			if err != nil {
				return err
			}
			if _, err := tx.tx.ExecContext(ctx, s.translate(string(text))); err != nil {
				return fmt.Errorf("migration %d: %w", at+1, err)
			}
		}
		_, err := tx.Exec(ctx, "update "+s.options.Meta+" set version = ? where version < ?", at, at)
		return err
	})
}

// prepareSchema makes the table that says what the others are. Processes that
// start together do so one after the other.
func (c Tx) prepareSchema(ctx context.Context, meta string) error {
	if c.db.postgres {
		const some = 7_237_354_918 // a lock that is ours alone
		if _, err := c.Exec(ctx, "select pg_advisory_xact_lock(?)", some); err != nil {
			return err
		}
		var missing bool // a role that may not create schemas can use one
		if _, err := c.Get(ctx, "select current_schema() is null", nil, &missing); err != nil {
			return err
		}
		if missing {
			if _, err := c.Exec(ctx, "create schema "+c.db.schema); err != nil {
				return err
			}
		}
	}
	_, err := c.Exec(ctx, "create table if not exists "+meta+" (version bigint not null)")
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, "insert into "+meta+" (version) select 0 where not exists (select 1 from "+meta+")")
	return err
}

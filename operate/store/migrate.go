package store

import (
	"context"
	"embed"
	"fmt"
)

//go:embed migrations
var migrations embed.FS

// version is that of the schema which this program knows, and the number of the
// last migration.
const version = 1

// migrate creates the tables, or brings them up to date, in one transaction.
func (s *Store) migrate(ctx context.Context) error {
	return s.transact(ctx, nil, func(tx conn) error {
		if err := tx.prepareSchema(ctx); err != nil {
			return err
		}
		var at int
		if _, err := tx.get(ctx, "select version from meta", nil, &at); err != nil {
			return err
		}
		if at > version {
			return fmt.Errorf("%w: it has version %d of the schema, this program knows %d: use the program that wrote it, or a newer one", ErrNewer, at, version)
		}
		for at < version {
			at++
			text, err := migrations.ReadFile(fmt.Sprintf("migrations/%04d.sql", at))
			if err != nil {
				return err
			}
			if _, err := tx.tx.ExecContext(ctx, tx.words.Replace(string(text))); err != nil {
				return fmt.Errorf("migration %d: %w", at, err)
			}
		}
		_, err := tx.exec(ctx, "update meta set version = ? where version < ?", at, at)
		return err
	})
}

// prepareSchema makes the table that says what the others are. Processes that
// start together do so one after the other.
func (c conn) prepareSchema(ctx context.Context) error {
	if c.postgres {
		const some = 7_237_354_918 // a lock that is ours alone
		if _, err := c.exec(ctx, "select pg_advisory_xact_lock(?)", some); err != nil {
			return err
		}
		var missing bool // a role that may not create schemas can use one
		if _, err := c.get(ctx, "select current_schema() is null", nil, &missing); err != nil {
			return err
		}
		if missing {
			if _, err := c.exec(ctx, "create schema "+c.schema); err != nil {
				return err
			}
		}
	}
	_, err := c.exec(ctx, "create table if not exists meta (version bigint not null)")
	if err != nil {
		return err
	}
	_, err = c.exec(ctx, "insert into meta (version) select 0 where not exists (select 1 from meta)")
	return err
}

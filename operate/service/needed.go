package service

import (
	"context"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

const bodiesOfTasks = `select distinct body_ref from retry_tasks
	where body_ref in (?) and body_ref <> '' and status in (0, 1, 3)`

// NeededBodies returns those of refs that tasks need: those that wait or are called,
// and those that are exhausted, as they may come back.
func (s *Store) NeededBodies(ctx context.Context, refs []string) ([]string, error) {
	var keys [][]byte
	for _, ref := range refs {
		keys = append(keys, []byte(ref))
	}
	return sqldb.Result(ctx, s.db.Look, func(tx sqldb.Tx) ([]string, error) {
		return sqldb.All(ctx, tx, bodiesOfTasks, []any{keys}, func(ref *string) []any { return []any{ref} })
	})
}

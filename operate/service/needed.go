package service

import (
	"context"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// NeededBodies returns those of refs that tasks need: tasks that are called, and those
// that are exhausted, as they may come back.
func (s *Store) NeededBodies(ctx context.Context, refs []string) (needed []string, err error) {
	keys := make([][]any, len(refs))
	for i, ref := range refs {
		keys[i] = []any{ref}
	}
	return needed, nil
}

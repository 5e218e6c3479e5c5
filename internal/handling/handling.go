// Package handling tells the contexts of handlers from others, for packages
// that may be used in both.
package handling

import "context"

// Key is the key under which the context of a handler has its attempt.
type Key struct{}

// Shares reports whether ctx is that of a handler, or comes from one, whose
// dependency is paced by a consumer and has the budget shared.
func Shares(ctx context.Context, shared any) bool {
	run, ok := ctx.Value(Key{}).(interface{ Shares(any) bool })
	return ok && run.Shares(shared)
}

// Returned reports whether ctx is that of a handler, or comes from one, that runs
// for a message which was sent back from a dead-letter queue.
func Returned(ctx context.Context) bool {
	run, ok := ctx.Value(Key{}).(interface{ Returned() bool })
	return ok && run.Returned()
}

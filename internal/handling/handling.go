// Package handling tells the contexts of handlers from others, for packages
// that may be used in both.
package handling

import "context"

// Key is the key under which the context of a handler has its attempt.
type Key struct{}

// In reports whether ctx is that of a handler, of single messages or of
// batches, or comes from one.
func In(ctx context.Context) bool { return ctx.Value(Key{}) != nil }

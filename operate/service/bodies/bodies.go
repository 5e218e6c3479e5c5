// Package bodies keeps the large bodies of tasks outside of their rows: here in a
// directory, and by package s3bodies in an object store.
//
// # What is promised
//
//   - A body is durable before Put returns its name.
//   - A name says the tenant and what is in the body, so the same body has the same
//     name each time, and no tenant has a name in common with another.
//   - Nothing is deleted that a task names, or that was put or kept after the time
//     that Sweep is given, however calls of several processes mingle.
package bodies

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"
)

// Store keeps bodies. Its methods may be called at the same time, by several
// processes too. A name is the tenant, a slash, and the SHA-256 of the body in
// hexadecimal letters.
type Store interface {
	// Put keeps a body of a tenant, and returns its name.
	Put(ctx context.Context, tenant string, body io.Reader) (ref string, err error)

	// Keep makes a body as new as if it was put now, or fails with [ErrNotFound] or
	// [ErrTooLarge].
	Keep(ctx context.Context, ref string) error

	// Open opens a body of size bytes, or fails with [ErrNotFound] or [ErrTooLarge]. Once
	// it is open, it can be read until it is closed, whatever becomes of ctx.
	Open(ctx context.Context, ref string) (body io.ReadCloser, size int64, err error)

	// Sweep deletes what is older than before and has no name that named returns of
	// those it is given, and says how much that was.
	Sweep(ctx context.Context, before time.Time, named Named) (deleted int, err error)
}

// Named returns those of refs that tasks name.
type Named func(ctx context.Context, refs []string) ([]string, error)

// MaxSize is how many bytes a body has at most.
const MaxSize = 16 << 20

var (
	// ErrNotFound reports that no body of this name is kept.
	ErrNotFound = errors.New("no body of this name is kept")

	// ErrTooLarge reports a body of more than [MaxSize] bytes, which somebody else than
	// Put has put there.
	ErrTooLarge = fmt.Errorf("the body has more than %d bytes", MaxSize)
)

// Ref is the name of a body of a tenant, by the SHA-256 of the body.
func Ref(tenant string, sum hash.Hash) string { return tenant + "/" + hex.EncodeToString(sum.Sum(nil)) }

// Split checks a name that somebody gave, and returns what it is made of. The error
// is an [ErrNotFound].
func Split(ref string) (tenant, sum string, err error) {
	tenant, sum, ok := strings.Cut(ref, "/")
	raw, err := hex.DecodeString(sum)
	if !ok || err != nil || len(raw) != 32 || sum != strings.ToLower(sum) || tenant == "" || tenant[0] == '.' || strings.ContainsAny(tenant, `\:`) {
		return "", "", fmt.Errorf("%w: %.100q is no name of one", ErrNotFound, ref)
	}
	return tenant, sum, nil
}

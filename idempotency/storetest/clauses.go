package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redrive-go/redrive/idempotency"
)

func claimClauses() []clause {
	return []clause{
		{"claim", "a key that nobody has is claimed, and nobody else may have it then", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return steps(
				func() error { return t.meets(a, a, idempotency.Claimed) },
				func() error { return t.meets(b, a, idempotency.InProgress) },
				func() error { return t.meets(b, a, idempotency.InProgress) },
			)
		}},
		{"claim twice", "a claim that is repeated, because its answer got lost, is still the same claim", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return steps(
				func() error { return t.begin(a, long, idempotency.Claimed) },
				func() error { return t.begin(a, long, idempotency.Claimed) },
				func() error { return t.meets(b, a, idempotency.InProgress) },
			)
		}},
		{"lease", "a claim ends with its lease: what a crash left between effect and record is handled again", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return steps(
				func() error { return t.begin(a, t.short(), idempotency.Claimed) },
				func() error { t.pass(); return t.meets(b, b, idempotency.Claimed) },
			)
		}},
		{"extend", "Begin by the token that has the key extends its lease from now", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return steps(
				func() error { return t.begin(a, 2*t.short(), idempotency.Claimed) },
				func() error { return t.begin(a, long, idempotency.Claimed) },
				func() error { t.pass(); return t.meets(b, a, idempotency.InProgress) },
			)
		}},
		{"release", "a key that was released may be claimed at once", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return steps(
				func() error { return t.begin(a, long, idempotency.Claimed) },
				func() error { return t.release(a) },
				func() error { return t.meets(b, b, idempotency.Claimed) },
				func() error { return t.release(a) },
				func() error { return t.meets(t.claim("key"), b, idempotency.InProgress) },
			)
		}},
		{"release of nothing", "Release of a key that nobody has is no error", func(t *trial) error {
			return t.release(t.claim("key"))
		}},
		{"release by another", "only the token that has the key can release it", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return steps(
				func() error { return t.begin(a, long, idempotency.Claimed) },
				func() error { return t.release(b) },
				func() error { return t.meets(b, a, idempotency.InProgress) },
			)
		}},
	}
}

func doneClauses() []clause {
	return []clause{
		{"done", "what was completed is done for everybody, with the fingerprint of its claim", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return steps(
				func() error { return t.begin(a, long, idempotency.Claimed) },
				func() error { return t.complete(a, long) },
				func() error { return t.meets(b, a, idempotency.Done) },
				func() error { return t.meets(a, a, idempotency.Done) },
			)
		}},
		{"done twice", "Complete that is repeated, because its answer got lost, is no error", func(t *trial) error {
			a := t.claim("key")
			return steps(
				func() error { return t.begin(a, long, idempotency.Claimed) },
				func() error { return t.complete(a, long) },
				func() error { return t.complete(a, long) },
				func() error { return t.meets(t.claim("key"), a, idempotency.Done) },
			)
		}},
		{"success only", "a claim is no record: as long as nothing was completed, nothing is done", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return steps(
				func() error { return t.begin(a, long, idempotency.Claimed) },
				func() error { return t.begin(b, long, idempotency.InProgress) },
				func() error { return t.release(a) },
				func() error { return t.begin(b, long, idempotency.Claimed) },
			)
		}},
		{"done outlasts the lease", "a record lasts for its TTL, whatever the lease was", func(t *trial) error {
			a := t.claim("key")
			return steps(
				func() error { return t.begin(a, 2*t.short(), idempotency.Claimed) },
				func() error { return t.complete(a, long) },
				func() error { t.pass(); return t.meets(t.claim("key"), a, idempotency.Done) },
			)
		}},
		{"ttl", "a record ends with its TTL", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return steps(
				func() error { return t.begin(a, long, idempotency.Claimed) },
				func() error { return t.complete(a, t.short()) },
				func() error { t.pass(); return t.meets(b, b, idempotency.Claimed) },
			)
		}},
		{"done cannot be released", "Release leaves alone what is done", func(t *trial) error {
			a := t.claim("key")
			return steps(
				func() error { return t.begin(a, long, idempotency.Claimed) },
				func() error { return t.complete(a, long) },
				func() error { return t.release(a) },
				func() error { return t.meets(t.claim("key"), a, idempotency.Done) },
			)
		}},
		{"done by one", "a key that is done cannot be completed by another token", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return steps(
				func() error { return t.begin(a, long, idempotency.Claimed) },
				func() error { return t.complete(a, long) },
				func() error { return t.refused(b) },
				func() error { return t.meets(b, a, idempotency.Done) },
			)
		}},
	}
}

// lossClauses are about a run that is slower than its lease.
func lossClauses() []clause {
	taken := func(t *trial, a, b idempotency.Claim, then ...func() error) error {
		return steps(append([]func() error{
			func() error { return t.begin(a, t.short(), idempotency.Claimed) },
			func() error { t.pass(); return t.begin(b, long, idempotency.Claimed) },
		}, then...)...)
	}
	return []clause{
		{"late completion", "who lost the key to another cannot complete it, nor disturb the other", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return taken(t, a, b,
				func() error { return t.refused(a) },
				func() error { return t.meets(t.claim("key"), b, idempotency.InProgress) },
				func() error { return t.complete(b, long) },
				func() error { return t.meets(a, b, idempotency.Done) },
			)
		}},
		{"late extension", "who lost the key to another cannot extend the claim", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return taken(t, a, b,
				func() error { return t.meets(a, b, idempotency.InProgress) },
				func() error { return t.complete(b, long) },
			)
		}},
		{"late release", "who lost the key to another cannot release it", func(t *trial) error {
			a, b := t.claim("key"), t.claim("key")
			return taken(t, a, b,
				func() error { return t.release(a) },
				func() error { return t.meets(a, b, idempotency.InProgress) },
			)
		}},
		{"late but first", "a claim that ended, and that nobody took, can still be completed", func(t *trial) error {
			a := t.claim("key")
			return steps(
				func() error { return t.begin(a, t.short(), idempotency.Claimed) },
				func() error { t.pass(); return t.complete(a, long) },
				func() error { return t.meets(t.claim("key"), a, idempotency.Done) },
			)
		}},
		{"late but still wanted", "a claim that ended, and that nobody took, can be made again", func(t *trial) error {
			a := t.claim("key")
			return steps(
				func() error { return t.begin(a, t.short(), idempotency.Claimed) },
				func() error { t.pass(); return t.begin(a, long, idempotency.Claimed) },
				func() error { return t.meets(t.claim("key"), a, idempotency.InProgress) },
			)
		}},
	}
}

func keyClauses() []clause {
	return []clause{
		{"keys", "keys differ if one byte does", func(t *trial) error {
			for _, key := range awkwardKeys() {
				if err := t.begin(t.claim(key), long, idempotency.Claimed); err != nil {
					return err
				}
			}
			for _, key := range awkwardKeys() {
				if err := t.begin(t.claim(key), long, idempotency.InProgress); err != nil {
					return err
				}
			}
			return nil
		}},
		{"fingerprints", "fingerprints come back as they were, the empty one too", func(t *trial) error {
			for i, f := range append(awkwardKeys(), "") {
				a := t.claim(fmt.Sprintf("key %d", i))
				a.Fingerprint = f
				if err := t.begin(a, long, idempotency.Claimed); err != nil {
					return err
				}
				record, err := t.again().Begin(t.Context(), t.claim(a.Key), long)
				if err != nil || record.Fingerprint != f {
					return fmt.Errorf("the fingerprint %q comes back as %q, %v", f, record.Fingerprint, err)
				}
			}
			return nil
		}},
		{"ended context", "a call whose context has ended fails, and says why", func(t *trial) error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			a := t.claim("key")
			_, err := t.store.Begin(ctx, a, long)
			for call, err := range map[string]error{"Begin": err, "Complete": t.store.Complete(ctx, a, long), "Release": t.store.Release(ctx, a)} {
				if !errors.Is(err, context.Canceled) {
					return fmt.Errorf("%s returns %v, want context.Canceled", call, err)
				}
			}
			return t.begin(t.claim("key"), long, idempotency.Claimed)
		}},
	}
}

func awkwardKeys() []string {
	return []string{
		"a", "A", "a ", " a", "á", "a\u0301", "%", "_", "*", "?", "'", `"`, "\\", "$1", "{a}", "a:b", "null", "0", "00",
		strings.Repeat("k", 254) + "1", strings.Repeat("k", 254) + "2", strings.Repeat("鍵", 85), "\U0001F511",
	}
}

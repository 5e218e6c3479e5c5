// Package storetest checks that an idempotency.Store keeps its contract. It
// is the manual for a new store: every clause prints the rule that it guards
// and what it saw instead.
//
// It uses the standard testing package alone.
package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/idempotency"
)

// Harness tells the suite how to reach a store. Open alone is required.
type Harness struct {
	// Open returns an empty store, or an empty part of a shared one. The suite
	// calls it once per clause; what there is to clean up belongs into
	// t.Cleanup.
	Open func(t testing.TB) idempotency.Store

	// Again returns the same store as another worker sees it, through a client
	// of its own. Nil means the same value.
	Again func(t testing.TB, s idempotency.Store) idempotency.Store

	// Virtual says that the store lives in this process: every clause then
	// runs in a testing/synctest bubble.
	Virtual bool

	// Pass lets a time pass on the clock of the store. Nil waits for it.
	Pass func(d time.Duration)

	// Unit is the lease of claims that are to end, and should be well above
	// the granularity of the store. 0 means 50 ms.
	Unit time.Duration

	// Address says where another process reaches the store that Open
	// returned. Its package then calls Victim in TestMain. Nil skips the
	// clause about a killed process.
	Address func(t testing.TB, s idempotency.Store) string
}

// Run checks a store against every clause, each in a subtest of its name.
func Run(t *testing.T, h Harness) {
	if h.Open == nil {
		t.Fatal("storetest: Harness.Open is nil: there is no store to check")
	}
	for _, c := range clauses() {
		t.Run(c.name, func(t *testing.T) {
			err := h.try(t, c)
			if reason, ok := errors.AsType[skip](err); ok {
				t.Skip(reason)
			}
			if err != nil {
				t.Errorf("\nrule:     %s\nobserved: %v", c.rule, err)
			}
		})
	}
}

// clause is one rule of the contract and the check that guards it.
type clause struct {
	name  string
	rule  string
	check func(*trial) error
}

func clauses() []clause {
	return slices.Concat(claimClauses(), doneClauses(), lossClauses(), keyClauses(), workerClauses())
}

// skip is the reason why a clause says nothing about a store.
type skip string

func (s skip) Error() string { return string(s) }

func (h Harness) try(t *testing.T, c clause) (err error) {
	if !h.Virtual {
		return c.check(h.trial(t))
	}
	synctest.Test(t, func(t *testing.T) { err = c.check(h.trial(t)) })
	return err
}

// trial is one clause on one store.
type trial struct {
	testing.TB

	harness Harness
	store   idempotency.Store
	tokens  int
}

func (h Harness) trial(t testing.TB) *trial {
	if h.Unit == 0 {
		h.Unit = 50 * time.Millisecond
	}
	if h.Pass == nil {
		h.Pass = func(d time.Duration) { <-time.After(d) }
	}
	return &trial{TB: t, harness: h, store: h.Open(t)}
}

// again is the store as another worker sees it.
func (t *trial) again() idempotency.Store {
	if t.harness.Again == nil {
		return t.store
	}
	return t.harness.Again(t.TB, t.store)
}

// long is a lease that outlasts every test, short one that does not.
const long = time.Hour

func (t *trial) short() time.Duration { return t.harness.Unit }

// pass waits until what was short has ended.
func (t *trial) pass() { t.harness.Pass(2 * t.harness.Unit) }

// claim is a claim on key with a new token.
func (t *trial) claim(key string) idempotency.Claim {
	t.tokens++
	return idempotency.Claim{Key: key, Token: fmt.Sprintf("token%d", t.tokens), Fingerprint: fmt.Sprintf("print-%d", t.tokens)}
}

// begin demands that a claim on key meets a state that is as want says.
func (t *trial) begin(c idempotency.Claim, lease time.Duration, want idempotency.State) error {
	return found(t.again(), t, c, lease, want, "")
}

// meets is begin that also demands the fingerprint of owner.
func (t *trial) meets(c, owner idempotency.Claim, want idempotency.State) error {
	return found(t.again(), t, c, long, want, owner.Fingerprint)
}

func found(s idempotency.Store, t testing.TB, c idempotency.Claim, lease time.Duration, want idempotency.State, fingerprint string) error {
	record, err := s.Begin(t.Context(), c, lease)
	switch {
	case err != nil:
		return fmt.Errorf("the Begin of %q by %s: %w", c.Key, c.Token, err)
	case record.State != want:
		return fmt.Errorf("the Begin of %q by %s says %q, want %q", c.Key, c.Token, record.State, want)
	case fingerprint != "" && record.Fingerprint != fingerprint:
		return fmt.Errorf("the Begin of %q by %s returns the fingerprint %q, want %q", c.Key, c.Token, record.Fingerprint, fingerprint)
	case record.Left < 0 || record.Left > long:
		return fmt.Errorf("the Begin of %q by %s says that it is so for %s, want 0 to %s", c.Key, c.Token, record.Left, long)
	}
	return nil
}

func (t *trial) complete(c idempotency.Claim, ttl time.Duration) error {
	if err := t.store.Complete(t.Context(), c, ttl); err != nil {
		return fmt.Errorf("the Complete of %q by %s: %w", c.Key, c.Token, err)
	}
	return nil
}

// refused demands that Complete says that the claim is lost.
func (t *trial) refused(c idempotency.Claim) error {
	if err := t.store.Complete(t.Context(), c, long); !errors.Is(err, idempotency.ErrClaimLost) {
		return fmt.Errorf("the Complete of %q by %s: %v, want ErrClaimLost", c.Key, c.Token, err)
	}
	return nil
}

func (t *trial) release(c idempotency.Claim) error {
	if err := t.store.Release(t.Context(), c); err != nil {
		return fmt.Errorf("the Release of %q by %s: %w", c.Key, c.Token, err)
	}
	return nil
}

// steps runs each step unless one before has failed.
func steps(all ...func() error) error {
	for _, step := range all {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

package service

import (
	"context"
	"errors"
	"time"
)

// Store keeps tasks, policies and attempts.
type Store struct{}

var errNotYet = errors.New("not yet")

// Open opens the store at url.
func Open(ctx context.Context, url string) (*Store, error) { return nil, errNotYet }

// Close waits for calls that are under way, and closes the store.
func (s *Store) Close() error { return errNotYet }

// PutPolicy stores a policy: one that is as the newest of its name keeps that
// version, another becomes the next. The version of p does not matter.
func (s *Store) PutPolicy(ctx context.Context, p Policy) (Policy, error) { return p, errNotYet }

// Policy returns a version of a policy, 0 for the newest, or [ErrNotFound].
func (s *Store) Policy(ctx context.Context, tenant, id string, version int) (Policy, error) {
	return Policy{}, errNotYet
}

// Create stores a task, and fills Row and Version. Its ID is new, its policy and
// its version of that are stored already.
func (s *Store) Create(ctx context.Context, t Task) (_ Task, created bool, err error) {
	return t, false, errNotYet
}

// Task returns a task of a tenant, or [ErrNotFound].
func (s *Store) Task(ctx context.Context, tenant, id string) (Task, error) { return Task{}, errNotYet }

// Cancel makes a task CANCELLED that is PENDING. Otherwise it fails with a
// [*StateError].
func (s *Store) Cancel(ctx context.Context, tenant, id string) (Task, error) {
	return Task{}, errNotYet
}

// Attempts returns attempts of a task in their order, those with larger numbers
// than after.
func (s *Store) Attempts(ctx context.Context, tenant, id string, after, limit int) ([]Attempt, error) {
	return nil, errNotYet
}

// Claim makes tasks IN_FLIGHT that are PENDING and due at now, and leases them until
// then. The others are left out.
func (s *Store) Claim(ctx context.Context, rows []int64, now, until time.Time) ([]Task, error) {
	return nil, errNotYet
}

// Settle stores what became of tasks that were claimed. Those whose version is no
// longer the row's are dropped, and named in a [*LostError].
func (s *Store) Settle(ctx context.Context, outcomes []Outcome) error { return errNotYet }

// Waiting returns tasks that are PENDING, in the order in which they are due, those
// behind after.
func (s *Store) Waiting(ctx context.Context, after Due, limit int) ([]Due, error) {
	return nil, errNotYet
}

// Expire returns tasks that are IN_FLIGHT, and whose lease is over at now.
func (s *Store) Expire(ctx context.Context, now time.Time, limit int) ([]Task, error) {
	return nil, errNotYet
}

// Dead returns tasks that are EXHAUSTED and whose letter is not confirmed.
func (s *Store) Dead(ctx context.Context, limit int) ([]Task, error) { return nil, errNotYet }

// Buried notes that the letters of tasks, as Dead has returned them, are confirmed.
// It takes tasks rather than rows: one that came back and died again meanwhile has
// another letter.
func (s *Store) Buried(ctx context.Context, dead []Task) error { return errNotYet }

// Revive makes a task PENDING again that is EXHAUSTED, due now. Otherwise it fails
// with a [*StateError].
func (s *Store) Revive(ctx context.Context, taskID string) (Task, error) { return Task{}, errNotYet }

// Stats are counts of tasks.
type Stats struct {
	Policies []PolicyStats // in the order of tenants and names
	Oldest   time.Time     // the creation of the oldest task that has not ended; zero if there is none
}

// PolicyStats counts the tasks of all versions of a policy by their state.
type PolicyStats struct {
	Tenant, PolicyID                                   string
	Pending, InFlight, Succeeded, Exhausted, Cancelled int64
}

// Stats counts the tasks.
func (s *Store) Stats(ctx context.Context) (Stats, error) { return Stats{}, errNotYet }

package service

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// PutPolicy stores a policy, and returns it with its version. If it is as the newest
// version of its name, it is that one; otherwise it becomes the next, and tasks keep
// the one that they have. The version of p does not matter.
func (s *Store) PutPolicy(ctx context.Context, p Policy) (Policy, error) {
	p.Version = 0 // it has a column
	p.RetryableStatusCodes = codes(p)
	content, err := json.Marshal(p)
	if err != nil {
		return Policy{}, fmt.Errorf("policy %s is not stored: %w", p.ID, err)
	}
	err = s.db.Write(ctx, func(tx sqldb.Tx) error {
		for { // until nobody else has stored a version meanwhile
			newest, err := policyAt(ctx, tx, p.Tenant, p.ID, 0)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
			if newest.version > 0 && bytes.Equal(newest.content, content) {
				p.Version = newest.version
				return nil
			}
			if p.Version = newest.version + 1; newest.version == 0 {
				if _, err := tx.Get(ctx, "select last_version + 1 from retry_meta", nil, &p.Version); err != nil {
					return err
				}
			}
			n, err := tx.Exec(ctx, "insert into retry_policies (tenant, policy_id, version, content) values (?, ?, ?, ?) on conflict do nothing", p.Tenant, p.ID, p.Version, content)
			if err != nil || n > 0 {
				return err
			}
		}
	})
	return p, err
}

// Policy returns a version of a policy, 0 for the newest, or [ErrNotFound]. No
// version ever changes.
func (s *Store) Policy(ctx context.Context, tenant, id string, version int) (Policy, error) {
	return sqldb.Result(ctx, s.db.Look, func(tx sqldb.Tx) (Policy, error) {
		return policyOf(ctx, tx, tenant, id, version)
	})
}

// policyOf does the work of Policy in a transaction.
func policyOf(ctx context.Context, tx sqldb.Tx, tenant, id string, version int) (p Policy, err error) {
	found, err := policyAt(ctx, tx, tenant, id, version)
	if err != nil {
		return Policy{}, err
	}
	if err := json.Unmarshal(found.content, &p); err != nil {
		return Policy{}, fmt.Errorf("policy %s: %w (%w)", id, ErrDamaged, err)
	}
	p.Tenant, p.Version = tenant, found.version
	return p, nil
}

// codes returns the retryable statuses of a policy as the store has them.
func codes(p Policy) []int {
	return slices.Compact(slices.Sorted(slices.Values(p.RetryableStatusCodes)))
}

// DeletePolicy deletes all versions of a policy, and returns the newest
// version. It returns [ErrNotFound] if there is none, and [ErrPolicyUsed] if
// tasks use the policy. A policy that is created later with this name gets a
// larger version.
func (s *Store) DeletePolicy(ctx context.Context, tenant, id string) (p Policy, err error) {
	err = s.db.Write(ctx, func(tx sqldb.Tx) error {
		if s.db.Postgres() { // or a task could be created while the policy is deleted
			if _, err := tx.Exec(ctx, "lock table retry_tasks in share row exclusive mode"); err != nil {
				return err
			}
		}
		if p, err = policyOf(ctx, tx, tenant, id, 0); err != nil {
			return err
		}
		for _, status := range []Status{Pending, InFlight, Exhausted} { // each status has its own index
			var used int64
			query := fmt.Sprintf("select 1 from retry_tasks where tenant = ? and policy_id = ? and status = %d limit 1", status.code())
			if found, err := tx.Get(ctx, query, []any{tenant, id}, &used); err != nil || found {
				return cmp.Or(err, fmt.Errorf("policy %s: %w", id, ErrPolicyUsed))
			}
		}
		if _, err := tx.Exec(ctx, "update retry_meta set last_version = ? where last_version < ?", p.Version, p.Version); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "delete from retry_policies where tenant = ? and policy_id = ?", tenant, id)
		return err
	})
	return p, err
}

type policyRow struct {
	version int
	content []byte
}

func policyAt(ctx context.Context, tx sqldb.Tx, tenant, id string, version int) (p policyRow, err error) {
	const query = "select version, content from retry_policies where tenant = ? and policy_id = ? and (version = ? or ? = 0) order by version desc limit 1"
	found, err := tx.Get(ctx, query, []any{tenant, id, version, version}, &p.version, &p.content)
	switch {
	case err != nil || found:
		return p, err
	case version > 0:
		return p, fmt.Errorf("policy %s, version %d: %w", id, version, ErrNotFound)
	}
	return p, fmt.Errorf("policy %s: %w", id, ErrNotFound)
}

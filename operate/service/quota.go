package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// Quota bounds what the service keeps for a tenant. Zero is no bound.
type Quota struct {
	Tasks    int64 // tasks that are PENDING or IN_FLIGHT
	Bytes    int64 // bytes of bodies above 16 KiB, of tasks that are PENDING, IN_FLIGHT or EXHAUSTED
	Policies int64 // versions of policies
}

// Quotas are the quotas of all tenants.
type Quotas struct {
	All Quota            // the quota of each tenant that Of does not have
	Of  map[string]Quota // the quotas of single tenants
}

// of returns the quota of a tenant.
func (q Quotas) of(tenant string) Quota {
	if own, ok := q.Of[tenant]; ok {
		return own
	}
	return q.All
}

// The queries of Usage read indexes. A body that several tasks share counts
// once. A body in the row of its task counts for each task.
const (
	waitingOf = "select (select count(*) from retry_tasks where tenant = ? and status = 0) + (select count(*) from retry_tasks where tenant = ? and status = 1)"
	bytesOf   = `select coalesce(cast(sum(size) as bigint), 0) from (select max(body_size) as size from retry_tasks
		where tenant = ? and body_size > 0 and status in (0, 1, 3) group by body_ref, case when body_ref = '' then id else 0 end) t`
	policiesOf = "select count(*) from retry_policies where tenant = ?"
)

// Usage counts what the store keeps for a tenant.
func (s *Store) Usage(ctx context.Context, tenant string) (u Quota, err error) {
	err = s.db.Read(ctx, func(tx sqldb.Tx) error {
		_, noTasks := tx.Get(ctx, waitingOf, []any{tenant, tenant}, &u.Tasks)
		_, noBytes := tx.Get(ctx, bytesOf, []any{tenant}, &u.Bytes)
		_, noPolicies := tx.Get(ctx, policiesOf, []any{tenant}, &u.Policies)
		return errors.Join(noTasks, noBytes, noPolicies)
	})
	return u, err
}

const (
	recount      = 10 * time.Second // how long a count is used; the meter adds new tasks and policies to it
	recountFull  = time.Second      // how long a count is used if it is over the quota
	mostTenants  = 10_000           // most tenants whose counts are kept
	quotaRetry   = "10"             // Retry-After of a request that is over a quota, in seconds
	countingTime = 10 * time.Second
)

// meter estimates what tenants keep. Each process counts by itself, so other
// processes can add tasks between two counts, and exceed a quota.
type meter struct {
	count func(ctx context.Context, tenant string) (Quota, error)

	mu sync.Mutex
	of map[string]counted
}

type counted struct {
	Quota
	at time.Time
}

// admit returns nil if a tenant stays within its quota with more. Otherwise it
// returns the problem, or the error that kept it from counting.
func (m *meter) admit(ctx context.Context, tenant string, quota, more Quota) error {
	if quota == (Quota{}) {
		return nil
	}
	c := m.known(tenant)
	p, age := quota.exceeded(c.Quota, more), recount
	if p != nil {
		age = recountFull
	}
	if c.at.IsZero() || time.Since(c.at) >= age {
		within, cancel := context.WithTimeout(ctx, countingTime)
		defer cancel()
		u, err := m.count(within, tenant)
		if err != nil {
			return fmt.Errorf("the tasks and policies of a tenant could not be counted: %w", err)
		}
		m.keep(tenant, u)
		p = quota.exceeded(u, more)
	}
	if p != nil {
		return p
	}
	return nil
}

// exceeded returns the problem if kept and more together exceed the quota;
// otherwise nil.
func (q Quota) exceeded(kept, more Quota) *problem {
	for _, part := range []struct {
		most, kept, more int64
		what, fix        string
	}{
		{q.Tasks, kept.Tasks, more.Tasks, "tasks that wait or are called", "send it again when some have ended, or cancel some"},
		{q.Bytes, kept.Bytes, more.Bytes, "bytes in bodies above 16 KiB", "send it again when tasks with such bodies have succeeded, or cancel some"},
		{q.Policies, kept.Policies, more.Policies, "versions of policies", "delete policies that no task uses"},
	} {
		if part.more > 0 && part.most > 0 && part.kept+part.more > part.most {
			return overQuota.because("the tenant has %d %s, this would add %d, and it may have %d: %s, or ask the operator for a higher quota", part.kept, part.what, part.more, part.most, part.fix)
		}
	}
	return nil
}

func (m *meter) known(tenant string) counted {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of[tenant]
}

func (m *meter) keep(tenant string, u Quota) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil || len(m.of) >= mostTenants {
		m.of = map[string]counted{}
	}
	m.of[tenant] = counted{u, time.Now()}
}

// added adds more to the count of a tenant.
func (m *meter) added(tenant string, more Quota) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.of[tenant]; ok {
		c.Tasks, c.Bytes, c.Policies = c.Tasks+more.Tasks, c.Bytes+more.Bytes, c.Policies+more.Policies
		m.of[tenant] = c
	}
}

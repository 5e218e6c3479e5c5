package service

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// What Waiting, Expire, Dead and Forget look for: the indexes have it.
const (
	waitingTasks = `select id, tenant, next_attempt_at from retry_tasks
		where status = 0 and (next_attempt_at, id) > (?, ?) order by next_attempt_at, id limit ?`
	expiredTasks = "select " + taskColumns + " from retry_tasks where status = 1 and lease_until <= ? order by lease_until, id limit ?"
	deadTasks    = `update retry_tasks set lease_until = ? where id in (select id from retry_tasks
		where status = 3 and buried = 0 and lease_until <= ? order by lease_until, id limit ? for update skip locked) returning ` + taskColumns
	forgetTasks = `delete from retry_tasks where id in (select id from retry_tasks
		where status > 1 and updated_at < ? and (status <> 3 or buried = 1 or ? = 1) order by updated_at limit ? for update skip locked)`
)

// Waiting returns at most limit tasks that are PENDING, in the order in which they
// are due, those behind after; behind the zero Due are all.
func (s *Store) Waiting(ctx context.Context, after Due, limit int) ([]Due, error) {
	return sqldb.Result(ctx, s.db.Look, func(tx sqldb.Tx) ([]Due, error) {
		return sqldb.All(ctx, tx, waitingTasks, []any{after.At, after.Row, limit}, func(d *Due) []any {
			return []any{&d.Row, &d.Tenant, sqldb.IntoTime(&d.At)}
		})
	})
}

// Expire returns at most limit tasks that are IN_FLIGHT and whose lease is over at
// now, those first that were over first. Settle says what becomes of them: they are
// as they were claimed, and whoever settles first wins.
func (s *Store) Expire(ctx context.Context, now time.Time, limit int) ([]Task, error) {
	return sqldb.Result(ctx, s.db.Look, func(tx sqldb.Tx) ([]Task, error) {
		return tasksOf(ctx, tx, expiredTasks, now, limit)
	})
}

// Dead returns at most limit tasks that are EXHAUSTED, and whose dead letter is not
// confirmed, and leases them until then: it leaves out those that are leased at now.
// Their versions stay.
func (s *Store) Dead(ctx context.Context, now, until time.Time, limit int) (list []Task, err error) {
	list, err = sqldb.Result(ctx, s.db.Write, func(tx sqldb.Tx) ([]Task, error) {
		return tasksOf(ctx, tx, deadTasks, until, now, limit)
	})
	slices.SortFunc(list, func(a, b Task) int { return cmp.Compare(a.Row, b.Row) })
	return list, err
}

// Buried notes that the dead letters of tasks are confirmed, as Dead returned them.
// It leaves out one that came back meanwhile: if that died again, it has another
// letter.
func (s *Store) Buried(ctx context.Context, dead []Task) error {
	rows := make([][]any, len(dead))
	for i, t := range dead {
		rows[i] = []any{t.Row, t.Version}
	}
	return s.db.Write(ctx, func(tx sqldb.Tx) error {
		return tx.Update(ctx, "update retry_tasks set buried = 1 from (values ROWS) as v where id = v.column1 and version = v.column2 and status = 3", rows)
	})
}

// Forget deletes at most limit tasks that ended before a time, with their logs, and
// returns how many: those that are SUCCEEDED or CANCELLED, and those that are EXHAUSTED
// and whose dead letter is confirmed, or all of these if there are no letters. Their
// idempotency keys are free then.
func (s *Store) Forget(ctx context.Context, before time.Time, letters bool, limit int) (int, error) {
	deleted, err := sqldb.Result(ctx, s.db.Write, func(tx sqldb.Tx) (int64, error) {
		return tx.Exec(ctx, forgetTasks, before, !letters, limit)
	})
	return int(deleted), err
}

// Stats are counts of tasks.
type Stats struct {
	Policies []PolicyStats // in the order of tenants and names; those without tasks are left out
	Oldest   time.Time     // the creation of the oldest task that has not ended; zero if all have
}

// PolicyStats counts the tasks of all versions of a policy by their state.
type PolicyStats struct {
	Tenant, PolicyID                                   string
	Pending, InFlight, Succeeded, Exhausted, Cancelled int64
}

const statsQuery = `select tenant, policy_id, 0 as state, count(*) as tasks, min(created_at) as oldest from retry_tasks where status = 0 group by tenant, policy_id
	union all select tenant, policy_id, 1, count(*), min(created_at) from retry_tasks where status = 1 group by tenant, policy_id
	union all select tenant, policy_id, status, count(*), 0 from retry_tasks where status > 1 group by tenant, policy_id, status
	order by tenant, policy_id`

// Stats counts the tasks. It looks at an index of all of them, and holds up nobody.
func (s *Store) Stats(ctx context.Context) (stats Stats, err error) {
	err = s.db.Read(ctx, func(tx sqldb.Tx) error {
		return tx.Each(ctx, statsQuery, nil, func(scan func(...any) error) error {
			var p PolicyStats
			var state, n int64
			var oldest time.Time
			if err := scan(&p.Tenant, &p.PolicyID, &state, &n, sqldb.IntoTime(&oldest)); err != nil {
				return err
			}
			stats.add(p, state, n)
			if !oldest.IsZero() && (stats.Oldest.IsZero() || oldest.Before(stats.Oldest)) {
				stats.Oldest = oldest
			}
			return nil
		})
	})
	return stats, err
}

// add adds n tasks in a state to the counts of p, which are the last ones, or new.
func (s *Stats) add(p PolicyStats, state, n int64) {
	if last := len(s.Policies) - 1; last < 0 || s.Policies[last].Tenant != p.Tenant || s.Policies[last].PolicyID != p.PolicyID {
		s.Policies = append(s.Policies, p)
	}
	last := &s.Policies[len(s.Policies)-1]
	*[]*int64{&last.Pending, &last.InFlight, &last.Succeeded, &last.Exhausted, &last.Cancelled}[state] += n
}

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

const taskColumns = `id, version, status, attempt_number, next_attempt_at, lease_until, visible, created_at, updated_at, first_failed_at, budget_since, prev_delay, last_status,
	task_id, tenant, policy_id, policy_version, idempotency_key, method, target_url, body_ref, last_error, last_span, headers, body`

// scanTask reads taskColumns, and columns before them into more.
func scanTask(scan func(...any) error, more ...any) (t Task, err error) {
	var headers []byte
	err = scan(append(more,
		&t.Row, &t.Version, intoStatus(&t.Status), &t.AttemptNumber, sqldb.IntoTime(&t.NextAttemptAt),
		sqldb.IntoTime(&t.LeaseUntil), intoDuration(&t.VisibilityTimeout), sqldb.IntoTime(&t.CreatedAt), sqldb.IntoTime(&t.UpdatedAt),
		sqldb.IntoTime(&t.FirstFailedAt), sqldb.IntoTime(&t.BudgetSince), intoDuration(&t.PrevDelay), &t.LastStatus,
		&t.ID, &t.Tenant, &t.PolicyID, &t.PolicyVersion, &t.IdempotencyKey, &t.Method, &t.TargetURL, &t.BodyRef, &t.LastError, &t.LastSpan, &headers, &t.Body)...)
	if err != nil {
		return t, err
	}
	if len(t.Body) == 0 {
		t.Body = nil
	}
	if len(headers) > 0 {
		if err := json.Unmarshal(headers, &t.Headers); err != nil {
			return t, fmt.Errorf("task %s: %w (its headers cannot be read: %w)", t.ID, ErrDamaged, err)
		}
	}
	return t, nil
}

// tasksOf returns the tasks that a statement returns.
func tasksOf(ctx context.Context, tx sqldb.Tx, statement string, args ...any) (tasks []Task, err error) {
	err = tx.Each(ctx, statement, args, func(scan func(...any) error) error {
		t, err := scanTask(scan)
		tasks = append(tasks, t)
		return err
	})
	return tasks, err
}

// taskOf returns the one task of some condition, or ErrNotFound.
func taskOf(ctx context.Context, tx sqldb.Tx, id, where string, args ...any) (Task, error) {
	tasks, err := tasksOf(ctx, tx, "select "+taskColumns+" from retry_tasks where "+where, args...)
	if err != nil {
		return Task{}, err
	}
	if len(tasks) == 0 {
		return Task{}, fmt.Errorf("task %s: %w", id, ErrNotFound)
	}
	return tasks[0], nil
}

// Task returns a task of a tenant, or [ErrNotFound].
func (s *Store) Task(ctx context.Context, tenant, id string) (Task, error) {
	return sqldb.Result(ctx, s.db.Look, func(tx sqldb.Tx) (Task, error) {
		return taskOf(ctx, tx, id, "task_id = ? and tenant = ?", id, tenant)
	})
}

// Cancel makes a task of a tenant CANCELLED that is PENDING. If it is anything else,
// Cancel fails with a [*StateError], or [ErrNotFound].
func (s *Store) Cancel(ctx context.Context, tenant, id string) (Task, error) {
	return s.move(ctx, id, Pending, 0, "status = ?, updated_at = ?", []any{Cancelled, time.Now()}, "task_id = ? and tenant = ?", id, tenant)
}

// Revive makes a task of a tenant PENDING again that is EXHAUSTED, due now. Its attempts
// and its budget start over, its log goes on. If it is anything else, Revive fails with
// a [*StateError], or [ErrNotFound].
func (s *Store) Revive(ctx context.Context, tenant, id string) (Task, error) {
	return s.revive(ctx, id, 0, "task_id = ? and tenant = ?", id, tenant)
}

// ReviveAt does as Revive with a task of any tenant, if it died with this version, which
// is that of the task as Dead returned it. If it came back since, ReviveAt fails with a
// [*StateError], even if it is EXHAUSTED again.
func (s *Store) ReviveAt(ctx context.Context, id string, version int64) (Task, error) {
	return s.revive(ctx, id, version, "task_id = ?", id)
}

func (s *Store) revive(ctx context.Context, id string, version int64, where string, args ...any) (Task, error) {
	const set = `status = ?, updated_at = ?, next_attempt_at = ?, budget_since = ?,
		attempt_number = 0, first_failed_at = 0, prev_delay = 0, buried = 0, lease_until = 0`
	now := time.Now()
	return s.move(ctx, id, Exhausted, version, set, []any{Pending, now, now, now}, where, args...)
}

// move changes a task that is in a state, and has a version unless that is 0.
func (s *Store) move(ctx context.Context, id string, from Status, version int64, set string, values []any, where string, args ...any) (t Task, err error) {
	err = s.db.Write(ctx, func(tx sqldb.Tx) error {
		statement := "update retry_tasks set version = version + 1, " + set + " where " + where + " and status = ? and (? = 0 or version = ?) returning " + taskColumns
		moved, err := tasksOf(ctx, tx, statement, slices.Concat(values, args, []any{from, version != 0, version})...)
		if err != nil {
			return err
		}
		if len(moved) > 0 {
			t = moved[0]
			return nil
		}
		if t, err = taskOf(ctx, tx, id, where, args...); err != nil {
			return err
		}
		return &StateError{TaskID: id, Status: t.Status}
	})
	return t, err
}

// Attempts returns the log of a task of a tenant in its order, at most limit
// attempts with larger numbers than after; or [ErrNotFound].
func (s *Store) Attempts(ctx context.Context, tenant, id string, after, limit int) (attempts []Attempt, err error) {
	err = s.db.Read(ctx, func(tx sqldb.Tx) error {
		var row int64
		found, err := tx.Get(ctx, "select id from retry_tasks where task_id = ? and tenant = ?", []any{id, tenant}, &row)
		if err == nil && !found {
			err = fmt.Errorf("task %s: %w", id, ErrNotFound)
		}
		if err != nil {
			return err
		}
		const query = `select n, started_at, duration, response_status, error_message from retry_attempts
			where task = ? and n > ? order by n limit ?`
		attempts, err = sqldb.All(ctx, tx, query, []any{row, after, limit}, func(a *Attempt) []any {
			return []any{&a.Number, sqldb.IntoTime(&a.StartedAt), intoDuration(&a.Duration), &a.ResponseStatus, &a.Error}
		})
		return err
	})
	return attempts, err
}

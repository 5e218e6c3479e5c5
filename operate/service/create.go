package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
	"github.com/redrive-go/redrive/operate/service/bodies"
)

// creation is a task to be stored, and what became of it.
type creation struct {
	task     Task
	identity []byte // a hash of what no two tasks share
	content  []byte // a hash of what it calls
	headers  []byte // as they are stored, the trace among them
	size     int64  // bytes of a body above 16 KiB, for the quota

	// What became of it.
	result  Task
	created bool
	err     error
}

// Create stores a task that is PENDING, and returns it with its Row and Version.
// Whoever calls it has made its ID, and read its policy, and the visibility timeout in
// it, from this store. If the
// tenant has a task with the same idempotency key and the same content already,
// Create returns that one, and false. The content is target, method, headers, body
// and the name of the policy, but not the Trace; if that differs, the error is [ErrKeyReused]. A
// policy, or version of it, that is not there is [ErrNotFound].
//
// Calls that come at the same time share a transaction, and nothing else.
func (s *Store) Create(ctx context.Context, t Task) (_ Task, created bool, err error) {
	if t.VisibilityTimeout <= 0 {
		return Task{}, false, fmt.Errorf("creating task %s: its VisibilityTimeout is unset: use that of its policy", t.ID)
	}
	c, err := newCreation(t)
	if err == nil {
		err = s.creations.add(ctx, c)
	}
	if err == nil {
		err = c.err
	}
	if err != nil {
		return Task{}, false, fmt.Errorf("creating task %s: %w", t.ID, err)
	}
	return c.result, c.created, nil
}

// Same returns the task that Create would return instead of storing t, of which it
// needs tenant, key and content alone; or [ErrNotFound], or [ErrKeyReused].
func (s *Store) Same(ctx context.Context, t Task) (same Task, err error) {
	c, err := newCreation(t)
	if err != nil {
		return Task{}, err
	}
	err = s.db.Look(ctx, func(tx sqldb.Tx) error {
		found, err := createdTasks(ctx, tx, [][]byte{c.identity})
		if err != nil {
			return err
		}
		there, ok := found[string(c.identity)]
		if !ok {
			return fmt.Errorf("task of the key %s: %w", t.IdempotencyKey, ErrNotFound)
		}
		same = there.task
		return there.unless(c.content)
	})
	return same, err
}

// unless reports a task that was created with other content.
func (c creation) unless(content []byte) error {
	if bytes.Equal(c.content, content) {
		return nil
	}
	return fmt.Errorf("%w: task %s", ErrKeyReused, c.task.ID)
}

func newCreation(t Task) (*creation, error) {
	own, err := saveHeaders(t.Headers)
	if err != nil {
		return nil, err
	}
	t.Headers = withTrace(t.Headers, t.Trace)
	headers, err := saveHeaders(t.Headers)
	if err != nil {
		return nil, err
	}
	created := sqldb.TimeOf(sqldb.Millis(t.CreatedAt))
	return &creation{
		task: Task{
			ID: t.ID, Tenant: t.Tenant, IdempotencyKey: t.IdempotencyKey, TargetURL: t.TargetURL, Method: t.Method,
			Headers: t.Headers, Body: t.Body, BodyRef: t.BodyRef, PolicyID: t.PolicyID, PolicyVersion: t.PolicyVersion,
			Status: Pending, NextAttemptAt: sqldb.TimeOf(sqldb.Millis(t.NextAttemptAt)),
			CreatedAt: created, UpdatedAt: created, BudgetSince: created, Version: 1, VisibilityTimeout: t.VisibilityTimeout.Truncate(time.Millisecond),
		},
		identity: hashOf([]byte(t.Tenant), []byte(t.IdempotencyKey)),
		content:  hashOf([]byte(t.TargetURL), []byte(t.Method), own, bodySum(t), []byte(t.PolicyID)),
		headers:  headers,
		size:     t.BodySize,
	}, nil
}

// bodySum says what the body of a task is, wherever it is kept: its SHA-256.
func bodySum(t Task) []byte {
	if _, sum, err := bodies.Split(t.BodyRef); err == nil {
		return []byte(sum)
	}
	if t.BodyRef != "" {
		return []byte(t.BodyRef)
	}
	return fmt.Appendf(nil, "%x", sha256.Sum256(t.Body))
}

// hashOf is the hash of some values, each with its length before it.
func hashOf(values ...[]byte) []byte {
	h := sha256.New()
	for _, v := range values {
		h.Write(binary.AppendUvarint(nil, uint64(len(v))))
		h.Write(v)
	}
	return h.Sum(nil)
}

// saveHeaders is JSON in the order of the names; empty for none.
func saveHeaders(headers map[string]string) ([]byte, error) {
	if len(headers) == 0 {
		return []byte{}, nil
	}
	return json.Marshal(headers)
}

// create stores tasks in one transaction.
func (s *Store) create(ctx context.Context, batch []*creation) error {
	// In one order, so that processes which store the same keys do not wait for each
	// other in a circle.
	batch = slices.SortedStableFunc(slices.Values(batch), func(a, b *creation) int { return bytes.Compare(a.identity, b.identity) })
	return s.db.Write(ctx, func(tx sqldb.Tx) error {
		rows, err := insertTasks(ctx, tx, batch)
		if err != nil {
			return err
		}
		var others []*creation
		for _, c := range batch {
			row, stored := rows[c.name()]
			if !stored {
				others = append(others, c)
				continue
			}
			c.result, c.created, c.err = c.task, true, nil
			c.result.Row = row
		}
		return findCreated(ctx, tx, others)
	})
}

// name tells the creations of a transaction apart.
func (c *creation) name() string { return string(c.identity) + string(c.content) + c.task.ID }

// insertTasks returns the numbers of the tasks that it stored, by their names. It
// leaves out those whose key or ID is there already, or whose policy is not.
func insertTasks(ctx context.Context, tx sqldb.Tx, batch []*creation) (map[string]int64, error) {
	const statement = `insert into retry_tasks (task_id, identity, content, tenant, policy_id, policy_version, next_attempt_at, created_at, updated_at, budget_since, visible, body_size,
		idempotency_key, method, target_url, body_ref, headers, body) select v.* from (values ROWS) as v
		where exists (select 1 from retry_policies p where p.tenant = v.column4 and p.policy_id = v.column5 and p.version = v.column6)
		order by v.column2 on conflict do nothing returning id, identity, content, task_id`
	types := slices.Concat(slices.Repeat([]string{"bytea"}, 5), slices.Repeat([]string{"bigint"}, 7), slices.Repeat([]string{"bytea"}, 6))
	rows := make([][]any, len(batch))
	for i, c := range batch {
		t := c.task
		rows[i] = []any{
			t.ID, c.identity, c.content, t.Tenant, t.PolicyID, t.PolicyVersion,
			t.NextAttemptAt, t.CreatedAt, t.UpdatedAt, t.BudgetSince, t.VisibilityTimeout, c.size,
			t.IdempotencyKey, t.Method, t.TargetURL, t.BodyRef, c.headers, notNil(t.Body),
		}
	}
	stored := make(map[string]int64, len(batch))
	err := tx.Batch(ctx, statement, types, rows, func(scan func(...any) error) error {
		var row int64
		var c creation
		err := scan(&row, &c.identity, &c.content, &c.task.ID)
		stored[c.name()] = row
		return err
	})
	return stored, err
}

// findCreated looks for tasks that were there before.
func findCreated(ctx context.Context, tx sqldb.Tx, batch []*creation) error {
	if len(batch) == 0 {
		return nil
	}
	var keys [][]byte
	for _, c := range batch {
		keys = append(keys, c.identity)
	}
	found, err := createdTasks(ctx, tx, keys)
	if err != nil {
		return err
	}
	for _, c := range batch {
		there, ok := found[string(c.identity)]
		switch {
		case !ok:
			if c.err, err = whyNot(ctx, tx, c.task); err != nil {
				return err
			}
		default: // it is created if this is its ID: the commit of an earlier try was not confirmed
			c.result, c.err = there.task, there.unless(c.content)
			c.created = c.err == nil && there.task.ID == c.task.ID
		}
	}
	return nil
}

// createdTasks returns the tasks that have these identities, by them.
func createdTasks(ctx context.Context, tx sqldb.Tx, identities [][]byte) (map[string]creation, error) {
	found := map[string]creation{}
	err := tx.Each(ctx, "select identity, content, "+taskColumns+" from retry_tasks where identity in (?)", []any{identities}, func(scan func(...any) error) error {
		var c creation
		var err error
		c.task, err = scanTask(scan, &c.identity, &c.content)
		found[string(c.identity)] = c
		return err
	})
	return found, err
}

// whyNot says why a task was not stored whose key is new.
func whyNot(ctx context.Context, tx sqldb.Tx, t Task) (reason, err error) {
	_, err = policyAt(ctx, tx, t.Tenant, t.PolicyID, t.PolicyVersion)
	if errors.Is(err, ErrNotFound) {
		return err, nil
	}
	return errors.New("another task has its ID"), err
}

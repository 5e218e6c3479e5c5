package service

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

const claimTasks = `update retry_tasks set status = ?, version = version + 1,
	lease_until = visible + case when next_attempt_at > ? then next_attempt_at else ? end where id in
	(select id from retry_tasks where id in (?) and status = 0 and next_attempt_at <= ? for update skip locked) returning ` + taskColumns

// Claim makes tasks IN_FLIGHT that are PENDING and due by a time ahead of now, and
// returns them in the order in which they are due. Each is leased for its visibility
// timeout, from when it is due, or from now if it is already. Claim leaves out all
// others: those that are not PENDING, and those that somebody else is changing.
// UpdatedAt stays.
func (s *Store) Claim(ctx context.Context, rows []int64, now time.Time, ahead time.Duration) (claimed []Task, err error) {
	claimed, err = sqldb.Result(ctx, s.db.Write, func(tx sqldb.Tx) ([]Task, error) {
		return tasksOf(ctx, tx, claimTasks, InFlight, now, now, rows, now.Add(ahead))
	})
	slices.SortFunc(claimed, func(a, b Task) int {
		return cmp.Or(a.NextAttemptAt.Compare(b.NextAttemptAt), cmp.Compare(a.Row, b.Row))
	})
	return claimed, err
}

// settlement is what one call of Settle stores.
type settlement struct {
	outcomes []Outcome
	lost     []string // the tasks of those that were dropped
}

// Settle stores what became of tasks that are IN_FLIGHT: each is as its outcome
// says, but for what was given to Create, and its attempt is in the log, with the
// number that is next there. Tasks are PENDING, SUCCEEDED or EXHAUSTED then; the
// last wait for their dead letters, see [Store.Dead].
//
// Outcomes of tasks whose version is no longer that of the row are dropped, and
// named in a [*LostError]; all others are stored nevertheless. A call that is
// repeated after an error may find that it has stored them, and names them, too.
// Calls that come at the same time share a transaction.
func (s *Store) Settle(ctx context.Context, outcomes []Outcome) error {
	for _, o := range outcomes {
		if st := o.Task.Status; st != Pending && st != Succeeded && st != Exhausted {
			return fmt.Errorf("task %s is not settled, nor are the %d of the same call: %q is no outcome", o.Task.ID, len(outcomes)-1, st)
		}
	}
	if len(outcomes) == 0 {
		return nil
	}
	it := &settlement{outcomes: outcomes}
	if err := s.outcomes.add(ctx, it); err != nil {
		return fmt.Errorf("storing what became of %d tasks: %w", len(outcomes), err)
	}
	if len(it.lost) > 0 {
		return &LostError{it.lost}
	}
	return nil
}

// claim is what an outcome is of: a task as it was claimed.
type claim struct{ row, version int64 }

func (o Outcome) claim() claim { return claim{o.Task.Row, o.Task.Version} }

// settle stores outcomes in one transaction.
func (s *Store) settle(ctx context.Context, batch []*settlement) error {
	first := map[claim]Outcome{} // of each claim; others are lost
	for _, it := range slices.Backward(batch) {
		for _, o := range slices.Backward(it.outcomes) {
			first[o.claim()] = o
		}
	}
	return s.db.Write(ctx, func(tx sqldb.Tx) error {
		numbers, err := updateTasks(ctx, tx, slices.Collect(maps.Values(first)))
		if err != nil {
			return err
		}
		var log [][]any
		for _, it := range batch {
			it.lost = nil
			for _, o := range it.outcomes {
				n, stored := numbers[o.claim()]
				delete(numbers, o.claim())
				switch a := o.Attempt; {
				case !stored:
					it.lost = append(it.lost, o.Task.ID)
				case a != nil:
					log = append(log, []any{o.Task.Row, n, a.StartedAt, a.Duration, a.ResponseStatus, a.Error})
				}
			}
		}
		return tx.Insert(ctx, "retry_attempts", []string{"task", "n", "started_at", "duration", "response_status", "error_message"}, log)
	})
}

// updateTasks makes tasks what their outcomes say, and returns the number in the log
// of the latest attempt of each. It leaves out those that somebody else has changed.
func updateTasks(ctx context.Context, tx sqldb.Tx, outcomes []Outcome) (numbers map[claim]int64, err error) {
	// In one order, for processes that settle the same tasks.
	slices.SortFunc(outcomes, func(a, b Outcome) int { return cmp.Compare(a.Task.Row, b.Task.Row) })
	rows := make([][]any, len(outcomes))
	for i, o := range outcomes {
		t := o.Task
		rows[i] = []any{
			t.Row, t.Version, t.Status, t.AttemptNumber, t.NextAttemptAt, t.UpdatedAt, t.FirstFailedAt, t.BudgetSince,
			t.PrevDelay, t.LastStatus, o.Attempt != nil, t.LastError, t.LastSpan,
		}
	}
	types := append(slices.Repeat([]string{"bigint"}, 11), "bytea", "bytea")
	const statement = `update retry_tasks set version = version + 1, lease_until = 0, status = v.column3, attempt_number = v.column4,
		next_attempt_at = v.column5, updated_at = v.column6, first_failed_at = v.column7, budget_since = v.column8,
		prev_delay = v.column9, last_status = v.column10, attempts = attempts + v.column11, last_error = v.column12, last_span = v.column13
		from (values ROWS) as v where id = v.column1 and version = v.column2 and status = 1 returning id, version - 1, attempts`
	numbers = make(map[claim]int64, len(outcomes))
	err = tx.Batch(ctx, statement, types, rows, func(scan func(...any) error) error {
		var of claim
		var n int64
		err := scan(&of.row, &of.version, &n)
		numbers[of] = n
		return err
	})
	return numbers, err
}

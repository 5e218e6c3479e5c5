package service

import (
	"context"
	"time"
)

// Schedule says which tasks are due. It holds their rows and times, to the
// millisecond, and may be wrong: a task that it names and that is not PENDING is
// dropped by [Store.Claim], and one that it does not know is found by the sweeper.
// Losing all of it loses no task.
//
// Calls return when their context ends, whatever they wait for. A schedule may be used
// by any number of goroutines, and where it is shared, processes:
// no two of them get the same task, unless it was added again.
type Schedule interface {
	// Add puts tasks in, or moves them if they are there.
	Add(ctx context.Context, tasks ...Due) error

	// Take removes and returns up to n tasks that are due at now, in turns among
	// tenants, and of each tenant those first that are due first. Next is when to
	// ask again: when the first of the others is due, which is not after now if n
	// was too few, or somewhat earlier; zero if there are none.
	Take(ctx context.Context, now time.Time, n int) (due []Due, next time.Time, err error)

	// Close lets go of what the schedule needs.
	Close() error
}

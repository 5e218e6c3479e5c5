package service

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotFound reports that the tenant has no task, or no policy, of this name.
	ErrNotFound = errors.New("there is none of this name")

	// ErrPolicyUsed reports that a policy was not deleted, because a task with
	// it is PENDING, IN_FLIGHT or EXHAUSTED.
	ErrPolicyUsed = errors.New("tasks need the policy")

	// ErrKeyReused reports a task whose idempotency key another one of the tenant
	// has, which calls something else. Nothing was stored.
	ErrKeyReused = errors.New("the idempotency key belongs to a task with other content")
)

// StateError reports a task whose state does not allow what was asked for.
// Nothing was changed.
type StateError struct {
	TaskID string
	Status Status // that it has
}

// Error names the task, and the state that it has.
func (e *StateError) Error() string { return fmt.Sprintf("task %s is %s", e.TaskID, e.Status) }

// LostError reports outcomes that were dropped, because their tasks are no longer
// as they were claimed: the lease was over, and somebody else took them. All other
// outcomes of the call are stored.
type LostError struct{ TaskIDs []string }

// Error names the tasks.
func (e *LostError) Error() string {
	return fmt.Sprintf("the outcomes of %d tasks came too late, and were dropped: %s", len(e.TaskIDs), strings.Join(e.TaskIDs, ", "))
}

package service

import (
	"slices"
	"time"
)

// Status is the state of a task.
type Status string

// A task is PENDING until a worker takes it, IN_FLIGHT while it is called, and then
// PENDING again or at an end: SUCCEEDED, EXHAUSTED, or CANCELLED by a DELETE.
const (
	Pending   Status = "PENDING"
	InFlight  Status = "IN_FLIGHT"
	Succeeded Status = "SUCCEEDED"
	Exhausted Status = "EXHAUSTED"
	Cancelled Status = "CANCELLED"
)

func statuses() []Status { return []Status{Pending, InFlight, Succeeded, Exhausted, Cancelled} }

// code is how a status is stored; the indexes know it.
func (s Status) code() int64 { return int64(slices.Index(statuses(), s)) }

// Task is a call that must succeed eventually.
type Task struct {
	ID             string // a UUID
	Tenant         string
	IdempotencyKey string // sent with every attempt, never made anew
	TargetURL      string
	Method         string
	Headers        map[string]string
	Body           []byte // inline, unless BodyRef names it
	BodyRef        string // where a large body is kept
	BodySize       int64  // bytes of a body above 16 KiB; set when the task is created, and never read back
	PolicyID       string
	PolicyVersion  int
	Status         Status
	AttemptNumber  int       // attempts since creation, or since it came back
	NextAttemptAt  time.Time // when it is due, or, in flight, was
	CreatedAt      time.Time
	UpdatedAt      time.Time

	// How long a worker may take for an attempt, as its policy says, and when the one
	// that has the task loses it.
	VisibilityTimeout time.Duration
	LeaseUntil        time.Time

	// What the next decision needs.
	FirstFailedAt time.Time     // zero if nothing failed yet
	BudgetSince   time.Time     // creation, or when it came back
	PrevDelay     time.Duration // before the latest attempt
	LastError     string        // of an EXHAUSTED task after the reason of its dlq.Entry, as in "poison: ..."
	LastStatus    int           // of the latest response, 0 if there was none
	LastSpan      string        // the W3C traceparent of the latest call, if the service has a Tracer

	// Headers of the trace in which the task is created. They are stored with Headers,
	// unless those have a trace, and are never read back into Trace.
	Trace map[string]string

	// What the store needs.
	Row     int64
	Version int64 // of the row: whoever changes it has read this one
}

// Attempt is one call of a task, as it is logged.
type Attempt struct {
	Number         int // in the order of the log, from 1, over all lives of the task
	StartedAt      time.Time
	Duration       time.Duration
	ResponseStatus int    // 0 if there was no response
	Error          string // empty if it succeeded
}

// Outcome is what a worker makes of a task that it claimed: the task as it is to be,
// and the attempt to log, nil for one that was not made.
type Outcome struct {
	Task    Task
	Attempt *Attempt
}

// Due is a task in a Schedule.
type Due struct {
	Row    int64
	Tenant string
	At     time.Time
}

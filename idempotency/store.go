package idempotency

import (
	"context"
	"errors"
	"time"
)

// ErrClaimLost says that another run has the key by now, or has recorded it as
// done. It is also the cause with which the context of a handler ends whose
// claim is lost, or could not be extended in time.
var ErrClaimLost = errors.New("the claim on the idempotency key is lost: another run may have it")

// Store remembers which keys are claimed by a run and which are done. Its
// methods may be called at the same time, from many processes.
//
// A claim and the record of a success both end by themselves, after a time
// that the store measures with a clock of its own: workers pass durations, so
// that their clocks need not agree. What has ended counts as absent.
//
// Calls may be repeated, by a client that did not get the answer: each has the
// same effect twice as once. Package storetest checks all this.
type Store interface {
	// Begin claims c.Key for c.Token until lease has passed, if the key is
	// absent or is claimed by c.Token already, which extends the claim. It
	// never claims a key that is done, or that another token has. The record
	// says which of the three it was.
	Begin(ctx context.Context, c Claim, lease time.Duration) (Record, error)

	// Complete records c.Key as done until ttl has passed, if c.Token has the
	// key, recorded it before, or the key is absent. Otherwise it changes
	// nothing and returns ErrClaimLost.
	Complete(ctx context.Context, c Claim, ttl time.Duration) error

	// Release ends the claim of c.Token, so that the next Begin may have the
	// key. It leaves alone what is done, and what another token has; neither
	// is an error.
	Release(ctx context.Context, c Claim) error
}

// Claim is the wish of one run to be the only one with its key.
type Claim struct {
	// Key has 1 to 255 bytes of UTF-8 without control characters.
	Key string

	// Token identifies the run. It is unique: no two claims share one, not
	// even those of two runs of one message. Letters and digits, at most 64.
	Token string

	// Fingerprint stands for what the message contains. It is stored with the
	// key and comes back in the Record. At most 255 bytes of UTF-8 without
	// control characters; may be empty.
	Fingerprint string
}

// State is what Begin found.
type State uint8

const (
	// InProgress means that another token has the key. It is the zero value,
	// so that an answer that nobody filled in neither runs nor skips anything.
	InProgress State = iota
	// Claimed means that the caller has the key.
	Claimed
	// Done means that a run with the key has succeeded.
	Done
)

// String returns the state as a word for logs, such as "in progress".
func (s State) String() string {
	switch s {
	case Claimed:
		return "claimed"
	case Done:
		return "done"
	}
	return "in progress"
}

// Record is what a Store knows about a key.
type Record struct {
	State State

	// Fingerprint is that of the claim that has the key or is done.
	Fingerprint string

	// Left is how long the claim or the record still lasts, about.
	Left time.Duration
}

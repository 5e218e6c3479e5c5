package memory

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// Operation names what is about to happen when a Fault hook is asked.
type Operation string

const (
	// Publish stores one message; asked once per message of a call.
	Publish Operation = "publish"

	// SendBack sends one message back; asked like Publish.
	SendBack Operation = "send-back"

	// Receive is one call of Source.Receive on any source. Its Op has no topic
	// and no id, and its Fault knows only Latency and Err.
	Receive Operation = "receive"

	// Deliver hands out one message: it is taken from the queue, and Receive
	// is about to return it. With Err it is given back and Receive returns
	// the rest of its batch, or Err if there is no rest; with Err and Done,
	// as when the response got lost, nobody has it until its lease runs out.
	Deliver Operation = "deliver"

	// Settle is one entry of Source.Settle, see Op.Action.
	Settle Operation = "settle"

	// Extend is one entry of Source.Extend.
	Extend Operation = "extend"

	// Count is one call of Backlogs on a source, for which the same holds as for
	// Receive.
	Count Operation = "count"
)

// Op is one operation on one message.
type Op struct {
	Operation Operation
	Action    brokers.Action // of a Settle
	Topic     string
	ID        string // of the message

	// Nth counts equal operations on this message, from 1. It does not depend
	// on what happens to other messages, so a fault that is a function of Op
	// comes at the same point in every run.
	Nth int
}

// Fault says what goes wrong with an operation. The zero value is nothing.
type Fault struct {
	// Latency passes before anything else happens. A call on several messages
	// takes the longest of theirs. When its context ends during that time,
	// the call fails and has no effect.
	Latency time.Duration

	// Lost ends the lease of the delivery first: the message is available to
	// others, Abandoned is one more, and the operation comes too late. With a
	// Deliver the delivery is returned all the same. Publish and SendBack ignore it.
	Lost bool

	// Duplicate does the operation once more. Publish and SendBack store the
	// message twice; Deliver hands it out again while it is held, where the first
	// holder to settle wins and the other has lost its lease; a Retry leaves
	// a second copy to be retried, even if it reports Err and the original
	// stays held, as when the confirmation of the copy got lost. Others
	// ignore it.
	Duplicate bool

	// Unreadable is the Unreadable of the delivery that a Deliver hands out.
	// Others ignore it.
	Unreadable error

	// Err is what the operation reports instead of its result. It has no
	// effect then, unless Done. With brokers.ErrLeaseLost this is a stale
	// token, with brokers.ErrUnknownOutcome a lost request, and with any
	// other error a temporary failure.
	Err error

	// Done says that the operation has its effect although it reports Err.
	// With brokers.ErrUnknownOutcome this is a lost confirmation. A settlement
	// that is done stands: the next attempt is brokers.ErrSettled.
	Done bool
}

// skip says whether the operation has no effect.
func (f Fault) skip() bool { return f.Err != nil && !f.Done }

// faults asks the hook about the n operations of one call and lets their
// latency pass. It returns nil when there is no hook. The error is why ctx
// ended meanwhile.
func (b *Broker) faults(ctx context.Context, n int, op func(i int) Op) ([]Fault, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if b.options.Fault == nil {
		return nil, nil
	}
	faults := make([]Fault, n)
	var latency time.Duration
	for i := range faults {
		faults[i] = b.options.Fault(b.count(op(i)))
		latency = max(latency, faults[i].Latency)
	}
	return faults, pause(ctx, latency)
}

func (b *Broker) count(op Op) Op {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ops[op]++
	op.Nth = b.ops[op]
	return op
}

func faultAt(faults []Fault, i int) Fault {
	if faults == nil {
		return Fault{}
	}
	return faults[i]
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

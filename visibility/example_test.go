package visibility_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-go/redrive/visibility"
)

// delivery is a message with its lease, as a broker's client may have it.
type delivery struct {
	receipt         string
	received, until time.Time
	ctx             context.Context // of the work on it
	cancel          context.CancelCauseFunc
}

func times(d *delivery) (receivedAt, until time.Time) { return d.received, d.until }

// A slow handler keeps its message: the lease is extended while it works, and
// the keeper forgets it when the message is settled.
func ExampleKeeper() {
	extended := make(chan bool, 1)
	keeper := &visibility.Keeper[*delivery]{
		Lease: 30 * time.Second,
		Extend: func(_ context.Context, lease time.Duration, batch []*delivery) []error {
			for _, d := range batch { // one request to the broker
				fmt.Printf("%s: %s more\n", d.receipt, lease)
				d.until = time.Now().Add(lease)
			}
			extended <- true
			return nil
		},
		Times: times,
		Final: func(error) bool { return false },
		Lost:  func(d *delivery, cause error) { d.cancel(cause) },
	}

	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { keeper.Run(ctx) })

	// The message waited a while before it came to us.
	now := time.Now()
	order := &delivery{receipt: "order 1", received: now.Add(-20 * time.Second), until: now.Add(10 * time.Second)}
	keeper.Track(order)
	<-extended // the handler works for longer than the lease

	keeper.Forget(order)
	fmt.Println("settled, tracked:", keeper.Len())
	stop()
	running.Wait()

	// Output:
	// order 1: 30s more
	// settled, tracked: 0
}

// Work whose message went to somebody else is told at once, with the reason.
func ExampleKeeper_lost() {
	errReceipt := errors.New("the receipt handle has expired")
	keeper := &visibility.Keeper[*delivery]{
		Lease: 30 * time.Second,
		Extend: func(_ context.Context, _ time.Duration, batch []*delivery) []error {
			errs := make([]error, len(batch))
			for i, d := range batch {
				errs[i] = fmt.Errorf("extend %s: %w", d.receipt, errReceipt)
			}
			return errs
		},
		Times: times,
		Final: func(err error) bool { return errors.Is(err, errReceipt) },
		Lost:  func(d *delivery, cause error) { d.cancel(cause) },
	}

	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { keeper.Run(ctx) })

	now := time.Now()
	order := &delivery{receipt: "order 1", received: now.Add(-20 * time.Second), until: now.Add(10 * time.Second)}
	order.ctx, order.cancel = context.WithCancelCause(context.Background())
	keeper.Track(order)

	<-order.ctx.Done() // the handler's context
	fmt.Println("stopped:", context.Cause(order.ctx))
	fmt.Println("tracked:", keeper.Len())
	stop()
	running.Wait()

	// Output:
	// stopped: extend order 1: the receipt handle has expired
	// tracked: 0
}

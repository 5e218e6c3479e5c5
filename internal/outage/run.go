package outage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
)

// Run plays s until the fleet has made up for the outage, or its Patience ends.
// Connect is called once for each worker, and once for the producer; what it
// returns stays open.
func Run(ctx context.Context, s Scenario, connect func() (brokers.Broker, error)) (Report, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	producer, err := connect()
	if err != nil {
		return Report{}, err
	}
	t := newTally(s)
	fleet := make([]*consumer.Consumer, s.Workers)
	for i := range fleet {
		broker, err := connect()
		if err != nil {
			return Report{}, err
		}
		if fleet[i], err = t.hire(broker); err != nil {
			return Report{}, err
		}
	}
	var group sync.WaitGroup
	for i, c := range fleet {
		group.Go(func() {
			if err := c.Run(ctx); err != nil {
				stop(fmt.Errorf("worker %d: %w", i, err))
			}
		})
	}
	t.start(ctx)
	stop(t.produce(ctx, producer))
	group.Wait()
	if err := context.Cause(ctx); !errors.Is(err, errDone) {
		return Report{}, err
	}
	return t.result(), nil
}

// start sets the clock to zero when all workers are ready.
func (t *tally) start(ctx context.Context) {
	for range t.Workers {
		select {
		case <-t.ready:
		case <-ctx.Done():
		}
	}
	t.began = time.Now()
	t.dependency = newDependency(t.Scenario, t.began)
	close(t.started)
}

var errDone = errors.New("the run is over")

// produce publishes messages until the run is over, which it says by errDone. It
// does not wait for one to be confirmed before the next is due: a slow broker
// must not thin out the load.
func (t *tally) produce(ctx context.Context, broker brokers.Broker) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var unconfirmed sync.WaitGroup
	defer unconfirmed.Wait()
	every := time.Second / time.Duration(t.Rate)
	for n := 0; ; n++ {
		due := time.Duration(n) * every
		if err := wait(ctx, due-time.Since(t.began)); err != nil {
			return err
		}
		if t.over(due) {
			return errDone
		}
		t.publishing(due)
		unconfirmed.Go(func() {
			if err := broker.Publish(ctx, t.Topic, brokers.Message{ID: strconv.Itoa(n), Body: []byte("{}")}); err != nil {
				stop(err)
			}
		})
	}
}

package serve

import (
	"context"
	"errors"
	"sync"

	"github.com/redrive-go/redrive/brokers"
)

// Brokers makes the brokers of a configuration when they are used first, and keeps
// them. One that takes its time keeps nobody from the others.
type Brokers struct {
	open func(ctx context.Context, name string) (brokers.Broker, error)

	mu     sync.Mutex
	byName map[string]*opened
}

// opened is a broker once it could be made.
type opened struct {
	mu     sync.Mutex
	broker brokers.Broker
}

// NewBrokers returns Brokers that open makes.
func NewBrokers(open func(ctx context.Context, name string) (brokers.Broker, error)) *Brokers {
	return &Brokers{open: open, byName: map[string]*opened{}}
}

// Open returns the broker that has a name in the configuration, the same one each
// time.
func (b *Brokers) Open(ctx context.Context, name string) (broker brokers.Broker, err error) {
	b.mu.Lock()
	o := b.byName[name]
	if o == nil {
		o = &opened{}
		b.byName[name] = o
	}
	b.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broker == nil {
		if broker, err = b.open(ctx, name); err != nil {
			return nil, err
		}
		o.broker = broker
	}
	return o.broker, nil
}

// Close closes all of them.
func (b *Brokers) Close(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, o := range b.byName {
		o.mu.Lock()
		if o.broker != nil {
			errs = append(errs, o.broker.Close(ctx))
		}
		o.mu.Unlock()
	}
	return errors.Join(errs...)
}

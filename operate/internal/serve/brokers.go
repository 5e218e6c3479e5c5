package serve

import (
	"context"
	"errors"
	"sync"

	"github.com/redrive-go/redrive/brokers"
)

// Brokers makes the brokers of a configuration when they are used first, and keeps
// them.
type Brokers struct {
	open func(ctx context.Context, name string) (brokers.Broker, error)

	mu     sync.Mutex
	opened map[string]brokers.Broker
}

// NewBrokers returns Brokers that open makes.
func NewBrokers(open func(ctx context.Context, name string) (brokers.Broker, error)) *Brokers {
	return &Brokers{open: open, opened: map[string]brokers.Broker{}}
}

// Open returns the broker that has a name in the configuration, the same one each
// time.
func (b *Brokers) Open(ctx context.Context, name string) (brokers.Broker, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.opened[name] == nil {
		broker, err := b.open(ctx, name)
		if err != nil {
			return nil, err
		}
		b.opened[name] = broker
	}
	return b.opened[name], nil
}

// Close closes all of them.
func (b *Brokers) Close(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, broker := range b.opened {
		errs = append(errs, broker.Close(ctx))
	}
	return errors.Join(errs...)
}

// openSource opens a source of those topics that can be read. The others are
// missing, and the error says why; without a source it is why there is none.
func openSource(ctx context.Context, b brokers.Broker, subscribe func(topics ...string) brokers.Subscription, topics []string) (source brokers.Source, missing []string, err error) {
	source, err = b.Open(ctx, subscribe(topics...))
	if err == nil || len(topics) == 1 || !errors.Is(err, brokers.ErrMisconfigured) {
		return source, nil, err
	}
	var good []string
	var faults []error
	for _, topic := range topics {
		alone, err := b.Open(ctx, subscribe(topic))
		switch {
		case errors.Is(err, brokers.ErrMisconfigured):
			missing, faults = append(missing, topic), append(faults, err)
			continue
		case err == nil:
			err = alone.Close(ctx)
		}
		if err != nil {
			return nil, nil, err
		}
		good = append(good, topic)
	}
	err = errors.Join(faults...)
	if len(good) == 0 {
		return nil, missing, err
	}
	source, fault := b.Open(ctx, subscribe(good...))
	if fault != nil {
		return nil, nil, fault
	}
	return source, missing, err
}

package collect

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/store"
	"github.com/redrive-go/redrive/settings"
)

// Store is where letters go: a *store.Store.
type Store interface {
	Collect(ctx context.Context, now time.Time, letters []store.Collected) (added int, err error)
	Probe(ctx context.Context, bytes int64) error
	Stats(ctx context.Context, now time.Time, names ...string) (store.Stats, error)
	Disk() (free, size int64, err error)
}

// Config says what to collect. Store, Source and Broker are required.
type Config struct {
	Store Store

	// Source delivers the letters, see [Subscription]. The caller closes it.
	Source brokers.Source

	// Broker is the name by which the store knows the broker of Source.
	Broker string

	// Log says that Source reads a log, such as Kafka's: letters stay there, and
	// the place of each, in Meta.Origin, tells it from others.
	Log bool

	Limits Limits

	// Follow goes on for ever. Without it Run ends when the topics are empty, when
	// a limit is reached, and when the store or the broker has failed for a minute.
	Follow bool

	// Idle is for how long nothing must have come for the topics to be empty, and
	// five times as long before the first letter. 0 means 2 s.
	Idle time.Duration

	// Logger gets what an operator should know: that collecting pauses and goes
	// on, and each letter that the store refuses. Nil means slog.Default().
	Logger *slog.Logger
}

// Limits are where collecting stops. They are kept to about one batch, and where
// several collect into one store, to about 20,000 letters.
type Limits struct {
	// FreeDisk is how much of the disk of an SQLite store must stay free, as a
	// share of its size, below 1. 0 means 0.1.
	FreeDisk float64

	// Letters is the most letters that the store may hold. 0 means 1,000,000.
	Letters int64
}

// ErrLimit reports that a limit of collecting was reached. The rest of the letters
// is in the broker.
var ErrLimit = errors.New("a limit is reached, and the rest of the letters stays in the broker")

// ErrRefused reports that the store refuses letters. The letters stay in the
// broker.
var ErrRefused = errors.New("the store refuses letters")

// Group is the consumer group to collect with, where the broker has such a notion,
// unless another is configured. No worker may be in it.
const Group = "redrive-collect"

const (
	mostReceived = 500     // letters at once
	mostBytes    = 8 << 20 // of bodies in a transaction, unless it is one letter
	mostRefused  = 100     // letters that are held until the end, because the store refuses them
)

// Subscription is the one to open a Source with. It declares nothing and demands
// nothing of the topics. On Kafka all that are collected with one group belong in
// one Source.
func Subscription(group string, topics ...string) brokers.Subscription {
	return brokers.Subscription{
		Topics:   topics,
		Group:    group,
		InFlight: 2*mostReceived + mostRefused,
		Lease:    2 * time.Minute,
	}
}

// Result counts letters.
type Result struct {
	Received int64 // by this collector, those that came again included
	Added    int64 // to the store
	Known    int64 // to the store already
	Refused  int64 // by the store; they stay in the broker

	// Unacked are in the store, and no longer this collector's to ack: they come
	// again.
	Unacked int64
}

// Status is a Result so far, and how it goes.
type Status struct {
	Result

	// Paused is why nothing is received, and Since when that began. They are nil
	// and zero again when a letter was collected, or nothing has failed for two
	// minutes.
	Paused error
	Since  time.Time
}

// Collector collects from one Source.
type Collector struct {
	cfg     Config
	trouble trouble
	refused []*brokers.Delivery // held so that they do not come again at once
	failed  int64               // bytes of what the store did not take last; 0 after it took something

	mu     sync.Mutex
	status Status
}

// New returns a collector that does nothing yet. Its error reports all faults of
// the Config.
func New(cfg Config) (*Collector, error) {
	var faults []error
	add := func(bad bool, field, problem, fix string) {
		if bad {
			faults = append(faults, &settings.Error{Package: "collect", Field: "Config." + field, Problem: problem, Fix: fix})
		}
	}
	add(cfg.Store == nil, "Store", "is nil", "open one with store.Open")
	add(cfg.Source == nil, "Source", "is nil", "open one with collect.Subscription")
	add(cfg.Broker == "", "Broker", "is empty", "use the name of the broker in the configuration")
	add(!(cfg.Limits.FreeDisk >= 0 && cfg.Limits.FreeDisk < 1), "Limits.FreeDisk", "is no share of a disk", "use 0 to below 1, such as 0.1")
	add(cfg.Limits.Letters < 0, "Limits.Letters", "is negative", "use 0 for the default, or a number")
	add(cfg.Idle < 0, "Idle", "is negative", "use 0 for the default, or a time")
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if cfg.Limits.FreeDisk == 0 {
		cfg.Limits.FreeDisk = 0.1
	}
	if cfg.Limits.Letters == 0 {
		cfg.Limits.Letters = 1_000_000
	}
	if cfg.Idle == 0 {
		cfg.Idle = 2 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Collector{cfg: cfg}, nil
}

// Status may be called at any time, by anybody.
func (c *Collector) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

func (c *Collector) note(f func(*Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.status)
}

// Run collects until ctx ends, which is no error, or as Config.Follow says. What it
// holds is then acked or released. It is called once.
//
// It returns [ErrLimit] if the rest of the letters is still in the broker, what the
// store or the broker said last if one of them failed for too long, and at once what
// only an operator can cure: brokers.ErrMisconfigured, brokers.ErrClosed, a
// *brokers.TopicError, and [ErrRefused] if the store refuses more than 100 letters.
func (c *Collector) Run(ctx context.Context) (Result, error) {
	defer func() { c.settle(ctx, brokers.Release, c.refused) }()
	for {
		more := true
		room, err := c.ready(ctx)
		if err == nil {
			more, err = c.stream(ctx, room)
		}
		if err != nil && ctx.Err() == nil {
			more, err = true, c.pause(ctx, err)
		}
		switch {
		case ctx.Err() != nil:
			return c.Status().Result, nil
		case err != nil || !more:
			return c.Status().Result, err
		}
	}
}

// stream collects up to room letters: it receives some while it commits those
// before. It reports whether there may be more.
func (c *Collector) stream(ctx context.Context, room int64) (more bool, err error) {
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	received := make(chan []*brokers.Delivery)
	var ended error
	go func() {
		defer close(received) // for which the loop below waits
		more, ended = c.receive(receiving, room, received)
	}()
	calm := time.NewTimer(calmAfter)
	defer calm.Stop()
	for {
		select {
		case <-calm.C:
			c.goesOn()
		case batch, ok := <-received:
			switch {
			case !ok:
				return more, cmp.Or(err, ended)
			case err != nil || ctx.Err() != nil:
				c.settle(ctx, brokers.Release, batch)
			default:
				if err = c.commit(ctx, batch); err != nil {
					stop()
				}
			}
		}
	}
}

// errIdle ends a Receive that brought nothing.
var errIdle = errors.New("nothing came")

// receive hands over what it receives, up to room letters. It ends with an error,
// when nothing comes any more, and when there is no more room.
func (c *Collector) receive(ctx context.Context, room int64, received chan<- []*brokers.Delivery) (more bool, err error) {
	idle := 5 * c.cfg.Idle
	for room > 0 {
		if err := c.checkDisk(); err != nil {
			return true, err
		}
		within, cancel := ctx, context.CancelFunc(func() {})
		if !c.cfg.Follow {
			within, cancel = context.WithTimeoutCause(ctx, idle, errIdle)
		}
		ds, err := c.cfg.Source.Receive(within, int(min(room, mostReceived)))
		cancel()
		switch {
		case ctx.Err() != nil && err != nil:
			return true, nil
		case errors.Is(err, errIdle):
			return false, nil
		case err != nil:
			return true, c.brokerFails(err)
		}
		idle = c.cfg.Idle
		room -= int64(len(ds))
		c.note(func(s *Status) { s.Received += int64(len(ds)) })
		received <- ds
	}
	return true, nil
}

// Package harness runs the brokers that the integration tests need: in
// containers where a Docker engine answers, as local processes elsewhere, from
// Debian packages (RabbitMQ, Redis, Valkey) and from the published Java artifacts
// (Kafka, and ElasticMQ for Amazon SQS). Versions, settings and addresses are the
// same either way.
//
// The brokers are a property of the machine, not of a process: whoever calls
// Up next finds them running, and Down stops them whoever started them. All
// calls that change something wait for each other, in other processes too.
package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// startTimeout is enough beside other work. A broker that fails ends at once.
	startTimeout = 5 * time.Minute
	stopTimeout  = 30 * time.Second
	pollEvery    = 100 * time.Millisecond
)

// Harness starts and stops the brokers. Make one with New.
type Harness struct {
	engine engine
	cache  string
	log    io.Writer
}

// engine is a way to run the brokers.
type engine interface {
	// present reports whether the broker's own programs need not be fetched.
	present(ctx context.Context, b Broker) bool
	// start starts those of the brokers that do not run, with the data that
	// they had, thaws the frozen ones, and returns when all have been told to.
	// It reports the ones it started.
	start(ctx context.Context, brokers []Broker) (started []Broker, err error)
	// await returns when the broker itself says that it has started.
	await(ctx context.Context, b Broker) error
	// check returns an error when the broker has ended, and why if it is known.
	check(ctx context.Context, b Broker) error
	// Each of these two also ends a frozen broker.
	stop(ctx context.Context, b Broker) error // in good order
	kill(ctx context.Context, b Broker) error // as a crash
	freeze(ctx context.Context, b Broker) error
	thaw(ctx context.Context, b Broker) error // no error where it is not frozen
	// control runs the broker's own command line tool.
	control(ctx context.Context, b Broker, args []string) error
	down(ctx context.Context, brokers []Broker) error // stops them and removes their data
}

// New picks the way to run the brokers; REDRIVE_ENGINE=docker or local picks it
// by hand. What it does goes to log in short sentences.
func New(ctx context.Context, log io.Writer) (*Harness, error) {
	h, err := newHarness(log)
	if err != nil {
		return nil, err
	}
	switch choice := os.Getenv("REDRIVE_ENGINE"); choice {
	case "docker":
		h.engine, err = newCompose(log)
	case "local":
		h.engine, err = newLocal(h.cache, log)
	case "":
		if hasDocker(ctx) {
			h.engine, err = newCompose(log)
		} else {
			h.engine, err = newLocal(h.cache, log)
		}
	default:
		err = fmt.Errorf("REDRIVE_ENGINE=%s: it is docker, local, or not set", choice)
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

// newHarness returns a harness without an engine.
func newHarness(log io.Writer) (*Harness, error) {
	cache, err := os.UserCacheDir()
	if err == nil {
		cache = filepath.Join(cache, "redrive", "brokers")
		err = os.MkdirAll(cache, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("find a place for the packages of the brokers: %w", err)
	}
	return &Harness{cache: cache, log: log}, nil
}

// Up starts those of the brokers that do not run and returns when all are ready.
// It reports the ones it started. After an error some may be running: Down
// stops them. No run of tests stops them, see Use.
func (h *Harness) Up(ctx context.Context, brokers []Broker) (started []Broker, err error) {
	err = h.locked(func() error {
		if err = h.unmark(brokers); err == nil {
			started, err = h.start(ctx, brokers)
		}
		return err
	})
	return started, err
}

// Down stops the brokers and removes what they left: processes, containers,
// mounts and data. The downloaded packages stay for the next time.
func (h *Harness) Down(ctx context.Context, brokers []Broker) error {
	return h.locked(func() error { return h.down(ctx, brokers) })
}

func (h *Harness) down(ctx context.Context, brokers []Broker) error {
	if err := h.engine.down(ctx, brokers); err != nil {
		return err
	}
	return h.unmark(brokers)
}

// Start starts one broker, with the data that it had, and waits until it is
// ready.
func (h *Harness) Start(ctx context.Context, name string) error {
	return h.one(name, func(b Broker) error {
		_, err := h.start(ctx, []Broker{b})
		return err
	})
}

// Stop stops one broker in good order. It keeps its data.
func (h *Harness) Stop(ctx context.Context, name string) error {
	return h.one(name, func(b Broker) error { return h.engine.stop(ctx, b) })
}

// Kill ends one broker as a crash does, by SIGKILL. It keeps its data.
func (h *Harness) Kill(ctx context.Context, name string) error {
	return h.one(name, func(b Broker) error { return h.engine.kill(ctx, b) })
}

// Freeze makes one broker stand still, by SIGSTOP: its connections stay, and
// nothing answers. Thaw and Start let it go on, Stop and Kill end it.
func (h *Harness) Freeze(ctx context.Context, name string) error {
	return h.one(name, func(b Broker) error { return h.engine.freeze(ctx, b) })
}

// Thaw lets a frozen broker go on. Without one it does nothing.
func (h *Harness) Thaw(ctx context.Context, name string) error {
	return h.one(name, func(b Broker) error { return h.engine.thaw(ctx, b) })
}

// Control runs rabbitmqctl against one RabbitMQ, with its output on the log.
func (h *Harness) Control(ctx context.Context, name string, args ...string) error {
	b, err := find(name)
	if err != nil {
		return err
	}
	if b.Product != RabbitMQ {
		return fmt.Errorf("%s has no rabbitmqctl: it is a %s", b.Name, b.Product)
	}
	return h.engine.control(ctx, b, args)
}

func (h *Harness) one(name string, act func(Broker) error) error {
	b, err := find(name)
	if err != nil {
		return err
	}
	return h.locked(func() error { return act(b) })
}

func (h *Harness) start(ctx context.Context, brokers []Broker) ([]Broker, error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout+startTimeout)
	defer cancel()
	started, err := h.engine.start(ctx, brokers)
	if err != nil {
		return started, err
	}
	for _, b := range brokers {
		if err := h.await(ctx, b); err != nil {
			return started, fmt.Errorf("%s is not ready: %w", b.Name, err)
		}
	}
	return started, nil
}

// await returns when the broker answers a client and says itself that it has
// started, or when it has ended.
func (h *Harness) await(ctx context.Context, b Broker) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		greeting, err := Probe(ctx, b.Product, b.URL())
		if err == nil {
			return h.confirm(ctx, b, greeting)
		}
		if ended := h.engine.check(ctx, b); ended != nil {
			return ended
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(pollEvery):
		}
	}
}

func (h *Harness) confirm(ctx context.Context, b Broker, greeting Greeting) error {
	if !strings.HasPrefix(greeting.Version, b.Version) {
		return fmt.Errorf("%s %s answers at %s, where %s* was to be", greeting.Product, greeting.Version, b.Address(), b.Version)
	}
	if err := h.engine.await(ctx, b); err != nil {
		return err
	}
	fmt.Fprintf(h.log, "%s: %s %s at %s\n", b.Name, greeting.Product, greeting.Version, b.URL())
	return nil
}

// locked runs act while no other process changes the brokers.
func (h *Harness) locked(act func() error) error {
	unlock, err := lock(filepath.Join(h.cache, "lock"))
	if err != nil {
		return fmt.Errorf("wait for the others that use the brokers: %w", err)
	}
	defer unlock()
	return act()
}

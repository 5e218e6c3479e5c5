// Package adapter is what the adapters for brokers have in common: bookkeeping
// that knows no broker.
package adapter

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/wire"
)

// Size is the bytes of the names and values of h.
func Size(h brokers.Headers) int {
	n := 0
	for _, header := range h {
		n += len(header.Name) + len(header.Value)
	}
	return n
}

// Publish identifies msgs, has send store what compose makes of them, and
// returns a *[brokers.PublishError] of what failed. Send returns an error for
// each, or nil.
func Publish[T any](topic string, msgs []brokers.Message, compose func(brokers.Message) (T, error), send func([]T) []error) error {
	for i := range msgs {
		wire.Identify(&msgs[i], time.Now(), rand.Text)
	}
	return store(topic, len(msgs), func(i int) (T, error) { return compose(msgs[i]) }, send)
}

// SendBack is Publish of copies for the workers of topic, which start over.
func SendBack[T any](topic string, msgs []brokers.Item, compose func(brokers.Message, brokers.Meta) (T, error), send func([]T) []error) error {
	for i := range msgs {
		wire.Identify(msgs[i].Message, time.Now(), rand.Text)
	}
	return store(topic, len(msgs), func(i int) (T, error) {
		m := *msgs[i].Message
		m.Topic = topic
		return compose(m, msgs[i].Meta.Restart())
	}, send)
}

// store has send store what compose makes of n messages.
func store[T any](topic string, n int, compose func(i int) (T, error), send func([]T) []error) error {
	failed := make(map[int]error)
	var out []T
	var index []int
	for i := range n {
		composed, err := compose(i)
		if err != nil {
			failed[i] = err
			continue
		}
		out, index = append(out, composed), append(index, i)
	}
	if len(out) > 0 {
		for at, err := range send(out) {
			if err != nil {
				failed[index[at]] = err
			}
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &brokers.PublishError{Topic: topic, Failed: failed}
}

// Taken returns the findings that Open takes, and those that it refuses as a
// *[brokers.TopologyError], nil if there are none.
func Taken(findings []inspect.Finding) (taken []inspect.Finding, err error) {
	var refused []inspect.Finding
	for _, f := range findings {
		if f.Severity == inspect.Blocking {
			refused = append(refused, f)
		} else {
			taken = append(taken, f)
		}
	}
	if refused != nil {
		err = &brokers.TopologyError{Findings: refused}
	}
	return taken, err
}

// Waker wakes a Receive that waits.
type Waker chan struct{}

// NewWaker returns a Waker that has not been woken.
func NewWaker() Waker { return make(Waker, 1) }

// Wake ends the present or the next Wait.
func (w Waker) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Wait returns when there may be something new, when ctx ends, and at until
// unless that is zero.
func (w Waker) Wait(ctx context.Context, until time.Time) {
	var over <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-w:
	case <-over:
	case <-ctx.Done():
	}
}

// Rest waits for d, and reports whether ctx goes on.
func Rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Turn is the number of the queue to serve next.
type Turn int

// Take takes up to most from queues that have something ready, in turn and an
// equal share from each. The function take is told how many it may take of a
// queue, and returns how many it took.
func (t *Turn) Take(most, queues int, ready func(queue int) int, take func(queue, most int) int) {
	waiting := 0
	for i := 0; i < queues && waiting < most; i++ { // with more the share is one in any case
		waiting += min(1, ready((int(*t)+i)%queues))
	}
	if waiting == 0 {
		return
	}
	share := 1 + (most-1)/waiting
	for idle := 0; most > 0 && idle < queues; *t++ {
		n := take(int(*t)%queues, min(share, most))
		most -= n
		if idle++; n > 0 {
			idle = 0
		}
	}
	*t %= Turn(queues)
}

// ErrNotHeld refuses a delivery of another source.
var ErrNotHeld = fmt.Errorf("it was not received from this source: %w", brokers.ErrLeaseLost)

// ErrReadOnly refuses a Retry that cannot be done in place.
var ErrReadOnly = fmt.Errorf("its subscription only reads, and has no place for a copy; the delivery is still held, and can be released: %w", brokers.ErrRefused)

// Failures collects the errors of a batch: List has one for each entry, and is
// nil while there are none.
type Failures struct {
	Broker  string
	Entries int
	List    []error
}

// Add notes that entry i could not be settled or extended, if err says so.
func (f *Failures) Add(i int, what string, d *brokers.Delivery, err error) {
	if err == nil {
		return
	}
	if f.List == nil {
		f.List = make([]error, f.Entries)
	}
	if d == nil {
		f.List[i] = fmt.Errorf("%s: %s of no delivery: %w", f.Broker, what, err)
	} else {
		f.List[i] = fmt.Errorf("%s: %s message %q of %q: %w", f.Broker, what, d.Message.ID, d.Message.Topic, err)
	}
}

// Duration checks a duration of Options, and sets the default where it is 0.
func Duration(field string, d *time.Duration, least, usual time.Duration) error {
	if *d != 0 && *d < least {
		return fmt.Errorf("the duration Options.%s is %v: use at least %v, or 0 for the default", field, *d, least)
	}
	*d = cmp.Or(*d, usual)
	return nil
}

// Number checks a number of Options, and sets the default where it is 0.
func Number(field string, n *int, usual int) error {
	if *n < 0 {
		return fmt.Errorf("the number Options.%s is %d: use a positive one, or 0 for the default", field, *n)
	}
	*n = cmp.Or(*n, usual)
	return nil
}

// IsRemote reports whether a host, as a name or an address, may be another machine.
func IsRemote(host string) bool {
	ip := net.ParseIP(host)
	return host != "localhost" && (ip == nil || !ip.IsLoopback())
}

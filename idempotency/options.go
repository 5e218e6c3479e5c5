package idempotency

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/settings"
)

const (
	defaultLease = 30 * time.Second
	defaultWait  = 500 * time.Millisecond
	minLease     = time.Second
)

// Options say how long to remember, and how to behave meanwhile. Retention and
// Redrive are required: only you know them, and a record that ends too early
// lets a message be handled again without a word.
type Options struct {
	// Retention is how long after a message was handled another copy of it may
	// still be delivered: as long as the broker keeps messages, or where it
	// keeps them for ever, the longest backlog that you expect; not less than
	// the MaxAge of the retry policy. Required.
	Retention time.Duration

	// Redrive is how long a dead letter may lie before it is sent back: as
	// long as the dead-letter topic keeps it. settings.None says that dead
	// letters are never sent back. Required.
	Redrive time.Duration

	// TTL is how long a success is remembered, at least Retention plus
	// Redrive. Default Retention plus Redrive.
	TTL time.Duration

	// Lease is how long the key stays claimed after the death of a worker. It
	// is extended while the handler runs. At least 1 s. Default 30 s.
	Lease time.Duration

	// Wait is how long a second run with the same key waits for the first,
	// occupying its handler slot, before it is sent back to come later.
	// Default 500 ms; settings.None does not wait.
	Wait time.Duration

	// Scope names what the handler does. Handlers with different effects must
	// not share a scope, or one would skip what only the other has done; two
	// consumer groups of one topic, for example. Default: the topic of the
	// message, which retries keep. If dead letters are sent back to another topic
	// than theirs, name a scope that both share: or else what was handled before
	// is handled again.
	Scope string

	// Namespace names whose keys those of a message are, such as its producer or
	// its tenant: equal keys of different namespaces are different. Otherwise
	// whoever may publish to the topic can use up the keys of others. It must be
	// the same for all runs of a message, and be vouched for: a property that the
	// broker checks (user-id on RabbitMQ), a topic of each producer's own, or
	// something in the body whose signature the function has verified. A header
	// that anybody may set keeps honest producers apart, and no others. Default:
	// none, all who publish to a topic share its keys.
	Namespace func(m *brokers.Message) string

	// Key makes the key, the same for all runs of a message: say, from an
	// order number in the body. An empty key makes the message a dead letter.
	// Default: the function Key.
	Key func(m *brokers.Message, meta brokers.Meta) string

	// Fingerprint stands for what must be equal when a key comes again. What
	// returns "" is not compared. Default: the SHA-256 of the body.
	Fingerprint func(m *brokers.Message) string

	// Logger hears of successes that could not be recorded, at level Error,
	// and of duplicates, at level Debug. Default slog.Default().
	Logger *slog.Logger
}

// faults returns every fault of o, joined.
func (o Options) faults() error {
	const positive = "use a positive duration, or 0 for the default of %v"
	err := errors.Join(
		refuse(o.Retention <= 0, "Retention", o.Retention, "say how long the broker may keep a message%s", ""),
		refuse(o.Redrive == 0 || o.Redrive < settings.None, "Redrive", o.Redrive, "say how long a dead letter may lie before it is sent back, or %s if none ever is", "settings.None"),
		refuse(o.TTL < 0, "TTL", o.TTL, positive, "Retention plus Redrive"),
		refuse(o.Lease != 0 && o.Lease < minLease, "Lease", o.Lease, "use at least %v, so that there is time to extend it", minLease),
		refuse(o.Wait < settings.None, "Wait", o.Wait, positive+", or settings.None not to wait", defaultWait),
	)
	if err == nil && o.TTL > 0 && o.TTL < o.horizon() {
		return refuse(true, "TTL", o.TTL, "use at least Retention plus Redrive (%v), or a message that comes after that is handled again", o.horizon())
	}
	return err
}

// horizon is how long a success has to be remembered.
func (o Options) horizon() time.Duration {
	redrive := max(o.Redrive, 0)
	if o.Retention > math.MaxInt64-redrive {
		return math.MaxInt64
	}
	return o.Retention + redrive
}

func refuse(bad bool, field string, value any, fix string, limit any) error {
	if !bad {
		return nil
	}
	return &settings.Error{Package: "idempotency", Field: "Options." + field, Problem: fmt.Sprintf("is %v", value), Fix: fmt.Sprintf(fix, limit)}
}

// withDefaults fills what is unset.
func (o Options) withDefaults() Options {
	if o.TTL == 0 {
		o.TTL = o.horizon()
	}
	if o.Lease == 0 {
		o.Lease = defaultLease
	}
	if o.Wait == 0 {
		o.Wait = defaultWait
	}
	if o.Key == nil {
		o.Key = Key
	}
	if o.Fingerprint == nil {
		o.Fingerprint = func(m *brokers.Message) string { return hash(m.Body) }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

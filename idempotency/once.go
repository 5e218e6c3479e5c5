package idempotency

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/internal/text"
)

var (
	// ErrInProgress says that another run has the key. The message comes back
	// later; this is no attempt.
	ErrInProgress = errors.New("another run with the same idempotency key is in progress")

	// ErrMismatch says that a key came again with another payload. The message
	// becomes a dead letter: either the producer used one key for two
	// messages, or the message was changed on its way.
	ErrMismatch = errors.New("the idempotency key was used before with another payload")

	errNoKey = errors.New("the message has no idempotency key: give it an ID, or mend Options.Key")
)

const (
	firstPoll = 10 * time.Millisecond // between looks at a key in progress
	lastPoll  = 250 * time.Millisecond

	callTimeout = 5 * time.Second // of a call that must not depend on the handler's context
	recordTries = 3
	recordPause = 200 * time.Millisecond

	maxLogged = 1 << 10 // bytes of a text
)

// Once makes a middleware that runs a handler once for each key, see the
// package documentation for what that means. It belongs innermost, so that
// other middleware sees every run. It returns the faults of o, joined, each a
// *settings.Error.
//
// What happens to a message whose handler is not run:
//
//   - done before: it is acked;
//   - in progress elsewhere: [ErrInProgress] after Options.Wait, marked with
//     classify.Defer, so that the message comes again when the claim should
//     have ended, and the run is not counted;
//   - another payload: [ErrMismatch], a dead letter;
//   - the store failed: its error, classified like any other, except that it is
//     never poison nor ambiguous, so that the limit of the topic falls
//     while the store is down.
//
// A success that the store does not record, after three tries, is a success
// all the same, because running the handler again for sure would be worse than
// perhaps running it for a duplicate. It is logged.
//
// Handlers are taken to be repeatable, with Once and without it: one that fails
// runs again, even if its effect may be there already. What Once takes away is
// the run for a duplicate of a message that has succeeded. If the other one does
// harm too, set NoRepeat of consumer.Config or TopicConfig besides: the message becomes a
// dead letter then. Its key is free, so that it is handled when it is sent back.
func Once(store Store, o Options) (func(consumer.Handler) consumer.Handler, error) {
	g, err := newGuard(store, o)
	if err != nil {
		return nil, err
	}
	return func(next consumer.Handler) consumer.Handler {
		if next == nil {
			return nil
		}
		return func(ctx context.Context, m *brokers.Message) error { return g.handle(ctx, m, next) }
	}, nil
}

// unclaimed is the error of a store that failed before the handler could run:
// nothing is ambiguous then, and nothing the message's own fault.
func unclaimed(err error) error {
	err = fmt.Errorf("the idempotency store failed, and the handler was not run: %w", err)
	if v := classify.Of(err); v.Ambiguous || v.Class == classify.ClassPoison {
		return classify.Transient(opaque{err})
	}
	return err
}

// opaque hides from classify what it wraps: that reads Unwrap, and asks Is for
// sentinels. errors.Is finds all but ambiguous ones all the same.
type opaque struct{ err error }

func (o opaque) Error() string { return o.err.Error() }

func (o opaque) Is(target error) bool {
	return errors.Is(o.err, target) && !classify.Of(target).Ambiguous
}

func (o opaque) As(target any) bool { return errors.As(o.err, target) }

type guard struct {
	store   Store
	options Options
}

func newGuard(store Store, o Options) (*guard, error) {
	err := o.faults()
	if store == nil {
		err = errors.Join(errors.New("idempotency: the store is nil: pass NewMemory, or a store of redisstore or sqlstore"), err)
	}
	if err != nil {
		return nil, err
	}
	return &guard{store: contained{store}, options: o.withDefaults()}, nil
}

func (g *guard) handle(ctx context.Context, m *brokers.Message, next consumer.Handler) error {
	c, err := g.claimOf(m, consumer.MetaFrom(ctx))
	if err != nil {
		return err
	}
	claimed, err := g.enter(ctx, c, m)
	if !claimed {
		return err
	}
	return g.run(ctx, c, m, next)
}

// claimOf makes the claim to the key of m.
func (g *guard) claimOf(m *brokers.Message, meta brokers.Meta) (Claim, error) {
	key := g.options.Key(m, meta)
	if key == "" {
		return Claim{}, classify.Permanent(errNoKey)
	}
	scope := g.options.Scope
	if scope == "" {
		scope = m.Topic
	}
	namespace := ""
	if g.options.Namespace != nil {
		namespace = g.options.Namespace(m)
	}
	return Claim{Key: scoped(scope, namespace, key), Token: rand.Text(), Fingerprint: g.fingerprint(m)}, nil
}

// enter asks for the claim. If claimed is false, m is not to be handled now, and
// err is what becomes of it.
func (g *guard) enter(ctx context.Context, c Claim, m *brokers.Message) (claimed bool, err error) {
	record, err := g.claim(ctx, c)
	switch {
	case err != nil:
		return false, err
	case record.State == Claimed:
		return true, nil
	case record.Fingerprint != c.Fingerprint && record.Fingerprint != "" && c.Fingerprint != "":
		return false, classify.Permanent(fmt.Errorf("key %q: %w: give every message a key of its own", c.Key, ErrMismatch))
	case record.State == Done:
		g.options.Logger.DebugContext(ctx, "a message was handled before and is skipped", "topic", line(m.Topic), "msg_id", line(m.ID), "key", line(c.Key))
		return false, nil
	}
	return false, classify.Defer(fmt.Errorf("key %q: %w, for up to %s", c.Key, ErrInProgress, record.Left.Round(time.Millisecond)), record.Left)
}

// fingerprint makes what stores can keep of what the user's function returns.
func (g *guard) fingerprint(m *brokers.Message) string {
	f := g.options.Fingerprint(m)
	if len(f) > maxClaim || !printable(f) {
		return hash(f)
	}
	return f
}

// claim asks for the key until it is free or done, or the time to wait is over.
func (g *guard) claim(ctx context.Context, c Claim) (Record, error) {
	began, pause := time.Now(), firstPoll
	for {
		record, err := g.store.Begin(ctx, c, g.options.Lease)
		if err != nil {
			return record, unclaimed(err)
		}
		left := g.options.Wait - time.Since(began)
		if record.State != InProgress || left <= 0 {
			return record, nil
		}
		timer := time.NewTimer(min(pause, left))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			if ctx.Err() == context.Canceled { // the pipeline looks for it when the worker stops
				return record, classify.Defer(fmt.Errorf("key %q: %w: %w", c.Key, ErrInProgress, context.Canceled), 0)
			}
			return record, nil
		}
		pause = min(2*pause, lastPoll)
	}
}

// run runs the handler while it keeps the claim.
func (g *guard) run(ctx context.Context, c Claim, m *brokers.Message, next consumer.Handler) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	k := keep(ctx, cancel, g.store, c, g.options.Lease)
	succeeded := false
	defer func() { // of a handler that panics or ends its goroutine, too
		k.stop()
		if !succeeded {
			g.release(ctx, c, m)
		}
	}()
	err := next(ctx, m)
	succeeded = err == nil
	return g.end(ctx, k, m, err)
}

// end takes what the handler returned for m to what the pipeline is told.
func (g *guard) end(ctx context.Context, k *keeper, m *brokers.Message, err error) error {
	k.stop()
	if err == nil {
		return g.record(ctx, k.claim, m)
	}
	if k.isLost() {
		return classify.Defer(fmt.Errorf("key %q: %w; what the handler returned does not count: %w", k.claim.Key, ErrClaimLost, err), 0)
	}
	return err
}

// record stores that the handler has succeeded.
func (g *guard) record(ctx context.Context, c Claim, m *brokers.Message) error {
	ctx = context.WithoutCancel(ctx)
	for try := 1; ; try++ {
		err := within(ctx, func(ctx context.Context) error { return g.store.Complete(ctx, c, g.options.TTL) })
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrClaimLost):
			return classify.Defer(fmt.Errorf("key %q: %w; the handler succeeded, and the other run decides", c.Key, ErrClaimLost), 0)
		case try == recordTries:
			g.options.Logger.ErrorContext(ctx, "a success could not be recorded: a duplicate of the message would be handled again",
				"topic", line(m.Topic), "msg_id", line(m.ID), "key", line(c.Key), "error", line(err.Error()))
			return nil
		}
		time.Sleep(recordPause * time.Duration(try))
	}
}

func (g *guard) release(ctx context.Context, c Claim, m *brokers.Message) {
	ctx = context.WithoutCancel(ctx)
	if err := within(ctx, func(ctx context.Context) error { return g.store.Release(ctx, c) }); err != nil {
		g.options.Logger.WarnContext(ctx, "an idempotency key could not be released: the next run waits until its lease ends",
			"topic", line(m.Topic), "msg_id", line(m.ID), "key", line(c.Key), "lease", g.options.Lease, "error", line(err.Error()))
	}
}

// line makes what somebody else chose safe to log, whichever handler the logger has.
func line(s string) string {
	s, _ = text.Line(s, maxLogged)
	return s
}

func within(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return call(ctx)
}

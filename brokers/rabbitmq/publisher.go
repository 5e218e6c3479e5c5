package rabbitmq

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/wire"
)

const (
	chunk  = 128 // messages that are published before their confirms are awaited
	chunks = 16  // that may be on their way at a time
)

// publisher publishes on a connection of its own: when the broker blocks that
// one, acks go on. It connects when it is first used, and again after its connection was
// lost.
type publisher struct {
	broker  *Broker
	purpose string
	turn    chan struct{} // taken while connecting
	outlet  atomic.Pointer[outlet]
	mu      sync.Mutex
	closed  bool
	calls   sync.WaitGroup
}

// outlet is one connection of the publisher.
type outlet struct {
	*link
	calls  *sync.WaitGroup // of the publisher
	lanes  chan *lane      // those without a chunk
	opened atomic.Int32    // lanes
}

// lane is a channel that has one chunk on its way at a time: a message that the
// broker returns has no number.
type lane struct {
	*amqp.Channel
	cause func() error // why the channel has ended

	// returns has room for a chunk, so that the library never waits for it. The
	// broker returns a message that it cannot route before it confirms the message.
	returns chan amqp.Return
}

// flight tells the messages of a chunk apart. Of two that are alike, either both
// or none counts as returned.
type flight struct{ exchange, key, id string }

func newPublisher(b *Broker, purpose string) *publisher {
	return &publisher{broker: b, purpose: purpose, turn: make(chan struct{}, 1)}
}

// Publish stores msgs in the queue topic, which must exist: Declare makes it,
// and so does Open for the topics of its Subscription. Errors are
// *brokers.PublishError. Of headers with a Type, see the package
// documentation. It may be called from several goroutines, which share one
// connection. Dead letters and receipts of an open source go through its own
// exchange, and all else through the default one.
func (b *Broker) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	exchange := b.exchangeTo(topic)
	compose := func(m brokers.Message) (outgoing, error) {
		p, err := b.publishing(m, wire.EncodeIdentity(withoutID(m)))
		return outgoing{exchange: exchange, key: topic, message: p}, cmp.Or(err, checkTopic(topic))
	}
	return adapter.Publish(topic, msgs, compose, func(out []outgoing) []error { return b.publisher.publish(ctx, out) })
}

// SendBack stores msgs in the queue of the retries of topic, which is there once a
// worker with the same Options.Prefix was; its workers need the same Options.Secret.
// Where it is not there, as in front of consumers that are not redrive's, they go
// into the queue of topic. Both are reached through the default exchange, and so
// nobody else gets them. Group is ignored. Errors are *brokers.PublishError.
func (b *Broker) SendBack(ctx context.Context, group, topic string, msgs ...brokers.Item) error {
	compose := func(m brokers.Message, meta brokers.Meta) (outgoing, error) {
		p, err := b.copyFor(m, meta)
		return outgoing{key: topic, message: p}, cmp.Or(err, checkTopic(topic))
	}
	return adapter.SendBack(topic, msgs, compose, func(out []outgoing) []error { return b.sendBack(ctx, topic, out) })
}

// sendBack stores out, which is for the queue of topic, in that of its retries if
// there is one.
func (b *Broker) sendBack(ctx context.Context, topic string, out []outgoing) []error {
	retries := b.names.retry(topic)
	if len(retries) > longestName {
		return b.publisher.publish(ctx, out)
	}
	first := slices.Clone(out)
	for i := range first {
		first[i].key = retries
	}
	errs := b.publisher.publish(ctx, first)
	var rest []outgoing
	var index []int
	for i, err := range errs {
		if errors.Is(err, errUnrouted) {
			rest, index = append(rest, out[i]), append(index, i)
		}
	}
	for at, err := range b.publisher.publish(ctx, rest) {
		errs[index[at]] = err
	}
	return errs
}

func checkTopic(topic string) error {
	if topic == "" || len(topic) > longestName {
		return fmt.Errorf("the topic has %d bytes: use 1 to %d: %w", len(topic), longestName, brokers.ErrMisconfigured)
	}
	return nil
}

// exchangeTo returns the exchange that leads to topic. That of copies does if an
// open source has its dead letters or receipts there; so a worker need not be
// allowed to write to the default one, which leads to every queue.
func (b *Broker) exchangeTo(topic string) string {
	if slices.ContainsFunc(b.sources.Open(), func(s *source) bool { return s.leadsTo(topic) }) {
		return b.names.copies()
	}
	return ""
}

func newID() string { return rand.Text() }

// publish sends out and waits until the broker has confirmed each, chunk by
// chunk. It returns one error per message.
func (p *publisher) publish(ctx context.Context, out []outgoing) []error {
	errs := make([]error, len(out))
	for from := 0; from < len(out); from += chunk {
		to := min(from+chunk, len(out))
		if err := p.publishChunk(ctx, out[from:to], errs[from:to]); err != nil {
			for i := from; i < to; i++ {
				errs[i] = err
			}
		}
	}
	return errs
}

// publishChunk sets errs, or returns why nothing was sent.
func (p *publisher) publishChunk(ctx context.Context, out []outgoing, errs []error) error {
	if !p.enter() {
		return brokers.ErrClosed
	}
	defer p.calls.Done()
	var n *lane
	o, err := p.connected(ctx)
	if err == nil {
		n, err = o.admit(ctx)
	}
	if err != nil {
		return fmt.Errorf("not published: %w", err)
	}
	confirms, err := o.send(n, out)
	for i := len(confirms); i < len(out); i++ {
		errs[i] = unconfirmed(err)
	}
	o.await(ctx, p.broker.options.ConfirmTimeout, n, out[:len(confirms)], confirms, errs)
	p.broker.restore(o, out, errs)
	// A channel that ended under this chunk left outcomes unknown. After the end of ctx
	// it may have ended under another chunk.
	if ctx.Err() != nil || !n.IsClosed() || o.conn.IsClosed() {
		return nil
	}
	for i, err := range errs { // the broker closed the channel for one of the messages
		switch {
		case !errors.Is(err, brokers.ErrUnknownOutcome):
		case len(out) == 1:
			errs[i] = refused(n.cause())
		default:
			errs[i] = nil
			if err := p.publishChunk(ctx, out[i:i+1], errs[i:i+1]); err != nil {
				errs[i] = unconfirmed(err)
			}
		}
	}
	return nil
}

// enter counts a call that Close is to wait for.
func (p *publisher) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.calls.Add(1)
	}
	return !p.closed
}

// connected returns the outlet, after connecting if there is none.
func (p *publisher) connected(ctx context.Context) (*outlet, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if o := p.outlet.Load(); o != nil {
		if o.ctx.Err() == nil {
			return o, nil
		}
		o.close(ctx, context.Cause(o.ctx))
	}
	l, err := p.broker.dial(ctx, p.purpose)
	if err != nil {
		return nil, err
	}
	o := &outlet{link: l, calls: &p.calls, lanes: make(chan *lane, chunks)}
	p.outlet.Store(o)
	return o, nil
}

// blocked returns nil, or what is closed when publishing is possible again.
func (p *publisher) blocked() <-chan struct{} {
	if o := p.outlet.Load(); o != nil {
		return o.blocked.wait()
	}
	return nil
}

func (p *publisher) close(ctx context.Context) {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	if o := p.outlet.Load(); o != nil {
		stop := context.AfterFunc(ctx, func() { o.end(brokers.ErrClosed) })
		defer stop()
	}
	p.calls.Wait()
	if o := p.outlet.Load(); o != nil {
		o.close(ctx, brokers.ErrClosed)
	}
}

// admit waits for the end of a blockade, and for a lane.
func (o *outlet) admit(ctx context.Context) (*lane, error) {
	for free := o.blocked.wait(); free != nil; free = o.blocked.wait() {
		select {
		case <-free:
		case <-ctx.Done():
			return nil, fmt.Errorf("the broker blocks publishing, because its memory or disk is short: %w", context.Cause(ctx))
		case <-o.ctx.Done():
			return nil, context.Cause(o.ctx)
		}
	}
	most := max(1, min(chunks, int32(o.conn.Config.ChannelMax)-1)) // one is for requests
	if len(o.lanes) == 0 && o.opened.Load() < most {
		o.opened.Add(1)
		o.calls.Go(o.open)
	}
	select {
	case n := <-o.lanes:
		return n, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-o.ctx.Done():
		return nil, context.Cause(o.ctx)
	}
}

// open opens a lane.
func (o *outlet) open() {
	err := o.call(func() error {
		ch, err := o.conn.Channel()
		if err != nil {
			return err
		}
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		cause := sync.OnceValue(func() error {
			if err := <-closed; err != nil && !o.conn.IsClosed() {
				return fmt.Errorf("the broker closed the channel: %w", explain(err))
			}
			<-o.ctx.Done() // who closed the connection says why
			return context.Cause(o.ctx)
		})
		n := &lane{ch, cause, ch.NotifyReturn(make(chan amqp.Return, chunk))}
		if err = ch.Confirm(false); err == nil {
			o.lanes <- n
		}
		return err
	})
	if err != nil {
		o.end(fmt.Errorf("open a channel: %w", explain(err)))
	}
}

// free ends the way of a chunk.
func (o *outlet) free(n *lane) {
	if n.IsClosed() {
		o.calls.Go(o.open)
		return
	}
	o.lanes <- n
}

// returned returns the reasons of the messages that were returned.
func (n *lane) returned() map[flight]string {
	reasons := make(map[flight]string)
	for range len(n.returns) {
		r := <-n.returns
		reasons[flight{r.Exchange, r.RoutingKey, r.MessageId}] = r.ReplyText
	}
	return reasons
}

func (m outgoing) flight() flight { return flight{m.exchange, m.key, m.message.MessageId} }

// send writes out as far as the connection takes it.
func (o *outlet) send(n *lane, out []outgoing) ([]*amqp.DeferredConfirmation, error) {
	defer o.guard()()
	confirms := make([]*amqp.DeferredConfirmation, 0, len(out))
	o.wire.gather()
	for _, m := range out {
		confirm, err := n.PublishWithDeferredConfirm(m.exchange, m.key, true, false, m.message)
		if err != nil {
			o.wire.flush()
			if !n.IsClosed() {
				o.end(fmt.Errorf("publish: %w", err))
			}
			return confirms, n.cause()
		}
		confirms = append(confirms, confirm)
	}
	if err := o.wire.flush(); err != nil {
		o.end(fmt.Errorf("publish: %w", err)) // which ends the wait for the confirms
	}
	return confirms, nil
}

// await sets the errors of what was sent. The chunk has its lane until the broker
// is done with all of it.
func (o *outlet) await(ctx context.Context, limit time.Duration, n *lane, out []outgoing, confirms []*amqp.DeferredConfirmation, errs []error) {
	timer := time.AfterFunc(limit, func() {
		o.end(fmt.Errorf("the broker did not confirm within %v: the connection was closed", limit))
	})
	defer timer.Stop()
	for i, confirm := range confirms {
		select {
		case <-confirm.Done():
		case <-ctx.Done():
			errs[i] = fmt.Errorf("%w: %w", brokers.ErrUnknownOutcome, context.Cause(ctx))
		}
	}
	reasons := n.returned()
	for i, confirm := range confirms {
		if errs[i] == nil {
			errs[i] = n.outcome(out[i], confirm.Acked(), reasons[out[i].flight()])
		}
	}
	if ctx.Err() == nil {
		o.free(n)
		return
	}
	o.calls.Go(func() {
		for _, confirm := range confirms {
			confirm.Wait()
		}
		n.returned()
		o.free(n)
	})
}

func (n *lane) outcome(m outgoing, stored bool, returned string) error {
	switch {
	case stored && returned == "":
		return nil
	case stored:
		return m.unrouted(returned)
	case n.IsClosed():
		return unconfirmed(n.cause())
	}
	return fmt.Errorf("the broker refused it for now: the queue %q is full or unavailable", m.key)
}

var errUnrouted = errors.New("no queue takes it")

// unrouted is the error of m when the broker has found no queue for it.
func (m outgoing) unrouted(reason string) error {
	fix := fmt.Sprintf("declare the queue %q with Broker.Declare, or with Open", m.key)
	if m.exchange != "" {
		fix = fmt.Sprintf("a queue behind the exchange %q is gone, or its binding is: start a worker of the topic anew, "+
			"which declares and binds (with Options.Verify, binds) what leads to the queue %q", m.exchange, m.key)
	}
	return fmt.Errorf("%w (%s): %w: %s", errUnrouted, reason, brokers.ErrNotFound, fix)
}

// unconfirmed is the error of a message whose channel or connection ended with cause
// before its confirm, which may be no fault of the message.
func unconfirmed(cause error) error {
	if errors.Is(cause, brokers.ErrMisconfigured) {
		return fmt.Errorf("%w: %v", brokers.ErrUnknownOutcome, cause)
	}
	return fmt.Errorf("%w: %w", brokers.ErrUnknownOutcome, cause)
}

// refused is the error of a message for which the broker closed the channel with cause.
// It has not stored the message.
func refused(cause error) error {
	if e, ok := errors.AsType[*amqp.Error](cause); ok && e.Code == amqp.PreconditionFailed {
		return fmt.Errorf("%w: if it is too large, set Options.MessageLimit to the broker's limit: %w", brokers.ErrRefused, cause)
	}
	return cause
}

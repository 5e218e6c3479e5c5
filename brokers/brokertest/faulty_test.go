package brokertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// faulty is the memory broker with hooks between it and the suite. A hook that
// is nil changes nothing.
type faulty struct {
	inner *memory.Broker
	hooks hooks

	losing atomic.Int32 // what gets lost, see Harness.LoseRequests
	mu     sync.Mutex
	open   []*faultySource // in the order of Open, closed ones left out
	holder map[string]held // the latest delivery of each ID
}

type held struct {
	src *faultySource
	d   *brokers.Delivery
}

// hooks stand in for the methods of the same name. They reach the broker
// below through b.inner and s.inner.
type hooks struct {
	openSource   func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error)
	publish      func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error
	sendBack     func(ctx context.Context, b *faulty, group, topic string, letters []brokers.Item) error
	closeBroker  func(ctx context.Context, b *faulty) error
	crash        func(b *faulty, s *faultySource)
	capabilities func(s *faultySource, c brokers.Capabilities) brokers.Capabilities
	receive      func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error)
	pause        func(s *faultySource, topics []string)
	settle       func(ctx context.Context, s *faultySource, batch []brokers.Settlement) []error
	extend       func(ctx context.Context, s *faultySource, lease time.Duration, ds []*brokers.Delivery) []error
	closeSource  func(ctx context.Context, s *faultySource) error
}

// What gets lost on the way to a faulty broker, and back.
const (
	requests = 1 + iota
	confirms
)

func newFaulty(options memory.Options, h hooks) *faulty {
	b := &faulty{hooks: h, holder: make(map[string]held)}
	options.Fault = func(op memory.Op) memory.Fault {
		losing := b.losing.Load()
		if op.Operation == memory.Deliver && op.ID == torn.ID {
			return memory.Fault{Unreadable: errTorn}
		}
		stores := op.Operation == memory.Publish || op.Operation == memory.SendBack || op.Action == brokers.Retry
		if losing == 0 || !stores {
			return memory.Fault{}
		}
		return memory.Fault{Err: brokers.ErrUnknownOutcome, Done: losing == confirms}
	}
	b.inner = memory.New(options)
	return b
}

// torn is the message that cannot be read.
var (
	torn    = brokers.Message{ID: "torn", Body: []byte("torn")}
	errTorn = errors.New("its headers are torn")
)

// lose is a hook of Harness.
func lose(what int32) func(b brokers.Broker) (heal func()) {
	return func(b brokers.Broker) (heal func()) {
		b.(*faulty).losing.Store(what)
		return func() { b.(*faulty).losing.Store(0) }
	}
}

func (b *faulty) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	var src brokers.Source
	var err error
	if b.hooks.openSource != nil {
		src, err = b.hooks.openSource(ctx, b, sub)
	} else {
		src, err = b.inner.Open(ctx, sub)
	}
	if err != nil {
		return nil, err
	}
	s := &faultySource{inner: src, b: b, sub: sub, lock: make(chan struct{}, 1), live: make(map[*brokers.Delivery]bool)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = append(b.open, s)
	return s, nil
}

func (b *faulty) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	if b.hooks.publish != nil {
		return b.hooks.publish(ctx, b, topic, msgs)
	}
	return b.inner.Publish(ctx, topic, msgs...)
}

func (b *faulty) SendBack(ctx context.Context, group, topic string, letters ...brokers.Item) error {
	if b.hooks.sendBack != nil {
		return b.hooks.sendBack(ctx, b, group, topic, letters)
	}
	return b.inner.SendBack(ctx, group, topic, letters...)
}

func (b *faulty) Close(ctx context.Context) error {
	if b.hooks.closeBroker != nil {
		return b.hooks.closeBroker(ctx, b)
	}
	err := b.inner.Close(ctx)
	for _, s := range b.sources() {
		s.forget()
	}
	return err
}

func (b *faulty) crash(s *faultySource) {
	s.forget()
	if b.hooks.crash != nil {
		b.hooks.crash(b, s)
		return
	}
	b.inner.Crash(s.inner)
}

// sources returns the open ones.
func (b *faulty) sources() []*faultySource {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*faultySource(nil), b.open...)
}

// faultySource knows which deliveries it holds.
type faultySource struct {
	inner brokers.Source
	b     *faulty
	sub   brokers.Subscription
	lock  chan struct{} // a mutex that a bubble can wait for

	mu     sync.Mutex
	live   map[*brokers.Delivery]bool
	closed bool
}

func (s *faultySource) Pause(topics ...string) {
	if s.b.hooks.pause != nil {
		s.b.hooks.pause(s, topics)
		return
	}
	s.inner.Pause(topics...)
}

func (s *faultySource) Capabilities() brokers.Capabilities {
	c := s.inner.Capabilities()
	if s.b.hooks.capabilities != nil {
		return s.b.hooks.capabilities(s, c)
	}
	return c
}

func (s *faultySource) Receive(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	if s.b.hooks.receive != nil {
		return s.b.hooks.receive(ctx, s, max)
	}
	return s.take(ctx, max)
}

// take is Receive of the source below.
func (s *faultySource) take(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	ds, err := s.inner.Receive(ctx, max)
	s.mu.Lock()
	for _, d := range ds {
		s.live[d] = true
	}
	s.mu.Unlock()
	s.b.mu.Lock()
	for _, d := range ds {
		s.b.holder[d.Message.ID] = held{s, d}
	}
	s.b.mu.Unlock()
	return ds, err
}

func (s *faultySource) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	if s.b.hooks.settle != nil {
		return s.b.hooks.settle(ctx, s, batch)
	}
	return s.settle(ctx, batch...)
}

// settle is Settle of the source below, with an answer of the full length.
func (s *faultySource) settle(ctx context.Context, batch ...brokers.Settlement) []error {
	errs := padded(s.inner.Settle(ctx, batch), nil, len(batch))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, err := range errs {
		if err == nil || final(err) {
			delete(s.live, batch[i].Delivery)
		}
	}
	return errs
}

// holds tells whether d is this source's and its lease lasts.
func (s *faultySource) holds(d *brokers.Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[d] && !s.closed && (d.LeaseUntil.IsZero() || time.Now().Before(d.LeaseUntil))
}

func (s *faultySource) Extend(ctx context.Context, lease time.Duration, ds []*brokers.Delivery) []error {
	if s.b.hooks.extend != nil {
		return s.b.hooks.extend(ctx, s, lease, ds)
	}
	return s.inner.Extend(ctx, lease, ds)
}

func (s *faultySource) Backlogs(ctx context.Context) ([]brokers.Backlog, error) {
	return s.inner.Backlogs(ctx)
}

func (s *faultySource) Close(ctx context.Context) error {
	var err error
	if s.b.hooks.closeSource != nil {
		err = s.b.hooks.closeSource(ctx, s)
	} else {
		err = s.inner.Close(ctx)
	}
	s.forget()
	return err
}

func (s *faultySource) forget() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for i, other := range s.b.open {
		if other == s {
			s.b.open = append(s.b.open[:i:i], s.b.open[i+1:]...)
			return
		}
	}
}

// harness is that of the memory broker with hooks made anew for every clause.
func harness(options memory.Options, make func() hooks) Harness {
	return Harness{
		Open:    func(testing.TB) brokers.Broker { return newFaulty(options, make()) },
		Virtual: true,
		Crash:   func(b brokers.Broker, src brokers.Source) { b.(*faulty).crash(src.(*faultySource)) },
		PublishUnreadable: func(ctx context.Context, b brokers.Broker, topic string) error {
			return b.(*faulty).inner.Publish(ctx, topic, torn)
		},
		Delete: func(b brokers.Broker, topic string) (restore func()) {
			b.(*faulty).inner.Delete(topic)
			return func() {} // the next Publish creates it again
		},
		LoseRequests: lose(requests),
		LoseConfirms: lose(confirms),
	}
}

// The functions below make hooks out of changes to single messages,
// deliveries and settlements.

func opening(open func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error)) func() hooks {
	return func() hooks { return hooks{openSource: open} }
}

func publishing(publish func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error) func() hooks {
	return func() hooks { return hooks{publish: publish} }
}

func returning(sendBack func(ctx context.Context, b *faulty, group, topic string, letters []brokers.Item) error) func() hooks {
	return func() hooks { return hooks{sendBack: sendBack} }
}

func receiving(receive func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error)) func() hooks {
	return func() hooks { return hooks{receive: receive} }
}

func settling(settle func(ctx context.Context, s *faultySource, batch []brokers.Settlement) []error) func() hooks {
	return func() hooks { return hooks{settle: settle} }
}

func closing(close func(ctx context.Context, s *faultySource) error) func() hooks {
	return func() hooks { return hooks{closeSource: close} }
}

// onPublish changes what is published. What Publish sets is handed back.
func onPublish(change func(*brokers.Message)) func() hooks {
	return func() hooks {
		return hooks{publish: func(ctx context.Context, b *faulty, topic string, msgs []brokers.Message) error {
			changed := append([]brokers.Message(nil), msgs...)
			for i := range changed {
				change(&changed[i])
			}
			err := b.inner.Publish(ctx, topic, changed...)
			for i := range msgs {
				msgs[i].ID, msgs[i].PublishedAt = changed[i].ID, changed[i].PublishedAt
			}
			return err
		}}
	}
}

// onReturn changes what is sent back.
func onReturn(change func(*brokers.Item)) func() hooks {
	return returning(func(ctx context.Context, b *faulty, group, topic string, letters []brokers.Item) error {
		changed := append([]brokers.Item(nil), letters...)
		for i := range changed {
			changed[i].Message = new(*changed[i].Message)
			change(&changed[i])
		}
		return b.inner.SendBack(ctx, group, topic, changed...)
	})
}

// onDelivery changes what is received.
func onDelivery(change func(s *faultySource, d *brokers.Delivery)) func() hooks {
	return func() hooks {
		return hooks{receive: func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			ds, err := s.take(ctx, max)
			for _, d := range ds {
				change(s, d)
			}
			return ds, err
		}}
	}
}

// onSettle changes single settlements; errNone stands for doing nothing.
func onSettle(change func(ctx context.Context, s *faultySource, st *brokers.Settlement) error) func() hooks {
	return func() hooks {
		return hooks{settle: func(ctx context.Context, s *faultySource, batch []brokers.Settlement) []error {
			errs := make([]error, len(batch))
			for i, st := range batch {
				switch err := change(ctx, s, &st); {
				case errors.Is(err, errNone):
				case err != nil:
					errs[i] = err
				default:
					errs[i] = s.settle(ctx, st)[0]
				}
			}
			return errs
		}}
	}
}

// changed changes the settlements with this action.
func changed(action brokers.Action, change func(st *brokers.Settlement)) func() hooks {
	return onSettle(func(_ context.Context, _ *faultySource, st *brokers.Settlement) error {
		if st.Action == action {
			change(st)
		}
		return nil
	})
}

var errNone = errors.New("do nothing and report success")

// onAnswer changes the errors of Settle.
func onAnswer(change func(ctx context.Context, s *faultySource, st brokers.Settlement, err error) error) func() hooks {
	return func() hooks {
		return hooks{settle: func(ctx context.Context, s *faultySource, batch []brokers.Settlement) []error {
			errs := s.settle(ctx, batch...)
			for i, err := range errs {
				errs[i] = change(ctx, s, batch[i], err)
			}
			return errs
		}}
	}
}

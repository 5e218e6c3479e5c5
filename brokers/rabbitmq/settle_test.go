package rabbitmq

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

var errUnreachable = errors.New("nobody listens")

// holding returns a source whose broker nobody reaches, and a delivery that it
// holds of a channel that has ended.
func holding(t *testing.T) (*source, *token, *brokers.Delivery) {
	b, err := New(Options{
		URLs: []string{"amqp://localhost/"},
		Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errUnreachable },
	})
	if err != nil {
		t.Fatal(err)
	}
	s := newSource(b, brokers.Subscription{MaxDelay: time.Hour, InFlight: 100})
	n := &session{link: &link{ctx: t.Context()}, source: s}
	tok := &token{tag: 1, intake: &intake{feed: &feed{}, session: n}, deadline: time.Now().Add(time.Hour)}
	return s, tok, &brokers.Delivery{Message: brokers.Message{ID: "7f3a", Topic: "orders"}, Token: tok}
}

// A copy that is not confirmed replaces nothing.
func TestUnconfirmedCopyKeepsTheOriginal(t *testing.T) {
	s, tok, d := holding(t)
	for _, delay := range []time.Duration{0, time.Second, time.Minute} {
		errs := s.Settle(t.Context(), []brokers.Settlement{{Delivery: d, Action: brokers.Retry, Delay: delay}})
		if len(errs) != 1 || !errors.Is(errs[0], errUnreachable) || tok.state.Load() != held {
			t.Errorf("a retry after %v: %v, state %d; want that it is held, and why", delay, errs, tok.state.Load())
		}
	}
}

// A copy that is confirmed settles its original, whether the broker hears of that or not:
// to settle it again would be to copy it again.
func TestRetryIsCopiedOnce(t *testing.T) {
	for copied, want := range map[bool]int32{true: settled, false: held} {
		s, tok, d := holding(t)
		e := claimed{Settlement: &brokers.Settlement{Delivery: d}, token: tok}
		s.ack([]*claimed{&e}, copied)
		if got := tok.state.Load(); got != want || (e.err == nil) != copied {
			t.Errorf("copied %v, and the channel has ended: state %d, error %v", copied, got, e.err)
		}
	}
}

// Copies without a delay queue, and dead letters, go through an exchange that leads to
// their queues alone and refuses what has none. All else has the default one.
func TestWayOfCopies(t *testing.T) {
	s, _, d := holding(t)
	s.sub = brokers.Subscription{Topics: []string{"orders"}, DeadLetters: map[string]string{"orders": "orders-dead", "refunds": "refunds-dead"}}
	short, err := s.copyOf(brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: time.Millisecond}, tail)
	if err != nil {
		t.Fatal(err)
	}
	s.broker.sources.Add(s)
	defer s.broker.sources.Remove(s)
	if got := s.broker.exchangeTo("orders-dead"); got != "" {
		t.Errorf("before Open has declared %q it is used", got)
	}
	s.begun = time.Now()
	for _, elsewhere := range []string{"", "orders", "refunds-dead"} {
		if got := s.broker.exchangeTo(elsewhere); got != "" {
			t.Errorf("the exchange to %q is %q, want the default one", elsewhere, got)
		}
	}
	s.sub.Receipts = "receipts"
	plan := s.broker.names.plan(s.sub, s.delays)
	for _, o := range []outgoing{
		short,
		{exchange: s.broker.exchangeTo("orders-dead"), key: "orders-dead"},
		{exchange: s.broker.exchangeTo("receipts"), key: "receipts"},
	} {
		if !slices.ContainsFunc(plan.bindings, func(b binding) bool { return b.exchange == o.exchange && b.key == o.key && b.queue == o.key }) {
			t.Errorf("no binding leads from %q with the key %q to this queue: %v", o.exchange, o.key, plan.bindings)
		}
		if slices.ContainsFunc(plan.bindings, func(b binding) bool { return b.exchange == o.exchange && b.args[argAlternate] != nil }) {
			t.Errorf("the exchange %q has an alternate, which swallows what has no queue", o.exchange)
		}
	}
}

// What is acked, given back and copied, and what is not claimed.
func TestSettlementsAreSorted(t *testing.T) {
	const ack, retry, release = brokers.Ack, brokers.Retry, brokers.Release
	const unclaimed = copying + 1
	for name, tt := range map[string]struct {
		action brokers.Action
		change func(*token)
		want   way
	}{
		"ack":                          {ack, func(*token) {}, acking},
		"retry":                        {retry, func(*token) {}, copying},
		"release":                      {release, func(*token) {}, releasing},
		"release, to count anew":       {release, func(t *token) { t.renews = true }, copying},
		"release, lost nearly often":   {release, func(t *token) { t.count = bystanders - 1 }, releasing},
		"release, lost often":          {release, func(t *token) { t.count = bystanders }, copying},
		"release in order, lost often": {release, func(t *token) { t.count, t.intake.feed.ordered = bystandersOrdered-1, true }, releasing},
		"release in order, too often":  {release, func(t *token) { t.count, t.intake.feed.ordered = bystandersOrdered, true }, copying},
		"rejection":                    {brokers.Reject, func(*token) {}, rejecting},
		"none":                         {brokers.Reject + 1, func(*token) {}, unclaimed},
		"of a lease that is over":      {ack, func(t *token) { t.deadline = time.Now().Add(-1) }, unclaimed},
		"of a delivery that was lost":  {ack, func(t *token) { t.lose() }, unclaimed},
		"of what is settled":           {ack, func(t *token) { t.state.Store(settled) }, unclaimed},
		"of what another call settles": {retry, func(t *token) { t.state.Store(settling) }, unclaimed},
		"of a session that has ended":  {ack, func(t *token) { t.intake.session.link = endedLink() }, unclaimed},
	} {
		s, tok, d := holding(t)
		tt.change(tok)
		e := claimed{Settlement: &brokers.Settlement{Delivery: d, Action: tt.action}}
		switch err := s.claim(&e); {
		case (err == nil) != (tt.want != unclaimed):
			t.Errorf("%s: error %v", name, err)
		case err == nil && e.way() != tt.want:
			t.Errorf("%s: settled in way %d, want %d", name, e.way(), tt.want)
		}
	}
}

func endedLink() *link {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errUnreachable)
	return &link{ctx: ctx}
}

// What has no confirm when a channel ends is not lost by a fault of its own, unless
// it was alone there.
func TestUnconfirmed(t *testing.T) {
	missing := explain(&amqp.Error{Code: amqp.NotFound, Reason: "NOT_FOUND - no exchange 'redrive.delay.v2.250' in vhost '/'"})
	tooLarge := explain(&amqp.Error{Code: amqp.PreconditionFailed, Reason: "PRECONDITION_FAILED - message size 200 is larger than configured max size 100"})
	for name, tt := range map[string]struct{ err, want, not error }{
		"lost":            {unconfirmed(errUnreachable), brokers.ErrUnknownOutcome, brokers.ErrMisconfigured},
		"another's fault": {unconfirmed(missing), brokers.ErrUnknownOutcome, brokers.ErrMisconfigured},
		"its own":         {refused(missing), brokers.ErrMisconfigured, brokers.ErrUnknownOutcome},
		"its own size":    {refused(tooLarge), brokers.ErrRefused, brokers.ErrUnknownOutcome},
	} {
		if !errors.Is(tt.err, tt.want) || errors.Is(tt.err, tt.not) {
			t.Errorf("%s: %v, want %v and not %v", name, tt.err, tt.want, tt.not)
		}
	}
}

func TestBlockade(t *testing.T) {
	var b blockade
	b.set(false)
	if b.wait() != nil {
		t.Error("blocked from the start")
	}
	b.set(true)
	free := b.wait()
	if b.set(true); b.wait() != free {
		t.Error("told twice that it is blocked, it forgets who waits")
	}
	b.set(false)
	select {
	case <-free:
	default:
		t.Error("who waited is not told of the end")
	}
	if b.wait() != nil {
		t.Error("still blocked after the end")
	}
	b.set(false)
}

// How often a message may be lost before that speaks against it.
func TestAbandoned(t *testing.T) {
	for name, tt := range map[string]struct {
		ordered bool
		crashes int
		says    int // so many lost deliveries are the first that count
	}{
		"before a trial":        {says: 5},
		"in order":              {ordered: true, says: 15},
		"on trial":              {crashes: 2, says: 9},
		"on trial and in order": {ordered: true, crashes: 2, says: 9},
	} {
		tok := &token{intake: &intake{feed: &feed{ordered: tt.ordered}}}
		for lost := range tt.says + 3 {
			tok.count = lost
			if got, want := tok.abandoned(&brokers.Meta{Crashes: tt.crashes}), max(0, lost-tt.says+1); got != want {
				t.Errorf("%s: %d after %d lost deliveries, want %d", name, got, lost, want)
			}
		}
	}
}

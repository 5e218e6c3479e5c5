package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

var brokenReceiving = []broken{
	{name: "receive returns more than max", fails: "receive-max",
		hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			return s.take(ctx, max+1)
		})},
	{name: "receive returns empty-handed", fails: "receive-waits",
		hooks: func() hooks {
			var times atomic.Int32
			return hooks{receive: func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
				if times.Add(1) > 20 {
					return s.take(ctx, max)
				}
				short, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				ds, err := s.take(short, max)
				if err != nil && ctx.Err() == nil && short.Err() != nil {
					return nil, nil
				}
				return ds, err
			}}
		}},
	{name: "receive ignores its context", fails: "receive-ends",
		hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			return s.take(context.WithoutCancel(ctx), max)
		})},
	{name: "receive returns the error of its context and not the cause", fails: "receive-cause",
		hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			ds, err := s.take(ctx, max)
			if err != nil && ctx.Err() != nil {
				err = ctx.Err()
			}
			return ds, err
		})},
	{name: "receive drops what comes when its context has ended", fails: "receive-gives-back",
		hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			ds, err := s.take(ctx, max)
			if err == nil {
				time.Sleep(25 * time.Millisecond) // on the wire
				if ctx.Err() != nil {
					return nil, context.Cause(ctx)
				}
			}
			return ds, err
		})},
	{name: "at most ten messages are in flight", fails: "receive-in-flight",
		hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			for {
				s.mu.Lock()
				room := 10 - len(s.live)
				s.mu.Unlock()
				if room > 0 {
					return s.take(ctx, min(room, max))
				}
				select {
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				case <-time.After(10 * time.Millisecond):
				}
			}
		})},
	{name: "a topic that is deleted ends the work on all", fails: "topic-deleted",
		hooks: losing(func(_ *faultySource, lost *brokers.TopicError) error {
			return fmt.Errorf("%w: %v", brokers.ErrNotFound, lost)
		})},
	{name: "a topic that is deleted is not reported", fails: "topic-deleted",
		hooks: losing(func(*faultySource, *brokers.TopicError) error { return errNone })},
	{name: "a topic that is deleted stays lost", fails: "topic-deleted",
		hooks: losing(func(s *faultySource, lost *brokers.TopicError) error {
			s.inner.Pause(lost.Topic)
			return lost
		})},
	{name: "receive buffers deliveries and forgets their leases", fails: "receive-after-pause",
		hooks: func() hooks { return buffering(false) }},
	{name: "ordered is claimed and not kept", fails: "order-waits-for-holder order-waits-for-retry",
		hooks: func() hooks {
			return hooks{capabilities: func(_ *faultySource, c brokers.Capabilities) brokers.Capabilities {
				c.Ordered = true
				return c
			}}
		}},
	{name: "a retry lets later messages of its key pass", fails: "order-waits-for-retry",
		options: memory.Options{Ordered: true},
		hooks: onRetry(func(ctx context.Context, s *faultySource, st *brokers.Settlement) error {
			if st.Delivery.Message.Key != "a" {
				return nil
			}
			s.settle(ctx, brokers.Settlement{Delivery: st.Delivery, Action: brokers.Ack})
			return errors.Join(errNone, s.b.publishLater(st))
		})},
	{name: "receive reverses the messages", fails: "order-kept",
		options: memory.Options{Ordered: true},
		hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			ds, err := s.take(ctx, max)
			slices.Reverse(ds)
			return ds, err
		})},
}

// losing changes the error that Receive returns for a deleted topic.
func losing(change func(s *faultySource, lost *brokers.TopicError) error) func() hooks {
	return receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
		for {
			ds, err := s.take(ctx, max)
			lost, ok := errors.AsType[*brokers.TopicError](err)
			if !ok {
				return ds, err
			}
			if err := change(s, lost); err != errNone {
				return nil, err
			}
		}
	})
}

// publishLater stores the message of st again when its delay is over.
func (b *faulty) publishLater(st *brokers.Settlement) error {
	m := st.Delivery.Message
	time.AfterFunc(st.Delay, func() { b.inner.Publish(context.Background(), m.Topic, m) })
	return nil
}

var brokenClosing = []broken{
	{name: "capabilities are gone after close", fails: "capabilities-constant",
		hooks: func() hooks {
			return hooks{capabilities: func(s *faultySource, c brokers.Capabilities) brokers.Capabilities {
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.closed {
					return brokers.Capabilities{}
				}
				return c
			}}
		}},
	{name: "close does not unblock receive", fails: "close-unblocks",
		hooks: receiving(func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			ds, err := s.take(ctx, max)
			if errors.Is(err, brokers.ErrClosed) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return ds, err
		})},
	{name: "close acks what is unsettled", fails: "close-releases",
		hooks: closing(func(ctx context.Context, s *faultySource) error {
			s.ackAll(ctx)
			return s.inner.Close(ctx)
		})},
	{name: "close leaves what is unsettled to the lease", fails: "close-releases",
		hooks: closing(func(_ context.Context, s *faultySource) error {
			s.b.inner.Crash(s.inner)
			return nil
		})},
	{name: "the session goes on after close", fails: "close-ends-session",
		hooks: onDelivery(func(_ *faultySource, d *brokers.Delivery) { d.Session = context.Background() })},
	{name: "the session ends without a cause", fails: "close-ends-session",
		hooks: onDelivery(func(_ *faultySource, d *brokers.Delivery) {
			session, cancel := context.WithCancel(context.Background())
			context.AfterFunc(d.Session, cancel)
			d.Session = session
		})},
	{name: "the session ends with the first settlement", fails: "close-ends-session",
		hooks: func() hooks {
			session, cancel := context.WithCancelCause(context.Background())
			h := onDelivery(func(_ *faultySource, d *brokers.Delivery) { d.Session = session })()
			h.settle = func(ctx context.Context, s *faultySource, batch []brokers.Settlement) []error {
				cancel(brokers.ErrSettled)
				return s.settle(ctx, batch...)
			}
			return h
		}},
	{name: "a second close is an error", fails: "close-again",
		hooks: closing(func(ctx context.Context, s *faultySource) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.closed {
				return brokers.ErrClosed
			}
			return s.inner.Close(ctx)
		})},
	{name: "closing one source closes all", fails: "close-apart",
		hooks: closing(func(ctx context.Context, s *faultySource) error {
			for _, other := range s.b.sources() {
				other.inner.Close(ctx)
			}
			return s.inner.Close(ctx)
		})},
	{name: "closing the broker leaves its sources open", fails: "broker-closes",
		hooks: func() hooks {
			return hooks{closeBroker: func(context.Context, *faulty) error { return nil }}
		}},
	{name: "what a worker has received is settled already", fails: "crash-loses-nothing",
		hooks: func() hooks {
			return hooks{crash: func(b *faulty, s *faultySource) {
				s.ackAll(context.Background())
				b.inner.Crash(s.inner)
			}}
		}},
	{name: "a crash counts as a release", fails: "crash-counted",
		hooks: func() hooks {
			return hooks{crash: func(_ *faulty, s *faultySource) { s.inner.Close(context.Background()) }}
		}},
}

// ackAll acks everything that the source holds.
func (s *faultySource) ackAll(ctx context.Context) {
	s.mu.Lock()
	var batch []brokers.Settlement
	for d := range s.live {
		batch = append(batch, brokers.Settlement{Delivery: d, Action: brokers.Ack})
	}
	s.mu.Unlock()
	s.settle(ctx, batch...)
}

var brokenLeases = []broken{
	{name: "a lease never ends", fails: "lease-ends",
		hooks: neverEnds},
	{name: "a message is delivered again after half of its lease", fails: "lease-holds",
		hooks: redeliversEarly},
	{name: "abandoned is never counted", fails: "abandoned-counted",
		hooks: onDelivery(func(_ *faultySource, d *brokers.Delivery) { d.Abandoned = 0 })},
	{name: "abandoned is never counted, nor beyond a margin", fails: "abandoned-counted",
		hooks:  onDelivery(func(_ *faultySource, d *brokers.Delivery) { d.Abandoned = 0 }),
		adjust: func(h *Harness) { h.AbandonedMargin = 3 }},
	{name: "abandoned is forgotten with a release", fails: "abandoned-counted",
		hooks: forgetsLosses},
	{name: "abandoned counts releases", fails: "release-repeated",
		hooks: func() hooks { return countsReleases(0) }},
	{name: "abandoned counts releases beyond a margin that is too small", fails: "release-repeated",
		hooks:  func() hooks { return countsReleases(3) },
		adjust: func(h *Harness) { h.AbandonedMargin = 3 }},
	{name: "abandoned counts what close releases", fails: "release-repeated",
		hooks: countsClosing},
	{name: "a message comes three times and never again", fails: "release-repeated",
		hooks: limitedDeliveries},
	{name: "a source hoards what nobody receives", fails: "share-idle",
		hooks: func() hooks { return buffering(true) }},
	{name: "extend lies", fails: "extend-holds",
		hooks: onExtend(func(s *faultySource, lease time.Duration, d *brokers.Delivery, really func() error) error {
			if !s.holds(d) {
				return really()
			}
			d.LeaseUntil = time.Now().Add(lease)
			return nil
		})},
	{name: "extend does not tell the new end", fails: "extend-sets-until",
		hooks: onExtend(func(_ *faultySource, _ time.Duration, d *brokers.Delivery, really func() error) error {
			before := d.LeaseUntil
			err := really()
			d.LeaseUntil = before
			return err
		})},
	{name: "extend promises what it could not do", fails: "extend-partial",
		hooks: onExtend(func(_ *faultySource, lease time.Duration, d *brokers.Delivery, really func() error) error {
			d.LeaseUntil = time.Now().Add(lease)
			return really()
		})},
	{name: "extend hides that a lease is lost", fails: "extend-lost",
		hooks: onExtend(func(_ *faultySource, _ time.Duration, _ *brokers.Delivery, really func() error) error {
			if err := really(); !errors.Is(err, brokers.ErrLeaseLost) {
				return err
			}
			return nil
		})},
	{name: "the longest lease is not kept", fails: "lease-limit",
		hooks: func() hooks {
			return hooks{capabilities: func(_ *faultySource, c brokers.Capabilities) brokers.Capabilities {
				c.MaxLease = 4 * c.Lease
				return c
			}}
		}},
}

// miscounts takes for lost whatever is blamed, beyond a margin.
func miscounts(margin int) (h hooks, blame func(*brokers.Delivery)) {
	var mu sync.Mutex
	counts := make(map[string]int)
	h = onDelivery(func(_ *faultySource, d *brokers.Delivery) {
		mu.Lock()
		defer mu.Unlock()
		d.Abandoned = max(0, d.Abandoned+counts[d.Message.ID]-margin)
	})()
	return h, func(d *brokers.Delivery) {
		mu.Lock()
		defer mu.Unlock()
		counts[d.Message.ID]++
	}
}

func countsReleases(margin int) hooks {
	h, blame := miscounts(margin)
	h.settle = changed(brokers.Release, func(st *brokers.Settlement) { blame(st.Delivery) })().settle
	return h
}

func forgetsLosses() hooks {
	var mu sync.Mutex
	released := make(map[string]bool)
	h := onDelivery(func(_ *faultySource, d *brokers.Delivery) {
		mu.Lock()
		defer mu.Unlock()
		if released[d.Message.ID] {
			d.Abandoned = 0
		}
	})()
	h.settle = changed(brokers.Release, func(st *brokers.Settlement) {
		mu.Lock()
		defer mu.Unlock()
		released[st.Delivery.Message.ID] = true
	})().settle
	return h
}

func countsClosing() hooks {
	h, blame := miscounts(0)
	h.closeSource = func(ctx context.Context, s *faultySource) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for d := range s.live {
			blame(d)
		}
		return s.inner.Close(ctx)
	}
	return h
}

// limitedDeliveries drops what comes for the fourth time since it was stored.
func limitedDeliveries() hooks {
	times := make(map[string]int)
	h := onRetry(func(_ context.Context, s *faultySource, st *brokers.Settlement) error {
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		times[st.Delivery.Message.ID] = 0
		return nil
	})()
	h.receive = func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
		for {
			ds, err := s.take(ctx, max)
			ds = slices.DeleteFunc(ds, func(d *brokers.Delivery) bool {
				s.b.mu.Lock()
				times[d.Message.ID]++
				drop := times[d.Message.ID] > 3
				s.b.mu.Unlock()
				if drop {
					s.settle(ctx, brokers.Settlement{Delivery: d, Action: brokers.Ack})
				}
				return drop
			})
			if len(ds) > 0 || err != nil {
				return ds, err
			}
		}
	}
	return h
}

// buffering fetches more than it is asked for when nothing is paused. If it
// hoards, it keeps the leases of what it has alive while the source is open.
func buffering(hoards bool) hooks {
	const more = 10
	var mu sync.Mutex
	buffers := make(map[*faultySource][]*brokers.Delivery)
	paused := make(map[*faultySource]bool)
	var keep func(s *faultySource)
	keep = func(s *faultySource) {
		mu.Lock()
		defer mu.Unlock()
		lease := s.inner.Capabilities().Lease
		if s.inner.Extend(context.Background(), lease, buffers[s]); len(buffers[s]) > 0 {
			time.AfterFunc(lease/3, func() { keep(s) })
		}
	}
	return hooks{
		pause: func(s *faultySource, topics []string) {
			mu.Lock()
			defer mu.Unlock()
			paused[s] = len(topics) > 0
			for _, d := range buffers[s] {
				s.settle(context.Background(), brokers.Settlement{Delivery: d, Action: brokers.Release})
			}
			buffers[s] = nil
			s.inner.Pause(topics...)
		},
		receive: func(ctx context.Context, s *faultySource, max int) ([]*brokers.Delivery, error) {
			mu.Lock()
			ds, stays := buffers[s], paused[s]
			mu.Unlock()
			if len(ds) == 0 {
				var err error
				fetch := max
				if !stays {
					fetch += more
				}
				if ds, err = s.take(ctx, fetch); err != nil {
					return nil, err
				}
				if hoards {
					defer func() { go keep(s) }()
				}
			}
			n := min(max, len(ds))
			mu.Lock()
			defer mu.Unlock()
			buffers[s] = ds[n:]
			return ds[:n:n], nil
		},
	}
}

// onExtend changes single extensions; really does what was asked for.
func onExtend(change func(s *faultySource, lease time.Duration, d *brokers.Delivery, really func() error) error) func() hooks {
	return func() hooks {
		return hooks{extend: func(ctx context.Context, s *faultySource, lease time.Duration, ds []*brokers.Delivery) []error {
			errs := make([]error, len(ds))
			for i, d := range ds {
				errs[i] = change(s, lease, d, func() error {
					return padded(s.inner.Extend(ctx, lease, []*brokers.Delivery{d}), nil, 1)[0]
				})
			}
			return errs
		}}
	}
}

// neverEnds takes leases for ever and says that they are short.
func neverEnds() hooks {
	asked := 5 * time.Second
	h := onDelivery(func(_ *faultySource, d *brokers.Delivery) { d.LeaseUntil = d.ReceivedAt.Add(asked) })()
	h.openSource = func(ctx context.Context, b *faulty, sub brokers.Subscription) (brokers.Source, error) {
		sub.Lease = 1000 * time.Hour
		return b.inner.Open(ctx, sub)
	}
	h.extend = onExtend(func(_ *faultySource, lease time.Duration, d *brokers.Delivery, really func() error) error {
		err := really()
		if err == nil {
			d.LeaseUntil = time.Now().Add(lease)
		}
		return err
	})().extend
	h.capabilities = func(_ *faultySource, c brokers.Capabilities) brokers.Capabilities {
		c.Lease = asked
		return c
	}
	return h
}

// redeliversEarly stores a copy of each message that is still held when half
// of its lease is over.
func redeliversEarly() hooks {
	h := onDelivery(func(s *faultySource, d *brokers.Delivery) {
		m := d.Message
		time.AfterFunc(s.inner.Capabilities().Lease/2, func() {
			if s.holds(d) {
				s.b.inner.Publish(context.Background(), m.Topic, m)
			}
		})
	})()
	return h
}

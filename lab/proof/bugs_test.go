package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

// tap is a broker with a bug. Functions that are nil pass everything on.
type tap struct {
	brokers.Broker
	publish func(next brokers.Broker, ctx context.Context, topic string, msgs []brokers.Message) error
	source  func(next brokers.Source) brokers.Source
}

func (b tap) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	if b.publish != nil {
		return b.publish(b.Broker, ctx, topic, msgs)
	}
	return b.Broker.Publish(ctx, topic, msgs...)
}

func (b tap) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	s, err := b.Broker.Open(ctx, sub)
	if err != nil || b.source == nil {
		return s, err
	}
	return b.source(s), nil
}

// sourceTap is a source with a bug.
type sourceTap struct {
	brokers.Source
	receive func(ds []*brokers.Delivery) []*brokers.Delivery
	settle  func(next brokers.Source, ctx context.Context, batch []brokers.Settlement) []error
	extend  func(lease time.Duration, ds []*brokers.Delivery) []error
}

func (s sourceTap) Receive(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	ds, err := s.Source.Receive(ctx, max)
	if s.receive != nil {
		ds = s.receive(ds)
	}
	return ds, err
}

func (s sourceTap) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	if s.settle != nil {
		return s.settle(s.Source, ctx, batch)
	}
	return s.Source.Settle(ctx, batch)
}

func (s sourceTap) Extend(ctx context.Context, lease time.Duration, ds []*brokers.Delivery) []error {
	if s.extend != nil {
		return s.extend(lease, ds)
	}
	return s.Source.Extend(ctx, lease, ds)
}

type place func(*scenario, brokers.Broker) brokers.Broker

// onSource plants a bug into every source.
func onSource(bug sourceTap) place {
	return func(_ *scenario, b brokers.Broker) brokers.Broker {
		return tap{Broker: b, source: func(s brokers.Source) brokers.Source {
			bug := bug
			bug.Source = s
			return bug
		}}
	}
}

// onSettle plants a bug into the settlements that change returns true for,
// after it has changed them.
func onSettle(change func(*brokers.Settlement) bool) place {
	return onSource(sourceTap{settle: func(next brokers.Source, ctx context.Context, batch []brokers.Settlement) []error {
		batch = slices.Clone(batch)
		for i := range batch {
			change(&batch[i])
		}
		return next.Settle(ctx, batch)
	}})
}

// notAtAll answers some settlements without passing them on.
func notAtAll(skip func(brokers.Settlement) bool) place {
	return onSource(sourceTap{settle: func(next brokers.Source, ctx context.Context, batch []brokers.Settlement) []error {
		errs := make([]error, len(batch))
		for i, st := range batch {
			if skip(st) {
				continue
			}
			if got := next.Settle(ctx, []brokers.Settlement{st}); got != nil {
				errs[i] = got[0]
			}
		}
		return errs
	}})
}

// onDead plants a bug into the publication of dead letters.
func onDead(publish func(next brokers.Broker, ctx context.Context, topic string, msgs []brokers.Message) error) place {
	return func(s *scenario, b brokers.Broker) brokers.Broker {
		return tap{Broker: b, publish: func(next brokers.Broker, ctx context.Context, topic string, msgs []brokers.Message) error {
			if s.isDead(topic) {
				return publish(next, ctx, topic, msgs)
			}
			return next.Publish(ctx, topic, msgs...)
		}}
	}
}

// onLetter changes dead letters on their way.
func onLetter(change func(*dlq.Entry)) place {
	return onDead(func(next brokers.Broker, ctx context.Context, topic string, msgs []brokers.Message) error {
		msgs = slices.Clone(msgs)
		for i := range msgs {
			if entry, err := dlq.Decode(msgs[i]); err == nil {
				change(&entry)
				msgs[i] = entry.Encode(0)
			}
		}
		return next.Publish(ctx, topic, msgs...)
	})
}

// everyNth returns true for one call in n.
func everyNth(n int64) func() bool {
	var calls atomic.Int64
	return func() bool { return calls.Add(1)%n == 0 }
}

// bug is a defect of the consumer or the broker, and the promises of which the
// checker must find at least one broken.
type bug struct {
	name  string
	rig   rig
	finds []promise
}

var errLied = fmt.Errorf("retried: %w", classify.Transient(errBaffling))

func bugs() []bug {
	isAction := func(a brokers.Action) func(brokers.Settlement) bool {
		return func(st brokers.Settlement) bool { return st.Action == a }
	}
	some := everyNth(20)
	change := func(a brokers.Action, do func(*brokers.Settlement)) place {
		return onSettle(func(st *brokers.Settlement) bool {
			if st.Action == a {
				do(st)
			}
			return true
		})
	}
	received := func(do func(*brokers.Delivery)) place {
		return onSource(sourceTap{receive: func(ds []*brokers.Delivery) []*brokers.Delivery {
			for _, d := range ds {
				do(d)
			}
			return ds
		}})
	}
	config := func(do func(*consumer.Config, []topic)) rig { return rig{config: do} }
	handler := func(do func(next consumer.Handler, ctx context.Context, m *brokers.Message) error) rig {
		return rig{handler: func(next consumer.Handler) consumer.Handler {
			return func(ctx context.Context, m *brokers.Message) error { return do(next, ctx, m) }
		}}
	}
	return []bug{
		{"a failed dead letter counts as confirmed", rig{above: onDead(func(next brokers.Broker, ctx context.Context, topic string, msgs []brokers.Message) error {
			_ = next.Publish(ctx, topic, msgs...)
			return nil
		})}, []promise{promiseConfirm}},
		{"the original is acked before its dead letter", rig{above: ackFirst}, []promise{promiseConfirm, promiseSettlement}},
		{"a retry is acked", rig{above: change(brokers.Retry, func(st *brokers.Settlement) { st.Action = brokers.Ack })}, []promise{promiseSettlement}},
		{"a release is acked", rig{above: change(brokers.Release, func(st *brokers.Settlement) { st.Action = brokers.Ack })}, []promise{promiseSettlement}},
		{"a release is counted", rig{above: change(brokers.Release, func(st *brokers.Settlement) {
			st.Action, st.Meta = brokers.Retry, st.Delivery.Meta()
			st.Meta.Attempt++
		})}, []promise{promiseSettlement, promiseCount}},
		{"an ack becomes a release", rig{above: change(brokers.Ack, func(st *brokers.Settlement) {
			if some() {
				st.Action = brokers.Release
			}
		})}, []promise{promiseSettlement}},
		{"pauses and skips by hand do nothing", rig{control: func() error { return nil }}, []promise{promiseByHand}},
		{"attempts are not counted", rig{above: change(brokers.Retry, func(st *brokers.Settlement) { st.Meta.Attempt = 0 })}, []promise{promiseCount}},
		{"throttles are not counted", rig{above: change(brokers.Retry, func(st *brokers.Settlement) { st.Meta.Throttles = 0 })}, []promise{promiseCount}},
		{"a retry is due too early", rig{above: change(brokers.Retry, func(st *brokers.Settlement) {
			st.Delay /= 2
			st.Meta.DueAt = st.Meta.DueAt.Add(-st.Delay)
		})}, []promise{promiseEarly}},
		{"the broker shortens delays", rig{below: change(brokers.Retry, func(st *brokers.Settlement) {
			st.Delay /= 2
			st.Meta.DueAt = time.Time{}
		})}, []promise{promiseEarly, promiseCount}},
		{"the broker delivers too early and says so", rig{below: change(brokers.Retry, func(st *brokers.Settlement) {
			st.Delay /= 2
			st.Meta.DueAt = st.Meta.DueAt.Add(-st.Delay)
		})}, []promise{promiseEarly, promiseCount}},
		{"a retry waits far too long", rig{above: change(brokers.Retry, func(st *brokers.Settlement) {
			st.Delay *= 100
			st.Meta.DueAt = st.Meta.DueAt.Add(st.Delay)
		})}, []promise{promiseLate, promiseEarly}},
		{"acks get lost and nobody notices", rig{below: notAtAll(func(st brokers.Settlement) bool { return st.Action == brokers.Ack && some() })}, []promise{promiseDelivery}},
		{"retries get lost and nobody notices", rig{below: notAtAll(isAction(brokers.Retry))}, []promise{promiseDelivery, promiseCount}},
		{"a release removes the message", rig{below: change(brokers.Release, func(st *brokers.Settlement) { st.Action = brokers.Ack })}, []promise{promiseLost}},
		{"a retry removes the message", rig{below: change(brokers.Retry, func(st *brokers.Settlement) { st.Action = brokers.Ack })}, []promise{promiseLost}},
		{"another message is acked", rig{below: ackTheNext}, []promise{promiseLost, promiseDelivery, promiseStale, promiseLease}},
		{"dead letters get lost", rig{below: onDead(func(brokers.Broker, context.Context, string, []brokers.Message) error { return nil })}, []promise{promiseConfirm, promiseLost}},
		{"dead letters are written twice", rig{below: onDead(func(next brokers.Broker, ctx context.Context, topic string, msgs []brokers.Message) error {
			_ = next.Publish(ctx, topic, slices.Clone(msgs)...)
			return next.Publish(ctx, topic, msgs...)
		})}, []promise{promiseDuplicate}},
		{"a dead letter goes elsewhere", rig{above: func(s *scenario, b brokers.Broker) brokers.Broker {
			return tap{Broker: b, publish: func(next brokers.Broker, ctx context.Context, _ string, msgs []brokers.Message) error {
				return next.Publish(ctx, "elsewhere", msgs...)
			}}
		}}, []promise{promiseLetter}},
		{"a dead letter tells another reason", rig{above: onLetter(func(e *dlq.Entry) { e.Reason = "operator" })}, []promise{promiseLetter}},
		{"a dead message forgets that it is dead", rig{above: change(brokers.Retry, func(st *brokers.Settlement) { st.Meta.Death = nil })}, []promise{promiseSettlement, promiseCount}},
		{"a dead message waits as another one", rig{above: change(brokers.Retry, func(st *brokers.Settlement) {
			if d := st.Meta.Death; d != nil {
				st.Meta.Death = &brokers.Death{Reason: d.Reason, At: d.At, Abandoned: d.Abandoned, Attempt: d.Attempt + 1}
			}
		})}, []promise{promiseLetter}},
		{"a dead letter tells other attempts", rig{above: onLetter(func(e *dlq.Entry) { e.Meta.Attempt++ })}, []promise{promiseLetter}},
		{"a dead letter loses its story", rig{below: onDead(func(next brokers.Broker, ctx context.Context, topic string, msgs []brokers.Message) error {
			for i := range msgs {
				msgs[i].Headers = own(msgs[i].Headers)
			}
			return next.Publish(ctx, topic, msgs...)
		})}, []promise{promiseLetter}},
		{"a dead letter has another body", rig{above: onLetter(func(e *dlq.Entry) { e.Message.Body = append(bytes.Clone(e.Message.Body), '!') })}, []promise{promiseContent}},
		{"a dead letter lacks a header", rig{above: onLetter(func(e *dlq.Entry) { e.Message.Headers = e.Message.Headers.Without("tenant") })}, []promise{promiseContent}},
		{"the broker changes a body", rig{below: received(func(d *brokers.Delivery) { d.Message.Body = bytes.ToUpper(d.Message.Body) })}, []promise{promiseContent}},
		{"the broker drops a header", rig{below: received(func(d *brokers.Delivery) { d.Message.Headers = d.Message.Headers.Without("trace") })}, []promise{promiseContent}},
		{"the broker drops the key", rig{below: received(func(d *brokers.Delivery) { d.Message.Key = "" })}, []promise{promiseContent}},
		{"the consumer hands over another body", handler(func(next consumer.Handler, ctx context.Context, m *brokers.Message) error {
			other := *m
			other.Body = bytes.Clone(m.Body)
			return next(ctx, &other)
		}), []promise{promiseContent}},
		{"a delivery is given twice", rig{above: onSource(sourceTap{receive: func(ds []*brokers.Delivery) []*brokers.Delivery {
			if len(ds) > 0 && some() {
				twin := *ds[0]
				ds = append(ds, &twin)
			}
			return ds
		}})}, []promise{promiseAttempts, promiseSettlement}},
		{"the broker delivers twice", rig{below: onSource(sourceTap{receive: func(ds []*brokers.Delivery) []*brokers.Delivery {
			if len(ds) > 0 && some() {
				twin := *ds[0]
				ds = append(ds, &twin)
			}
			return ds
		}})}, []promise{promiseDelivery}},
		{"an extension only says so", rig{below: onSource(sourceTap{extend: func(lease time.Duration, ds []*brokers.Delivery) []error {
			for _, d := range ds {
				d.LeaseUntil = time.Now().Add(lease)
			}
			return nil
		}})}, []promise{promiseDelivery, promiseLease}},
		{"leases are not extended", rig{above: onSource(sourceTap{extend: func(lease time.Duration, ds []*brokers.Delivery) []error {
			for _, d := range ds {
				d.LeaseUntil = time.Now().Add(lease)
			}
			return nil
		}})}, []promise{promiseLease}},
		{"an unknown outcome counts as done", rig{above: onSource(sourceTap{settle: func(next brokers.Source, ctx context.Context, batch []brokers.Settlement) []error {
			next.Settle(ctx, batch)
			return nil
		}})}, []promise{promiseLease, promiseEvents}},
		{"a lost lease settles all the same", rig{below: settleAnyway}, []promise{promiseStale}},
		{"a handler runs twice", handler(func(next consumer.Handler, ctx context.Context, m *brokers.Message) error {
			if err := next(ctx, m); err != nil {
				return next(ctx, m)
			}
			return nil
		}), []promise{promiseAttempts, promiseEarly, promiseCount}},
		{"failures count as success", handler(func(next consumer.Handler, ctx context.Context, m *brokers.Message) error {
			_ = next(ctx, m)
			return nil
		}), []promise{promiseSettlement}},
		{"successes count as failure", handler(func(next consumer.Handler, ctx context.Context, m *brokers.Message) error {
			if err := next(ctx, m); err != nil {
				return err
			}
			return errLied
		}), []promise{promiseSettlement}},
		{"everything is transient", handler(func(next consumer.Handler, ctx context.Context, m *brokers.Message) error {
			if err := next(ctx, m); err != nil {
				return classify.Transient(err)
			}
			return nil
		}), []promise{promiseSettlement, promiseLetter}},
		{"keys run in parallel", config(func(c *consumer.Config, _ []topic) { c.OrderByKey = false }), []promise{promiseOrder}},
		{"too many handlers run", config(func(c *consumer.Config, _ []topic) { c.Concurrency += 2 }), []promise{promiseHarm}},
		{"one attempt too many", config(func(_ *consumer.Config, ts []topic) {
			for i := range ts {
				ts[i].policy.MaxAttempts++
			}
		}), []promise{promiseSettlement, promiseAttempts}},
		{"one attempt too few", config(func(_ *consumer.Config, ts []topic) {
			for i := range ts {
				ts[i].policy.MaxAttempts = max(1, ts[i].policy.MaxAttempts-1)
			}
		}), []promise{promiseSettlement, promiseLetter}},
		{"delays without jitter", config(func(_ *consumer.Config, ts []topic) {
			for i := range ts {
				ts[i].policy.Backoff = retry.Backoff{Base: time.Nanosecond, Cap: time.Nanosecond}
			}
		}), []promise{promiseEarly}},
		{"a pause without failures", config(func(c *consumer.Config, _ []topic) {
			limiter := flow.New(c.Concurrency, c.Random)
			limiter.Adjust(time.Now(), flow.Change{Pause: "bug"})
			time.AfterFunc(time.Minute, func() { limiter.Adjust(time.Now(), flow.Change{Resume: true}) })
			c.Guard.Limiter = limiter
		}), []promise{promiseContrast}},
		{"every failure counts", config(func(c *consumer.Config, _ []topic) { c.Guard.Off = true }), []promise{promiseCount, promiseLetter}},
		{"retries without a budget", config(func(c *consumer.Config, ts []topic) {
			c.Guard.Off = true
			for i := range ts { // of which there are many, then
				ts[i].policy.MaxAttempts = 1000
			}
		}), []promise{promisePace}},
		{"crash loops go on", config(func(c *consumer.Config, _ []topic) { c.CrashLimit = -1 }), []promise{promiseAttempts}},
		{"a worker takes its time to stop", config(func(c *consumer.Config, _ []topic) { c.DrainTimeout += time.Minute }), []promise{promiseShutdown}},
		{"results get lost at the end of a worker", rig{above: forgetAtTheEnd}, []promise{promiseShutdown}},
		{"an ack is never sent", rig{above: onSource(sourceTap{settle: func(next brokers.Source, ctx context.Context, batch []brokers.Settlement) []error {
			errs := make([]error, len(batch))
			for i, st := range batch {
				if errs[i] = errHiccup; st.Delivery.Message.ID != "m7" {
					errs[i] = nil
					if got := next.Settle(ctx, batch[i:i+1]); got != nil {
						errs[i] = got[0]
					}
				}
			}
			return errs
		}})}, []promise{promiseLiveness}},
	}
}

// ackFirst acks the message of a dead letter before it is published.
func ackFirst(s *scenario, b brokers.Broker) brokers.Broker {
	held := make(map[string]*brokers.Delivery)
	var source brokers.Source
	var mu = make(chan struct{}, 1)
	return tap{
		Broker: b,
		source: func(next brokers.Source) brokers.Source {
			source = next
			return sourceTap{Source: next, receive: func(ds []*brokers.Delivery) []*brokers.Delivery {
				mu <- struct{}{}
				for _, d := range ds {
					held[d.Message.ID] = d
				}
				<-mu
				return ds
			}}
		},
		publish: func(next brokers.Broker, ctx context.Context, topic string, msgs []brokers.Message) error {
			for _, m := range msgs {
				mu <- struct{}{}
				d := held[m.ID]
				<-mu
				source.Settle(ctx, []brokers.Settlement{{Delivery: d, Action: brokers.Ack}})
			}
			return next.Publish(ctx, topic, msgs...)
		},
	}
}

// ackTheNext rotates the deliveries of a batch of acks.
func ackTheNext(s *scenario, b brokers.Broker) brokers.Broker {
	return onSource(sourceTap{settle: func(next brokers.Source, ctx context.Context, batch []brokers.Settlement) []error {
		batch = slices.Clone(batch)
		for i := 1; i < len(batch); i++ {
			batch[i-1].Delivery, batch[i].Delivery = batch[i].Delivery, batch[i-1].Delivery
		}
		return next.Settle(ctx, batch)
	}})(s, b)
}

// settleAnyway says that a settlement went well that came too late.
func settleAnyway(s *scenario, b brokers.Broker) brokers.Broker {
	return onSource(sourceTap{settle: func(next brokers.Source, ctx context.Context, batch []brokers.Settlement) []error {
		errs := next.Settle(ctx, batch)
		for i, err := range errs {
			if f := failOf(err); f == leaseLost || f == isClosed {
				errs[i] = nil
			}
		}
		return errs
	}})(s, b)
}

// forgetAtTheEnd drops settlements once Receive has ended, as a worker does that
// does not wait for them: not more than it can hold, or a source whose worker goes
// on gets the same ones again and again.
func forgetAtTheEnd(_ *scenario, b brokers.Broker) brokers.Broker {
	return tap{Broker: b, source: func(next brokers.Source) brokers.Source {
		const most = 1000
		var ended atomic.Bool
		var forgotten atomic.Int64
		return endingSource{sourceTap{Source: next, settle: func(next brokers.Source, ctx context.Context, batch []brokers.Settlement) []error {
			if ended.Load() && forgotten.Add(int64(len(batch))) <= most {
				return nil
			}
			return next.Settle(ctx, batch)
		}}, &ended}
	}}
}

type endingSource struct {
	sourceTap
	ended *atomic.Bool
}

func (s endingSource) Receive(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	ds, err := s.sourceTap.Receive(ctx, max)
	if ctx.Err() != nil {
		s.ended.Store(true)
	}
	return ds, err
}

// TestCheckerFindsPlantedBugs plants one bug at a time. The checker must find
// each of them, for what it is, within a few seeds.
func TestCheckerFindsPlantedBugs(t *testing.T) {
	const seeds = 40
	for _, b := range bugs() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			found := map[promise]int{}
			var events []event
			for seed := range uint64(seeds) {
				rec, v := playVirtual(t, newScenario(seed+1, messagesPerScenario, virtual), events, b.rig)
				events = rec.events
				for _, broken := range v.violations {
					found[broken.promise]++
				}
				for _, p := range b.finds {
					if found[p] > 0 {
						t.Logf("found with %d seeds: %v", seed+1, found)
						return
					}
				}
			}
			t.Errorf("not found with %d seeds; want one of %q, found %v", seeds, b.finds, found)
		})
	}
}

package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// scene is a server with a queue, "jobs" or "jobs.fifo", and a broker, in a
// bubble.
type scene struct {
	*testing.T
	server *sqstest.Server
	broker *Broker
	topic  string
	sub    brokers.Subscription

	started []*Broker
}

// play runs a test in a scene.
func play(t *testing.T, topic string, options Options, run func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, server: sqstest.New(sqstest.Options{}), topic: topic}
		defer s.server.Close()
		defer s.close()
		s.broker = s.start(options)
		s.sub = brokers.Subscription{
			Topics: []string{topic}, InFlight: 50, Lease: 30 * time.Second,
			MaxDelay: time.Hour, MaxAge: 24 * time.Hour, MaxAttempts: 10,
		}
		run(s)
	})
}

// pass lets so much of the virtual time pass.
func (s *scene) pass(d time.Duration) { time.Sleep(d) }

// playAs is play in a subtest.
func playAs(t *testing.T, name, topic string, options Options, run func(s *scene)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { play(t, topic, options, run) })
}

// hold runs a test in a scene with a source that holds a message, "a".
func hold(t *testing.T, topic string, options Options, run func(s *scene, src *source, d *brokers.Delivery)) {
	t.Helper()
	play(t, topic, options, func(s *scene) {
		src, ds := s.held("a")
		run(s, src, ds[0])
	})
}

func (s *scene) close() {
	for _, b := range s.started {
		if err := b.Close(context.WithoutCancel(s.Context())); err != nil {
			s.Errorf("Broker.Close: %v", err)
		}
	}
	if stale := s.server.Queue(s.topic).Stale; stale > 0 {
		s.Errorf("%d deletions or changes came with a handle whose timeout was over", stale)
	}
}

// start makes a broker that is closed at the end of the test.
func (s *scene) start(options Options) *Broker {
	s.Helper()
	options.Config, options.Create = s.server.Config(), true
	b, err := New(options)
	if err != nil {
		s.Fatalf("New: %v", err)
	}
	s.started = append(s.started, b)
	return b
}

// answer makes a broker that gets other answers to an operation, unless they are
// empty.
func (s *scene) answer(operation string, with func() string) *Broker {
	s.Helper()
	config := s.server.Config()
	next := config.HTTPClient
	config.HTTPClient = doer(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.Header.Get("X-Amz-Target"), operation) {
			if body := with(); body != "" {
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
			}
		}
		return next.Do(r)
	})
	b, err := New(Options{Config: config, Create: true})
	if err != nil {
		s.Fatalf("New: %v", err)
	}
	s.started = append(s.started, b)
	return b
}

// open opens a source on the topic of the scene.
func (s *scene) open() *source {
	s.Helper()
	return s.openOn(s.broker)
}

func (s *scene) openOn(b *Broker) *source {
	s.Helper()
	src, err := b.Open(s.Context(), s.sub)
	if err != nil {
		s.Fatalf("Open: %v", err)
	}
	return src.(*source)
}

// publish sends messages with these bodies, which are their IDs, too. A body
// with a slash has the part before it for its key.
func (s *scene) publish(bodies ...string) {
	s.Helper()
	s.publishTo(s.topic, bodies...)
}

func (s *scene) publishTo(topic string, bodies ...string) {
	s.Helper()
	var msgs []brokers.Message
	for _, body := range bodies {
		m := brokers.Message{ID: body, Body: []byte(body)}
		if key, _, ok := strings.Cut(body, "/"); ok {
			m.Key = key
		}
		msgs = append(msgs, m)
	}
	s.store(topic, msgs...)
}

func (s *scene) store(topic string, msgs ...brokers.Message) {
	s.Helper()
	if err := s.broker.Publish(s.Context(), topic, msgs...); err != nil {
		s.Fatalf("Publish: %v", err)
	}
}

// held opens a source that holds messages with these bodies.
func (s *scene) held(bodies ...string) (*source, []*brokers.Delivery) {
	s.Helper()
	src := s.open()
	s.publish(bodies...)
	return src, s.receive(src, len(bodies))
}

// buffer has src receive messages that nobody takes yet.
func (s *scene) buffer(src brokers.Source, bodies ...string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Nanosecond)
	defer cancel()
	if ds, err := src.Receive(ctx, len(bodies)); err == nil {
		s.Fatalf("received %q before anything was published", bodiesOf(ds))
	}
	s.publish(bodies...)
	synctest.Wait()
}

// receive receives n messages.
func (s *scene) receive(src brokers.Source, n int) []*brokers.Delivery {
	s.Helper()
	var ds []*brokers.Delivery
	ctx, cancel := context.WithTimeout(s.Context(), 24*time.Hour)
	defer cancel()
	for len(ds) < n {
		more, err := src.Receive(ctx, n-len(ds))
		if err != nil {
			s.Fatalf("Receive, after %d of %d messages: %v", len(ds), n, err)
		}
		ds = append(ds, more...)
	}
	return ds
}

func (s *scene) one(src brokers.Source) *brokers.Delivery {
	s.Helper()
	return s.receive(src, 1)[0]
}

// nothing demands that nothing comes for a time.
func (s *scene) nothing(src brokers.Source, d time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), d)
	defer cancel()
	if ds, err := src.Receive(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		s.Errorf("Receive returned %v and %v, want nothing for %v", bodiesOf(ds), err, d)
	}
}

// expect demands these messages, in this order.
func (s *scene) expect(src brokers.Source, bodies ...string) []*brokers.Delivery {
	s.Helper()
	ds := s.receive(src, len(bodies))
	if got := bodiesOf(ds); !slices.Equal(got, bodies) {
		s.Errorf("received %q, want %q", got, bodies)
	}
	return ds
}

func (s *scene) settle(src brokers.Source, batch ...brokers.Settlement) {
	s.Helper()
	for i, err := range src.Settle(s.Context(), batch) {
		if err != nil {
			s.Errorf("Settle(%s) of %q: %v", batch[i].Action, batch[i].Delivery.Message.Body, err)
		}
	}
}

func bodiesOf(ds []*brokers.Delivery) []string {
	var bodies []string
	for _, d := range ds {
		bodies = append(bodies, string(d.Message.Body))
	}
	return bodies
}

func ack(d *brokers.Delivery) brokers.Settlement {
	return brokers.Settlement{Delivery: d, Action: brokers.Ack}
}

func release(d *brokers.Delivery) brokers.Settlement {
	return brokers.Settlement{Delivery: d, Action: brokers.Release}
}

// again is what the pipeline settles after a failed run.
func again(d *brokers.Delivery, delay time.Duration) brokers.Settlement {
	now := time.Now()
	meta := d.Meta()
	meta.Attempt++
	if meta.FirstFailedAt.IsZero() {
		meta.FirstFailedAt = now
	}
	meta.LastFailedAt, meta.DueAt, meta.Delay, meta.Class = now, now.Add(delay), delay, "transient"
	meta.History = append(slices.Clone(meta.History), brokers.Failure{Attempt: meta.Attempt, At: now, Class: "transient", Delay: delay})
	return brokers.Settlement{Delivery: d, Action: brokers.Retry, Delay: delay, Meta: meta}
}

// acks are what ends all of ds.
func acks(ds []*brokers.Delivery) []brokers.Settlement {
	batch := make([]brokers.Settlement, len(ds))
	for i, d := range ds {
		batch[i] = ack(d)
	}
	return batch
}

// drain receives n messages, and acks them.
func (s *scene) drain(src brokers.Source, n int) {
	s.Helper()
	s.settle(src, acks(s.receive(src, n))...)
}

// finish demands these messages, in this order, and acks them.
func (s *scene) finish(src brokers.Source, bodies ...string) {
	s.Helper()
	s.settle(src, acks(s.expect(src, bodies...))...)
}

// fails demands an error of this kind of a settlement.
func (s *scene) fails(src brokers.Source, st brokers.Settlement, kind error) {
	s.Helper()
	if err := s.errorOf(src, st); !errors.Is(err, kind) {
		s.Errorf("Settle(%s) of %q returned %v, want %v", st.Action, st.Delivery.Message.Body, err, kind)
	}
}

// failsForNow demands an error after which the settlement may be tried again.
func (s *scene) failsForNow(src brokers.Source, st brokers.Settlement) {
	s.Helper()
	if err := s.errorOf(src, st); err == nil || errors.Is(err, brokers.ErrLeaseLost) {
		s.Errorf("Settle(%s) of %q returned %v, want an error to try again after", st.Action, st.Delivery.Message.Body, err)
	}
}

func (s *scene) extend(src brokers.Source, lease time.Duration, d *brokers.Delivery) {
	s.Helper()
	if errs := src.Extend(s.Context(), lease, []*brokers.Delivery{d}); errs != nil {
		s.Fatalf("Extend by %v, %v after the receive: %v", lease, time.Since(d.ReceivedAt), errs)
	}
}

// counts demands these numbers of a delivery.
func (s *scene) counts(d *brokers.Delivery, attempt, abandoned int) {
	s.Helper()
	if d.Meta().Attempt != attempt || d.Abandoned != abandoned {
		s.Errorf("%q came with attempt %d and was abandoned %d times, want %d and %d", d.Message.Body, d.Meta().Attempt, d.Abandoned, attempt, abandoned)
	}
}

func (s *scene) leave(src brokers.Source) {
	s.Helper()
	if err := src.Close(s.Context()); err != nil {
		s.Errorf("Close: %v", err)
	}
}

// relieve closes a source and opens one of another worker.
func (s *scene) relieve(src brokers.Source, options Options) *source {
	s.Helper()
	s.leave(src)
	return s.openOn(s.start(options))
}

// took demands that so much time has passed since begun.
func (s *scene) took(begun time.Time, want time.Duration) {
	s.Helper()
	if got := time.Since(begun); got != want {
		s.Errorf("it took %v, want %v", got, want)
	}
}

// errorOf settles one delivery and returns its error.
func (s *scene) errorOf(src brokers.Source, st brokers.Settlement) error {
	return errorAt(src.Settle(s.Context(), []brokers.Settlement{st}), 0)
}

// count is how many calls of an operation run makes. What is about to poll does so
// before.
func (s *scene) count(operation string, run func()) int {
	synctest.Wait()
	before := s.server.Count(operation)
	run()
	return s.server.Count(operation) - before
}

// costs demands that run makes so many calls of an operation.
func (s *scene) costs(operation string, least, most int, run func()) {
	s.Helper()
	if n := s.count(operation, run); n < least || n > most {
		s.Errorf("%d calls of %q, want %d to %d", n, operation, least, most)
	}
}

// within demands that no more time has passed since begun.
func (s *scene) within(begun time.Time, most time.Duration) {
	s.Helper()
	if took := time.Since(begun); took > most {
		s.Errorf("it took %v, want %v at most", took, most)
	}
}

// demand checks how many calls of an operation there have been.
func (s *scene) demand(operation string, want int) {
	s.Helper()
	if got := s.server.Count(operation); got != want {
		s.Errorf("%d calls of %s, want %d", got, operation, want)
	}
}

// A visibility is a timeout that was asked for.
type visibility struct {
	ReceiptHandle     string
	VisibilityTimeout int
}

// visibilities are the timeouts that were asked for, call by call.
func (s *scene) visibilities() (calls [][]visibility) {
	s.Helper()
	for _, c := range s.server.Calls() {
		if c.Operation != changeBatch {
			continue
		}
		var request struct{ Entries []visibility }
		if err := json.Unmarshal(c.Request, &request); err != nil {
			s.Fatalf("a request of %s: %v", c.Operation, err)
		}
		calls = append(calls, request.Entries)
	}
	return calls
}

func (s *scene) state(want sqstest.Queue) {
	s.Helper()
	synctest.Wait()
	q := s.server.Queue(s.topic)
	if q.Visible != want.Visible || q.InFlight != want.InFlight || q.Delayed != want.Delayed {
		s.Errorf("the queue has %d messages visible, %d in flight and %d delayed, want %d, %d and %d",
			q.Visible, q.InFlight, q.Delayed, want.Visible, want.InFlight, want.Delayed)
	}
}

func fill(format string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i)
	}
	return out
}

// handlesOf are the bodies of what a source holds, by receipt handle.
func handlesOf(src *source) map[string]string {
	src.mu.Lock()
	defer src.mu.Unlock()
	bodies := make(map[string]string)
	for t := range src.out {
		bodies[t.record.handle] = string(t.record.message.Body)
	}
	for _, f := range src.feeds {
		for _, t := range f.items {
			bodies[t.record.handle] = string(t.record.message.Body)
		}
	}
	return bodies
}

// movedBack demands that the visibility of these messages was changed, of the last one
// first.
func (s *scene) movedBack(handles map[string]string, want ...string) {
	s.Helper()
	var got []string
	for _, v := range slices.Backward(slices.Concat(s.visibilities()...)) {
		got = append(got, handles[v.ReceiptHandle])
	}
	if !slices.Equal(got, want) {
		s.Errorf("from the last to the first the visibility of %q was changed, want %q", got, want)
	}
}

// errorAt is the error of one entry of a call of Settle, nil if it returned none.
func errorAt(errs []error, i int) error {
	if i < len(errs) {
		return errs[i]
	}
	return nil
}

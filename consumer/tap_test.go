package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

var errBusy = errors.New("the dependency is busy")

// tap is a memory broker that notes the calls of the pipeline, and lets a test
// change what the hooks of the broker itself cannot. Nil hooks change nothing.
type tap struct {
	*memory.Broker
	born time.Time

	maxHold   time.Duration           // of the capabilities
	group     string                  // likewise
	retention time.Duration           // likewise
	deliver   func(*brokers.Delivery) // edits what Receive returns
	settle    func(batch []brokers.Settlement, errs []error) []error
	extend    func(errs []error) []error

	mu      sync.Mutex
	calls   []call
	askedIn []int    // the max of each Receive
	pauses  []string // the topics of each Pause, such as "orders+refunds"
}

// call is one call for one message.
type call struct {
	at     time.Duration
	what   string // "publish", "ack", "retry", "release", "extend"
	topic  string
	body   string
	id     string
	delay  time.Duration
	meta   brokers.Meta
	failed bool
}

func newTap(options memory.Options) *tap {
	return &tap{Broker: memory.New(options), born: time.Now()}
}

// tapWith returns a tap that has a message in topic for each body.
func tapWith(topic string, bodies ...string) *tap {
	return &tap{Broker: brokerWith(topic, bodies...), born: time.Now()}
}

func (b *tap) note(c call) {
	c.at = time.Since(b.born)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, c)
}

// of returns the calls of the kinds given, in their order.
func (b *tap) of(kinds ...string) (calls []call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.calls {
		if slices.Contains(kinds, c.what) {
			calls = append(calls, c)
		}
	}
	return calls
}

// did returns the calls of the kinds given, in their order, such as "ack one".
func (b *tap) did(kinds ...string) (calls []string) {
	for _, c := range b.of(kinds...) {
		calls = append(calls, c.what+" "+c.body)
	}
	return calls
}

// settled compares the settlements with lines such as "ack one".
func (b *tap) settled(t *testing.T, want ...string) {
	t.Helper()
	if got := b.did("ack", "retry", "release"); !slices.Equal(got, want) {
		t.Errorf("settled %q, want %q", got, want)
	}
}

// paused returns the topics that the source was last told to pause.
func (b *tap) paused() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pauses) == 0 {
		return ""
	}
	return b.pauses[len(b.pauses)-1]
}

// asked returns how often the source was asked.
func (b *tap) asked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.askedIn)
}

// Publish notes the call when it is made, and is counted as a call on topic.
func (b *tap) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	err := b.Broker.Publish(ctx, topic, msgs...)
	partial, _ := errors.AsType[*brokers.PublishError](err)
	for i, m := range msgs {
		failed := err != nil && (partial == nil || partial.Failed[i] != nil)
		b.note(call{what: "publish", topic: topic, body: string(m.Body), id: m.ID, failed: failed})
	}
	return err
}

func (b *tap) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	source, err := b.Broker.Open(ctx, sub)
	return &tapSource{source, b}, err
}

type tapSource struct {
	brokers.Source
	b *tap
}

func (s *tapSource) Capabilities() brokers.Capabilities {
	caps := s.Source.Capabilities()
	caps.MaxHold, caps.Group, caps.Retention = s.b.maxHold, s.b.group, s.b.retention
	return caps
}

func (s *tapSource) Receive(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	s.b.mu.Lock()
	s.b.askedIn = append(s.b.askedIn, max)
	s.b.mu.Unlock()
	ds, err := s.Source.Receive(ctx, max)
	if s.b.deliver != nil {
		for _, d := range ds {
			s.b.deliver(d)
		}
	}
	return ds, err
}

func (s *tapSource) Pause(topics ...string) {
	s.b.mu.Lock()
	s.b.pauses = append(s.b.pauses, strings.Join(slices.Sorted(slices.Values(topics)), "+"))
	s.b.mu.Unlock()
	s.Source.Pause(topics...)
}

func (s *tapSource) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	errs := s.Source.Settle(ctx, batch)
	if s.b.settle != nil {
		errs = s.b.settle(batch, errs)
	}
	for i, st := range batch {
		s.b.note(call{what: st.Action.String(), topic: st.Delivery.Message.Topic, body: string(st.Delivery.Message.Body),
			id: st.Delivery.Message.ID, delay: st.Delay, meta: st.Meta, failed: i < len(errs) && errs[i] != nil})
	}
	return errs
}

func (s *tapSource) Extend(ctx context.Context, lease time.Duration, ds []*brokers.Delivery) []error {
	errs := s.Source.Extend(ctx, lease, ds)
	if s.b.extend != nil {
		errs = s.b.extend(errs)
	}
	for i, d := range ds {
		s.b.note(call{what: "extend", topic: d.Message.Topic, body: string(d.Message.Body), failed: i < len(errs) && errs[i] != nil})
	}
	return errs
}

// every is a policy that waits for exactly delay after each failure.
func every(delay time.Duration, attempts int) retry.Policy {
	return retry.Policy{MaxAttempts: attempts, Backoff: retry.Backoff{
		Base: delay, Cap: max(delay, 15*time.Minute), Multiplier: 1, Jitter: retry.NoJitter}}
}

// diary notes what a handler does and when.
type diary struct {
	mu    sync.Mutex
	born  time.Time
	lines []string
}

func newDiary() *diary { return &diary{born: time.Now()} }

func (d *diary) write(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf("%v ", time.Since(d.born))+fmt.Sprintf(format, args...))
}

// times returns when each line was written.
func (d *diary) times() (at []time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, line := range d.lines {
		first, _, _ := strings.Cut(line, " ")
		elapsed, _ := time.ParseDuration(first)
		at = append(at, elapsed)
	}
	return at
}

// expect compares the diary with lines such as "1s run one".
func (d *diary) expect(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.lines, want) {
		t.Errorf("got  %q\nwant %q", d.lines, want)
	}
}

// deadLetters returns the entries in the dead-letter topic of topic.
func deadLetters(t *testing.T, broker interface {
	Messages(string) []brokers.Message
}, topic string,
) []dlq.Entry {
	t.Helper()
	var entries []dlq.Entry
	for _, m := range broker.Messages(topic + ".dead") {
		entry, err := dlq.Decode(m)
		if err != nil {
			t.Errorf("Decode of dead letter %q: %v", m.ID, err)
		}
		entries = append(entries, entry)
	}
	return entries
}

// oneDeadLetter returns the only dead letter of topic, whose original must be
// gone.
func oneDeadLetter(t *testing.T, broker *memory.Broker, topic string) dlq.Entry {
	t.Helper()
	entries := deadLetters(t, broker, topic)
	if len(entries) != 1 || broker.Len(topic) != 0 {
		t.Fatalf("%d dead letters and %d messages left in %q, want 1 and 0", len(entries), broker.Len(topic), topic)
	}
	return entries[0]
}

// holds compares what a topic holds.
func holds(t *testing.T, broker interface {
	Stats(string) memory.Stats
}, topic string, want memory.Stats,
) {
	t.Helper()
	if got := broker.Stats(topic); got != want {
		t.Errorf("%q holds %+v, want %+v", topic, got, want)
	}
}

// empty fails the test if topic still holds messages.
func empty(t *testing.T, broker *memory.Broker, topics ...string) {
	t.Helper()
	for _, topic := range topics {
		if n := broker.Len(topic); n != 0 {
			t.Errorf("%d messages left in %q, want none: %+v", n, topic, broker.Stats(topic))
		}
	}
}

// expect compares the events of a kind with lines such as "1s one".
func (r *recorder) expect(t *testing.T, kind string, want ...string) {
	t.Helper()
	var got []string
	for _, e := range r.of(kind) {
		got = append(got, fmt.Sprintf("%v %s", e.Time.Sub(r.born), e.Message.Body))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: got  %q\nwant %q", kind, got, want)
	}
}

// on returns a hook that injects fault into the first n operations of that
// kind on each message.
func on(operation memory.Operation, n int, fault memory.Fault) func(memory.Op) memory.Fault {
	return func(op memory.Op) memory.Fault {
		if op.Operation == operation && op.Nth <= n {
			return fault
		}
		return memory.Fault{}
	}
}

// with returns a hook that injects fault into the operations that match.
func with(fault memory.Fault, match func(memory.Op) bool) memory.Options {
	return memory.Options{Fault: func(op memory.Op) memory.Fault {
		if match(op) {
			return fault
		}
		return memory.Fault{}
	}}
}

// deadLettering is what publishes to "orders.dead".
func deadLettering(op memory.Op) bool {
	return op.Operation == memory.Publish && op.Topic == "orders.dead"
}

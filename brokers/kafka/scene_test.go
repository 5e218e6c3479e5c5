package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/livetest"
)

// patience is the deadline of calls that tests are not about: a broker that has
// just started on a busy machine takes its time.
const patience = time.Minute

// scene is a topic and a group of their own on a real broker, for tests of
// whole sources.
type scene struct {
	*testing.T
	options Options
	admin   *client
	topic   string
	group   string
}

// onKafka runs test on every real broker, with a topic of so many partitions,
// at the same time as others.
func onKafka(t *testing.T, partitions int, test func(s *scene)) {
	t.Helper()
	t.Parallel()
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		s := &scene{T: t, topic: uniqueName("scene"), group: uniqueName("group")}
		s.options = Options{
			Brokers: strings.Split(target.URL, ","), SessionTimeout: patience, RebalanceTimeout: 6 * time.Second,
			Group: s.group, DelayPartitions: 1,
		}
		s.admin = newClient(Options{Brokers: s.options.Brokers, CallTimeout: patience})
		t.Cleanup(s.admin.Close)
		s.create(s.topic, partitions, nil)
		test(s)
	})
}

// withSDK makes a call of the client library on connections of its own, which know
// what the cluster knows now.
func withSDK(addresses []string, call func(c *kafka.Client) error) error {
	own := &kafka.Transport{}
	defer own.CloseIdleConnections()
	return call(&kafka.Client{Addr: kafka.TCP(addresses...), Timeout: patience, Transport: own})
}

// deleteTopic deletes a topic.
func deleteTopic(ctx context.Context, addresses []string, topic string) error {
	return withSDK(addresses, func(c *kafka.Client) error {
		res, err := c.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
		if err == nil {
			err = res.Errors[topic]
		}
		return err
	})
}

// onFake reports whether the broker is one that takes any name and setting.
func onFake() bool { return os.Getenv("REDRIVE_KAFKA_FAKE") == "true" }

func uniqueName(prefix string) string { return fmt.Sprintf("%s-%08x", prefix, rand.Uint32()) }

// withinTime gives a call of a test no more than a generous time.
func withinTime(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// pause waits between two looks at what a broker is about to do.
func pause(d time.Duration) { <-time.After(d) }

func (s *scene) create(topic string, partitions int, configs map[string]string) {
	s.Helper()
	maker := &Broker{options: Options{Replication: 1}}
	if err := s.admin.create(s.Context(), maker.made(topic, partitions, configs)); err != nil {
		s.Fatal(err)
	}
}

func (s *scene) drop(topic string) {
	s.Helper()
	if err := deleteTopic(withinTime(s.T), s.options.Brokers, topic); err != nil {
		s.Errorf("delete topic %q: %v", topic, err)
	}
}

func (s *scene) grow(topic string, partitions int) {
	s.Helper()
	err := withSDK(s.options.Brokers, func(c *kafka.Client) error {
		res, err := c.CreatePartitions(withinTime(s.T), &kafka.CreatePartitionsRequest{
			Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: int32(partitions)}}})
		if err == nil {
			err = res.Errors[topic]
		}
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
}

// store writes records into a partition as one batch, compressed by codec, and
// returns the offset of the first.
func (s *scene) store(p partition, codec kafka.Compression, records ...record) int64 {
	s.Helper()
	base, err := storeBatch(withinTime(s.T), s.options.Brokers, p, codec, records...)
	if err != nil {
		s.Fatalf("store %d records in %s: %v", len(records), p, err)
	}
	return base
}

// storeBatch is what a producer does that is not redrive. It waits until the cluster
// knows the topic.
func storeBatch(ctx context.Context, addresses []string, p partition, codec kafka.Compression, records ...record) (base int64, err error) {
	early := []error{protocol.ErrNoTopic, protocol.ErrNoPartition, protocol.ErrNoLeader, kafka.UnknownTopicOrPartition, kafka.LeaderNotAvailable, kafka.NotLeaderForPartition}
	for {
		err = withSDK(addresses, func(c *kafka.Client) error {
			list := make([]kafka.Record, len(records)) // anew, as an attempt uses it up
			for i, r := range records {
				list[i] = kafka.Record{Key: bytesOf(r.key), Value: bytesOf(r.value), Headers: r.headers}
			}
			res, err := c.Produce(ctx, &kafka.ProduceRequest{
				Topic: p.topic, Partition: p.number, RequiredAcks: kafka.RequireAll, Compression: codec,
				Records: kafka.NewRecordReader(list...),
			})
			if err != nil {
				return err
			}
			base = res.BaseOffset
			return res.Error
		})
		if ctx.Err() != nil || !slices.ContainsFunc(early, func(e error) bool { return errors.Is(err, e) }) {
			return base, err
		}
		pause(50 * time.Millisecond)
	}
}

// write stores values in partition 0 of topic, one record each.
func (s *scene) write(topic string, values ...string) {
	s.Helper()
	var records []record
	for _, v := range values {
		records = append(records, record{value: []byte(v)})
	}
	s.store(partition{topic, 0}, 0, records...)
}

func (s *scene) writeNumbers(n int) {
	s.Helper()
	s.store(partition{s.topic, 0}, 0, numbered(0, n)...)
}

func (s *scene) delayTopic() string { return "redrive.delay.v1." + s.group + ".1m" }

// stored is what the group has committed for partition n of a topic.
func (s *scene) stored(topic string, n int) commitment {
	s.Helper()
	p := partition{topic, n}
	got, err := s.admin.committed(withinTime(s.T), s.group, []partition{p})
	if err != nil {
		s.Fatal(err)
	}
	return got[p]
}

func (s *scene) waitForCommit(topic string, offset int64) {
	s.Helper()
	s.waitFor("the commit", func() bool { return s.stored(topic, 0).offset == offset })
}

// commit stores a commitment in a group without members.
func (s *scene) commit(p partition, at commitment) {
	s.Helper()
	failed, err := s.admin.commit(withinTime(s.T), s.group, -1, "", map[partition]commitment{p: at})
	if err := errors.Join(err, failed[p]); err != nil {
		s.Fatal(err)
	}
}

// closedInOrder reports whether c is of an owner that ended well and had nothing
// open.
func closedInOrder(c commitment) bool {
	text, clean := strings.CutPrefix(c.metadata, ownerClean)
	_, open := cutWitness(text, c.offset)
	return clean && open == ""
}

// waitFor fails the test unless ok comes true in time.
func (s *scene) waitFor(what string, ok func() bool) {
	s.Helper()
	for deadline := time.Now().Add(patience); !ok(); pause(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("waited in vain for %s", what)
		}
	}
}

// worker is a source with a network of its own.
type worker struct {
	*source
	link *link
	t    *testing.T
}

func (s *scene) subscription() brokers.Subscription {
	return brokers.Subscription{Topics: []string{s.topic}, MaxDelay: time.Minute}
}

func (s *scene) open(change ...func(*brokers.Subscription)) *worker {
	s.Helper()
	sub := s.subscription()
	for _, f := range change {
		f(&sub)
	}
	b, l := s.broker()
	source, err := b.open(withinTime(s.T), sub)
	if err != nil {
		s.Fatalf("Open: %v", err)
	}
	return &worker{source: source, link: l, t: s.T}
}

func (s *scene) broker() (*Broker, *link) {
	s.Helper()
	b, l := (&fleet{t: s.T, options: s.options}).start()
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		b.Close(ctx)
	})
	return b, l
}

// current is the generation that hands out, nil between two.
func (w *worker) current() *generation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.generation
}

// crash cuts the worker off, as if its process had been killed, and a session had
// passed since.
func (w *worker) crash() {
	w.t.Helper()
	dieOut(w.t, w.source, w.link)
}

// dieOut has a source die, and its group notice. Sessions are long, so that a
// machine that is busy ends none.
func dieOut(t testing.TB, s *source, l *link) {
	t.Helper()
	over := time.Now().Add(patience)
	id := ""
	for ; id == ""; pause(10 * time.Millisecond) {
		s.mu.Lock()
		if s.generation != nil {
			id = s.generation.member
		}
		s.mu.Unlock()
		if time.Now().After(over) {
			t.Fatal("a source that is to die has not joined its group")
		}
	}
	l.cut()
	admin := newClient(Options{Brokers: s.broker.options.Brokers, CallTimeout: patience})
	defer admin.Close()
	for err := errors.New("nobody"); err != nil; {
		if err = admin.expel(context.Background(), patience, s.plan.group, id); err != nil && time.Now().After(over) {
			t.Fatalf("expel a member: %v", err)
		}
	}
}

func (w *worker) close() {
	w.t.Helper()
	if err := w.Close(withinTime(w.t)); err != nil {
		w.t.Errorf("Close: %v", err)
	}
}

// receive returns n deliveries, and the errors before them.
func (w *worker) receive(n int) ([]*brokers.Delivery, []error) {
	w.t.Helper()
	var ds []*brokers.Delivery
	var errs []error
	ctx := withinTime(w.t)
	for len(ds) < n {
		more, err := w.Receive(ctx, n-len(ds))
		if ctx.Err() != nil {
			w.t.Fatalf("received %d of %d: %v, then nothing more; errors: %v", len(ds), n, bodies(ds), errors.Join(errs...))
		}
		if err != nil {
			errs = append(errs, err)
			if errors.Is(err, brokers.ErrMisconfigured) || errors.Is(err, brokers.ErrClosed) {
				w.t.Fatalf("Receive ended for good: %v", err)
			}
		}
		ds = append(ds, more...)
	}
	return ds, errs
}

// drain returns what is received until no delivery has come for quiet.
func (w *worker) drain(quiet time.Duration) ([]*brokers.Delivery, []error) {
	w.t.Helper()
	var ds []*brokers.Delivery
	var errs []error
	for last := time.Now(); ; {
		ctx, cancel := context.WithDeadline(w.t.Context(), last.Add(quiet))
		more, err := w.Receive(ctx, 100)
		ended := ctx.Err() != nil
		cancel()
		switch {
		case len(more) > 0:
			ds, last = append(ds, more...), time.Now()
		case ended:
			return ds, errs
		case err != nil:
			errs = append(errs, err)
		}
	}
}

// receiveAll receives n deliveries and acks each at once, as whoever follows a
// lost owner gets a few at a time, and then whatever else comes.
func (w *worker) receiveAll(n int) []*brokers.Delivery {
	w.t.Helper()
	var got []*brokers.Delivery
	for len(got) < n {
		more, _ := w.receive(1)
		w.ack(more...)
		got = append(got, more...)
	}
	more, _ := w.drain(500 * time.Millisecond)
	return append(got, more...)
}

// settle does action to ds. A retry is due after delay.
func (w *worker) settle(action brokers.Action, delay time.Duration, ds ...*brokers.Delivery) {
	w.t.Helper()
	var batch []brokers.Settlement
	for _, d := range ds {
		meta := d.Meta()
		meta.Attempt++
		meta.DueAt = time.Now().Add(delay)
		batch = append(batch, brokers.Settlement{Delivery: d, Action: action, Delay: delay, Meta: meta})
	}
	for i, err := range w.Settle(withinTime(w.t), batch) {
		if err != nil {
			w.t.Errorf("%s of %s: %v", action, ds[i].Message.Body, err)
		}
	}
}

func (w *worker) ack(ds ...*brokers.Delivery) {
	w.t.Helper()
	w.settle(brokers.Ack, 0, ds...)
}

func (w *worker) retry(delay time.Duration, ds ...*brokers.Delivery) {
	w.t.Helper()
	w.settle(brokers.Retry, delay, ds...)
}

func number(d *brokers.Delivery) int {
	n, err := strconv.Atoi(string(d.Message.Body))
	if err != nil {
		panic(err)
	}
	return n
}

func bodies(ds []*brokers.Delivery) []string {
	var all []string
	for _, d := range ds {
		all = append(all, string(d.Message.Body))
	}
	slices.Sort(all)
	return all
}

func numbers(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	slices.Sort(all)
	return all
}

func (s *scene) sameBodies(what string, got []*brokers.Delivery, want []string) {
	s.Helper()
	slices.Sort(want)
	if have := bodies(got); !slices.Equal(have, want) {
		s.Errorf("%s: received %v, want %v", what, have, want)
	}
}

func (s *scene) noErrors(errs []error) {
	s.Helper()
	if len(errs) > 0 {
		s.Errorf("errors: %v", errors.Join(errs...))
	}
}

func anyContains(errs []error, text string) bool {
	return slices.ContainsFunc(errs, func(err error) bool { return strings.Contains(err.Error(), text) })
}

func bytesOf(b []byte) kafka.Bytes {
	if b == nil {
		return nil
	}
	return kafka.NewBytes(b)
}

package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
	"github.com/redrive-go/redrive/integration/livetest"
)

// partition is one of a topic.
type partition struct {
	topic  string
	number int
}

// String names it in failures.
func (p partition) String() string { return fmt.Sprintf("partition %d of topic %q", p.number, p.topic) }

// record is one of a log, or one that a producer stores.
type record struct {
	offset     int64
	time       time.Time
	key, value []byte
	headers    []kafkago.Header
}

// commitment is what a group has stored for a partition.
type commitment struct {
	offset   int64
	metadata string
}

// scene is a topic and a group of their own on a real broker, for tests of
// whole sources.
type scene struct {
	*testing.T
	options kafka.Options
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
		s.options = kafka.Options{
			Brokers: strings.Split(target.URL, ","), SessionTimeout: kafka.Patience, RebalanceTimeout: 6 * time.Second,
			Group: s.group, DelayPartitions: 1,
		}
		s.create(s.topic, partitions, nil)
		test(s)
	})
}

func uniqueName(prefix string) string { return fmt.Sprintf("%s-%08x", prefix, rand.Uint32()) }

func bodies(ds []*brokers.Delivery) []string {
	var all []string
	for _, d := range ds {
		all = append(all, string(d.Message.Body))
	}
	slices.Sort(all)
	return all
}

func anyContains(errs []error, text string) bool {
	return slices.ContainsFunc(errs, func(err error) bool { return strings.Contains(err.Error(), text) })
}

// withSDK makes a call of the client library on connections of its own, which know
// what the cluster knows now.
func withSDK(addresses []string, call func(c *kafkago.Client) error) error {
	own := &kafkago.Transport{}
	defer own.CloseIdleConnections()
	return call(&kafkago.Client{Addr: kafkago.TCP(addresses...), Timeout: kafka.Patience, Transport: own})
}

// deleteTopic deletes a topic, and waits until the cluster does not know it any more.
func deleteTopic(ctx context.Context, addresses []string, topic string) error {
	err := withSDK(addresses, func(c *kafkago.Client) error {
		res, err := c.DeleteTopics(ctx, &kafkago.DeleteTopicsRequest{Topics: []string{topic}})
		if err == nil {
			err = res.Errors[topic]
		}
		return err
	})
	for gone := false; err == nil && !gone; pause(20 * time.Millisecond) {
		var states map[string]kafkago.Topic
		states, err = lookAt(ctx, addresses, topic)
		gone = errors.Is(states[topic].Error, kafkago.UnknownTopicOrPartition)
	}
	return err
}

// onFake reports whether the broker is one that takes any name and setting.
func onFake() bool { return os.Getenv("REDRIVE_KAFKA_FAKE") == "true" }

// pause waits between two looks at what a broker is about to do.
func pause(d time.Duration) { <-time.After(d) }

// createTopic makes a topic and waits until it can be used.
func createTopic(ctx context.Context, addresses []string, topic string, partitions int, configs map[string]string) error {
	config := kafkago.TopicConfig{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}
	for name, value := range configs {
		config.ConfigEntries = append(config.ConfigEntries, kafkago.ConfigEntry{ConfigName: name, ConfigValue: value})
	}
	for {
		err := withSDK(addresses, func(c *kafkago.Client) error {
			res, err := c.CreateTopics(ctx, &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{config}})
			if err == nil {
				err = res.Errors[topic]
			}
			return err
		})
		if err != nil && (ctx.Err() != nil || !errors.Is(err, kafkago.TopicAlreadyExists)) {
			return err
		}
		if states, err := lookAt(ctx, addresses, topic); err == nil && len(states[topic].Partitions) >= partitions && !slices.ContainsFunc(states[topic].Partitions, func(p kafkago.Partition) bool { return p.Error != nil }) {
			return nil
		}
		pause(20 * time.Millisecond)
	}
}

// lookAt returns what there is of topics.
func lookAt(ctx context.Context, addresses []string, names ...string) (map[string]kafkago.Topic, error) {
	states := make(map[string]kafkago.Topic)
	err := withSDK(addresses, func(c *kafkago.Client) error {
		res, err := c.Metadata(ctx, &kafkago.MetadataRequest{Topics: names})
		if err == nil {
			for _, topic := range res.Topics {
				states[topic.Name] = topic
			}
		}
		return err
	})
	return states, err
}

func (s *scene) create(topic string, partitions int, configs map[string]string) {
	s.Helper()
	if err := createTopic(kafka.WithinTime(s.T), s.options.Brokers, topic, partitions, configs); err != nil {
		s.Fatalf("create topic %q: %v", topic, err)
	}
}

// partitions is how many a topic has, 0 if there is none.
func (s *scene) partitions(topic string) int {
	s.Helper()
	states, err := lookAt(kafka.WithinTime(s.T), s.options.Brokers, topic)
	if err != nil {
		s.Fatal(err)
	}
	return len(states[topic].Partitions)
}

// configs are the settings of a topic.
func (s *scene) configs(topic string) map[string]string {
	s.Helper()
	settings := make(map[string]string)
	err := withSDK(s.options.Brokers, func(c *kafkago.Client) error {
		res, err := c.DescribeConfigs(kafka.WithinTime(s.T), &kafkago.DescribeConfigsRequest{
			Resources: []kafkago.DescribeConfigRequestResource{{ResourceType: kafkago.ResourceTypeTopic, ResourceName: topic}}})
		if err != nil {
			return err
		}
		for _, entry := range res.Resources[0].ConfigEntries {
			settings[entry.ConfigName] = entry.ConfigValue
		}
		return res.Resources[0].Error
	})
	if err != nil {
		s.Fatal(err)
	}
	return settings
}

// askGroup asks the coordinator of a group for what the client library does not know.
func askGroup(ctx context.Context, addresses []string, group string, req kmsg.Request) (kmsg.Response, error) {
	c := cluster.New(cluster.Options{Brokers: addresses, Dial: new(net.Dialer).DialContext, Timeout: kafka.Patience})
	defer c.Close()
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKey = group
	res, err := c.Ask(ctx, cluster.AnyNode, find, nil)
	if err != nil {
		return nil, err
	}
	at := res.(*kmsg.FindCoordinatorResponse)
	if err := cluster.CodeError(at.ErrorCode); err != nil {
		return nil, err
	}
	return c.Ask(ctx, at.NodeID, req, nil)
}

// describe says what there is of a group. The client library reads no members that own
// partitions.
func describe(ctx context.Context, addresses []string, group string) (kmsg.DescribeGroupsResponseGroup, error) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	res, err := askGroup(ctx, addresses, group, req)
	if err != nil {
		return kmsg.DescribeGroupsResponseGroup{}, err
	}
	found := res.(*kmsg.DescribeGroupsResponse).Groups[0]
	return found, cluster.CodeError(found.ErrorCode)
}

func (s *scene) grow(topic string, partitions int) {
	s.Helper()
	err := withSDK(s.options.Brokers, func(c *kafkago.Client) error {
		res, err := c.CreatePartitions(kafka.WithinTime(s.T), &kafkago.CreatePartitionsRequest{
			Topics: []kafkago.TopicPartitionsConfig{{Name: topic, Count: int32(partitions)}}})
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
func (s *scene) store(p partition, codec kafkago.Compression, records ...record) int64 {
	s.Helper()
	base, err := storeBatch(kafka.WithinTime(s.T), s.options.Brokers, p, codec, records...)
	if err != nil {
		s.Fatalf("store %d records in %s: %v", len(records), p, err)
	}
	return base
}

// storeBatch is what a producer does that is not redrive. It waits until the cluster
// knows the topic.
func storeBatch(ctx context.Context, addresses []string, p partition, codec kafkago.Compression, records ...record) (base int64, err error) {
	early := []error{protocol.ErrNoTopic, protocol.ErrNoPartition, protocol.ErrNoLeader, kafkago.UnknownTopicOrPartition, kafkago.LeaderNotAvailable, kafkago.NotLeaderForPartition}
	for {
		err = withSDK(addresses, func(c *kafkago.Client) error {
			list := make([]kafkago.Record, len(records)) // anew, as an attempt uses it up
			for i, r := range records {
				list[i] = kafkago.Record{Key: bytesOf(r.key), Value: bytesOf(r.value), Headers: r.headers}
			}
			res, err := c.Produce(ctx, &kafkago.ProduceRequest{
				Topic: p.topic, Partition: p.number, RequiredAcks: kafkago.RequireAll, Compression: codec,
				Records: kafkago.NewRecordReader(list...),
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
func (s *scene) stored(topic string, n int) (at commitment) {
	s.Helper()
	err := withSDK(s.options.Brokers, func(c *kafkago.Client) error {
		res, err := c.OffsetFetch(kafka.WithinTime(s.T), &kafkago.OffsetFetchRequest{GroupID: s.group, Topics: map[string][]int{topic: {n}}})
		if err != nil {
			return err
		}
		found := res.Topics[topic][0]
		at = commitment{found.CommittedOffset, found.Metadata}
		return errors.Join(res.Error, found.Error)
	})
	if err != nil {
		s.Fatal(err)
	}
	return at
}

// commit stores a commitment in a group without members.
func (s *scene) commit(p partition, at commitment) {
	s.Helper()
	var err error
	s.waitFor("a commit without a member", func() bool { // once the group has a coordinator
		err = withSDK(s.options.Brokers, func(c *kafkago.Client) error {
			res, err := c.OffsetCommit(kafka.WithinTime(s.T), &kafkago.OffsetCommitRequest{GroupID: s.group, GenerationID: -1,
				Topics: map[string][]kafkago.OffsetCommit{p.topic: {{Partition: p.number, Offset: at.offset, Metadata: at.metadata}}}})
			if err != nil {
				return err
			}
			return res.Topics[p.topic][0].Error
		})
		return err == nil
	})
}

// waitFor fails the test unless ok comes true in time.
func (s *scene) waitFor(what string, ok func() bool) {
	s.Helper()
	for deadline := time.Now().Add(kafka.Patience); !ok(); pause(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("waited in vain for %s", what)
		}
	}
}

// worker is a source with a network of its own.
type worker struct {
	brokers.Source
	broker *kafka.Broker
	link   *link
	t      *testing.T
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
	source, err := b.Open(kafka.WithinTime(s.T), sub)
	if err != nil {
		s.Fatalf("Open: %v", err)
	}
	return &worker{source, b, l, s.T}
}

func (s *scene) broker() (*kafka.Broker, *link) {
	s.Helper()
	b, l := (&fleet{t: s.T, options: s.options}).start()
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		b.Close(ctx)
	})
	return b, l
}

func (w *worker) isIn() bool { return len(kafka.Owned(w.Source)) > 0 }

// crash cuts the worker off, as if its process had been killed, and a session had
// passed since.
func (w *worker) crash() {
	w.t.Helper()
	dieOut(w.t, w.Source, w.link)
}

// dieOut has a source die, and its group notice. Sessions are long, so that a
// machine that is busy ends none.
func dieOut(t testing.TB, src brokers.Source, l *link) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), kafka.Patience)
	defer cancel()
	group, member := src.Capabilities().Group, ""
	for ; member == ""; pause(10 * time.Millisecond) {
		if found, err := describe(ctx, l.brokers, group); err == nil && found.State == "Stable" {
			for _, m := range found.Members {
				if m.ClientID == l.clientID {
					member = m.MemberID
				}
			}
		}
		if ctx.Err() != nil {
			t.Fatal("a source that is to die has not joined its group")
		}
	}
	l.cut()
	for err := errors.New("nobody"); err != nil; {
		err = withSDK(l.brokers, func(c *kafkago.Client) error {
			res, err := c.LeaveGroup(ctx, &kafkago.LeaveGroupRequest{GroupID: group, Members: []kafkago.LeaveGroupRequestMember{{ID: member}}})
			if err != nil {
				return err
			}
			return errors.Join(res.Error, res.Members[0].Error)
		})
		if err != nil && ctx.Err() != nil {
			t.Fatalf("expel a member: %v", err)
		}
	}
}

func (w *worker) close() {
	w.t.Helper()
	if err := w.Close(kafka.WithinTime(w.t)); err != nil {
		w.t.Errorf("Close: %v", err)
	}
}

// receive returns n deliveries, and the errors before them.
func (w *worker) receive(n int) ([]*brokers.Delivery, []error) {
	w.t.Helper()
	var ds []*brokers.Delivery
	var errs []error
	ctx := kafka.WithinTime(w.t)
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
	for i, err := range w.Settle(kafka.WithinTime(w.t), batch) {
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

func bytesOf(b []byte) kafkago.Bytes {
	if b == nil {
		return nil
	}
	return kafkago.NewBytes(b)
}

// numbered are n records with their number as value.
func numbered(from, n int) []record {
	records := make([]record, n)
	for i := range records {
		records[i] = record{offset: int64(i), value: fmt.Append(nil, from+i)}
	}
	return records
}

// copied is the record of a copy that a worker with this secret, or without one, stores.
func copied(m brokers.Message, meta brokers.Meta, secret ...[]byte) record {
	c := kafka.CopyOf(m, meta, secret...)
	return record{key: c.Key, value: c.Value, headers: c.Headers}
}

const years = 9 * 365 * 24 * time.Hour

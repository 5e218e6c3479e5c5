package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

const (
	kafkaPartitions = 4
	kafkaSession    = 3 * time.Second // after which a killed worker's partitions are free
	kafkaRebalance  = 6 * time.Second
)

// kafkaTarget is a Kafka of one node, as the driver sees it.
type kafkaTarget struct {
	target
	url, tag string
	link     link
	calls    *kafkago.Client
	topics   []string // that messages are published to
}

// newKafkaTarget makes the topics of s.
func newKafkaTarget(ctx context.Context, url, tag string, s *scenario) (*kafkaTarget, error) {
	t := &kafkaTarget{url: url, tag: tag, calls: &kafkago.Client{Addr: kafkago.TCP(url), Timeout: callTimeout,
		Transport: &kafkago.Transport{Dial: dialOnly(url, nil), MetadataTTL: time.Second}}}
	var err error
	if t.link, err = connectKafka(url, tag, nil); err != nil {
		return nil, err
	}
	request := &kafkago.CreateTopicsRequest{}
	for _, topic := range s.topics {
		t.topics = append(t.topics, topic.name)
		request.Topics = append(request.Topics, kafkago.TopicConfig{Topic: topic.name, NumPartitions: kafkaPartitions, ReplicationFactor: 1})
	}
	if err := t.create(ctx, request); err != nil {
		return nil, fmt.Errorf("create the topics: %w", err)
	}
	return t, nil
}

// create makes topics. A broker that is busy may not know for a while that it is
// there.
func (t *kafkaTarget) create(ctx context.Context, request *kafkago.CreateTopicsRequest) error {
	for tries := 1; ; tries++ {
		made, err := t.calls.CreateTopics(ctx, request)
		if err == nil {
			return errors.Join(slices.Collect(maps.Values(made.Errors))...)
		}
		if !errors.Is(err, kafkago.BrokerNotAvailable) || tries == 20 {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func isDelayTopic(tag string) func(topic string) bool {
	return func(topic string) bool { return strings.HasPrefix(topic, tag+".delay.") }
}

func (t *kafkaTarget) worker(int) link { return t.link }

func (t *kafkaTarget) declared(string, string) {}

func (t *kafkaTarget) wait(context.Context, *scenario) error { return nil } // the topics are there already

// own are the topics with the tag, and how many partitions each of them has.
func (t *kafkaTarget) own(ctx context.Context) (map[string]int, error) {
	all, err := t.calls.Metadata(ctx, &kafkago.MetadataRequest{})
	if err != nil {
		return nil, err
	}
	own := map[string]int{}
	for _, topic := range all.Topics {
		if strings.HasPrefix(topic.Name, t.tag+".") {
			own[topic.Name] = len(topic.Partitions)
		}
	}
	return own, nil
}

// consumed are those of them that the group reads.
func (t *kafkaTarget) consumed(ctx context.Context) (map[string]int, error) {
	own, err := t.own(ctx)
	isDelay := isDelayTopic(t.tag)
	maps.DeleteFunc(own, func(name string, _ int) bool {
		return !slices.Contains(t.topics, name) && !(isDelay(name) && strings.Contains(name, "."+t.tag+"."))
	})
	return own, err
}

// committed are the offsets that the group has committed, -1 where it has none.
func (t *kafkaTarget) committed(ctx context.Context, topics map[string]int) (map[partition]int64, error) {
	request := &kafkago.OffsetFetchRequest{GroupID: t.tag, Topics: map[string][]int{}}
	for name, n := range topics {
		for i := range n {
			request.Topics[name] = append(request.Topics[name], i)
		}
	}
	got, err := t.calls.OffsetFetch(ctx, request)
	if err == nil {
		err = got.Error
	}
	if err != nil {
		return nil, err
	}
	offsets := map[partition]int64{}
	for name, partitions := range got.Topics {
		for _, p := range partitions {
			if p.Error != nil {
				return nil, p.Error
			}
			offsets[partition{name, p.Partition}] = p.CommittedOffset
		}
	}
	return offsets, nil
}

// spans are the first and the next offset of each partition.
func (t *kafkaTarget) spans(ctx context.Context, topics map[string]int) (map[partition][2]int64, error) {
	request := &kafkago.ListOffsetsRequest{Topics: map[string][]kafkago.OffsetRequest{}}
	for name, n := range topics {
		for i := range n {
			request.Topics[name] = append(request.Topics[name], kafkago.FirstOffsetOf(i), kafkago.LastOffsetOf(i))
		}
	}
	got, err := t.calls.ListOffsets(ctx, request)
	if err != nil {
		return nil, err
	}
	spans := map[partition][2]int64{}
	for name, partitions := range got.Topics {
		for _, p := range partitions {
			if p.Error != nil {
				return nil, p.Error
			}
			spans[partition{name, p.Partition}] = [2]int64{p.FirstOffset, p.LastOffset}
		}
	}
	return spans, nil
}

func (t *kafkaTarget) counts() (map[string]int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	topics, err := t.consumed(ctx)
	if err != nil {
		return nil, err
	}
	spans, err := t.spans(ctx, topics)
	if err != nil {
		return nil, err
	}
	committed, err := t.committed(ctx, topics)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for p, span := range spans {
		if left := int(span[1] - max(span[0], committed[p])); left > 0 {
			counts[p.topic] += left
		}
	}
	return counts, nil
}

// watch takes down every change of a committed offset.
func (t *kafkaTarget) watch(ctx context.Context, l *ledger) (stop func()) {
	const pause = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		seen := map[partition]int64{}
		for ctx.Err() == nil {
			wait(ctx, pause)
			topics, err := t.consumed(ctx)
			if err != nil {
				continue
			}
			offsets, err := t.committed(ctx, topics)
			if err != nil {
				continue
			}
			for p, offset := range offsets {
				if before, ok := seen[p]; offset >= 0 && (!ok || before != offset) {
					seen[p] = offset
					l.add(event{Kind: advanced, Topic: p.topic, Partition: p.number, Offset: offset})
				}
			}
		}
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

// drain reads a dead-letter topic to its end, with a group of its own.
func (t *kafkaTarget) drain(ctx context.Context, topic string) ([]brokers.Message, error) {
	own, err := t.own(ctx)
	if err != nil {
		return nil, err
	}
	spans, err := t.spans(ctx, map[string]int{topic: own[topic]})
	if err != nil {
		return nil, err
	}
	left := 0
	for _, span := range spans {
		left += int(span[1] - span[0])
	}
	return readLetters(ctx, t.link, brokers.Subscription{Topics: []string{topic}, Group: t.tag + ".letters." + topic}, left)
}

// close removes all topics with the tag.
func (t *kafkaTarget) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout)
	defer cancel()
	errs := []error{t.link.Close(ctx)}
	own, err := t.own(ctx)
	if err == nil {
		_, err = t.calls.DeleteTopics(ctx, &kafkago.DeleteTopicsRequest{Topics: slices.Collect(maps.Keys(own))})
	}
	return errors.Join(append(errs, err)...)
}

// dialOnly connects to the broker at url, whatever address it advertises, as it
// may be behind a proxy.
func dialOnly(url string, t *kafkaTap) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		c, err := (&net.Dialer{Timeout: callTimeout}).DialContext(ctx, network, url)
		if err != nil || t == nil {
			return c, err
		}
		return t.conn(c), nil
	}
}

// connectKafka connects by way of a tap, if there is one.
func connectKafka(url, tag string, t *kafkaTap) (link, error) {
	b, err := kafka.New(kafka.Options{
		Brokers:          []string{url},
		Group:            tag,
		Prefix:           tag,
		SessionTimeout:   kafkaSession,
		RebalanceTimeout: kafkaRebalance,
		CallTimeout:      callTimeout,
		Dial:             dialOnly(url, t),
	})
	if err != nil {
		return nil, err
	}
	return kafkaLink{b, t}, nil
}

// kafkaLink is a worker's way to Kafka, or the driver's.
type kafkaLink struct {
	*kafka.Broker
	tap *kafkaTap
}

func (kafkaLink) kill() {} // the driver does that

func (l kafkaLink) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	s, err := l.Broker.Open(ctx, sub)
	if err != nil || l.tap == nil {
		return s, err
	}
	return kafkaSource{s, l.tap}, nil
}

// kafkaSource tells the tap when the worker knows of the copy of a retry.
type kafkaSource struct {
	brokers.Source
	tap *kafkaTap
}

func (s kafkaSource) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	errs := s.Source.Settle(ctx, batch)
	for i, st := range batch {
		if st.Action == brokers.Retry && (errs == nil || errs[i] == nil) {
			s.tap.copied.Store(true)
		}
	}
	return errs
}

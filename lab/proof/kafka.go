package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers/kafka"
)

const (
	kafkaPartitions = 4               // of each topic, unless the job says otherwise
	kafkaSession    = 3 * time.Second // after which a killed worker's partitions are free
	kafkaRebalance  = 6 * time.Second
)

// partition is one of a topic on a log.
type partition struct {
	topic  string
	number int
}

// kafkaServer is a Kafka, as the driver sees it: the topics with the
// tag, and what the group has committed of them.
type kafkaServer struct {
	tag      string
	calls    *kafkago.Client
	consumed []string // beside the delay topics
}

// newKafka makes the topics of s.
func newKafka(ctx context.Context, j job, s *scenario) (*kafkaServer, error) {
	t := &kafkaServer{tag: j.Tag, calls: &kafkago.Client{Addr: kafkago.TCP(strings.Split(j.URL, ",")...), Timeout: callTimeout,
		Transport: &kafkago.Transport{Dial: dialOnly(j.URL), MetadataTTL: time.Second}}}
	request := &kafkago.CreateTopicsRequest{}
	for _, topic := range s.topics {
		t.consumed = append(t.consumed, topic.name)
		request.Topics = append(request.Topics, kafkago.TopicConfig{Topic: topic.name, NumPartitions: cmp.Or(j.Partitions, kafkaPartitions), ReplicationFactor: -1})
	}
	if err := t.create(ctx, request); err != nil {
		return nil, fmt.Errorf("create the topics: %w", err)
	}
	return t, nil
}

// create makes topics. A broker that is busy may not know for a while that it is
// there.
func (t *kafkaServer) create(ctx context.Context, request *kafkago.CreateTopicsRequest) error {
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

func (t *kafkaServer) declared(string, string) {}

// own are the topics with the tag, and how many partitions each of them has.
func (t *kafkaServer) own(ctx context.Context) (map[string]int, error) {
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

func (t *kafkaServer) isConsumed(topic string) bool {
	delays := strings.HasPrefix(topic, t.tag+".delay.") && strings.Contains(topic, "."+t.tag+".")
	return delays || slices.Contains(t.consumed, topic)
}

// committed are the offsets that the group has committed, -1 where it has none.
func (t *kafkaServer) committed(ctx context.Context, topics map[string]int) (map[partition]int64, error) {
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
func (t *kafkaServer) spans(ctx context.Context, topics map[string]int) (map[partition][2]int64, error) {
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

func (t *kafkaServer) counts(ctx context.Context, others ...string) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	topics, err := t.own(ctx)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(topics, func(name string, _ int) bool { return !t.isConsumed(name) && !slices.Contains(others, name) })
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
		counts[p.topic] += int(span[1] - max(span[0], committed[p]))
	}
	return counts, nil
}

// close removes all topics with the tag.
func (t *kafkaServer) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout)
	defer cancel()
	own, err := t.own(ctx)
	if err == nil {
		_, err = t.calls.DeleteTopics(ctx, &kafkago.DeleteTopicsRequest{Topics: slices.Collect(maps.Keys(own))})
	}
	return err
}

// dialOnly connects to the broker at url, whatever address it advertises, as it
// may be behind a proxy. The nodes of a cluster have commas in between, and no proxy.
func dialOnly(url string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if !strings.Contains(url, ",") {
			address = url
		}
		return (&net.Dialer{Timeout: callTimeout}).DialContext(ctx, network, address)
	}
}

func connectKafka(j job) (*kafka.Broker, error) {
	return kafka.New(kafka.Options{
		Brokers:          strings.Split(j.URL, ","),
		Group:            j.Tag,
		Prefix:           j.Tag,
		SessionTimeout:   kafkaSession,
		RebalanceTimeout: kafkaRebalance,
		CallTimeout:      callTimeout,
		Dial:             dialOnly(j.URL),
	})
}

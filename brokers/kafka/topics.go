package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

// span is what a partition has: from first up to, not including, last.
type span struct{ first, last int64 }

// bounds returns the spans of ps. Partitions that could not be asked about are
// missing, and in the error.
func (c *client) bounds(ctx context.Context, ps []partition) (map[partition]span, error) {
	const together = 8 // the library opens two connections for each
	all := make(map[partition]span, len(ps))
	var failed []error
	for chunk := range slices.Chunk(ps, together) {
		failed = append(failed, c.boundsOf(ctx, chunk, all)...)
	}
	return all, errors.Join(failed...)
}

func (c *client) boundsOf(ctx context.Context, ps []partition, all map[partition]span) []error {
	req := &kafka.ListOffsetsRequest{Topics: make(map[string][]kafka.OffsetRequest)}
	for _, p := range ps {
		req.Topics[p.topic] = append(req.Topics[p.topic], kafka.FirstOffsetOf(p.number), kafka.LastOffsetOf(p.number))
	}
	failed := make(map[partition]error)
	err := retry(ctx, func() error {
		clear(failed)
		res, err := c.calls.ListOffsets(ctx, req)
		if err != nil {
			return err
		}
		var passing error
		for topic, partitions := range res.Topics {
			for _, p := range partitions {
				at := partition{topic, p.Partition}
				if p.Error == nil {
					all[at] = span{p.FirstOffset, p.LastOffset}
					continue
				}
				failed[at] = explain(p.Error, "read the offsets of %s", at)
				if isPassing(p.Error) {
					passing = p.Error
				}
			}
		}
		return passing
	})
	if len(failed) == 0 && err != nil {
		return []error{explain(err, "read the offsets of %s", ps[0])}
	}
	return slices.Collect(maps.Values(failed))
}

// topicState is what the cluster knows of a topic.
type topicState struct {
	missing     bool
	partitions  int
	replication int  // the least of the partitions
	leaders     bool // every partition has one, so that the topic can be used
}

// topics asks the cluster about names: what it returns is not from memory, and
// nothing is created by asking. It opens a connection of its own, so it is not
// for every second.
func (c *client) topics(ctx context.Context, names ...string) (map[string]topicState, error) {
	if len(names) == 0 {
		return nil, nil
	}
	var states map[string]topicState
	err := retry(ctx, func() (err error) {
		states, err = c.topicsOnce(ctx, names)
		return err
	})
	if err != nil {
		return nil, explain(err, "ask the brokers at %s about topics", strings.Join(c.options.brokers, ", "))
	}
	return states, nil
}

func (c *client) topicsOnce(ctx context.Context, names []string) (map[string]topicState, error) {
	once := c.transport(names...)
	defer once.CloseIdleConnections()
	calls := &kafka.Client{Addr: c.addr, Timeout: c.options.timeout, Transport: once}
	res, err := calls.Metadata(ctx, &kafka.MetadataRequest{Topics: names})
	if err != nil {
		return nil, err
	}
	states := make(map[string]topicState, len(names))
	for _, topic := range res.Topics {
		state, err := stateOf(topic)
		if err != nil {
			return nil, explain(err, "topic %q", topic.Name)
		}
		states[topic.Name] = state
	}
	return states, nil
}

func stateOf(topic kafka.Topic) (topicState, error) {
	switch {
	case errors.Is(topic.Error, kafka.UnknownTopicOrPartition):
		return topicState{missing: true}, nil
	case errors.Is(topic.Error, kafka.LeaderNotAvailable):
	case topic.Error != nil:
		return topicState{}, topic.Error
	}
	state := topicState{partitions: len(topic.Partitions), leaders: len(topic.Partitions) > 0}
	for i, p := range topic.Partitions {
		if i == 0 || len(p.Replicas) < state.replication {
			state.replication = len(p.Replicas)
		}
		if p.Error != nil && !errors.Is(p.Error, kafka.ReplicaNotAvailable) {
			state.leaders = false
		}
	}
	return state, nil
}

// configs returns the settings of topics by name, those of the broker where
// the topic has none of its own: retention.ms, cleanup.policy and so on.
func (c *client) configs(ctx context.Context, topics ...string) (map[string]map[string]string, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	req := &kafka.DescribeConfigsRequest{}
	for _, name := range topics {
		req.Resources = append(req.Resources, kafka.DescribeConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: name})
	}
	all := make(map[string]map[string]string, len(topics))
	err := retry(ctx, func() error {
		res, err := c.calls.DescribeConfigs(ctx, req)
		if err != nil {
			return err
		}
		for _, resource := range res.Resources {
			if resource.Error != nil {
				return explain(resource.Error, "topic %q", resource.ResourceName)
			}
			settings := make(map[string]string, len(resource.ConfigEntries))
			for _, entry := range resource.ConfigEntries {
				settings[entry.ConfigName] = entry.ConfigValue
			}
			all[resource.ResourceName] = settings
		}
		return nil
	})
	if err != nil {
		return nil, explain(err, "read the settings of the topics %q", topics)
	}
	return all, nil
}

// create makes a topic and waits until it can be used. One that exists is left
// as it is. Zero partitions or replicas mean the broker's default.
func (c *client) create(ctx context.Context, topic string, partitions, replication int, configs map[string]string) error {
	config := kafka.TopicConfig{Topic: topic, NumPartitions: partitions, ReplicationFactor: replication}
	if partitions == 0 {
		config.NumPartitions = -1
	}
	if replication == 0 {
		config.ReplicationFactor = -1
	}
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		config.ConfigEntries = append(config.ConfigEntries, kafka.ConfigEntry{ConfigName: name, ConfigValue: configs[name]})
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.timeout)
	defer cancel()
	err := retry(ctx, func() error {
		res, err := c.calls.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{config}})
		if err == nil {
			err = res.Errors[topic]
		}
		if errors.Is(err, kafka.TopicAlreadyExists) {
			return nil
		}
		return err
	})
	if err == nil {
		err = c.untilUsable(ctx, topic)
	}
	return explain(err, "create topic %q", topic)
}

func (c *client) untilUsable(ctx context.Context, topic string) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 400*time.Millisecond) {
		states, err := c.topics(ctx, topic)
		if err != nil {
			return err
		}
		if states[topic].leaders {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it has no leader for every partition yet: %w", context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

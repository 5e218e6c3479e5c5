package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

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

// look is what a user is shown of a topic.
type look struct {
	topicState
	brokers int   // of the cluster
	denied  bool  // the user may not see whether it exists
	rights  int32 // a bit for each operation, or unknownRights
}

const unknownRights = math.MinInt32

func (l look) exists() bool { return !l.missing && !l.denied }

// may reports whether the user has a right, or whether nobody says so.
func (l look) may(operation kmsg.ACLOperation) bool {
	return l.rights == unknownRights || l.rights&(1<<operation) != 0
}

// look asks what there is of topics, and what the user may do with them. Nothing is
// created by asking.
func (c *client) look(ctx context.Context, names []string) (map[string]look, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, name := range names {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
	}
	looks := make(map[string]look, len(names))
	err := retry(ctx, func() error {
		res, err := c.ask(ctx, c.options.timeout, req)
		if err != nil {
			return err
		}
		answer := res.(*kmsg.MetadataResponse)
		for _, topic := range answer.Topics {
			l := look{brokers: len(answer.Brokers), rights: topic.AuthorizedOperations}
			switch err := codeError(topic.ErrorCode); {
			case errors.Is(err, kafka.UnknownTopicOrPartition):
				l.missing = true
			case errors.Is(err, kafka.TopicAuthorizationFailed):
				l.denied = true
			case err != nil && !errors.Is(err, kafka.LeaderNotAvailable):
				return explain(err, "topic %q", *topic.Topic)
			}
			l.partitions = len(topic.Partitions)
			for i, p := range topic.Partitions {
				if i == 0 || len(p.Replicas) < l.replication {
					l.replication = len(p.Replicas)
				}
			}
			looks[*topic.Topic] = l
		}
		return nil
	})
	return looks, explain(c.hint(err), "ask the brokers at %s about topics", strings.Join(c.options.brokers, ", "))
}

// hint adds to err the options that may be wrong. A broker does not say that it waits
// for a login, for TLS, or for a connection without TLS: it ends the connection.
func (c *client) hint(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	fix := "if it wants TLS, set Options.TLS"
	if c.options.tls != nil {
		fix = "if it speaks no TLS, leave Options.TLS out"
	}
	if c.options.sasl == nil {
		fix = "if it wants a login, set Options.SASL, and " + fix
	}
	return fmt.Errorf("the broker ended the connection without an answer: %s: %w", fix, err)
}

// configs returns the settings of topics by name, those of the broker where
// the topic has none of its own: retention.ms, cleanup.policy and so on. Those that
// the user may not read are missing.
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
			if errors.Is(resource.Error, kafka.TopicAuthorizationFailed) {
				continue
			}
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
		return nil, explain(err, "ask the brokers at %s about the settings of topics", strings.Join(c.options.brokers, ", "))
	}
	return all, nil
}

// create makes a topic and waits until it can be used. One that exists is left
// as it is.
func (c *client) create(ctx context.Context, topic kafka.TopicConfig) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.timeout)
	defer cancel()
	errs, err := c.createTopics(ctx, false, topic)
	if err == nil {
		err = errs[topic.Topic]
	}
	if err == nil || errors.Is(err, kafka.TopicAlreadyExists) {
		err = c.untilUsable(ctx, topic.Topic)
	}
	return explain(err, "create topic %q", topic.Topic)
}

// tryCreate returns by name why the cluster would not create topics, and creates none.
func (c *client) tryCreate(ctx context.Context, topics []quality) (map[string]error, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	var made []kafka.TopicConfig
	for _, q := range topics {
		made = append(made, q.made)
	}
	errs, err := c.createTopics(ctx, true, made...)
	return errs, explain(err, "ask the brokers at %s whether topics can be created", strings.Join(c.options.brokers, ", "))
}

// createTopics does not use the library's call, which waits for the topics to appear
// where it was only a try.
func (c *client) createTopics(ctx context.Context, onlyTry bool, topics ...kafka.TopicConfig) (map[string]error, error) {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.ValidateOnly, req.TimeoutMillis = onlyTry, int32(min(c.options.timeout, time.Minute).Milliseconds())
	for _, topic := range topics {
		one := kmsg.NewCreateTopicsRequestTopic()
		one.Topic, one.NumPartitions, one.ReplicationFactor = topic.Topic, int32(topic.NumPartitions), int16(topic.ReplicationFactor)
		for _, entry := range topic.ConfigEntries {
			one.Configs = append(one.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: entry.ConfigName, Value: &entry.ConfigValue})
		}
		req.Topics = append(req.Topics, one)
	}
	errs := make(map[string]error, len(topics))
	err := retry(ctx, func() error {
		res, err := c.askNode(ctx, c.options.timeout, controller, req)
		if err != nil {
			return err
		}
		var passing error
		for _, topic := range res.(*kmsg.CreateTopicsResponse).Topics {
			err := codeError(topic.ErrorCode)
			if err != nil && topic.ErrorMessage != nil {
				err = fmt.Errorf("%w: %s", err, *topic.ErrorMessage)
			}
			if errs[topic.Topic] = err; err != nil && isPassing(err) {
				passing = err
			}
		}
		return passing
	})
	return errs, err
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

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

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// topicState is what a user is shown of a topic.
type topicState struct {
	missing     bool
	denied      bool // the user may not see whether it exists
	partitions  int
	replication int   // the least of the partitions
	leaders     bool  // every partition has one, so that the topic can be used
	rights      int32 // a bit for each operation, or unknownRights
	brokers     int   // of the cluster
}

const unknownRights = math.MinInt32

func (s topicState) exists() bool { return !s.missing && !s.denied }

// may reports whether the user has a right, or whether nobody says so.
func (s topicState) may(operation kmsg.ACLOperation) bool {
	return s.rights == unknownRights || s.rights&(1<<operation) != 0
}

// topics asks the cluster about names: what it returns is not from memory, and
// nothing is created by asking. A topic that the user may not see is an error.
func (c *client) topics(ctx context.Context, names ...string) (map[string]topicState, error) {
	if len(names) == 0 {
		return nil, nil
	}
	states, err := c.look(ctx, names)
	for name, state := range states {
		if state.denied && err == nil {
			err = explain(kafka.TopicAuthorizationFailed, "topic %q", name)
		}
	}
	return states, err
}

// look asks what there is of topics, and what the user may do with them. Nothing is
// created by asking.
func (c *client) look(ctx context.Context, names []string) (map[string]topicState, error) {
	req := cluster.About(names...)
	req.IncludeTopicAuthorizedOperations = true
	states := make(map[string]topicState, len(names))
	err := answered(ctx, c, cluster.AnyNode, req, func(res *kmsg.MetadataResponse) error {
		for _, topic := range res.Topics {
			state := topicState{brokers: len(res.Brokers), rights: topic.AuthorizedOperations, partitions: len(topic.Partitions), leaders: len(topic.Partitions) > 0}
			switch err := codeError(topic.ErrorCode); {
			case errors.Is(err, kafka.UnknownTopicOrPartition):
				state.missing = true
			case errors.Is(err, kafka.TopicAuthorizationFailed):
				state.denied = true
			case err != nil && !errors.Is(err, kafka.LeaderNotAvailable):
				return explain(err, "topic %q", *topic.Topic)
			}
			for i, p := range topic.Partitions {
				if i == 0 || len(p.Replicas) < state.replication {
					state.replication = len(p.Replicas)
				}
				if err := codeError(p.ErrorCode); err != nil && !errors.Is(err, kafka.ReplicaNotAvailable) {
					state.leaders = false
				}
			}
			states[*topic.Topic] = state
		}
		return nil
	})
	return states, c.aboutTopics(c.hint(err), "topics")
}

// aboutTopics says what the brokers were asked about when err came back.
func (c *client) aboutTopics(err error, what string) error {
	return explain(err, "ask the brokers at %s about %s", strings.Join(c.options.Brokers, ", "), what)
}

// hint adds to err the options that may be wrong. A broker does not say that it waits
// for a login, for TLS, or for a connection without TLS: it ends the connection.
func (c *client) hint(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	fix := "if it wants TLS, set Options.TLS"
	if c.options.TLS != nil {
		fix = "if it speaks no TLS, leave Options.TLS out"
	}
	if c.options.SASL == nil {
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
	all, err := c.settings(ctx, cluster.AnyNode, kmsg.ConfigResourceTypeTopic, topics)
	return all, c.aboutTopics(err, "the settings of topics")
}

// settings asks a node for the settings of topics or brokers by name, for those of
// keys or for all. Those that the user may not read are missing.
func (c *client) settings(ctx context.Context, node int32, kind kmsg.ConfigResourceType, names []string, keys ...string) (map[string]map[string]string, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, name := range names {
		req.Resources = append(req.Resources, kmsg.DescribeConfigsRequestResource{ResourceType: kind, ResourceName: name, ConfigNames: keys})
	}
	all := make(map[string]map[string]string, len(names))
	err := answered(ctx, c, node, req, func(res *kmsg.DescribeConfigsResponse) error {
		for _, resource := range res.Resources {
			err := codeError(resource.ErrorCode)
			if errors.Is(err, kafka.TopicAuthorizationFailed) || errors.Is(err, kafka.ClusterAuthorizationFailed) {
				continue
			}
			if err != nil {
				return explain(err, "%q", resource.ResourceName)
			}
			settings := make(map[string]string, len(resource.Configs))
			for _, entry := range resource.Configs {
				if entry.Value != nil {
					settings[entry.Name] = *entry.Value
				}
			}
			all[resource.ResourceName] = settings
		}
		return nil
	})
	return all, err
}

// newTopic is a topic that is to be made.
type newTopic = kmsg.CreateTopicsRequestTopic

// create makes a topic and waits until it can be used. One that exists is left
// as it is.
func (c *client) create(ctx context.Context, q quality) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.CallTimeout)
	defer cancel()
	errs, err := c.createTopics(ctx, false, q.made)
	if err == nil {
		err = errs[q.name]
	}
	switch {
	case err == nil || errors.Is(err, kafka.TopicAlreadyExists):
		err = c.untilUsable(ctx, q.name)
	case is(err, kafka.InvalidReplicationFactor) && !q.isShort(err):
		err = fmt.Errorf("%w: %s: %w", brokers.ErrMisconfigured, tooManyReplicas, err)
	}
	return explain(err, "create topic %q", q.name)
}

// tryCreate returns by name why the cluster would not create topics, and creates none.
func (c *client) tryCreate(ctx context.Context, topics []quality) (map[string]error, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	var made []newTopic
	for _, q := range topics {
		made = append(made, q.made)
	}
	errs, err := c.createTopics(ctx, true, made...)
	return errs, explain(err, "ask the brokers at %s whether topics can be created", strings.Join(c.options.Brokers, ", "))
}

// createTopics returns by name how the creation of topics ended, or would end.
func (c *client) createTopics(ctx context.Context, onlyTry bool, topics ...newTopic) (map[string]error, error) {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics, req.ValidateOnly, req.TimeoutMillis = topics, onlyTry, int32(min(c.options.CallTimeout, time.Minute).Milliseconds())
	errs := make(map[string]error, len(topics))
	err := answered(ctx, c, cluster.Controller, req, func(res *kmsg.CreateTopicsResponse) (passing error) {
		for _, topic := range res.Topics {
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
		if !adapter.Rest(ctx, pause) {
			return fmt.Errorf("it has no leader for every partition yet: %w", context.Cause(ctx))
		}
	}
}

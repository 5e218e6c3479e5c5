// Package kafka lets several consumers do the same work on a Kafka: the bare
// client library, redrive, and Watermill.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	adapter "github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/lab/bench/contender"
)

// World is what is measured on a Kafka, in topics and groups of names that
// nobody else has.
type World struct {
	// Options are those of the adapter. Their group is the current one.
	Options adapter.Options

	// Size is that of the bodies, in bytes.
	Size int

	name       string
	client     *kafka.Client
	partitions int
	groups     int
}

// NewWorld prepares to measure on the Kafka at address, which may be several
// with commas in between, in topics of so many partitions.
func NewWorld(address string, partitions int) *World {
	addresses := strings.Split(address, ",")
	w := &World{
		Options:    adapter.Options{Brokers: addresses},
		Size:       contender.Size,
		name:       fmt.Sprintf("bench-%d", time.Now().UnixNano()),
		client:     &kafka.Client{Addr: kafka.TCP(addresses...), Transport: &kafka.Transport{}, Timeout: 30 * time.Second},
		partitions: partitions,
	}
	w.NextGroup()
	return w
}

// NextGroup makes a group that nobody has used the current one. It is called
// from one goroutine.
func (w *World) NextGroup() {
	w.groups++
	w.Options.Group = fmt.Sprintf("%s-%d", w.name, w.groups)
}

// Broker implements contender.World.
func (w *World) Broker() (brokers.Broker, error) { return adapter.New(w.Options) }

// Declare makes topics, and returns their names.
func (w *World) Declare(ctx context.Context, topics ...string) ([]string, error) {
	var names []string
	var configs []kafka.TopicConfig
	for _, topic := range topics {
		names = append(names, w.name+"."+topic)
		configs = append(configs, kafka.TopicConfig{Topic: w.name + "." + topic, NumPartitions: w.partitions, ReplicationFactor: 1})
	}
	res, err := w.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: configs})
	if err != nil {
		return nil, err
	}
	return names, errors.Join(slices.Collect(maps.Values(res.Errors))...)
}

// Close implements contender.World: it deletes the topics with the name of the
// world, those that redrive made for its groups included.
func (w *World) Close(ctx context.Context) error {
	all, err := w.client.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return err
	}
	var mine []string
	for _, topic := range all.Topics {
		if strings.Contains(topic.Name, w.name) {
			mine = append(mine, topic.Name)
		}
	}
	if len(mine) == 0 {
		return nil
	}
	res, err := w.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: mine})
	if err != nil {
		return err
	}
	w.client.Transport.(*kafka.Transport).CloseIdleConnections()
	return errors.Join(slices.Collect(maps.Values(res.Errors))...)
}

const (
	fillers  = 4
	together = 4000 // messages that a filler hands to the writer at a time
)

// Fill implements contender.World. Messages have a key of 8 bytes, of which
// there are as many as messages, and no headers.
func (w *World) Fill(ctx context.Context, n int, topics ...string) ([]string, error) {
	topics, err := w.Declare(ctx, topics...)
	if err != nil {
		return nil, err
	}
	for _, topic := range topics {
		if err := w.Publish(ctx, topic, n); err != nil {
			return nil, err
		}
	}
	return topics, nil
}

// Publish puts n messages into topic, which exists.
func (w *World) Publish(ctx context.Context, topic string, n int) error {
	writer := &kafka.Writer{
		Addr: w.client.Addr, Transport: w.client.Transport, Topic: topic, Balancer: kafka.Murmur2Balancer{},
		RequiredAcks: kafka.RequireAll, BatchSize: together, BatchTimeout: 5 * time.Millisecond,
	}
	errs := make([]error, fillers)
	var wg sync.WaitGroup
	for f := range fillers {
		wg.Go(func() { errs[f] = w.fill(ctx, writer, n*f/fillers, n*(f+1)/fillers) })
	}
	wg.Wait()
	return errors.Join(append(errs, writer.Close())...)
}

func (w *World) fill(ctx context.Context, writer *kafka.Writer, from, to int) error {
	for from < to {
		batch := make([]kafka.Message, min(together, to-from))
		for i := range batch {
			body := contender.Sized(from+i, w.Size)
			batch[i] = kafka.Message{Key: body[:8], Value: body}
		}
		if err := writer.WriteMessages(ctx, batch...); err != nil {
			return fmt.Errorf("fill topic %q: %w", writer.Topic, err)
		}
		from += len(batch)
	}
	return nil
}

// Left implements contender.World: it counts what lies behind the offsets that
// the current group has committed.
func (w *World) Left(ctx context.Context, topic string) (int, error) {
	numbers := make([]int, w.partitions)
	lasts := make([]kafka.OffsetRequest, w.partitions)
	for i := range numbers {
		numbers[i], lasts[i] = i, kafka.LastOffsetOf(i)
	}
	ends, err := w.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: lasts}})
	if err != nil {
		return 0, err
	}
	committed, err := w.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: w.Options.Group, Topics: map[string][]int{topic: numbers}})
	if err != nil {
		return 0, err
	}
	left, errs := int64(0), []error{committed.Error}
	for _, p := range ends.Topics[topic] {
		left += p.LastOffset
		errs = append(errs, p.Error)
	}
	for _, p := range committed.Topics[topic] {
		left -= max(p.CommittedOffset, 0)
		errs = append(errs, p.Error)
	}
	return int(left), errors.Join(errs...)
}

// Package kafka lets several consumers do the same work on a Kafka: the bare
// client library, redrive, and Watermill.
package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// Partitions is how many every topic has.
const Partitions = 4

// World is what is measured on a Kafka, in topics and groups of names that
// nobody else has.
type World struct {
	// Addresses are those of the brokers.
	Addresses []string

	name   string
	client *kafka.Client
	groups int
}

// NewWorld prepares to measure on the Kafka at address, which may be several
// with commas in between.
func NewWorld(address string) *World {
	addresses := strings.Split(address, ",")
	return &World{
		Addresses: addresses,
		name:      fmt.Sprintf("bench-%d", time.Now().UnixNano()),
		client:    &kafka.Client{Addr: kafka.TCP(addresses...), Transport: &kafka.Transport{}, Timeout: 30 * time.Second},
	}
}

// Group returns the name of a group that nobody has used. It is called from
// one goroutine.
func (w *World) Group() string {
	w.groups++
	return fmt.Sprintf("%s-%d", w.name, w.groups)
}

// Declare makes a topic, and returns its name.
func (w *World) Declare(ctx context.Context, topic string) (string, error) {
	topic = w.name + "." + topic
	res, err := w.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: topic, NumPartitions: Partitions, ReplicationFactor: 1},
	}})
	if err != nil {
		return "", fmt.Errorf("create topic %q: %w", topic, err)
	}
	return topic, res.Errors[topic]
}

// Close deletes the topics that begin with the name of the world, those that
// redrive made for its groups included.
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
	var errs []error
	for _, err := range res.Errors {
		errs = append(errs, err)
	}
	w.client.Transport.(*kafka.Transport).CloseIdleConnections()
	return errors.Join(errs...)
}

const (
	fillers  = 4
	together = 4000 // messages that a filler hands to the writer at a time
	bodySize = 256
)

// Fill puts n messages into topic, as any producer might write them: a key of
// 8 bytes, of which there are as many as messages, a body of 256 bytes that
// begins with it, and no headers.
func (w *World) Fill(ctx context.Context, topic string, n int) error {
	writer := &kafka.Writer{
		Addr: w.client.Addr, Transport: w.client.Transport, Topic: topic, Balancer: kafka.Murmur2Balancer{},
		RequiredAcks: kafka.RequireAll, BatchSize: together, BatchTimeout: 5 * time.Millisecond,
	}
	errs := make([]error, fillers)
	var wg sync.WaitGroup
	for f := range fillers {
		wg.Go(func() { errs[f] = fill(ctx, writer, n*f/fillers, n*(f+1)/fillers) })
	}
	wg.Wait()
	return errors.Join(append(errs, writer.Close())...)
}

func fill(ctx context.Context, writer *kafka.Writer, from, to int) error {
	for from < to {
		batch := make([]kafka.Message, min(together, to-from))
		for i := range batch {
			key := binary.BigEndian.AppendUint64(nil, uint64(from+i))
			body := append(bytes.Clone(key), bytes.Repeat([]byte("x"), bodySize-len(key))...)
			batch[i] = kafka.Message{Key: key, Value: body}
		}
		if err := writer.WriteMessages(ctx, batch...); err != nil {
			return fmt.Errorf("fill topic %q: %w", writer.Topic, err)
		}
		from += len(batch)
	}
	return nil
}

// Number is the number of a message of Fill, from 0 on.
func Number(body []byte) int { return int(binary.BigEndian.Uint64(body)) }

// End returns how many records the partitions of topic have had.
func (w *World) End(ctx context.Context, topic string) (int64, error) {
	var all []kafka.OffsetRequest
	for number := range Partitions {
		all = append(all, kafka.LastOffsetOf(number))
	}
	res, err := w.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: all}})
	if err != nil {
		return 0, err
	}
	var n int64
	for _, p := range res.Topics[topic] {
		if p.Error != nil {
			return 0, p.Error
		}
		n += p.LastOffset
	}
	return n, nil
}

// Committed returns how many messages of topic lie before the offsets that
// group has committed.
func (w *World) Committed(ctx context.Context, group, topic string) (int64, error) {
	numbers := make([]int, Partitions)
	for i := range numbers {
		numbers[i] = i
	}
	res, err := w.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: numbers}})
	if err != nil {
		return 0, err
	}
	var n int64
	for _, p := range res.Topics[topic] {
		n += max(p.CommittedOffset, 0)
	}
	return n, res.Error
}

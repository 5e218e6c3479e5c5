package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	watermillkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/lab/bench/contender"
)

// RawReader is the Reader of the bare client library in a group, with one
// commit for every so many messages.
func (w *World) RawReader(every int) contender.Contender {
	return func(ctx context.Context, topic string, handle func()) error {
		r := kafka.NewReader(kafka.ReaderConfig{
			Brokers: w.Options.Brokers, GroupID: w.Options.Group, GroupTopics: []string{topic}, StartOffset: kafka.FirstOffset,
			MinBytes: 1, MaxBytes: 10 << 20, QueueCapacity: 1000,
		})
		commits := context.WithoutCancel(ctx)
		batch := make([]kafka.Message, 0, every)
		for ctx.Err() == nil {
			m, err := r.FetchMessage(ctx)
			if ctx.Err() != nil {
				break
			}
			if err != nil {
				return errors.Join(err, r.Close())
			}
			batch = append(batch, m)
			if handle(); len(batch) == every {
				if err := r.CommitMessages(commits, batch...); err != nil {
					return errors.Join(err, r.Close())
				}
				batch = batch[:0]
			}
		}
		return errors.Join(r.CommitMessages(commits, batch...), r.Close())
	}
}

// RawGroup is a loop on ConsumerGroup and Client.Fetch of the bare client
// library: one goroutine for each partition, with fetches of so many bytes and
// one commit for every so many messages.
func (w *World) RawGroup(maxBytes int64, every int) contender.Contender {
	return func(ctx context.Context, topic string, handle func()) error {
		g, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
			ID: w.Options.Group, Brokers: w.Options.Brokers, Topics: []string{topic}, StartOffset: kafka.FirstOffset,
		})
		if err != nil {
			return err
		}
		next, err := g.Next(ctx)
		if err != nil {
			return errors.Join(err, g.Close())
		}
		transport := &kafka.Transport{}
		defer transport.CloseIdleConnections()
		client := &kafka.Client{Addr: kafka.TCP(w.Options.Brokers...), Transport: transport, Timeout: 30 * time.Second}
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		errs := make([]error, w.partitions)
		var work sync.WaitGroup
		for _, a := range next.Assignments[topic] {
			work.Go(func() {
				l := rawLoop{client: client, generation: next, topic: topic, partition: a.ID, maxBytes: maxBytes, every: every, handle: handle}
				if errs[a.ID] = l.run(ctx, max(a.Offset, 0)); errs[a.ID] != nil {
					stop()
				}
			})
		}
		work.Wait()
		return errors.Join(errors.Join(errs...), g.Close())
	}
}

type rawLoop struct {
	client     *kafka.Client
	generation *kafka.Generation
	topic      string
	partition  int
	maxBytes   int64
	every      int
	handle     func()
}

func (l rawLoop) run(ctx context.Context, offset int64) error {
	done := 0
	for ctx.Err() == nil {
		res, err := l.client.Fetch(ctx, &kafka.FetchRequest{
			Topic: l.topic, Partition: l.partition, Offset: offset,
			MinBytes: 1, MaxBytes: l.maxBytes, MaxWait: 100 * time.Millisecond,
		})
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			err = res.Error
		}
		if err != nil {
			return err
		}
		for {
			r, err := res.Records.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if r.Offset < offset {
				continue
			}
			if err := errors.Join(readAll(r.Key), readAll(r.Value)); err != nil {
				return err
			}
			offset = r.Offset + 1
			if done++; done%l.every == 0 {
				if err := l.commit(offset); err != nil {
					return err
				}
			}
			l.handle()
		}
	}
	return l.commit(offset)
}

func (l rawLoop) commit(offset int64) error {
	return l.generation.CommitOffsets(map[string]map[int]int64{l.topic: {l.partition: offset}})
}

func readAll(b kafka.Bytes) error {
	_, err := kafka.ReadAll(b)
	if b != nil {
		b.Close()
	}
	return err
}

// Franz is a member of a group by franz-go, which commits what is marked.
func (w *World) Franz() contender.Contender {
	return func(ctx context.Context, topic string, handle func()) error {
		c, err := kgo.NewClient(kgo.SeedBrokers(w.Options.Brokers...), kgo.ConsumerGroup(w.Options.Group), kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.AutoCommitMarks())
		if err != nil {
			return err
		}
		defer c.Close()
		for ctx.Err() == nil {
			fetches := c.PollFetches(ctx)
			if ctx.Err() != nil {
				break
			}
			if err := fetches.Err(); err != nil {
				return err
			}
			fetches.EachRecord(func(r *kgo.Record) {
				handle()
				c.MarkCommitRecords(r)
			})
		}
		return c.CommitMarkedOffsets(context.WithoutCancel(ctx))
	}
}

// SinceJoined times c for n messages from when its group has formed. Some clients
// fetch ahead before they hand out the first message.
func (w *World) SinceJoined(c contender.Contender) func(ctx context.Context, topic string, n int) (time.Duration, error) {
	return func(ctx context.Context, topic string, n int) (time.Duration, error) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		joined := make(chan time.Time, 1)
		go w.stable(ctx, joined)
		var handled atomic.Int64
		var last time.Time
		err := c(ctx, topic, func() {
			if handled.Add(1) == int64(n) {
				last = time.Now()
				stop()
			}
		})
		if handled.Load() < int64(n) {
			return 0, errors.Join(fmt.Errorf("%d of %d messages handled", handled.Load(), n), err)
		}
		select {
		case at := <-joined:
			return last.Sub(at), err
		default:
			return 0, errors.Join(errors.New("the group was never seen to have formed"), err)
		}
	}
}

// stable sends the time when the group has formed. The bare client library reads no
// groups whose members own partitions.
func (w *World) stable(ctx context.Context, joined chan<- time.Time) {
	c, err := kgo.NewClient(kgo.SeedBrokers(w.Options.Brokers...))
	if err != nil { // then the group is never seen
		return
	}
	defer c.Close()
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{w.Options.Group}
	for ctx.Err() == nil {
		res, err := req.RequestWith(ctx, c)
		if err == nil && len(res.Groups) > 0 && res.Groups[0].State == "Stable" {
			joined <- time.Now()
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Watermill is a router of Watermill with one handler.
func (w *World) Watermill() contender.Contender {
	return func(ctx context.Context, topic string, handle func()) error {
		cfg := watermillkafka.DefaultSaramaSubscriberConfig()
		cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
		subscriber, err := watermillkafka.NewSubscriber(watermillkafka.SubscriberConfig{
			Brokers: w.Options.Brokers, ConsumerGroup: w.Options.Group, Unmarshaler: watermillkafka.DefaultMarshaler{}, OverwriteSaramaConfig: cfg,
		}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		return contender.Watermill(ctx, subscriber, 1, topic, handle)
	}
}

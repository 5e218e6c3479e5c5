package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// On a real broker: large messages, in a dead-letter topic with the broker's default
// limit, have a codec that every client reads, unless only zstd makes them fit.
func TestCodecsOnABroker(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		dead := kafka.UniqueName("dead")
		s.create(dead, 1, nil)
		s.options.MessageLimit = 8 << 20
		b, _ := s.broker()
		for name, tt := range map[string]struct {
			body []byte
			want compress.Compression
		}{
			"over 500,000 bytes":   {make([]byte, 600_000), compress.None},
			"over 1,000,000 bytes": {make([]byte, 3<<20), compress.Gzip},
			"far repetitions":      {bytes.Repeat(kafka.Noise(400_000), 5), compress.Zstd},
		} {
			if err := b.Publish(kafka.WithinTime(s.T), dead, brokers.Message{Body: tt.body}); err != nil {
				s.Errorf("%s: %v", name, err)
				continue
			}
			at := partition{dead, 0}
			if got := s.codecAt(at, s.end(at)-1); got != tt.want {
				s.Errorf("%s: the codec in the log is %s, want %s", name, got, tt.want)
			}
		}
	})
}

// codecAt returns the codec of the batch that the log has at an offset.
func (s *scene) codecAt(p partition, offset int64) compress.Compression {
	s.Helper()
	asked := kmsg.NewFetchRequestTopic()
	part := kmsg.NewFetchRequestTopicPartition()
	part.Partition, part.FetchOffset, part.PartitionMaxBytes = int32(p.number), offset, 8<<20
	asked.Topic, asked.Partitions = p.topic, append(asked.Partitions, part)
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes, req.MinBytes, req.MaxWaitMillis, req.SessionEpoch, req.Topics = 8<<20, 1, 1000, -1, append(req.Topics, asked)
	var batch kmsg.RecordBatch
	err := s.ask(func(ctx context.Context, c cluster.Client) error {
		leaders, err := c.Leaders(ctx, p.topic)
		if err != nil {
			return err
		}
		res, err := c.Ask(ctx, leaders[int32(p.number)], req, nil)
		if err != nil {
			return err
		}
		return batch.ReadFrom(res.(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches)
	})
	if err != nil {
		s.Fatal(err)
	}
	return compress.Compression(batch.Attributes & 7)
}

// On a real broker: a bomb, good ones around it, and a message that its producer
// compressed, which is retried and dead-lettered into topics of the same limit.
func TestAttackCompressedOnABroker(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		dead := kafka.UniqueName("dead")
		s.create(dead, 1, nil)
		all := partition{s.topic, 0}
		s.store(all, 0, record{value: []byte("before")})
		s.store(all, kafkago.Zstd, record{value: make([]byte, 100<<20)})
		s.store(all, kafkago.Zstd, record{key: []byte("k"), value: make([]byte, 3<<20)})
		s.store(all, 0, record{value: []byte("behind")})
		w := s.open(func(sub *brokers.Subscription) { sub.DeadLetters = map[string]string{s.topic: dead} })
		ds, _ := w.receive(4)
		kafka.Innocents(s.T, kafka.Runnable(ds), "before", "behind")
		for _, d := range ds {
			switch number := d.Meta().Origin.Get("offset"); {
			case (d.Unreadable != nil) != (number == "1"):
				s.Errorf("offset %s is unreadable: %v", number, d.Unreadable)
			case number == "2":
				if err := w.broker.Publish(kafka.WithinTime(s.T), dead, d.Message); err != nil {
					s.Errorf("dead letter: %v", err)
				}
				w.retry(50*time.Millisecond, d)
			default:
				w.ack(d)
			}
		}
		ds, _ = w.receive(1)
		if m := ds[0].Message; len(m.Body) != 3<<20 || m.Key != "k" || ds[0].Meta().Attempt != 1 {
			s.Errorf("%d bytes came again, attempt %d", len(m.Body), ds[0].Meta().Attempt)
		}
		w.ack(ds...)
		w.close()
		if at := s.stored(s.topic, 0); at.offset != 4 {
			s.Errorf("committed %+v at last, want 4", at)
		}
	})
}

// On a real broker: workers that share a secret believe each other, through a
// retry and done records, and nobody else.
func TestAttackForgedDelayOnABroker(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.Secret = [][]byte{kafka.KeyOf(1)}
		w := s.open()
		s.write(s.topic, "a", "b")
		ds, _ := w.receive(2)
		w.retry(100*time.Millisecond, ds...)
		s.store(partition{s.delayTopic(), 0}, 0, copied(brokers.Message{ID: "forged", Topic: s.topic, Body: []byte("forged")}, brokers.Meta{Attempt: 4, DueAt: time.Now().Add(years)}))
		ds, errs := w.receive(3)
		kafka.Innocents(s.T, kafka.Runnable(ds), "a", "b")
		for _, d := range ds {
			if want := map[bool]int{true: 0, false: 1}[string(d.Message.Body) == "forged"]; d.Meta().Attempt != want {
				s.Errorf("%s has attempt %d, want %d", d.Message.Body, d.Meta().Attempt, want)
			}
		}
		w.ack(ds...)
		w.close()
		s.noErrors(errs)
		s.options.Secret = [][]byte{kafka.KeyOf(2), kafka.KeyOf(1)} // rotated
		w = s.open()
		ds, errs = w.drain(2 * time.Second)
		s.sameBodies("after all is done", ds, nil)
		s.noErrors(errs)
		w.close()
	})
}

func TestSecretOfOptions(t *testing.T) {
	_, err := kafka.New(kafka.Options{Brokers: []string{"localhost:9092"}, Secret: [][]byte{[]byte("hunter2")}})
	if !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "Options.Secret[0]") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a short key: %v", err)
	}
}

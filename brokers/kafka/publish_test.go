package kafka_test

import (
	"errors"
	"sync"
	"testing"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// On a real broker: several programs create topics, and each publishes to its new
// topic at once without an error.
func TestPublishRightAfterCreation(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		ctx := kafka.WithinTime(s.T)
		var programs sync.WaitGroup
		for range 5 {
			b, _ := s.broker()
			programs.Go(func() {
				for range 5 {
					topic := kafka.UniqueName("new")
					err := withSDK(s.options.Brokers, func(c *kafkago.Client) error {
						res, err := c.CreateTopics(ctx, &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: topic, NumPartitions: 12, ReplicationFactor: 1}}})
						if err == nil {
							err = res.Errors[topic]
						}
						return err
					})
					if err == nil {
						err = b.Publish(ctx, topic, brokers.Message{Key: "k", Body: []byte("x")})
					}
					if err != nil {
						s.Error(err)
					}
				}
			})
		}
		programs.Wait()
	})
}

func TestProduceErrorsPerRecord(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		small := kafka.UniqueName("small")
		s.create(small, 1, map[string]string{"max.message.bytes": "2000"})
		s.options.MessageLimit = 8 << 20
		b, _ := s.broker()
		for _, tt := range []struct {
			topic string
			size  int
			want  error
		}{
			{s.topic, 10, nil}, {"nobody-made-this", 10, brokers.ErrMisconfigured}, {small, 1500, nil}, {small, 3000, brokers.ErrRefused},
			{small, 1500, nil}, {s.topic, 2_000_000, brokers.ErrRefused}, {s.topic, 10, nil},
		} {
			err := b.Publish(kafka.WithinTime(s.T), tt.topic, brokers.Message{Body: kafka.Noise(tt.size)})
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				s.Errorf("%d bytes to %s: %v, want %v", tt.size, tt.topic, err, tt.want)
			}
		}
		for _, topic := range []string{small, s.topic} {
			if n := s.end(partition{topic, 0}); n != 2 {
				s.Errorf("%d records in %s, want 2", n, topic)
			}
		}
	})
}

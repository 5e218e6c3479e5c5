package kafka_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// A client that shares partitions out in another way cannot be in the group at
// the same time. Before and after, its commits count.
func TestAnotherClientInTheGroup(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.writeNumbers(20)
		w := s.open()
		ds, _ := w.receive(20)
		w.ack(ds[:5]...)
		stranger, err := kafkago.NewConsumerGroup(kafkago.ConsumerGroupConfig{
			ID: s.group, Brokers: s.options.Brokers, Topics: []string{s.topic}, JoinGroupBackoff: 100 * time.Millisecond,
		})
		if err != nil {
			s.Fatal(err)
		}
		defer stranger.Close()
		if _, err := stranger.Next(kafka.WithinTime(s.T)); !errors.Is(err, kafkago.InconsistentGroupProtocol) {
			s.Errorf("the other client joins: %v", err)
		}
		w.ack(ds[5:10]...)
		w.close()

		var theirs *kafkago.Generation
		for err = errors.New("none"); err != nil && s.Context().Err() == nil; {
			theirs, err = stranger.Next(kafka.WithinTime(s.T))
		}
		if at := theirs.Assignments[s.topic]; len(at) != 1 || at[0].Offset != 10 {
			s.Errorf("the other client begins at %+v, want offset 10", at)
		}
		b, _ := s.broker()
		if _, err := b.Open(kafka.WithinTime(s.T), s.subscription()); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "1 other consumers are in the group") {
			s.Errorf("while the other client is in the group: %v", err)
		}
		if err := theirs.CommitOffsets(map[string]map[int]int64{s.topic: {0: 15}}); err != nil {
			s.Error(err)
		}
		stranger.Close()
		w = s.open()
		ds, errs := w.receive(5)
		s.sameBodies("behind what the other client has committed", ds, numbers(15, 20))
		s.noErrors(errs)
		w.close()
	})
}

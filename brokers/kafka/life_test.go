package kafka_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/health"
)

// The metadata of a commit cannot hold what is settled here, and done records
// do.
func TestDoneRecordsOutliveACrash(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		p := partition{s.delayTopic(), 0}
		const messages = 30_000
		w := s.open()
		var records []record
		for i := range messages {
			records = append(records, copied(brokers.Message{ID: fmt.Sprint(i), Topic: s.topic, Body: fmt.Append(nil, i)}, brokers.Meta{Attempt: 1, DueAt: time.Now()}))
		}
		for part := range slices.Chunk(records, 5000) {
			s.store(p, 0, part...)
		}
		ds, _ := w.receive(messages)
		settled := slices.DeleteFunc(slices.Clone(ds), func(d *brokers.Delivery) bool { return number(d)%1000 == 0 || (number(d)*7919)%5 == 0 })
		w.ack(settled...)
		pause(2*kafka.DonePace + kafka.CommitPace)
		w.crash()
		w = s.open()
		want := messages - len(settled)
		got := make(map[int]int)
		ctx := kafka.WithinTime(s.T)
		for len(got) < want {
			ds, err := w.Receive(ctx, 1000)
			if ctx.Err() != nil {
				s.Fatalf("%d of %d came: %v", len(got), want, err)
			}
			for _, d := range ds {
				got[number(d)]++
			}
			w.ack(ds...)
		}
		for _, d := range settled {
			if got[number(d)] > 0 {
				s.Fatalf("message %d was settled, and came again", number(d))
			}
		}
		w.close()
	})
}

// The source tells of its connection, and of what it has read of each partition.
func TestConnection(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.SessionTimeout = 6 * time.Second // after which it gives up
		w := s.open()
		connection := w.Source.(health.Connected).Connection
		s.waitFor("the connection", func() bool {
			c := connection()
			return c.State == health.Running && !c.Since.IsZero()
		})
		s.writeNumbers(20)
		ds, _ := w.receive(20)
		c := connection()
		if len(c.Partitions) != 1 || c.Partitions[0].LastRecord.IsZero() {
			s.Fatalf("partitions %+v, want one that was read", c.Partitions)
		}
		c.Partitions[0].LastRecord = time.Time{}
		if want := (health.Partition{Topic: s.topic, Position: 20}); c.Partitions[0] != want {
			s.Errorf("partition %+v, want %+v", c.Partitions[0], want)
		}
		w.ack(ds...)
		w.link.cut()
		s.waitFor("the loss of the connection", func() bool {
			c := connection()
			return c.State == health.Opening && c.Error != ""
		})
	})
}

// A message as large as its topic takes must reach the delay topic and the dead
// letters with all the headers that are added on the way.
func TestLargestMessages(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		const limit = 1_048_588 // the default of a broker
		dead := uniqueName("dead")
		w := s.open(func(sub *brokers.Subscription) { sub.DeadLetters = map[string]string{s.topic: dead} })
		large := record{headers: []kafkago.Header{{Key: "trace", Value: []byte("1")}}}
		large.value = []byte(strings.Repeat("x", limit-2*len("trace")-100))
		for size := 0; size < limit; size = kafka.SizeOf(kafkago.Message{Value: large.value, Headers: large.headers}) {
			large.value = append(large.value, make([]byte, max(0, limit-kafka.SizeOf(kafkago.Message{Value: large.value, Headers: large.headers})))...)
		}
		s.store(partition{s.topic, 0}, 0, large)
		ds, _ := w.receive(1)
		w.retry(50*time.Millisecond, ds...)
		ds, _ = w.receive(1)
		if m := ds[0].Message; len(m.Body) != len(large.value) || !slices.Equal(m.Headers, brokers.Headers{{Name: "trace", Value: "1"}}) || ds[0].Meta().Attempt != 1 {
			s.Errorf("%d bytes came again, want %d; headers %v, attempt %d", len(m.Body), len(large.value), m.Headers, ds[0].Meta().Attempt)
		}
		letter := ds[0].Message
		letter.Headers = append(letter.Headers, brokers.Header{Name: "redrive-dead-error", Value: strings.Repeat("e", 16<<10)})
		if err := w.broker.Publish(kafka.WithinTime(s.T), dead, letter); err != nil {
			s.Errorf("dead letter: %v", err)
		}
		if err := w.broker.Publish(kafka.WithinTime(s.T), s.topic, letter); !errors.Is(err, brokers.ErrRefused) {
			s.Errorf("publish of more than Options.MessageLimit: %v", err)
		}
		w.ack(ds...)
		w.close()
	})
}

package kafka_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// onTopic runs test on a Broker that publishes to orders, whose requests say hears.
func onTopic(t *testing.T, hears func(s *stub, req *produce.Request) kafkago.Error, test func(s *stub)) {
	t.Helper()
	onBroker(t, func(s *stub) {
		s.topics["orders"], s.options.MessageLimit = 4, 8<<20
		s.connect()
		s.says(answering(func(req *produce.Request) protocol.Message {
			code := hears(s, req)
			if code == 0 {
				s.change(func(s *stub) { s.note(req) })
			}
			return produced(req, code)
		}))
		test(s)
	})
}

func TestProduceErrors(t *testing.T) {
	kinds := []error{brokers.ErrUnknownOutcome, brokers.ErrRefused, brokers.ErrMisconfigured}
	for code, want := range map[kafkago.Error]error{
		0: nil, kafkago.RequestTimedOut: brokers.ErrUnknownOutcome, kafkago.NotEnoughReplicasAfterAppend: brokers.ErrUnknownOutcome,
		kafkago.NetworkException: brokers.ErrUnknownOutcome, kafkago.Unknown: brokers.ErrUnknownOutcome,
		kafkago.MessageSizeTooLarge: brokers.ErrRefused, kafkago.InvalidRecord: brokers.ErrRefused, kafkago.InvalidTimestamp: brokers.ErrRefused,
		kafkago.TopicAuthorizationFailed: brokers.ErrMisconfigured, kafkago.NotEnoughReplicas: kafkago.NotEnoughReplicas, kafkago.NotLeaderForPartition: kafkago.NotLeaderForPartition,
	} {
		onTopic(t, func(s *stub, req *produce.Request) kafkago.Error {
			if req.Acks != -1 {
				s.Errorf("the request asks for %d confirmations", req.Acks)
			}
			return code
		}, func(s *stub) {
			small, large := brokers.Message{Body: []byte("x")}, brokers.Message{Body: make([]byte, kafka.AloneBytes)}
			err := s.broker.Publish(s.Context(), "orders", small, small, large)
			if code == 0 {
				if err != nil || s.stored["orders"] != 3 {
					s.Errorf("%d are stored: %v", s.stored["orders"], err)
				}
				return
			}
			failed, ok := errors.AsType[*brokers.PublishError](err)
			if !ok || len(failed.Failed) != 3 {
				s.Fatalf("code %d: %v", code, err)
			}
			for i, err := range failed.Failed {
				if !errors.Is(err, want) || !strings.Contains(err.Error(), "orders") || slices.ContainsFunc(kinds, func(other error) bool { return other != want && errors.Is(err, other) }) {
					s.Errorf("code %d, message %d: %v, want %v", code, i, err, want)
				}
			}
		})
	}
	onTopic(t, func(*stub, *produce.Request) kafkago.Error { return 0 }, func(s *stub) {
		ended, cancel := context.WithCancel(s.Context())
		cancel()
		if err := s.broker.Publish(ended, "orders", brokers.Message{}); err == nil || errors.Is(err, brokers.ErrUnknownOutcome) {
			s.Errorf("with a context that has ended, so that nothing was sent: %v", err)
		}
	})
}

// A done record goes to the partition that it is about.
func TestDoneRecordsGoToTheirPartition(t *testing.T) {
	onDelays(t, kafka.UsualLimits, func(s *stub) []record {
		s.topics[delayOfOrders] = 4
		return retriesTo(10, 0, dueForLong)
	}, func(s *stub) {
		s.says(answering(func(req *produce.Request) protocol.Message {
			if topic := req.Topics[0]; topic.Topic != delayOfOrders || topic.Partitions[0].Partition != 0 {
				s.Errorf("a done record for %s goes to partition %d of %s", delayPartition, topic.Partitions[0].Partition, topic.Topic)
			}
			return produced(req, 0)
		}))
		for _, d := range s.take(10)[1:] {
			s.ack(d)
			s.sleep(2 * kafka.DonePace)
		}
		s.is("done records", s.count(protocol.Produce), 9)
	})
}

// Publish waits for a topic that was created a moment ago, and stores no message twice.
// If the topic stays unknown, Publish returns ErrNotFound, as before. No other topic waits
// meanwhile.
func TestPublishWaitsForANewTopic(t *testing.T) {
	for name, tt := range map[string]struct {
		there, timeout, call time.Duration // until the topic is known; timeout of the caller; Options.CallTimeout
		want                 error
		least, most          time.Duration // that Publish takes
	}{
		"at once":                {0, time.Minute, 0, nil, 0, 0},
		"after 3 s":              {3 * time.Second, time.Minute, 0, nil, 3 * time.Second, 5 * time.Second},
		"never":                  {time.Hour, time.Minute, 0, brokers.ErrNotFound, 3 * time.Second, 5 * time.Second},
		"the caller's end":       {time.Hour, 2 * time.Second, 0, brokers.ErrNotFound, time.Second, 2 * time.Second},
		"the end of CallTimeout": {time.Hour, time.Minute, time.Second, brokers.ErrNotFound, 500 * time.Millisecond, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			onBroker(t, func(s *stub) {
				s.options.CallTimeout = tt.call
				s.connect()
				began := time.Now()
				s.says(answering(func(*metadata.Request) protocol.Message {
					s.change(func(s *stub) {
						if time.Since(began) >= tt.there {
							s.topics["new"] = 1
						}
					})
					return nil
				}))
				ctx, cancel := context.WithTimeout(s.Context(), tt.timeout)
				defer cancel()
				beside := make(chan time.Duration, 1)
				go func() {
					if err := s.broker.Publish(ctx, "orders", brokers.Message{Body: []byte("beside")}); err != nil {
						s.Errorf("beside: %v", err)
					}
					beside <- time.Since(began)
				}()
				err := s.broker.Publish(ctx, "new", brokers.Message{Body: []byte("a")}, brokers.Message{Body: make([]byte, kafka.AloneBytes)})
				took := time.Since(began)
				if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) || errors.Is(err, brokers.ErrUnknownOutcome) {
					s.Errorf("Publish: %v, want %v", err, tt.want)
				}
				if took < tt.least || took > tt.most+200*time.Millisecond {
					s.Errorf("Publish took %v, want %v to %v", took, tt.least, tt.most)
				}
				if d := <-beside; d > 100*time.Millisecond || s.stored["orders"] != 1 {
					s.Errorf("beside: stored %d times after %v", s.stored["orders"], d)
				}
				s.is("messages that are stored", s.stored["new"], map[bool]int{true: 2}[tt.want == nil])
			})
		})
	}
}

func codecIn(req *produce.Request) compress.Compression {
	return req.Topics[0].Partitions[0].RecordSet.Attributes.Compression()
}

// A batch that is refused goes once more, one by one and compressed, also a single one:
// its topic may take less than a batch of the writer.
func TestAttackRefusedBatchIsCompressed(t *testing.T) {
	onTopic(t, func(_ *stub, req *produce.Request) kafkago.Error {
		if codecIn(req) != compress.Gzip {
			return kafkago.MessageSizeTooLarge
		}
		return 0
	}, func(s *stub) {
		m := brokers.Message{Key: "k", Body: make([]byte, 100_000)}
		if err := errors.Join(s.broker.Publish(s.Context(), "orders", m), s.broker.Publish(s.Context(), "orders", m, m)); err != nil || s.stored["orders"] != 3 {
			s.Errorf("%v, stored %d times", err, s.stored["orders"])
		}
	})
}

// A record is compressed only to fit its topic, and by zstd only if gzip is too large.
// After a refusal only a smaller batch is sent.
func TestCodecsInTurn(t *testing.T) {
	const none, gzip, zstd = compress.None, compress.Gzip, compress.Zstd
	small, large := make([]byte, kafka.BatchBytes-1000), make([]byte, kafka.BatchBytes)
	for name, tt := range map[string]struct {
		value   []byte
		refused []compress.Compression // codecs that the topic refuses
		want    []compress.Compression // codecs that are sent, in turn
		err     error
	}{
		"fits":                            {small, nil, []compress.Compression{none}, nil},
		"fits as gzip":                    {small, []compress.Compression{none}, []compress.Compression{none, gzip}, nil},
		"fits as zstd":                    {small, []compress.Compression{none, gzip}, []compress.Compression{none, gzip, zstd}, nil},
		"fits never":                      {small, []compress.Compression{none, gzip, zstd}, []compress.Compression{none, gzip, zstd}, brokers.ErrRefused},
		"most topics refuse it":           {large, nil, []compress.Compression{gzip}, nil},
		"is not smaller":                  {noise(kafka.BatchBytes), nil, []compress.Compression{none}, nil},
		"is not smaller, and is too much": {noise(kafka.BatchBytes), []compress.Compression{none}, []compress.Compression{none}, brokers.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			var sent []compress.Compression
			onTopic(t, func(_ *stub, req *produce.Request) kafkago.Error {
				if sent = append(sent, codecIn(req)); slices.Contains(tt.refused, codecIn(req)) {
					return kafkago.MessageSizeTooLarge
				}
				return 0
			}, func(s *stub) {
				err := s.broker.Publish(s.Context(), "orders", brokers.Message{Key: "k", Body: tt.value})
				if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) || !slices.Equal(sent, tt.want) {
					s.Errorf("sent as %v, want %v; %v", sent, tt.want, err)
				}
			})
		})
	}
}

package kafka

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/redrive-go/redrive/brokers"
)

func TestProduceErrors(t *testing.T) {
	for code, want := range map[int16]error{
		0: nil, 7: brokers.ErrUnknownOutcome, 20: brokers.ErrUnknownOutcome, 13: brokers.ErrUnknownOutcome, -1: brokers.ErrUnknownOutcome,
		10: brokers.ErrRefused, 87: brokers.ErrRefused, 32: brokers.ErrRefused, 29: brokers.ErrMisconfigured, 19: kafka.NotEnoughReplicas, 6: kafka.NotLeaderForPartition,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStub(t)
			p := newProducer(clientOptions{brokers: []string{"stub:9092"}, dial: s.dial})
			s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
				if p, ok := req.(*produce.Request); ok {
					if p.Acks != -1 {
						t.Errorf("the request asks for %d confirmations", p.Acks)
					}
					return produced(p, code), nil
				}
				return nil, nil
			}
			one := outgoing{topic: "orders", partition: 2, record: record{value: []byte("x")}}
			large := outgoing{topic: "orders", partition: byKey, record: record{value: make([]byte, aloneBytes)}}
			errs := p.produce(t.Context(), []outgoing{one, one, large})
			if code == 0 && errs != nil {
				t.Errorf("produce: %v", errs)
			}
			for i, err := range errs {
				if !errors.Is(err, want) || strings.Count(err.Error(), "orders") == 0 {
					t.Errorf("code %d, record %d: %v, want %v", code, i, err, want)
				}
				for _, other := range []error{brokers.ErrUnknownOutcome, brokers.ErrRefused, brokers.ErrMisconfigured} {
					if want != other && errors.Is(err, other) {
						t.Errorf("code %d, record %d: %v is also %v", code, i, err, other)
					}
				}
			}
			if err := p.close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func produced(req *produce.Request, code int16) protocol.Message {
	topic := req.Topics[0]
	return &produce.Response{Topics: []produce.ResponseTopic{{Topic: topic.Topic, Partitions: []produce.ResponsePartition{{
		Partition: topic.Partitions[0].Partition, ErrorCode: code,
	}}}}}
}

func TestProduceToAPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		p := newProducer(clientOptions{brokers: []string{"stub:9092"}, dial: s.dial})
		defer p.close(t.Context())
		got := make(map[int32]int)
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			if p, ok := req.(*produce.Request); ok {
				s.mu.Lock()
				defer s.mu.Unlock()
				for r := p.Topics[0].Partitions[0].RecordSet.Records; ; got[p.Topics[0].Partitions[0].Partition]++ {
					if _, err := r.ReadRecord(); err != nil {
						break
					}
				}
				return produced(p, 0), nil
			}
			return nil, nil
		}
		var out []outgoing
		for n := range 40 {
			out = append(out, outgoing{topic: "orders", partition: n % 4, record: record{key: []byte("same"), value: []byte("x")}})
		}
		if errs := p.produce(t.Context(), out); errs != nil {
			t.Fatal(errs)
		}
		for n := range int32(4) {
			if got[n] != 10 {
				t.Errorf("partition %d got %d records, want 10", n, got[n])
			}
		}
		if errs := p.produce(t.Context(), []outgoing{{topic: "orders", partition: 9}}); errs == nil || !errors.Is(errs[0], brokers.ErrMisconfigured) {
			t.Errorf("to a partition that is not there: %v", errs)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if errs := p.produce(ended, out[:1]); errs == nil || errors.Is(errs[0], brokers.ErrUnknownOutcome) {
			t.Errorf("with a context that has ended, so that nothing was sent: %v", errs)
		}
	})
}

func TestProduceAfterAnOldLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t)
		p := newProducer(clientOptions{brokers: []string{"stub:9092"}, dial: s.dial})
		defer p.close(t.Context())
		s.answer = func(req protocol.Message, call int) (protocol.Message, error) {
			if p, ok := req.(*produce.Request); ok {
				return produced(p, 0), nil
			}
			return nil, nil
		}
		if errs := p.produce(t.Context(), []outgoing{{topic: "orders", partition: byKey}}); errs != nil {
			t.Fatal(errs)
		}
		s.topics["new"] = 1
		if errs := p.produce(t.Context(), []outgoing{{topic: "new", partition: byKey}, {topic: "orders", partition: byKey}}); errs != nil {
			t.Errorf("to a new topic: %v", errs)
		}
	})
}

// The partitions of the Java client, from the hashes in its own tests.
func TestKeysGoWhereJavaPutsThem(t *testing.T) {
	hashes := map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	}
	for key, hash := range hashes {
		for n := 1; n < 40; n++ {
			numbers := make([]int, n)
			for i := range numbers {
				numbers[i] = i
			}
			if got, want := balance(kafka.Message{Key: []byte(key)}, numbers...), int(hash&0x7fffffff)%n; got != want {
				t.Errorf("key %q goes to partition %d of %d, want %d", key, got, n, want)
			}
		}
	}
	seen := make(map[int]int)
	for range 1000 {
		seen[balance(kafka.Message{}, 0, 1, 2, 3)]++
	}
	if len(seen) != 4 {
		t.Errorf("records without a key go to %v", seen)
	}
	const ofEmpty = 275646681
	if got := balance(kafka.Message{Key: []byte{}}, 0, 1, 2, 3, 4, 5, 6); got != ofEmpty%7 {
		t.Errorf("an empty key goes to partition %d of 7, want %d", got, ofEmpty%7)
	}
}

package kafka_test

import (
	"errors"
	"strings"
	"testing"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// A worker that reads other topics than its group is told of on both sides.
func TestOtherTopicsAreReported(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		other := uniqueName("other")
		s.create(other, 1, nil)
		one := s.open()
		two := s.open(func(sub *brokers.Subscription) { sub.Topics = append(sub.Topics, other) })
		for w, others := range map[*worker]string{one: other, two: s.topic} {
			_, err := w.Receive(kafka.WithinTime(s.T), 1)
			if err == nil || errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "let all workers of a group read the same topics") || !strings.Contains(err.Error(), others) {
				s.Errorf("Receive: %v, want that the worker with %q reads other topics", err, others)
			}
		}
	})
}

// heartbeat is what a consumer of the new protocol sends.
func (s *scene) heartbeat(epoch int32) (*kmsg.ConsumerGroupHeartbeatResponse, error) {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch = s.group, "foreign0000000000000000", epoch
	req.RebalanceTimeoutMillis, req.SubscribedTopicNames, req.Topics = 30_000, []string{s.topic}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	res, err := askGroup(kafka.WithinTime(s.T), s.options.Brokers, s.group, req)
	if err != nil {
		return nil, err
	}
	answer := res.(*kmsg.ConsumerGroupHeartbeatResponse)
	return answer, cluster.CodeError(answer.ErrorCode)
}

// Consumers of the new protocol in the group are named for what they are, and a worker
// takes its share beside them until they have left.
func TestConsumersOfTheNewProtocol(t *testing.T) {
	onKafka(t, 2, func(s *scene) {
		if onFake() {
			s.Skip("the fake takes no commits from workers in such a group, which a real broker does")
		}
		s.writeNumbers(3)
		var joined *kmsg.ConsumerGroupHeartbeatResponse
		s.waitFor("a consumer of the new protocol", func() bool {
			var err error
			joined, err = s.heartbeat(0)
			if errors.Is(err, cluster.ErrNoSuchCall) || errors.Is(err, kafkago.UnsupportedVersion) {
				s.Skip("this broker has no such protocol")
			}
			return err == nil
		})
		w := s.open()
		found := w.Capabilities().Findings
		if len(found) != 1 || found[0].Severity != inspect.Noted || found[0].Value != kafka.NewProtocol || !strings.Contains(found[0].Why, "1 other consumers") {
			s.Errorf("findings: %v", found)
		}
		if _, err := s.heartbeat(-1); err != nil { // leaves
			s.Fatal(err, joined.MemberEpoch)
		}
		ds, errs := w.receive(3)
		s.sameBodies("when it has left", ds, numbers(0, 3))
		for _, err := range errs {
			if !strings.Contains(err.Error(), kafka.NewProtocol) {
				s.Error(err)
			}
		}
		w.ack(ds...)
		w.close()
	})
}

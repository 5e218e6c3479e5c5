package kafka_test

import (
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers/kafka"
)

// A member stays what it is while its connections break, over and over: no generation
// ends, and what was handed out can be settled.
func TestMembershipOutlivesConnections(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.writeNumbers(3)
		w := s.open()
		ds, _ := w.receive(3)
		before := w.current()
		for range 20 {
			w.link.drop()
			pause(100 * time.Millisecond)
		}
		w.ack(ds...)
		s.waitForCommit(s.topic, 3)
		if w.current() != before || before.IsOver() {
			s.Error("the generation has ended")
		}
	})
}

// Who closes while others are still waited for is gone from the group at once.
func TestCloseWhileTheGroupForms(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.SessionTimeout, s.options.RebalanceTimeout = 5*kafka.Patience, 5*kafka.Patience
		one := s.open()
		s.waitFor("the group", func() bool { return one.isIn() })
		one.link.freeze()
		defer one.link.thaw()
		two := s.open()
		members := func() int {
			n := 0
			err := withSDK(s.options.Brokers, func(c *kafkago.Client) error {
				res, err := c.DescribeGroups(kafka.WithinTime(s.T), &kafkago.DescribeGroupsRequest{GroupIDs: []string{s.group}})
				if err == nil {
					n = len(res.Groups[0].Members)
				}
				return err
			})
			if err != nil {
				s.Fatal(err)
			}
			return n
		}
		s.waitFor("the other member", func() bool { return members() == 2 })
		two.close()
		if n := members(); n != 1 {
			s.Errorf("%d members are left, want the one that is frozen", n)
		}
	})
}

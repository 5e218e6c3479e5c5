package kafka_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
)

// oldMember is a worker of a version that knows only the eager protocol, as far as its
// group sees it.
type oldMember struct {
	*kafkago.ConsumerGroup
	owned atomic.Pointer[map[string][]kafkago.PartitionAssignment]
}

// eagerly shares partitions out as members of old versions do.
type eagerly struct{ kafkago.RangeGroupBalancer }

// ProtocolName implements kafkago.GroupBalancer.
func (eagerly) ProtocolName() string { return kafka.Eager }

func (s *scene) oldMember() *oldMember {
	g, err := kafkago.NewConsumerGroup(kafkago.ConsumerGroupConfig{
		ID: s.group, Brokers: s.options.Brokers, Topics: []string{s.topic, s.delayTopic()}, JoinGroupBackoff: 100 * time.Millisecond,
		HeartbeatInterval: 200 * time.Millisecond, GroupBalancers: []kafkago.GroupBalancer{eagerly{}},
	})
	if err != nil {
		s.Fatal(err)
	}
	return &oldMember{ConsumerGroup: g}
}

// run takes part in one generation after the other.
func (o *oldMember) run(ctx context.Context) {
	for {
		g, err := o.Next(ctx)
		if err != nil {
			return
		}
		o.owned.Store(&g.Assignments)
	}
}

// places names the partitions that it has.
func (o *oldMember) places() (all []string) {
	if owned := o.owned.Load(); owned != nil {
		for topic, ps := range *owned {
			for _, p := range ps {
				all = append(all, partition{topic, p.ID}.String())
			}
		}
	}
	return all
}

// The two steps of an upgrade, and one back. A worker of an old version beside new ones
// has all of them use the eager protocol; when it has gone, what stays goes on. Workers
// with CooperativeOnly do not let it in again.
func TestUpgradeFromTheEagerProtocol(t *testing.T) {
	onKafka(t, 6, func(s *scene) {
		spread := func(ws []*worker, old *oldMember) func() bool {
			return func() bool {
				var all []string
				for _, w := range ws {
					all = append(all, kafka.Owned(w.Source)...)
				}
				if old != nil {
					all = append(all, old.places()...)
				}
				slices.Sort(all)
				return len(all) == 7 && len(slices.Compact(all)) == 7 // each has one owner
			}
		}
		one := s.open()
		s.waitFor("the first worker", spread([]*worker{one}, nil))
		protocol := func() string {
			found, err := describe(kafka.WithinTime(s.T), s.options.Brokers, s.group)
			if err != nil {
				s.Error(err)
			}
			return found.Protocol
		}
		old := s.oldMember()
		go old.run(s.Context())
		s.waitFor("the old one beside the new one", func() bool { return len(old.places()) >= 3 && spread([]*worker{one}, old)() })
		if got := protocol(); got != kafka.Eager {
			s.Errorf("protocol %q", got)
		}
		if err := old.Close(); err != nil {
			s.Fatal(err)
		}
		s.waitFor("the new one alone", spread([]*worker{one}, nil))
		for n := range 6 {
			s.store(partition{s.topic, n}, 0, numbered(10*n, 10)...)
		}
		held, _ := one.receive(60)
		two := s.open()
		s.waitFor("a second new one", func() bool { return len(kafka.Owned(two.Source)) > 0 })
		if got := protocol(); got != kafka.Cooperative {
			s.Errorf("protocol %q", got)
		}
		stays := kafka.Owned(one.Source)
		for _, d := range held {
			if p := (partition{s.topic, partitionOf(d)}).String(); slices.Contains(stays, p) != (d.Session.Err() == nil) {
				s.Errorf("%v stays: %v, and the session of its message ended with %v", p, slices.Contains(stays, p), context.Cause(d.Session))
			}
		}
		ended := slices.DeleteFunc(slices.Clone(held), func(d *brokers.Delivery) bool { return d.Session.Err() == nil })
		one.ack(slices.DeleteFunc(held, func(d *brokers.Delivery) bool { return d.Session.Err() != nil })...)
		again, _ := two.receive(len(ended))
		s.sameBodies("what has moved", again, bodies(ended))
		two.ack(again...)
		for n := range 6 {
			s.waitFor("the commits", func() bool { return s.stored(s.topic, n).offset == 10 })
		}
		two.close()
		s.options.CooperativeOnly = true
		two = s.open()
		s.waitFor("the second step", func() bool { return len(kafka.Owned(two.Source)) > 0 })
		one.close()
		old = s.oldMember()
		defer old.Close()
		if _, err := old.Next(kafka.WithinTime(s.T)); !errors.Is(err, kafkago.InconsistentGroupProtocol) {
			s.Errorf("an old version joins: %v", err)
		}
		two.close()
	})
}

package kafka_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
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
			all, _, err := kafka.MembersOf(kafka.WithinTime(s.T), s.options.Brokers, s.group)
			if err != nil {
				s.Fatal(err)
			}
			return len(all)
		}
		s.waitFor("the other member", func() bool { return members() == 2 })
		two.close()
		if n := members(); n != 1 {
			s.Errorf("%d members are left, want the one that is frozen", n)
		}
	})
}

// owners are who has which partitions of the topic: the number of the worker.
func owners(ws []*worker, old *kafka.OldMember) (all map[string]int, twice bool) {
	all = make(map[string]int)
	add := func(i int, places []string) {
		for _, p := range places {
			if _, has := all[p]; has {
				twice = true
			}
			all[p] = i
		}
	}
	for i, w := range ws {
		add(i, kafka.Owned(w.Source))
	}
	if old != nil {
		add(len(ws), old.Owned())
	}
	return all, twice
}

// The two steps of an upgrade, and one back. A worker of an old version beside new ones
// has all of them use the eager protocol; when it has gone, what stays goes on. Workers
// with CooperativeOnly do not let it in again.
func TestUpgradeFromTheEagerProtocol(t *testing.T) {
	onKafka(t, 6, func(s *scene) {
		spread := func(ws []*worker, old *kafka.OldMember) func() bool {
			return func() bool {
				all, twice := owners(ws, old)
				return len(all) == 7 && !twice
			}
		}
		one := s.open()
		s.waitFor("the first worker", spread([]*worker{one}, nil))
		old := kafka.NewOldMember(s.T, s.options)
		old.Join(s.topic, s.delayTopic())
		s.waitFor("the old one beside the new one", spread([]*worker{one}, old))
		if got := old.Protocol(); got != kafka.Eager || len(old.Owned()) < 3 {
			s.Errorf("protocol %q, and the old one has %v", got, old.Owned())
		}
		if err := old.Leave(); err != nil {
			s.Fatal(err)
		}
		s.waitFor("the new one alone", spread([]*worker{one}, nil))
		for n := range 6 {
			s.store(partition{s.topic, n}, 0, numbered(10*n, 10)...)
		}
		held, _ := one.receive(60)
		two := s.open()
		s.waitFor("a second new one", func() bool { return len(kafka.Owned(two.Source)) > 0 })
		if got := old.Protocol(); got != kafka.Cooperative {
			s.Errorf("protocol %q", got)
		}
		stays := kafka.Owned(one.Source)
		for _, d := range held {
			if p := kafka.PlaceOf(d); slices.Contains(stays, p) != (d.Session.Err() == nil) {
				s.Errorf("%v stays: %v, and the session of its message ended with %v", p, slices.Contains(stays, p), context.Cause(d.Session))
			}
		}
		ended := slices.DeleteFunc(slices.Clone(held), func(d *brokers.Delivery) bool { return d.Session.Err() == nil })
		one.ack(slices.DeleteFunc(held, func(d *brokers.Delivery) bool { return d.Session.Err() != nil })...)
		again, _ := two.receive(len(ended))
		s.sameBodies("what has moved", again, kafka.Bodies(ended))
		two.ack(again...)
		for n := range 6 {
			s.waitFor("the commits", func() bool { return s.stored(s.topic, n).offset == 10 })
		}
		two.close()
		s.options.CooperativeOnly = true
		two = s.open()
		s.waitFor("the second step", func() bool { return len(kafka.Owned(two.Source)) > 0 })
		one.close()
		if err := old.Refused(); !errors.Is(err, kafkago.InconsistentGroupProtocol) {
			s.Errorf("an old version joins: %v", err)
		}
		two.close()
	})
}

// 300 partitions move between workers that come and go, while messages are handled. No
// message is lost, nor handled by two.
func TestManyPartitionsBetweenWorkers(t *testing.T) {
	onKafka(t, 300, func(s *scene) {
		for n := range 300 {
			s.store(partition{s.topic, n}, 0, numbered(10*n, 10)...)
		}
		var ws []*worker
		for range 3 {
			ws = append(ws, s.open())
			s.waitFor("a share for each", func() bool {
				all, twice := owners(ws, nil)
				return len(all) == 301 && !twice && !slices.ContainsFunc(ws, func(w *worker) bool { return len(kafka.Owned(w.Source)) < 301/len(ws) })
			})
		}
		ws[0].close()
		s.waitFor("what the first has left", func() bool {
			all, twice := owners(ws[1:], nil)
			return len(all) == 301 && !twice
		})
		results := make(chan []*brokers.Delivery, 2)
		for _, w := range ws[1:] {
			go func() {
				var got []*brokers.Delivery
				for {
					ds, _ := w.drain(2 * time.Second)
					if len(ds) == 0 {
						break
					}
					w.ack(ds...)
					got = append(got, ds...)
				}
				results <- got
			}()
		}
		s.sameBodies("by both", append(<-results, <-results...), numbers(0, 3000))
		for _, w := range ws[1:] {
			w.close()
		}
		for n := range 300 {
			if at := s.stored(s.topic, n); at.offset != 10 || !closedInOrder(at) {
				s.Errorf("partition %d: committed %+v", n, at)
			}
		}
	})
}

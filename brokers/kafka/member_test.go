package kafka

import (
	"slices"
	"testing"
	"time"
)

// What members and brokers say of topics and partitions is read, whatever it is.
func FuzzMembership(f *testing.F) {
	f.Add(subscriptionOf([]string{"orders", "refunds"}))
	f.Add(assignedOf(map[string][]int32{"orders": {0, 2}}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		topics := readSubscribed(data)
		if again := readSubscribed(subscriptionOf(topics)); !slices.Equal(again, topics) {
			t.Errorf("%q becomes %q", topics, again)
		}
		ps, err := readAssigned(data)
		share := make(map[string][]int32)
		for _, p := range ps {
			share[p.topic] = append(share[p.topic], int32(p.number))
		}
		if again, _ := readAssigned(assignedOf(share)); err == nil && !slices.Equal(again, ps) {
			t.Errorf("%v becomes %v", ps, again)
		}
	})
}

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
		if w.current() != before || before.ctx.Err() != nil {
			s.Error("the generation has ended")
		}
	})
}

// Who closes while others are still waited for is gone from the group at once.
func TestCloseWhileTheGroupForms(t *testing.T) {
	onKafka(t, 1, func(s *scene) {
		s.options.SessionTimeout, s.options.RebalanceTimeout = 5*patience, 5*patience
		one := s.open()
		s.waitFor("the group", func() bool { return one.current() != nil })
		one.link.freeze()
		defer one.link.thaw()
		two := s.open()
		members := func() int {
			state, err := s.admin.describe(withinTime(s.T), s.group)
			if err != nil {
				s.Fatal(err)
			}
			return len(state.members)
		}
		s.waitFor("the other member", func() bool { return members() == 2 })
		two.close()
		if n := members(); n != 1 {
			s.Errorf("%d members are left, want the one that is frozen", n)
		}
	})
}

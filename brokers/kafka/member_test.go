package kafka

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// What members and brokers say of topics and partitions is read, whatever it is. No
// claim makes a leader give a partition to two members.
func FuzzMembership(f *testing.F) {
	f.Add(subscriptionOf(claim{topics: []string{"orders", "refunds"}}))
	f.Add(subscriptionOf(claim{topics: []string{"orders"}, owned: []partition{{"orders", 1}, {"orders", 2}, {"refunds", 0}}, generation: 7}))
	f.Add(assignedOf(map[string][]int32{"orders": {0, 2}}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		c := readSubscribed(data)
		if len(c.owned) == 0 {
			c.generation = -1
		}
		if again := readSubscribed(subscriptionOf(c)); !slices.Equal(again.topics, c.topics) || !slices.Equal(again.owned, c.owned) || again.generation != c.generation {
			t.Errorf("%+v becomes %+v", c, again)
		}
		w := &world{map[string]claim{"a": c, "b": {topics: []string{"orders", "refunds"}, owned: []partition{{"orders", 1}}, generation: 7}}, map[string]int{"orders": 4, "refunds": 1}}
		w.round(t)

		ps, _, err := readAssigned(data)
		share := make(map[string][]int32)
		for _, p := range ps {
			share[p.topic] = append(share[p.topic], int32(p.number))
		}
		if again, isHeeding, _ := readAssigned(assignedOf(share)); err == nil && (!slices.Equal(again, ps) || !isHeeding) {
			t.Errorf("%v becomes %v", ps, again)
		}
	})
}

// Leaders and brokers of any version read the topics of a member, whatever follows them,
// and workers that only know the eager protocol read their share.
func TestMembershipIsReadByAll(t *testing.T) {
	c := claim{topics: []string{"orders", "refunds"}, owned: []partition{{"orders", 3}}, generation: 9}
	first := kmsg.NewConsumerMemberMetadata()
	if err := first.ReadFrom(append(make([]byte, 2), subscriptionOf(c)[2:]...)); err != nil || !slices.Equal(first.Topics, c.topics) {
		t.Errorf("as version 0 it has the topics %q: %v", first.Topics, err)
	}
	old := kmsg.NewConsumerMemberMetadata()
	old.Topics = c.topics
	if got := readSubscribed(old.AppendTo(nil)); !slices.Equal(got.topics, c.topics) || len(got.owned) > 0 {
		t.Errorf("that of an old version is read as %+v", got)
	}
	old.Version = 1
	cut := old.AppendTo(nil)
	if got := readSubscribed(cut[:len(cut)-4]); !slices.Equal(got.topics, c.topics) || len(got.owned) > 0 {
		t.Errorf("what ends too early is read as %+v", got)
	}
	plan := kmsg.NewConsumerMemberAssignment()
	if _, isHeeding, err := readAssigned(plan.AppendTo(nil)); err != nil || isHeeding {
		t.Errorf("a plan of an old version heeds owners: %v, %v", isHeeding, err)
	}
}

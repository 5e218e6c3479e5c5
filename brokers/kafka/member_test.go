package kafka

import (
	"slices"
	"testing"
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

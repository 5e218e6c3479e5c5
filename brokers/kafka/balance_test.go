package kafka

import (
	"fmt"
	"testing"
)

func TestSpread(t *testing.T) {
	topics := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprintf("t%02d", i))
		}
		return names
	}
	for _, tt := range []struct {
		name                        string
		members, topics, partitions int
	}{
		{"topics of one partition", 3, 20, 1},
		{"one topic", 3, 1, 10},
		{"more members than partitions", 5, 1, 3},
		{"many", 4, 7, 6},
		{"nobody", 0, 3, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			members := make(map[string][]string)
			for i := range tt.members {
				members[fmt.Sprintf("m%d", i)] = topics(tt.topics)
			}
			partitions, all := make(map[string]int), tt.topics*tt.partitions
			for _, topic := range topics(tt.topics) {
				partitions[topic] = tt.partitions
			}
			got := spread(members, partitions)
			seen := map[string]int{}
			least, most := all, 0
			for m := range members {
				n := 0
				for topic, ids := range got[m] {
					n += len(ids)
					if share := (tt.partitions + tt.members - 1) / tt.members; len(ids) > share {
						t.Errorf("%s has %d partitions of %s, want at most %d", m, len(ids), topic, share)
					}
					for _, id := range ids {
						seen[fmt.Sprint(topic, "/", id)]++
					}
				}
				least, most = min(least, n), max(most, n)
			}
			if tt.members > 0 && (most-least > 1 || len(seen) != all) {
				t.Errorf("%d to %d partitions for a member, %d of %d assigned", least, most, len(seen), all)
			}
		})
	}
}

func TestSpreadByTopic(t *testing.T) {
	got := spread(map[string][]string{"a": {"x"}, "b": {"x", "y"}}, map[string]int{"x": 1, "y": 2, "z": 1})
	if len(got["a"]["y"]) != 0 || len(got["b"]["y"]) != 2 || len(got["a"]["x"])+len(got["b"]["x"]) != 1 || len(got["a"]["z"])+len(got["b"]["z"]) != 0 {
		t.Errorf("spread = %v, want each topic with those who subscribe to it", got)
	}
}

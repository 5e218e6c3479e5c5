package kafka

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/segmentio/kafka-go"
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
			var members []kafka.GroupMember
			for i := range tt.members {
				members = append(members, kafka.GroupMember{ID: fmt.Sprintf("m%d", i), Topics: topics(tt.topics)})
			}
			var partitions []kafka.Partition
			for _, topic := range topics(tt.topics) {
				for id := range tt.partitions {
					partitions = append(partitions, kafka.Partition{Topic: topic, ID: id})
				}
			}
			rand.Shuffle(len(partitions), func(i, j int) { partitions[i], partitions[j] = partitions[j], partitions[i] })
			got := spread(members, partitions)
			seen := map[string]int{}
			least, most := len(partitions), 0
			for _, m := range members {
				n := 0
				for topic, ids := range got[m.ID] {
					n += len(ids)
					if share := (tt.partitions + tt.members - 1) / tt.members; len(ids) > share {
						t.Errorf("%s has %d partitions of %s, want at most %d", m.ID, len(ids), topic, share)
					}
					for _, id := range ids {
						seen[fmt.Sprint(topic, "/", id)]++
					}
				}
				least, most = min(least, n), max(most, n)
			}
			if tt.members > 0 && (most-least > 1 || len(seen) != len(partitions)) {
				t.Errorf("%d to %d partitions for a member, %d of %d assigned", least, most, len(seen), len(partitions))
			}
		})
	}
}

func TestSpreadByTopic(t *testing.T) {
	got := spread([]kafka.GroupMember{{ID: "a", Topics: []string{"x"}}, {ID: "b", Topics: []string{"x", "y"}}},
		[]kafka.Partition{{Topic: "x"}, {Topic: "y"}, {Topic: "y", ID: 1}, {Topic: "z"}})
	if len(got["a"]["y"]) != 0 || len(got["b"]["y"]) != 2 || len(got["a"]["x"])+len(got["b"]["x"]) != 1 || len(got["a"]["z"])+len(got["b"]["z"]) != 0 {
		t.Errorf("spread = %v, want each topic with those who subscribe to it", got)
	}
}

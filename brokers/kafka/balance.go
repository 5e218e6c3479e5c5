package kafka

import (
	"context"
	"maps"
	"slices"
)

// spread gives each partition to the member that has the fewest of its topic, and
// the fewest of all among those: so topics of one partition do not all go to the
// same member. It is told the topics of each member, and the partitions of each
// topic.
func spread(members map[string][]string, partitions map[string]int) map[string]map[string][]int32 {
	shares := make(map[string]map[string][]int32, len(members))
	total := make(map[string]int, len(members))
	of := make(map[string][]string, len(partitions)) // members by topic
	for _, id := range slices.Sorted(maps.Keys(members)) {
		shares[id] = make(map[string][]int32)
		for _, topic := range slices.Compact(slices.Sorted(slices.Values(members[id]))) {
			of[topic] = append(of[topic], id)
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(partitions)) {
		for number := range partitions[topic] {
			if len(of[topic]) == 0 {
				break
			}
			next := slices.MinFunc(of[topic], func(a, b string) int {
				if few := len(shares[a][topic]) - len(shares[b][topic]); few != 0 {
					return few
				}
				return total[a] - total[b]
			})
			shares[next][topic] = append(shares[next][topic], int32(number))
			total[next]++
		}
	}
	return shares
}

// partitions asks how many partitions topics have, which is none of one that is
// missing: the group goes on with the others. If nobody answers it is as if all were
// missing; watch sees when they are there.
func (c *client) partitions(ctx context.Context, topics []string) map[string]int {
	ctx, cancel := context.WithTimeout(ctx, c.options.CallTimeout)
	defer cancel()
	counts := make(map[string]int, len(topics))
	states, _ := c.topics(ctx, topics...)
	for _, topic := range topics {
		counts[topic] = states[topic].partitions
	}
	return counts
}

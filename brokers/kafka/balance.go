package kafka

import (
	"cmp"
	"context"
	"slices"

	"github.com/segmentio/kafka-go"
)

// even spreads the partitions of each topic over the members that subscribe to
// it, and all of them together as well: the strategies of the library go topic
// by topic, and give all topics of one partition to one member. It also works
// when one topic of the group is missing: the library then finds no partition
// of any.
type even struct {
	client *client
	led    func(partitions map[string]int) // told by topic of what it has spread
}

// ProtocolName implements kafka.GroupBalancer.
func (even) ProtocolName() string { return "redrive-even" }

// UserData implements kafka.GroupBalancer.
func (even) UserData() ([]byte, error) { return nil, nil }

// AssignGroups implements kafka.GroupBalancer.
func (b even) AssignGroups(members []kafka.GroupMember, partitions []kafka.Partition) kafka.GroupMemberAssignments {
	if len(partitions) == 0 {
		partitions = b.partitions(members)
	}
	counts := make(map[string]int)
	for _, name := range subscribed(members) {
		counts[name] = 0
	}
	for _, p := range partitions {
		counts[p.Topic]++
	}
	b.led(counts)
	return spread(members, partitions)
}

// spread gives each partition to the member that has the fewest of its topic,
// and the fewest of all among those.
func spread(members []kafka.GroupMember, partitions []kafka.Partition) kafka.GroupMemberAssignments {
	members, partitions = slices.Clone(members), slices.Clone(partitions)
	slices.SortFunc(members, func(a, b kafka.GroupMember) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(partitions, func(a, b kafka.Partition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID, b.ID))
	})
	assigned := make(kafka.GroupMemberAssignments, len(members))
	total := make(map[string]int, len(members))
	for _, m := range members {
		assigned[m.ID] = make(map[string][]int)
	}
	for _, p := range partitions {
		best := ""
		for _, m := range members {
			if !slices.Contains(m.Topics, p.Topic) {
				continue
			}
			of, total := func(id string) int { return len(assigned[id][p.Topic]) }, func(id string) int { return total[id] }
			if best == "" || cmp.Or(cmp.Compare(of(m.ID), of(best)), cmp.Compare(total(m.ID), total(best))) < 0 {
				best = m.ID
			}
		}
		if best != "" {
			assigned[best][p.Topic] = append(assigned[best][p.Topic], p.ID)
			total[best]++
		}
	}
	return assigned
}

// subscribed are all topics that members subscribe to.
func subscribed(members []kafka.GroupMember) (names []string) {
	for _, member := range members {
		names = append(names, member.Topics...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// partitions asks for those of all topics that members subscribe to.
func (b even) partitions(members []kafka.GroupMember) []kafka.Partition {
	ctx, cancel := context.WithTimeout(context.Background(), b.client.options.timeout)
	defer cancel()
	names := subscribed(members)
	states, err := b.client.topics(ctx, names...)
	if err != nil {
		return nil // as if all were missing; watch sees when they are there
	}
	var all []kafka.Partition
	for _, name := range names {
		for number := range states[name].partitions {
			all = append(all, kafka.Partition{Topic: name, ID: number})
		}
	}
	return all
}

package kafka

import (
	"cmp"
	"context"
	"maps"
	"slices"
)

// claim is what a member of a group says of itself: the topics that it reads, and
// the partitions that it owns, since it was assigned them in a generation.
type claim struct {
	topics     []string
	owned      []partition
	generation int32
}

// spread shares the partitions of topics out over the members of a group. For each
// topic the shares of its members differ by one partition at most, and so do the
// shares of all topics, if all members read the same ones. Among such plans it chooses
// one that moves the fewest partitions.
//
// A partition that moves is in no share yet: only when its owner does not claim it any
// more, the next plan gives it away. It is withheld also if two members claim it since
// the same generation. Of other claims, the one of the newest generation counts.
func spread(members map[string]claim, partitions map[string]int) (shares map[string]map[string][]int32, withheld bool) {
	b := newSharing(members, partitions)
	b.allot()
	for improved := true; improved; {
		improved = false
		for m := range b.ids {
			for b.improve(m) {
				improved = true
			}
		}
	}
	return b.shares()
}

// sharing is a plan in the making. Members and topics go by their number in ids and
// topics.
type sharing struct {
	ids    []string
	topics []topicShare
	total  []int // of each member
	owners map[partition]owner
}

// topicShare is how a topic is shared out: each of its members has low partitions, or
// one more.
type topicShare struct {
	name       string
	partitions int
	members    []int
	low        int
	more       []bool // by member
	owned      []int  // by member
}

// owner is the member that owns a partition, or nobody if several claim it.
type owner struct {
	member     int
	generation int32
}

const nobody = -1

func newSharing(members map[string]claim, partitions map[string]int) *sharing {
	b := &sharing{ids: slices.Sorted(maps.Keys(members)), owners: make(map[partition]owner)}
	b.total = make([]int, len(b.ids))
	readers := make(map[string][]int)
	for m, id := range b.ids {
		c := members[id]
		for _, topic := range slices.Compact(slices.Sorted(slices.Values(c.topics))) {
			readers[topic] = append(readers[topic], m)
		}
		for _, p := range c.owned {
			if p.number < 0 || p.number >= partitions[p.topic] {
				continue
			}
			switch at, claimed := b.owners[p]; {
			case !claimed || c.generation > at.generation:
				b.owners[p] = owner{m, c.generation}
			case c.generation == at.generation && m != at.member:
				b.owners[p] = owner{nobody, c.generation}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(partitions)) {
		if len(readers[name]) == 0 {
			continue
		}
		t := topicShare{name: name, partitions: partitions[name], members: readers[name]}
		t.low = t.partitions / len(t.members)
		t.more, t.owned = make([]bool, len(b.ids)), make([]int, len(b.ids))
		for number := range t.partitions {
			if at, ok := b.owners[partition{name, number}]; ok && at.member != nobody {
				t.owned[at.member]++
			}
		}
		b.topics = append(b.topics, t)
	}
	return b
}

// keeps is 1 if a member keeps a partition that it owns by having one more than low.
func (t *topicShare) keeps(m int) int {
	if t.owned[m] > t.low {
		return 1
	}
	return 0
}

// allot chooses for each topic by itself which members have one partition more: those
// that keep one thereby, and then those with the fewest of all topics.
func (b *sharing) allot() {
	for i := range b.topics {
		t := &b.topics[i]
		first := slices.Clone(t.members)
		slices.SortStableFunc(first, func(m, n int) int {
			return cmp.Or(t.keeps(n)-t.keeps(m), b.total[m]-b.total[n])
		})
		for k, m := range first {
			t.more[m] = k < t.partitions%len(t.members)
			b.total[m] += t.low
			if t.more[m] {
				b.total[m]++
			}
		}
	}
}

// improve has a member give one partition away if that evens the totals out, or keeps
// one more where it is. The partition may go on from hand to hand, each time of
// another topic. This is the shortest path of a flow of least cost, so that no plan
// that is as even moves less in the end.
func (b *sharing) improve(from int) bool {
	const far = 1 << 30
	type step struct{ member, topic int } // that the partition comes from
	cost, via := make([]int, len(b.ids)), make([]step, len(b.ids))
	for m := range cost {
		cost[m] = far
	}
	cost[from] = 0
	for shorter := true; shorter; {
		shorter = false
		for i := range b.topics {
			t := &b.topics[i]
			giver, least := nobody, far
			for _, m := range t.members {
				if t.more[m] && cost[m]+t.keeps(m) < least {
					giver, least = m, cost[m]+t.keeps(m)
				}
			}
			for _, m := range t.members {
				if giver != nobody && !t.more[m] && least-t.keeps(m) < cost[m] {
					cost[m], via[m] = least-t.keeps(m), step{giver, i}
					shorter = true
				}
			}
		}
	}
	to := nobody
	for m := range b.ids {
		even := b.total[from] - b.total[m]
		if cost[m] < far && (even > 1 || even == 1 && cost[m] < 0) && (to == nobody || cost[m] < cost[to]) {
			to = m
		}
	}
	if to == nobody {
		return false
	}
	b.total[from]--
	b.total[to]++
	for m := to; m != from; m = via[m].member {
		t := &b.topics[via[m].topic]
		t.more[via[m].member], t.more[m] = false, true
	}
	return true
}

// shares names the partitions of each member: first those that it owns.
func (b *sharing) shares() (shares map[string]map[string][]int32, withheld bool) {
	shares = make(map[string]map[string][]int32, len(b.ids))
	for _, id := range b.ids {
		shares[id] = make(map[string][]int32)
	}
	for i := range b.topics {
		t := &b.topics[i]
		room := make([]int, len(b.ids))
		for _, m := range t.members {
			room[m] = t.low
			if t.more[m] {
				room[m]++
			}
		}
		give := func(m, number int) {
			room[m]--
			shares[b.ids[m]][t.name] = append(shares[b.ids[m]][t.name], int32(number))
		}
		for number := range t.partitions {
			at, owned := b.owners[partition{t.name, number}]
			switch {
			case !owned:
			case at.member != nobody && room[at.member] > 0:
				give(at.member, number)
			default:
				withheld = true
			}
		}
		next := 0
		for number := range t.partitions {
			if _, owned := b.owners[partition{t.name, number}]; owned {
				continue
			}
			for room[t.members[next]] == 0 {
				next++
			}
			give(t.members[next], number)
		}
	}
	return shares, withheld
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

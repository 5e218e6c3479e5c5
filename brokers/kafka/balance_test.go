package kafka

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// world is a group in a test: its members, with what they own, and its topics.
type world struct {
	claims map[string]claim
	topics map[string]int
}

// newWorld has so many members, which all read so many topics.
func newWorld(members, topics, partitions int) *world {
	w := &world{make(map[string]claim), make(map[string]int)}
	for i := range topics {
		w.topics[fmt.Sprintf("t%02d", i)] = partitions
	}
	for i := range members {
		w.join(fmt.Sprintf("m%02d", i))
	}
	return w
}

func (w *world) join(id string) {
	w.claims[id] = claim{topics: slices.Sorted(maps.Keys(w.topics)), generation: -1}
}

// round has the members join once, and take what they are given. It returns how many
// partitions are revoked, and how many have nobody.
func (w *world) round(t *testing.T) (revoked, free int) {
	t.Helper()
	shares, withheld := spread(w.claims, w.topics)
	owners := make(map[partition]string)
	for _, n := range w.topics {
		free += n
	}
	for id, share := range shares {
		for topic, numbers := range share {
			for _, number := range numbers {
				p := partition{topic, int(number)}
				if owners[p] != "" {
					t.Errorf("%s and %s have %v", id, owners[p], p)
				}
				if n := w.topics[topic]; p.number < 0 || p.number >= n || !slices.Contains(w.claims[id].topics, topic) {
					t.Errorf("%s has %v of %d partitions, and reads %q", id, p, n, w.claims[id].topics)
				}
				owners[p] = id
				free--
			}
		}
	}
	for id, c := range w.claims {
		for _, p := range c.owned {
			switch at := owners[p]; {
			case p.number < 0 || p.number >= w.topics[p.topic]:
			case at == "":
				isRead := slices.ContainsFunc(slices.Collect(maps.Values(w.claims)), func(c claim) bool { return slices.Contains(c.topics, p.topic) })
				if revoked++; !withheld && isRead {
					t.Errorf("%v has nobody, and is not said to be withheld", p)
				}
			case at != id && w.claims[at].generation <= c.generation:
				t.Errorf("%s owns %v since %d, and %s has it, which owns it since %d", id, p, c.generation, at, w.claims[at].generation)
			case at != id && !slices.Contains(w.claims[at].owned, p):
				t.Errorf("%s owns %v, and %s has it already", id, p, at)
			}
		}
	}
	for id, c := range w.claims {
		c.owned, c.generation = nil, c.generation+1
		for p, at := range owners {
			if at == id {
				c.owned = append(c.owned, p)
			}
		}
		w.claims[id] = c
	}
	return revoked, free
}

// settle has the group form until nothing moves any more. It returns how many
// partitions have moved.
func (w *world) settle(t *testing.T) (moved int) {
	t.Helper()
	moved, free := w.round(t)
	if moved > 0 || free > 0 {
		again, left := w.round(t)
		if again > 0 || left > 0 {
			t.Errorf("in the second round %d partitions are revoked, and %d have nobody", again, left)
		}
	}
	if again, left := w.round(t); again > 0 || left > 0 {
		t.Errorf("in a round more %d partitions are revoked, and %d have nobody", again, left)
	}
	return moved
}

// uneven is how far the shares of all members are apart: of the worst topic, and of all.
func (w *world) uneven() (topic, all int) {
	span := func(of func(claim) int) int {
		least, most := math.MaxInt, 0
		for _, c := range w.claims {
			least, most = min(least, of(c)), max(most, of(c))
		}
		return most - least
	}
	for name := range w.topics {
		topic = max(topic, span(func(c claim) (n int) {
			for _, p := range c.owned {
				if p.topic == name {
					n++
				}
			}
			return n
		}))
	}
	return topic, span(func(c claim) int { return len(c.owned) })
}

func (w *world) balanced(t *testing.T) {
	t.Helper()
	if topic, all := w.uneven(); topic > 1 || all > 1 {
		t.Errorf("the shares differ by %d partitions of a topic, and by %d of all: %v", topic, all, w.claims)
	}
}

// What is balanced stays. A member that comes takes its share and nothing besides
// moves; of one that goes only its own partitions move.
func TestSpreadMovesLittle(t *testing.T) {
	for _, tt := range []struct{ members, topics, partitions int }{{1, 1, 300}, {3, 20, 1}, {3, 1, 10}, {7, 5, 6}, {9, 40, 3}, {30, 1, 300}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			w := newWorld(tt.members, tt.topics, tt.partitions)
			w.settle(t)
			if moved := w.settle(t); moved > 0 {
				t.Errorf("%d partitions move without a reason", moved)
			}
			w.join("new")
			if moved, want := w.settle(t), tt.topics*tt.partitions/(tt.members+1); moved != want {
				t.Errorf("%d partitions move to a new member, want %d", moved, want)
			}
			w.balanced(t)
			delete(w.claims, "m00")
			if moved := w.settle(t); moved > 0 {
				t.Errorf("%d partitions of others move when a member is gone", moved)
			}
			w.balanced(t)
			for name := range w.topics {
				w.topics[name] += 2
			}
			if moved := w.settle(t); moved > 0 {
				t.Errorf("%d partitions move when topics grow", moved)
			}
			w.balanced(t)
		})
	}
}

// Whatever members own, and however the group has changed: no partition has two
// owners, the second round moves nothing, and the shares are even. No plan that is as
// even moves less.
func TestSpreadProperties(t *testing.T) {
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(1+random.IntN(5), 1+random.IntN(4), 0)
		for name := range w.topics {
			w.topics[name] = random.IntN(6)
		}
		ids := slices.Sorted(maps.Keys(w.claims))
		for _, name := range slices.Sorted(maps.Keys(w.topics)) {
			for number := range w.topics[name] {
				if i := random.IntN(len(ids) + 1); i < len(ids) {
					c := w.claims[ids[i]]
					c.owned, c.generation = append(c.owned, partition{name, number}), int32(random.IntN(3))
					w.claims[ids[i]] = c
				}
			}
		}
		least := w.fewestMoves()
		if moved := w.settle(t); moved != least {
			t.Errorf("%d partitions move, %d would do", moved, least)
		}
		w.balanced(t)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// fewestMoves tries all plans with even shares.
func (w *world) fewestMoves() int {
	ids, names := slices.Sorted(maps.Keys(w.claims)), slices.Sorted(maps.Keys(w.topics))
	owned := make(map[string]map[string]int)
	all := 0
	for id, c := range w.claims {
		owned[id] = make(map[string]int)
		for _, p := range c.owned {
			owned[id][p.topic]++
			all++
		}
	}
	type plan struct{ uneven, kept int }
	best := plan{math.MaxInt, 0}
	var try func(at int, total []int, kept int)
	try = func(at int, total []int, kept int) {
		if at == len(names) {
			squares := 0
			for _, n := range total {
				squares += n * n
			}
			if squares < best.uneven || squares == best.uneven && kept > best.kept {
				best = plan{squares, kept}
			}
			return
		}
		low, extra := w.topics[names[at]]/len(ids), w.topics[names[at]]%len(ids)
		for more := range uint(1) << len(ids) {
			if bits.OnesCount(more) != extra {
				continue
			}
			total, kept := slices.Clone(total), kept
			for m, id := range ids {
				n := low + int(more>>m&1)
				total[m] += n
				kept += min(n, owned[id][names[at]])
			}
			try(at+1, total, kept)
		}
	}
	try(0, make([]int, len(ids)), 0)
	return all - best.kept
}

// What members claim may be wrong in any way.
func TestSpreadOfWrongClaims(t *testing.T) {
	all := func(generation int32, numbers ...int) claim {
		c := claim{topics: []string{"x"}, generation: generation}
		for _, n := range numbers {
			c.owned = append(c.owned, partition{"x", n})
		}
		return c
	}
	for name, tt := range map[string]struct {
		a, b     claim
		partsOf  map[string]int
		want     string
		withheld bool
	}{
		"a partition twice":       {all(3, 0, 0, 1), all(3), nil, "a [0 1] b [2 3]", false},
		"of an old generation":    {all(2, 0, 1, 2), all(3, 2, 3), nil, "a [0 1] b [2 3]", false},
		"both, of one generation": {all(3, 0, 1), all(3, 1, 2), nil, "a [0 3] b [2]", true},
		"unknown partitions":      {all(3, -1, 4, 1<<31-1), all(3, 0), nil, "a [1 2] b [0 3]", false},
		"of a topic that it reads no more": {claim{topics: []string{"x"}, owned: []partition{{"y", 0}}}, claim{topics: []string{"x", "y"}},
			map[string]int{"x": 2, "y": 1}, "a [0] b [1]", true},
		"of an unknown topic":        {claim{topics: []string{"x"}, owned: []partition{{"z", 0}}}, all(3), nil, "a [0 1] b [2 3]", false},
		"more than its share":        {all(3, 0, 1, 2, 3), all(3), nil, "a [0 1] b []", true},
		"both all, of no generation": {all(-1, 0, 1, 2, 3), all(-1, 0, 1, 2, 3), nil, "a [] b []", true},
	} {
		topics := map[string]int{"x": 4}
		if tt.partsOf != nil {
			topics = tt.partsOf
		}
		shares, withheld := spread(map[string]claim{"a": tt.a, "b": tt.b}, topics)
		slices.Sort(shares["a"]["x"])
		slices.Sort(shares["b"]["x"])
		if got := fmt.Sprint("a ", shares["a"]["x"], " b ", shares["b"]["x"]); got != tt.want || withheld != tt.withheld || len(shares["b"]["y"]) > 0 {
			t.Errorf("%s: %s, withheld %v, want %s, %v", name, got, withheld, tt.want, tt.withheld)
		}
	}
}

// Members that read different topics get what they read, and no two the same.
func TestSpreadOfDifferentTopics(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(1+random.IntN(6), 1+random.IntN(6), 1+random.IntN(7))
		for round := range 4 {
			for id, c := range w.claims {
				if round%2 == 0 {
					c.topics = slices.DeleteFunc(slices.Sorted(maps.Keys(w.topics)), func(string) bool { return random.IntN(3) == 0 })
				}
				w.claims[id] = c
			}
			w.round(t)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

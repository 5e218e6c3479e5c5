package consumer

import (
	"math/rand/v2"
	"testing"

	"github.com/redrive-go/redrive/brokers"
)

func keyed(key string) *run {
	return &run{delivery: &brokers.Delivery{Message: brokers.Message{Topic: "orders", Key: key}}}
}

func TestLanesKeepNothingOfAKeyThatIsDone(t *testing.T) {
	l := lanes{}
	if !l.enter(keyed("")) || len(l) != 0 {
		t.Fatal("a message without a key has a lane")
	}
	random := rand.New(rand.NewPCG(7, 8))
	under := []*run{} // one of each busy key
	for range 10_000 {
		switch {
		case random.IntN(2) == 0:
			if r := keyed(string(rune('a' + random.IntN(20)))); l.enter(r) {
				under = append(under, r)
			}
		case len(under) > 0:
			i := random.IntN(len(under))
			r := under[i]
			under[i] = under[len(under)-1]
			under = under[:len(under)-1]
			if random.IntN(5) == 0 {
				l.clear(r)
			} else if next := l.next(r); next != nil {
				under = append(under, next)
			}
		}
		if len(l) != len(under) {
			t.Fatalf("%d lanes for %d keys under way", len(l), len(under))
		}
	}
	for len(under) > 0 {
		r := under[0]
		under = under[1:]
		if next := l.next(r); next != nil {
			under = append(under, next)
		}
	}
	if len(l) != 0 {
		t.Errorf("%d lanes left, want none", len(l))
	}
}

func TestLanesAreFirstInFirstOut(t *testing.T) {
	l := lanes{}
	first, second, third, other := keyed("a"), keyed("a"), keyed("a"), keyed("b")
	if !l.enter(first) || l.enter(second) || l.enter(third) || !l.enter(other) {
		t.Fatal("want the first of each key to enter, and no other")
	}
	if got := l.next(first); got != second {
		t.Error("the second of the key is not next")
	}
	if got := l.clear(second); len(got) != 1 || got[0] != third {
		t.Errorf("clear returned %v, want the third alone", got)
	}
	if _, busy := l[other.lane()]; !busy || len(l) != 1 {
		t.Errorf("%d lanes left, want that of the other key", len(l))
	}
}

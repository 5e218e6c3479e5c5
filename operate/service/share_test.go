package service

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
)

// most takes places for a tenant until it gets no more, and returns how many it got.
func most(s *shares, tenant string) (n int) {
	for s.take(tenant) {
		n++
	}
	return n
}

func TestShares(t *testing.T) {
	for places, want := range map[int]int{1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 64: 48, 512: 384} {
		if got := most(newShares(places, mostOfOne, 0), "a"); got != want {
			t.Errorf("one tenant gets %d of %d places, want %d", got, places, want)
		}
	}
	three := newShares(64, mostOfOne, 0)
	for range 64 {
		for i := range 3 {
			three.take(fmt.Sprint("tenant ", i))
		}
	}
	if used := 64 - three.left(); used != 56 {
		t.Errorf("three tenants get %d of 64 places, want 56", used)
	}
}

// TestSharesOfMany has tenants that take all they can, whenever one of them gives
// something back: in the end they have about the same, and there is a place for a new one.
func TestSharesOfMany(t *testing.T) {
	s := newShares(64, mostOfOne, 0)
	const tenants = 10
	name := func(i int) string { return fmt.Sprint("tenant ", i%tenants) }
	for i := range 1000 {
		if s.held[name(i)] > 0 {
			s.give(name(i))
		}
		for j := range tenants {
			most(s, name(j))
		}
	}
	for i := range tenants {
		if n := s.held[name(i)]; n < 5 || n > 9 {
			t.Errorf("%s has %d of 64 places, want about 6", name(i), n)
		}
	}
	for i := range 4 {
		if name := fmt.Sprint("new ", i); !s.take(name) {
			t.Errorf("%s, which has nothing, got no place", name)
		}
	}
}

// TestSharesThatAreWaitedFor has two tenants wait for places, and some give up.
func TestSharesThatAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShares(4, mostOfOne, 0)
		most(s, "a")
		most(s, "b")
		got := make(chan string, 100)
		ctx, cancel := context.WithCancel(t.Context())
		wait := func(ctx context.Context, name, tenant string) {
			go func() { // received below
				if !s.wait(ctx, tenant) {
					name += " gave up"
				}
				got <- name
			}()
			synctest.Wait()
		}
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			if len(got) != 1 {
				t.Fatalf("%d came, want %s", len(got), want)
			}
			if name := <-got; name != want {
				t.Errorf("%s came, want %s", name, want)
			}
		}
		wait(t.Context(), "a1", "a")
		wait(ctx, "a2", "a")
		wait(t.Context(), "c1", "c")
		wait(t.Context(), "a3", "a")
		s.give("a") // a has two of four: the place is for c, who has none
		expect("c1")
		cancel()
		expect("a2 gave up")
		s.give("b")
		synctest.Wait()
		if len(got) > 0 {
			t.Errorf("%s got the last place", <-got)
		}
		s.give("c")
		expect("a1")
		s.give("a")
		expect("a3")
		for range 3 {
			s.give("a")
		}
		if s.free != 4 || len(s.held)+len(s.waiting) > 0 {
			t.Errorf("all is given back, and %d places are free, held %v, waited for %v", s.free, s.held, s.waiting)
		}
	})
}

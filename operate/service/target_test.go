package service

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"testing/synctest"
	"time"
)

func newTestTarget(t testing.TB, perHost int) *target {
	t.Helper()
	to, err := newTargets(newTestGuard(t, Targets{}), nil, perHost).of("a", &url.URL{Scheme: "https", Host: "a.example"})
	must(t, err)
	return to
}

// TestSlots has more tasks than slots: some wait, the others come back one after the
// other, and a slot that is given back is taken.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newTestTarget(t, 2)
		for range 2 {
			must(t, to.enter(nil, time.Now))
		}
		errs := make(chan error, 30)
		for range 30 {
			go func() { errs <- to.enter(nil, time.Now) }() // received below
		}
		synctest.Wait()
		if n := len(errs); n != 6 {
			t.Errorf("%d of 30 were put off at once, want all but the 24 that may wait", n)
		}
		to.leave(time.Now(), 10*time.Millisecond)
		synctest.Wait()
		entered := 0
		for range 30 {
			err := <-errs
			if err == nil {
				entered++
			} else if off, ok := err.(*deferral); !ok || off.wait < shortestPause || off.wait > 3*time.Second {
				t.Errorf("put off by %v", err)
			}
		}
		if entered != 1 {
			t.Errorf("%d entered, want 1", entered)
		}
		time.Sleep(10 * time.Second) // both calls hang
		began := time.Now()
		if err := to.enter(nil, time.Now); err == nil || time.Since(began) > 0 {
			t.Errorf("%v after %v: nobody waits for what hangs", err, time.Since(began))
		}
	})
}

// TestParking puts a hundred thousand tasks off: they come back over minutes.
func TestParking(t *testing.T) {
	to := newTestTarget(t, 2)
	now := time.Now()
	var longest time.Duration
	for range 100_000 {
		longest = max(longest, to.park(now, time.Second, usualPace))
	}
	if longest.Round(time.Second) != 200*time.Second {
		t.Errorf("the last comes back after %v, want 200 s", longest)
	}
	if wait := to.park(now.Add(time.Hour), time.Second, usualPace); wait != time.Second {
		t.Errorf("an hour later, one is put off by %v", wait)
	}
}

// TestDeferralsEarnNothing puts first attempts off: only calls bring tokens for retries.
func TestDeferralsEarnNothing(t *testing.T) {
	to, now := newTestTarget(t, 2), time.Now()
	for to.token(now, true, 0) == nil {
	}
	before := to.budget.Snapshot(now).Tokens
	for range 10_000 {
		must(t, to.token(now, false, 0))
		to.ended(now, false, errNoWorker)
	}
	if after := to.budget.Snapshot(now).Tokens; after != before {
		t.Errorf("what was not called brings %v tokens", after-before)
	}
	to.ended(now, false, nil)
	if to.budget.Snapshot(now).Tokens <= before {
		t.Error("a call brings nothing")
	}
}

func TestTargetsAreBounded(t *testing.T) {
	ts := newTargets(newTestGuard(t, Targets{}), nil, 2)
	ofTenant := func(tenant, host string) *target {
		to, err := ts.of(tenant, &url.URL{Scheme: "https", Host: host})
		must(t, err)
		return to
	}
	of := func(host string) *target { return ofTenant("a", host) }
	first := of("first.example")
	for _, host := range []string{"FIRST.example:443", "first.example.", "First.Example.:443"} {
		if of(host) != first {
			t.Errorf("%s is another target than first.example", host)
		}
	}
	if of("first.example:80") == first || ofTenant("b", "first.example") == first {
		t.Error("another port, or another tenant, has the same target")
	}
	for i := range 3 * mostTargets {
		of(fmt.Sprintf("host%d.example", i))
		if of("first.example") != first {
			t.Fatal("a target that is in use was forgotten")
		}
	}
	if n := len(ts.young) + len(ts.old); n > 2*mostTargets {
		t.Errorf("%d targets are known", n)
	}
}

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

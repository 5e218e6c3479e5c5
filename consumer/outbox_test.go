package consumer

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// target is where the outboxes of these tests send to.
type target struct {
	mu      sync.Mutex
	born    time.Time
	calls   []time.Duration
	sent    map[*run]time.Duration
	order   []*run
	refuses func(*run) bool
	takes   time.Duration
}

func (g *target) flush(_ context.Context, runs []*run) (failed []*run) {
	time.Sleep(g.takes)
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Since(g.born)
	g.calls = append(g.calls, now)
	for _, r := range runs {
		if g.refuses != nil && g.refuses(r) {
			failed = append(failed, r)
			continue
		}
		g.sent[r] = now
		g.order = append(g.order, r)
	}
	return failed
}

// sending runs an outbox to g for the test.
func sending(t *testing.T, g *target) (*outbox, func()) {
	g.born, g.sent = time.Now(), map[*run]time.Duration{}
	o := newOutbox(g.flush)
	ctx, cancel := context.WithCancel(t.Context())
	go o.run(ctx)
	return o, func() {
		cancel()
		<-o.emptied
	}
}

// together adds runs that are sent in one call.
func together(o *outbox, runs ...*run) {
	o.mu.Lock()
	o.fresh = append(o.fresh, runs...)
	o.mu.Unlock()
	o.signal()
}

func TestOutboxSendsInOrderAndInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &target{takes: time.Second}
		o, stop := sending(t, g)
		defer stop()
		runs := make([]*run, 100)
		for i := range runs {
			runs[i] = new(run)
			o.add(runs[i])
		}
		if n := o.unsent(); n != 100 {
			t.Errorf("%d unsent, want 100", n)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !slices.Equal(g.order, runs) || len(g.calls) > 2 {
			t.Errorf("%d sent in %d calls, want 100 in their order and at most 2 calls", len(g.order), len(g.calls))
		}
		if n := o.unsent(); n != 0 {
			t.Errorf("%d unsent, want none", n)
		}
	})
}

func TestOutboxToATargetThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		g := &target{refuses: func(*run) bool { return !up.Load() }}
		o, stop := sending(t, g)
		defer stop()
		for range 600 {
			o.add(new(run))
			time.Sleep(time.Second / 10)
		}
		up.Store(true)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		for i := 1; i < len(g.calls); i++ {
			if gap := g.calls[i] - g.calls[i-1]; gap < time.Second || gap > 15*time.Second {
				t.Errorf("calls at %v and %v, want 1 to 15 s between them", g.calls[i-1], g.calls[i])
			}
		}
		if len(g.sent) != 600 || o.unsent() != 0 {
			t.Errorf("%d sent and %d unsent after the recovery, want 600 and none", len(g.sent), o.unsent())
		}
	})
}

// One run that is never taken must not hold up the others, also when it was
// alone in a call.
func TestOutboxWithOneHopelessRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hopeless := new(run)
		g := &target{refuses: func(r *run) bool { return r == hopeless }}
		o, stop := sending(t, g)
		defer stop()
		together(o, hopeless, new(run))
		for range 1000 {
			r := new(run)
			added := time.Since(g.born)
			o.add(r)
			synctest.Wait()
			if at, ok := g.sent[r]; !ok || at != added {
				t.Fatalf("a run added at %v is not sent at once, because of another one", added)
			}
			time.Sleep(time.Second / 10)
		}
		if n := o.unsent(); n != 1 {
			t.Errorf("%d unsent, want the hopeless one", n)
		}
	})
}

// New failures must not put off the next try of older ones.
func TestOutboxRetriesUnderSteadyFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := map[*run]int{}
		g := &target{}
		g.refuses = func(r *run) bool {
			tries[r]++
			return r.tooBig && tries[r] < 3 // every second run fails twice
		}
		o, stop := sending(t, g)
		defer stop()
		added := map[*run]time.Duration{}
		for i := range 600 {
			r := &run{tooBig: i%2 == 0}
			added[r] = time.Since(g.born)
			o.add(r)
			o.add(new(run))
			time.Sleep(time.Second / 2)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for r, at := range added {
			if sent, ok := g.sent[r]; !ok || sent-at > 48*time.Second {
				t.Fatalf("a run added at %v that fails twice was sent at %v (%v), want it within three waits of at most 16 s", at, sent, ok)
			}
		}
	})
}

func TestOutboxAbandonsWhatIsNotUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing, flying, waiting := new(run), new(run), new(run)
		g := &target{refuses: func(r *run) bool { return r == failing }}
		o, stop := sending(t, g)
		defer stop()
		together(o, failing, new(run)) // fails in part
		synctest.Wait()
		g.takes = time.Minute
		o.add(flying)
		time.Sleep(time.Second / 2)
		o.add(waiting)
		left := o.abandon()
		if len(left) != 2 || !slices.Contains(left, failing) || !slices.Contains(left, waiting) {
			t.Fatalf("%d abandoned, want the failed and the waiting one", len(left))
		}
		if n := o.unsent(); n != 1 {
			t.Errorf("%d unsent, want the one under way", n)
		}
		o.close()
		<-o.emptied
		if _, ok := g.sent[flying]; !ok || len(g.sent) != 2 {
			t.Errorf("%d sent, want what was under way and nothing that was abandoned", len(g.sent))
		}
	})
}

func TestClosedOutboxSendsEverythingFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		g := &target{takes: time.Second, refuses: func(*run) bool { tries++; return tries <= 5 }}
		o, stop := sending(t, g)
		defer stop()
		for range 3 {
			o.add(new(run))
		}
		o.close()
		<-o.emptied
		if len(g.sent) != 3 {
			t.Errorf("%d sent when it closed, want 3", len(g.sent))
		}
	})
}

// Whatever fails and when, each run is sent exactly once.
func TestOutboxLosesAndRepeatsNothing(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 9))
			share := random.Float64()
			g := &target{takes: time.Duration(random.Int64N(int64(time.Second)))}
			g.refuses = func(*run) bool { return random.Float64() < share*0.9 }
			o, stop := sending(t, g)
			defer stop()
			const n = 200
			pause := rand.New(rand.NewPCG(seed, 10))
			for range n {
				o.add(new(run))
				time.Sleep(time.Duration(pause.Int64N(int64(time.Second))))
			}
			o.close()
			<-o.emptied
			if len(g.sent) != n || len(g.order) != n || o.unsent() != 0 {
				t.Errorf("seed %d: %d runs sent in %d sendings, %d unsent; want %d once each", seed, len(g.sent), len(g.order), o.unsent(), n)
			}
		})
	}
}

package visibility_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/visibility"
)

func TestExtendsBetweenAThirdAndAHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t, 0)
		extended := map[*held]int{}
		w.reply(func(_ context.Context, _ time.Duration, leases []*held) []error {
			for _, l := range leases {
				extended[l]++
				passed := lease - w.left(l)
				if passed < lease/3 || passed > lease/2 {
					t.Errorf("seed %d: %s was extended after %s of %s, want between a third and a half", seed, l.name, passed, lease)
				}
			}
			return nil
		})
		defer w.run()()
		for i := range 50 {
			l := take(fmt.Sprint("lease ", i))
			extended[l] = 0
			w.Track(l)
			pass(rand.N(10*time.Second) * time.Duration(random.IntN(2)))
		}
		pass(time.Hour)
		w.wantLost(0)
		w.wantLen(50)
		for l, n := range extended {
			if n < 240 { // an hour has 240 halves of a lease
				t.Errorf("%s was extended %d times in an hour, want at least 240", l.name, n)
			}
		}
	})
}

func TestExtendsInBatches(t *testing.T) {
	play(t, 12*time.Hour, func(w *world) {
		w.Track(takeMany(100)...)
		pass(lease / 2)
		if calls := w.made(); len(calls) != 1 || len(calls[0].leases) != 100 || calls[0].length != lease {
			t.Errorf("100 leases of one age took %d calls, want one for %s", len(calls), lease)
		}
	})
}

func TestKeepersAreNotInLockstep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var firsts []time.Duration
		worlds := make([]*world, 20)
		for i := range worlds {
			worlds[i] = newWorld(t, 0)
			defer worlds[i].run()()
			worlds[i].Track(take("lease"))
		}
		pass(lease / 2)
		for _, w := range worlds {
			firsts = append(firsts, w.made()[0].at)
		}
		slices.Sort(firsts)
		if spread := firsts[len(firsts)-1] - firsts[0]; spread < lease/30 {
			t.Errorf("20 keepers extended within %s of each other, want more than %s: %v", spread, lease/30, firsts)
		}
		if distinct := len(slices.Compact(firsts)); distinct < 18 {
			t.Errorf("20 keepers extended at only %d different times", distinct)
		}
	})
}

// Leases wait for a worker, then for their retry, and are kept all the time.
func TestKeepsWaitingLeases(t *testing.T) {
	play(t, 0, func(w *world) {
		queue := takeMany(5)
		w.Track(queue...)
		for i, l := range queue {
			pass(2 * time.Minute)
			if w.left(l) <= 0 {
				t.Errorf("%s ran out while it was worked on", l.name)
			}
			w.Forget(l)
			w.wantLen(len(queue) - 1 - i)
		}
		w.wantLost(0)
	})
}

func TestMaxLease(t *testing.T) {
	const maxLease = 100 * time.Second
	play(t, maxLease, func(w *world) {
		w.reply(func(_ context.Context, length time.Duration, leases []*held) []error {
			if length != lease && length%time.Second != 0 {
				t.Errorf("asked for %s, want whole seconds near the limit", length)
			}
			for _, l := range leases {
				end := time.Now().Add(length)
				if total := end.Sub(l.received); total > maxLease {
					t.Errorf("asked to hold %s for %s in all, want at most %s", l.name, total, maxLease)
				}
				if !end.After(l.until) {
					t.Errorf("asked for %s, which shortens the %s left of %s", length, time.Until(l.until), l.name)
				}
			}
			return nil
		})
		for i := range 40 {
			w.Track(take(fmt.Sprint("lease ", i)))
			pass(rand.N(time.Second))
		}
		pass(time.Hour)
		if len(w.lost) != 40 {
			t.Fatalf("%d leases were lost at the limit, want 40", len(w.lost))
		}
		for _, lost := range w.lost {
			if until := lost.lease.until.Sub(w.start); lost.at != until {
				t.Errorf("%s was lost after %s, want at its expiry after %s", lost.lease.name, lost.at, until)
			}
			if unused := maxLease - lost.lease.until.Sub(lost.lease.received); unused > time.Second {
				t.Errorf("%s of the limit stayed unused, want at most a second", unused)
			}
			w.wantCause(lost.cause, visibility.ErrExpired)
		}
	})
}

func TestLeaseThatCannotBeExtended(t *testing.T) {
	play(t, lease, func(w *world) {
		l := take("lease")
		w.Track(l)
		pass(time.Hour)
		w.wantLost(lease, l)
		if n := len(w.made()); n != 0 {
			t.Errorf("Extend was called %d times, want never: the lease is the limit", n)
		}
	})
}

// It is asked before the keeper has run, so whatever is lost, Expire has lost.
func TestExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		over, settled, other := take("over"), take("settled"), take("other")
		pass(lease / 2)
		fresh := take("fresh")
		w.Track(over, settled, other, fresh)
		w.Forget(settled)
		w.Expire(time.Now(), over, settled, fresh)
		w.wantLost(0)
		pass(lease / 2)
		w.Expire(time.Now(), over, settled, fresh, take("unknown"))
		w.Expire(time.Now(), over)
		w.wantCause(w.wantLost(lease, over)[0], visibility.ErrExpired)
		w.wantLen(2)
	})
}

func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		stop := w.run()
		w.Track(takeMany(10)...)
		pass(time.Minute)
		stop()
		calls := len(w.made())
		pass(time.Hour)
		w.wantLost(0)
		w.wantLen(10)
		if len(w.made()) != calls {
			t.Error("Extend was called after Run returned")
		}
	})
}

func TestTrackBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.Track(take("lease"))
		pass(lease / 2)
		defer w.run()()
		pass(time.Hour)
		w.wantLost(0)
		w.wantLen(1)
	})
}

func TestWakesUpAfterIdling(t *testing.T) {
	play(t, 0, func(w *world) {
		for range 10 {
			pass(rand.N(time.Minute))
			l := take("lease")
			w.Track(l)
			pass(rand.N(3 * lease))
			if w.left(l) <= 0 {
				t.Fatalf("the lease ran out %s ago", -w.left(l))
			}
			w.Forget(l)
		}
		w.wantLost(0)
	})
}

// A lease may have little left when it is tracked: it does not wait for the
// next look, whether the keeper is idle or not.
func TestTrackWithLittleLeft(t *testing.T) {
	for _, others := range []int{0, 1} {
		play(t, 0, func(w *world) {
			w.Track(takeMany(others)...)
			synctest.Wait()

			late, short, dead := take("late"), take("short"), take("dead")
			late.until = time.Now().Add(10 * time.Millisecond)
			short.until = late.until
			dead.until = time.Now()
			w.reply(func(_ context.Context, _ time.Duration, leases []*held) []error {
				errs := make([]error, len(leases))
				if i := slices.Index(leases, short); i >= 0 {
					errs[i] = errBusy
				}
				return errs
			})
			w.Track(late, short)
			synctest.Wait()
			if got := w.left(late); got != lease {
				t.Errorf("beside %d others, a lease tracked with little left has %s left, want %s at once", others, got, lease)
			}
			w.Track(dead)
			synctest.Wait()
			w.wantLost(0, dead)
			w.Forget(late)
			pass(lease)
			if last := w.lost[len(w.lost)-1]; last.lease != short || last.at != 10*time.Millisecond {
				t.Errorf("beside %d others, lost %s after %s, want %s after 10ms", others, last.lease.name, last.at, short.name)
			}
		})
	}
}

// With nothing tracked no timer is set: the bubble comes to a standstill,
// which synctest calls a deadlock. A keeper that ticks would run on for ever.
func TestIdleKeeperSetsNoTimers(t *testing.T) {
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "all goroutines in bubble are blocked") {
			t.Errorf("recovered %q, want the standstill of an idle keeper", got)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.run()
		forgotten, lost := take("forgotten"), take("lost")
		w.answers(errGone)
		w.Track(forgotten, lost)
		w.Forget(forgotten)
		pass(lease / 2)
		w.wantLen(0)
		select {}
	})
}

package collect_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/store"
)

const day = 24 * time.Hour

// TestStoreDownForDays costs the broker one release of what was in hand, and the
// log a line every few minutes.
func TestStoreDownForDays(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		began := time.Now()
		var probes atomic.Int32
		down := func() bool { return time.Since(began) >= time.Hour && time.Since(began) < time.Hour+3*day }
		w.store.fails(down)
		probe := w.store.probe
		w.store.probe = func(bytes int64) error { probes.Add(1); return probe(bytes) }
		w.publish(letters(0, 100)...)
		c, stop := w.follow(collect.Config{})
		time.Sleep(2 * time.Hour)
		w.once(100)
		probes.Store(0)
		w.publish(letters(100, 1600)...)
		time.Sleep(3*day - time.Hour - time.Second)

		if w.split(1600, 1500); w.counts.of("ack") != 100 {
			t.Errorf("%d letters were acked, want those of before", w.counts.of("ack"))
		}
		if n := w.counts.of("release"); n < 500 || n > 1000 || w.broker.Stats(dead).InFlight > 0 {
			t.Errorf("%d releases, %+v, want each letter in hand released once", n, w.broker.Stats(dead))
		}
		if s := c.Status(); !errors.Is(s.Paused, errDown) || time.Since(s.Since) > 3*day {
			t.Errorf("Status = %+v, want it paused", s)
		}
		if n := probes.Load(); n < 3*24*60 || n > 3*24*60*4 {
			t.Errorf("the store was probed %d times in three days, want about twice a minute", n)
		}
		if n := w.log.count("collecting pauses"); n < 100 || n > 3*24*12+1 {
			t.Errorf("%d lines in the log, want one every five minutes", n)
		}
		time.Sleep(2 * time.Minute)
		if s := c.Status(); s.Paused != nil || s.Added != 1600 {
			t.Errorf("Status = %+v, want all collected", s)
		}
		w.once(1600)
		if n := w.log.count("collecting goes on"); n != 1 {
			t.Errorf("%d lines say that it goes on, want 1", n)
		}
		stop()
	})
}

// TestStoreThatOnlyLooksGood can be written, and takes no letter. Each time that it
// is tried costs the broker a release, so it is probed with as much as it did not
// take, and rarely.
func TestStoreThatOnlyLooksGood(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		var full atomic.Bool
		w.store.collect = func(context.Context, []store.Collected, func() (int, error)) (int, error) {
			full.Store(true)
			return 0, store.ErrFull
		}
		w.store.probe = func(bytes int64) error {
			if full.Load() && bytes < 3<<20 {
				t.Errorf("probed with %d bytes, want as much as the letters have", bytes)
			}
			return nil
		}
		for n := range 3 {
			m := letter(n)
			m.Body = make([]byte, 1<<20)
			w.publish(m)
		}
		_, stop := w.follow(collect.Config{})
		time.Sleep(time.Hour)
		// Half a minute apart in the mean, by full jitter up to one: 120 tries in the
		// hour, with a deviation of 6.
		if n := w.counts.of("release"); n < 3*60 || n > 3*180 {
			t.Errorf("%d releases of 3 letters in an hour, want about two a minute each", n)
		}
		stop()
		w.split(3, 3)
	})
}

func TestStoreFailsWithoutFollow(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.store.fails(func() bool { return true })
		w.publish(letter(1))
		began := time.Now()
		_, err := w.collector(collect.Config{}).Run(t.Context())
		if took := time.Since(began); !errors.Is(err, errDown) || took < time.Minute || took > 3*time.Minute {
			t.Errorf("Run = %v after %v, want the error of the store after a minute", err, took)
		}
		if n := w.counts.of("deliver"); n != 0 {
			t.Errorf("%d letters were received, want none while the store fails", n)
		}
		w.split(1, 1)
	})
}

// TestStoreFailsLate fails the last letters when nothing more has come for long.
func TestStoreFailsLate(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.publish(letters(0, 10)...)
		calls := 0
		w.store.collect = func(_ context.Context, _ []store.Collected, do func() (int, error)) (int, error) {
			if calls++; calls == 1 {
				time.Sleep(10 * time.Second)
				return 0, store.ErrLocked
			}
			return do()
		}
		if got := w.collect(collect.Config{}); got.Added != 10 || w.counts.of("release") != 10 {
			t.Errorf("Run = %+v with %d releases, want it to go on", got, w.counts.of("release"))
		}
		w.once(10)
	})
}

// TestKilled kills the collector at each point, and lets another one go on.
func TestKilled(t *testing.T) {
	for _, point := range []string{"before the commit", "after the commit"} {
		t.Run(point, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.publish(letters(0, 20)...)
				w.publish(brokers.Message{ID: "raw"})
				source := w.source()
				w.store.collect = func(_ context.Context, _ []store.Collected, do func() (int, error)) (n int, err error) {
					if point == "after the commit" {
						n, err = do()
					}
					w.broker.Crash(source)
					return n, err
				}
				if _, err := w.collector(collect.Config{Source: source}).Run(t.Context()); !errors.Is(err, brokers.ErrClosed) {
					t.Errorf("Run = %v, want ErrClosed", err)
				}
				if n := w.broker.Len(dead); n != 21 {
					t.Errorf("the broker has %d letters, want all 21, for none was acked", n)
				}
				time.Sleep(2 * time.Minute) // until the lease is over
				w.store.collect = nil
				got := w.collect(collect.Config{})
				again := map[string]int{"before the commit": 0, "after the commit": 20}[point]
				if got.Known != int64(again) || got.Added != int64(21-again) {
					t.Errorf("the next one collected %+v, want %d known", got, again)
				}
				copies := map[string]int{}
				for _, l := range w.stored() {
					copies[l.MessageID]++
				}
				for n := range 20 {
					if id := fmt.Sprint("message-", n); copies[id] != 1 {
						t.Errorf("%s is there %d times, want once", id, copies[id])
					}
				}
				if copies["raw"] == 0 || w.broker.Len(dead) != 0 {
					t.Errorf("the raw letter is %d times in the store, the broker has %d", copies["raw"], w.broker.Len(dead))
				}
			})
		})
	}
}

// refuses has the store refuse any batch with certain letters in it.
func (w *world) refuses(bad func(id string) bool) (calls *atomic.Int32) {
	calls = new(atomic.Int32)
	w.store.collect = func(_ context.Context, batch []store.Collected, do func() (int, error)) (int, error) {
		calls.Add(1)
		if slices.ContainsFunc(batch, func(l store.Collected) bool { return bad(l.Entry.Message.ID) }) {
			return 0, errStrange
		}
		return do()
	}
	return calls
}

// TestOneHostileLetter is among a thousand, and the store never takes it.
func TestOneHostileLetter(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		bad := letter(777)
		bad.ID = "evil\x1b[2J\n"
		w.publish(letters(0, 777)...)
		w.publish(bad)
		w.publish(letters(778, 1000)...)
		calls := w.refuses(func(id string) bool { return id == bad.ID })
		got := w.collect(collect.Config{})
		if got.Added != 999 || got.Refused != 1 {
			t.Errorf("Run = %+v, want 999 added and 1 refused", got)
		}
		if n := calls.Load(); n > 40 {
			t.Errorf("the store was asked %d times", n)
		}
		w.split(1000, 1)
		if s := w.broker.Stats(dead); s.Ready != 1 {
			t.Errorf("the broker has %+v, want the letter ready for others", s)
		}
		if n := w.log.count("the store refuses a letter"); n != 1 || w.log.count("\x1b") > 0 {
			t.Errorf("%d lines tell of it, want 1 and no control characters", n)
		}
	})
}

// TestHostileLetterStays tries it again when its lease is over, no sooner.
func TestHostileLetterStays(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.publish(letters(0, 10)...)
		var cured atomic.Bool
		w.refuses(func(id string) bool { return id == "message-3" && !cured.Load() })
		_, stop := w.follow(collect.Config{})
		time.Sleep(time.Hour)
		w.split(10, 1)
		if n := w.log.count("the store refuses a letter"); n < 25 || n > 31 {
			t.Errorf("it was refused %d times in an hour, want once for each lease of 2 min", n)
		}
		cured.Store(true)
		time.Sleep(3 * time.Minute)
		w.once(10)
		stop()
	})
}

// TestStoreRefusesAll gives up rather than hold all that there is.
func TestStoreRefusesAll(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.publish(letters(0, 1000)...)
		w.refuses(func(string) bool { return true })
		got, err := w.collector(collect.Config{Follow: true}).Run(t.Context())
		if !errors.Is(err, errStrange) || !errors.Is(err, collect.ErrRefused) || got.Refused != 101 || !strings.Contains(err.Error(), "more than 100") {
			t.Errorf("Run = %+v, %v, want it to give up at the 101st", got, err)
		}
		if s := w.broker.Stats(dead); s.Ready != 1000 {
			t.Errorf("the broker has %+v, want all ready", s)
		}
	})
}

// TestGlitch fails once, and no letter is blamed for it.
func TestGlitch(t *testing.T) {
	for _, n := range []int{1, 10} {
		inWorld(t, nil, func(t *testing.T, w *world) {
			w.publish(letters(0, n)...)
			calls := 0
			w.store.collect = func(_ context.Context, _ []store.Collected, do func() (int, error)) (int, error) {
				if calls++; calls == 1 {
					n, err := do() // as when the connection breaks after the commit
					return n, errors.Join(err, errors.New("broken pipe"))
				}
				return do()
			}
			if got := w.collect(collect.Config{}); got.Refused != 0 || got.Known != int64(n) || w.counts.of("release") != 0 {
				t.Errorf("Run = %+v with %d releases, want all known", got, w.counts.of("release"))
			}
			w.once(n)
		})
	}
}

// TestSlowStore is slower than the leases last: nothing is committed that somebody
// else may have by then.
func TestSlowStore(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		const lease = 10 * time.Second
		sub := collect.Subscription("", dead)
		sub.Lease = lease
		source, err := w.broker.Open(t.Context(), sub)
		if err != nil {
			t.Fatal(err)
		}
		var pace atomic.Int64
		pace.Store(int64(2 * lease))
		w.store.collect = func(ctx context.Context, _ []store.Collected, do func() (int, error)) (int, error) {
			select {
			case <-ctx.Done():
				return 0, ctx.Err()
			case <-time.After(time.Duration(pace.Load())):
				return do()
			}
		}
		w.publish(brokers.Message{ID: "raw"})
		_, stop := w.follow(collect.Config{Source: source})
		time.Sleep(time.Hour)
		w.split(1, 1)
		pace.Store(int64(lease / 2))
		time.Sleep(2 * time.Minute)
		w.once(1)
		stop()
	})
}

// TestSessionEnds while letters wait for their commit: they come again, and are not
// committed now.
func TestSessionEnds(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		for range 1000 {
			w.publish(brokers.Message{})
		}
		source := w.source()
		w.store.collect = func(_ context.Context, _ []store.Collected, do func() (int, error)) (int, error) {
			time.Sleep(time.Second) // the next batch comes meanwhile
			n, err := do()
			return n, errors.Join(err, source.Close(context.Background()))
		}
		got, err := w.collector(collect.Config{Source: source}).Run(t.Context())
		if want := (collect.Result{Received: 1000, Added: 500, Unacked: 500}); got != want || !errors.Is(err, brokers.ErrClosed) {
			t.Errorf("Run = %+v, %v, want %+v and ErrClosed", got, err, want)
		}
		if stored, left := len(w.stored()), w.broker.Stats(dead).Ready; stored != 500 || left != 1000 {
			t.Errorf("%d letters in the store and %d in the broker, want 500 and 1000", stored, left)
		}
	})
}

func TestBrokerGone(t *testing.T) {
	errGone := errors.New("no route to host")
	gone := func(began *time.Time, d time.Duration) func(memory.Op) memory.Fault {
		return func(op memory.Op) memory.Fault {
			if op.Operation == memory.Receive && time.Since(*began) < d {
				return memory.Fault{Err: errGone}
			}
			return memory.Fault{}
		}
	}
	t.Run("for an hour", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			w := newWorld(t, gone(&began, time.Hour))
			w.publish(letters(0, 10)...)
			c, stop := w.follow(collect.Config{})
			time.Sleep(time.Hour - time.Second)
			if s := c.Status(); !errors.Is(s.Paused, errGone) {
				t.Errorf("Status = %+v, want it paused", s)
			}
			if n := w.counts.of("receive"); n < 60 || n > 60*4 {
				t.Errorf("%d requests in an hour, want about two a minute", n)
			}
			if n := w.log.count("collecting pauses"); n < 5 || n > 13 {
				t.Errorf("%d lines in the log, want one every five minutes", n)
			}
			time.Sleep(2 * time.Minute)
			w.once(10)
			stop()
		})
	})
	t.Run("without follow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			w := newWorld(t, gone(&began, time.Hour))
			if _, err := w.collector(collect.Config{}).Run(t.Context()); !errors.Is(err, errGone) || time.Since(began) > 3*time.Minute {
				t.Errorf("Run = %v after %v, want the error after a minute", err, time.Since(began))
			}
		})
	})
	t.Run("for a moment without follow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			w := newWorld(t, gone(&began, 20*time.Second))
			w.publish(letters(0, 10)...)
			w.collect(collect.Config{})
			w.once(10)
		})
	})
	t.Run("for good", func(t *testing.T) {
		fault := func(op memory.Op) memory.Fault {
			if op.Operation == memory.Receive {
				return memory.Fault{Err: brokers.ErrMisconfigured}
			}
			return memory.Fault{}
		}
		inWorld(t, fault, func(t *testing.T, w *world) {
			if _, err := w.collector(collect.Config{Follow: true}).Run(t.Context()); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "main") {
				t.Errorf("Run = %v, want ErrMisconfigured, and of which broker", err)
			}
		})
	})
}

// TestAcks loses some, in all ways: no letter is lost, none is there twice.
func TestAcks(t *testing.T) {
	tests := []struct {
		name  string
		fault memory.Fault
		want  collect.Result
	}{
		{"fails for the moment", memory.Fault{Err: errors.New("throttled")}, collect.Result{Received: 10, Added: 10}},
		{"the confirm is lost", memory.Fault{Err: brokers.ErrUnknownOutcome, Done: true}, collect.Result{Received: 10, Added: 10, Unacked: 1}},
		{"the lease is lost", memory.Fault{Lost: true}, collect.Result{Received: 11, Added: 10, Known: 1, Unacked: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fault := func(op memory.Op) memory.Fault {
				if op.Operation == memory.Settle && op.Action == brokers.Ack && op.ID == "message-3" && op.Nth == 1 {
					return tt.fault
				}
				return memory.Fault{}
			}
			inWorld(t, fault, func(t *testing.T, w *world) {
				w.publish(letters(0, 10)...)
				if got := w.collect(collect.Config{}); got != tt.want {
					t.Errorf("Run = %+v, want %+v", got, tt.want)
				}
				w.once(10)
			})
		})
	}
}

func TestLimitOfLetters(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.publish(letters(0, 1000)...)
		limits := collect.Limits{Letters: 700}
		got, err := w.collector(collect.Config{Limits: limits}).Run(t.Context())
		if !errors.Is(err, collect.ErrLimit) || got.Added != 700 || !strings.Contains(err.Error(), "700 letters") || !strings.Contains(err.Error(), "raise the limit") {
			t.Errorf("Run = %+v, %v, want ErrLimit and how to go on", got, err)
		}
		if w.split(1000, 300); w.counts.of("release") != 0 {
			t.Errorf("%d letters were received and given back", w.counts.of("release"))
		}

		c, stop := w.follow(collect.Config{Limits: limits})
		time.Sleep(time.Hour)
		if s := c.Status(); !errors.Is(s.Paused, collect.ErrLimit) {
			t.Errorf("Status = %+v, want it paused", s)
		}
		w.split(1000, 300)
		who := store.Actor{Who: "anna", Command: "discard"}
		if _, err := w.file.Discard(t.Context(), time.Now(), who, store.Filter{UpTo: 100}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.file.Sweep(t.Context(), time.Now().Add(time.Hour), store.Retention{Discarded: time.Second}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		w.split(900, 200)
		stop()
	})
}

// TestLimitCountsWhatIsKnown does not stop early because letters merge.
func TestLimitCountsWhatIsKnown(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		for range 4 {
			w.publish(letters(0, 50)...)
		}
		w.publish(letters(50, 60)...)
		if got := w.collect(collect.Config{Limits: collect.Limits{Letters: 100}}); got.Added != 60 || got.Known != 150 {
			t.Errorf("Run = %+v, want all", got)
		}
	})
}

func TestLimitOfDisk(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		var free atomic.Int64
		free.Store(99)
		w.store.disk = func() (int64, int64, error) { return free.Load(), 1000, nil }
		w.publish(letters(0, 10)...)
		_, err := w.collector(collect.Config{}).Run(t.Context())
		if !errors.Is(err, collect.ErrLimit) || !strings.Contains(err.Error(), "9.9 %") || !strings.Contains(err.Error(), "10.0 %") {
			t.Errorf("Run = %v, want ErrLimit and how full the disk is", err)
		}
		_, stop := w.follow(collect.Config{})
		time.Sleep(time.Hour)
		if w.split(10, 10); w.counts.of("receive") != 0 {
			t.Errorf("%d requests, want none", w.counts.of("receive"))
		}
		if n := w.log.count("collecting pauses"); n < 5 || n > 13 {
			t.Errorf("%d lines in the log, want one every five minutes", n)
		}
		free.Store(100)
		time.Sleep(2 * time.Minute)
		w.once(10)
		stop()
	})
}

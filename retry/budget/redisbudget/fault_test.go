package redisbudget

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/budget/internal/pace"
)

// hook answers commands before, or instead of, the server.
type hook func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return h(ctx, cmd, next) }
}
func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// reports collects what OnError is told.
type reports struct {
	mu  sync.Mutex
	all []error
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, err)
}

func (r *reports) take() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}

// watch gives every worker of a fleet the same reports.
func (f *fleet) watch() *reports {
	r := &reports{}
	for _, w := range f.workers {
		w.onError = r.add
	}
	return r
}

func TestServerFaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(*miniredis.Miniredis)
		mend  func(*miniredis.Miniredis)
		want  string
	}{
		{
			"read-only replica",
			func(s *miniredis.Miniredis) { s.SetError("READONLY You can't write against a read only replica.") },
			func(s *miniredis.Miniredis) { s.SetError("") },
			"READONLY You can't write against a read only replica.: point the client at the primary",
		},
		{
			"wrong credentials",
			func(s *miniredis.Miniredis) {
				s.SetError("WRONGPASS invalid username-password pair or user is disabled.")
			},
			func(s *miniredis.Miniredis) { s.SetError("") },
			"check the client's user and password",
		},
		{
			"out of memory",
			func(s *miniredis.Miniredis) {
				s.SetError("OOM command not allowed when used memory > 'maxmemory'.")
			},
			func(s *miniredis.Miniredis) { s.SetError("") },
			"give the server more memory",
		},
		{
			"key of somebody else",
			func(s *miniredis.Miniredis) {
				s.Del("redrive:budget:{payments}")
				_ = s.Set("redrive:budget:{payments}", "text")
			},
			func(s *miniredis.Miniredis) { s.Del("redrive:budget:{payments}") },
			"use another Name",
		},
		{
			"gone",
			func(s *miniredis.Miniredis) { s.Close() },
			func(s *miniredis.Miniredis) { _ = s.Restart() },
			"connection refused",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, generator(t, 1), 3, budget.Config{Share: 0.2, Floor: 10})
			f.join()
			told := f.watch()
			work := func(ticks int) {
				for range ticks {
					for i := range f.workers {
						f.deposit(i, 3)
						f.withdraw(i)
					}
					f.pass(100 * time.Millisecond)
				}
			}
			work(100)
			tt.spoil(f.server)
			work(20)
			_, before := f.status()
			work(200)
			if _, after := f.status(); after-before < 3*5 || after-before > 3*27 {
				t.Errorf("%d calls in 20 s, want each of 3 workers to try again about once a second", after-before)
			}
			all := told.take()
			if len(all) != 3 {
				t.Errorf("reports %v, want one of each worker", all)
			}
			for _, err := range all {
				if !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "redisbudget redrive:budget:{payments}: retries are paced by this worker's own part of the budget: ") {
					t.Errorf("report %q, want one with %q", err, tt.want)
				}
			}
			for i, w := range f.workers {
				if s := w.Status(f.clock(i)); s.Fleet || s.Err == nil {
					t.Errorf("worker %d: %+v, want it on its own", i, s)
				}
			}
			tt.mend(f.server)
			f.join()
			work(100)
			f.check(2 * 5 * (0.2*90 + 10))
			if in, _ := f.status(); in != 3 {
				t.Errorf("%d workers in the fleet, want 3", in)
			}
		})
	}
}

func TestWrongPasswordFromTheStart(t *testing.T) {
	f := newFleet(t, generator(t, 2), 1, budget.Queue())
	f.server.RequireAuth("secret")
	told := f.watch()
	for range 100 {
		f.withdraw(0)
		f.pass(time.Second)
	}
	if all := told.take(); len(all) != 1 || !strings.Contains(all[0].Error(), "NOAUTH") {
		t.Errorf("reports %v, want one with NOAUTH", all)
	}
	f.check(20)
}

// TestReturnNeedsGoodAnswers has a server that fails every third call: a worker
// does not come and go with it.
func TestReturnNeedsGoodAnswers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, generator(t, 3), 1, budget.Mesh())
	f.join()
	calls := 0
	w := f.workers[0]
	w.client.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if calls++; calls%3 == 0 {
			cmd.SetErr(errors.New("broken"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}))
	told := f.watch()
	for range 100 {
		f.deposit(0, 1)
		f.pass(2 * time.Second)
	}
	if all := told.take(); len(all) != 1 {
		t.Errorf("reports %v, want one: the worker stays on its own", all)
	}
	if calls < 60 {
		t.Errorf("%d calls in 200 s, want it to go on trying", calls)
	}
}

// TestRedisForgets has a server that restarts from nothing, or from an old
// snapshot, again and again.
func TestRedisForgets(t *testing.T) {
	t.Parallel()
	const key = "redrive:budget:{payments}"
	for name, snapshot := range map[string]bool{"all": false, "the latest": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, generator(t, 4), 5, budget.Config{Share: 0.1, Floor: 3})
			f.join()
			told := f.watch()
			old := map[string]string{}
			names, _ := f.server.HKeys(key)
			for _, field := range names {
				old[field] = f.server.HGet(key, field)
			}
			for i := range 600 {
				if i%120 == 119 {
					f.server.FlushAll()
					for field, value := range old {
						if snapshot {
							f.server.HSet(key, field, value)
						}
					}
				}
				for j := range f.workers {
					f.deposit(j, 1)
					f.withdraw(j)
				}
				f.pass(100 * time.Millisecond)
			}
			capacity := 5 * (0.1*50 + 3.0)
			if !snapshot {
				f.check(capacity + 5*2)
			} else {
				f.check(2*capacity + 5*capacity)
			}
			if all := told.take(); len(all) != 0 {
				t.Errorf("reports %v, want none", all)
			}
			if in, _ := f.status(); in != 5 {
				t.Errorf("%d workers are in the fleet at the end, want 5", in)
			}
		})
	}
}

// TestSomeAreCutOff cuts half of the workers off for a while: they have their
// part of the floor, which the pool has as well.
func TestSomeAreCutOff(t *testing.T) {
	t.Parallel()
	f := newFleet(t, generator(t, 5), 8, budget.Config{Share: 0.1, Floor: 5})
	f.join()
	var mu sync.Mutex
	cut := false
	for _, w := range f.workers[:4] {
		w.client.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			mu.Lock()
			defer mu.Unlock()
			if cut {
				cmd.SetErr(&net.OpError{Op: "read", Err: errors.New("no route to host")})
				return cmd.Err()
			}
			return next(ctx, cmd)
		}))
	}
	for i := range 600 {
		mu.Lock()
		cut = i/50%4 == 2
		mu.Unlock()
		for j := range f.workers {
			f.deposit(j, 2)
			for range f.rng.IntN(4) {
				f.withdraw(j)
			}
		}
		f.pass(100 * time.Millisecond)
	}
	capacity := 5 * (0.1*160 + 5.0)
	f.check(2*capacity + 60*5/2)
}

func TestMoreWorkersThanConfigured(t *testing.T) {
	t.Parallel()
	f := newFleet(t, generator(t, 6), 3, budget.Mesh())
	for _, w := range f.workers {
		w.seats, w.seat = 2, 0
	}
	told := f.watch()
	for range 40 {
		for i, w := range f.workers {
			f.deposit(i, 1)
			w.idle()
		}
		f.pass(time.Second)
	}
	all := told.take()
	if len(all) != 1 || !errors.Is(all[0], ErrCrowded) {
		t.Errorf("reports %v, want ErrCrowded of one worker", all)
	}
	if in, _ := f.status(); in != 3 {
		t.Errorf("%d workers are in the fleet, want 3", in)
	}
	// When one is gone for good, another takes its seat.
	gone := f.workers[0].seat
	f.workers, f.skew = f.workers[1:], f.skew[1:]
	for range 80 {
		for i, w := range f.workers {
			f.deposit(i, 1)
			w.idle()
		}
		f.pass(time.Second)
	}
	if a, b := f.workers[0].seat, f.workers[1].seat; a == b || a != gone && b != gone {
		t.Errorf("seats %d and %d, want that of the worker that left, %d, to be taken", a, b, gone)
	}
}

func TestEvictingServer(t *testing.T) {
	info := func(memory string, fail error) hook {
		return func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if cmd.Name() != "info" {
				return next(ctx, cmd)
			}
			cmd.(*redis.StringCmd).SetVal(memory)
			cmd.SetErr(fail)
			return fail
		}
	}
	for _, tt := range []struct {
		name string
		hook hook
		want string
	}{
		{"evicts", info("# Memory\r\nmaxmemory:1048576\r\nmaxmemory_policy:allkeys-lru\r\n", nil), "it is allkeys-lru"},
		{"evicts what expires", info("maxmemory:1\r\nmaxmemory_policy:volatile-ttl\r\n", nil), "it is volatile-ttl"},
		{"keeps", info("maxmemory:1048576\r\nmaxmemory_policy:noeviction\r\n", nil), ""},
		{"has no limit", info("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n", nil), ""},
		{"does not say", info("", errors.New("NOPERM this user has no permissions to run the 'info' command")), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(t, generator(t, 7), 1, budget.Queue())
			f.workers[0].client.AddHook(tt.hook)
			told := f.watch()
			f.join()
			all := told.take()
			if tt.want == "" && len(all) > 0 || tt.want != "" && (len(all) != 1 || !errors.Is(all[0], ErrEvicting) || !strings.Contains(all[0].Error(), tt.want)) {
				t.Errorf("reports %v, want %q", all, tt.want)
			}
		})
	}
}

// TestSlowServer stops the answers, in virtual time: Withdraw waits for the
// patience once, and not at all from then on, also for a call of its own.
func TestSlowServer(t *testing.T) {
	server := miniredis.RunT(t)
	synctest.Test(t, func(t *testing.T) {
		var slow time.Duration
		var mu sync.Mutex
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
		defer client.Close()
		client.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			mu.Lock()
			d := slow
			mu.Unlock()
			time.Sleep(d)
			return next(ctx, cmd)
		}))
		delay := func(d time.Duration) { mu.Lock(); slow = d; mu.Unlock() }
		told := &reports{}
		b, err := New(client, Config{Name: "payments", Budget: budget.Config{Share: 0.1, Floor: 100}, Workers: 10, OnError: told.add})
		if err != nil {
			t.Fatal(err)
		}
		defer b.idle()
		join := func() {
			t.Helper()
			for range 60 {
				now := time.Now()
				server.SetTime(now)
				b.Deposit(now, 1)
				b.idle()
				if b.Status(now).Fleet {
					return
				}
				time.Sleep(time.Second)
			}
			t.Fatalf("not in the fleet: %+v", b.Status(time.Now()))
		}
		// burst asks for more than is at hand, and returns the longest wait.
		burst := func() (longest time.Duration) {
			for range 200 {
				start := time.Now()
				server.SetTime(start)
				b.Withdraw(start, time.Minute, 0.5)
				longest = max(longest, time.Since(start))
			}
			return longest
		}
		join()
		if got := burst(); got != 0 || !b.Status(time.Now()).Fleet {
			t.Errorf("with a fast server, the longest Withdraw took %v; %+v", got, b.Status(time.Now()))
		}
		time.Sleep(3 * time.Minute) // the leases are past
		delay(300 * time.Millisecond)
		if got := burst(); got != usualPatience {
			t.Errorf("with a slow server, the longest Withdraw took %v, want %v", got, usualPatience)
		}
		if got := burst(); got != 0 {
			t.Errorf("the longest Withdraw took %v after that, want no wait", got)
		}
		if s := b.Status(time.Now()); s.Fleet || !errors.Is(s.Err, ErrSlow) {
			t.Errorf("status %+v, want ErrSlow", s)
		}
		b.idle()
		time.Sleep(2 * time.Second)
		burst() // has it try again
		b.idle()
		if all := told.take(); len(all) != 1 || !errors.Is(all[0], ErrSlow) {
			t.Errorf("reports %v, want ErrSlow once", all)
		}
		delay(0)
		join()
		if s := b.Status(time.Now()); !s.Fleet || s.Err != nil {
			t.Errorf("status %+v after the server is fast again", s)
		}
	})
}

// TestLeasesOfALateAnswerAreOfUse answers after the patience, with leases.
func TestLeasesOfALateAnswerAreOfUse(t *testing.T) {
	f := newFleet(t, generator(t, 8), 1, budget.Mesh())
	f.join()
	f.pass(10 * time.Second)
	w := f.workers[0]
	w.patience, w.batch = -1, 16
	f.withdraw(0)
	w.idle()
	if s := w.Status(f.clock(0)); s.Fleet || s.Leased == 0 {
		t.Errorf("status %+v, want leases although the answer was late", s)
	}
}

func TestParse(t *testing.T) {
	fine := func() []any {
		return []any{int64(3), int64(2), "4.5", "110", "50", "106", "11", "2000.5", "60"}
	}
	a, err := parse(fine(), 2)
	want := answer{seat: 3, granted: 2, pool: pool{tokens: 4.5, capacity: 110, limit: 50, line: pace.Line{Ceiling: 106, Rate: 11, Waiting: 2000.5, Age: time.Minute}}}
	if err != nil || a != want {
		t.Errorf("parse = %+v, %v, want %+v", a, err, want)
	}
	for name, change := range map[string]func([]any) any{
		"not a list":     func([]any) any { return "OK" },
		"nothing":        func([]any) any { return nil },
		"short":          func(r []any) any { return r[:8] },
		"text":           func(r []any) any { r[3] = "many"; return r },
		"not a number":   func(r []any) any { r[3] = "nan"; return r },
		"endless":        func(r []any) any { r[3] = "inf"; return r },
		"more granted":   func(r []any) any { r[1] = int64(3); return r },
		"taken away":     func(r []any) any { r[1] = int64(-1); return r },
		"no rate":        func(r []any) any { r[6] = "0"; return r },
		"negative line":  func(r []any) any { r[7] = "-1"; return r },
		"since tomorrow": func(r []any) any { r[8] = "-1"; return r },
	} {
		if _, err := parse(change(fine()), 2); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("3 2 4.5 110 50 106 11 2000.5 60")
	f.Add("-1 0 -1e9 1e-300 1e-300 1e-300 1e-300 1e15 1e15")
	b, err := New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), Config{Name: "fuzz", Budget: budget.Mesh(), Workers: 3})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var reply []any
		for word := range strings.FieldsSeq(text) {
			reply = append(reply, word)
		}
		a, err := parse(reply, 5)
		if err != nil {
			return
		}
		if a.granted < 0 || a.granted > 5 {
			t.Fatalf("%d granted", a.granted)
		}
		b.mu.Lock()
		b.finish(&call{now: noon}, a, nil, 0, "")
		b.fleet, b.nextTry, b.lastCall, b.leased = true, noon.Add(time.Hour), noon, 0
		b.scarceTo = noon.Add(time.Second)
		b.mu.Unlock()
		if wait, ok := b.Withdraw(noon, time.Hour, 0.5); ok || wait <= 0 || wait > pace.Longest {
			t.Fatalf("Withdraw = %v, %v after %q", wait, ok, text)
		}
	})
}

package redisbudget

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget"
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
			f := newFleet(t, generator(t, 1), 3, budget.Config{Share: 0.2, Floor: 10, Window: 10 * time.Second})
			f.join()
			told := f.watch()
			work := func(ticks int) {
				for range ticks {
					for i, w := range f.workers {
						w.Delivered(f.clock(i), 3)
						f.reserve(i, time.Second)
					}
					f.pass(100 * time.Millisecond)
				}
			}
			work(100)
			tt.spoil(f.server)
			work(20)
			_, before, _ := f.status()
			work(200)
			if _, after, _ := f.status(); after-before < 3*5 || after-before > 3*27 {
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
			f.check(100 + 180)
			if in, _, _ := f.status(); in != 3 {
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
		f.reserve(0, time.Second)
		f.pass(time.Second)
	}
	if all := told.take(); len(all) != 1 || !strings.Contains(all[0].Error(), "NOAUTH") {
		t.Errorf("reports %v, want one with NOAUTH", all)
	}
	f.check(10)
}

// TestReturnNeedsGoodAnswers has a server that fails every third call: a worker
// does not come and go with it.
func TestReturnNeedsGoodAnswers(t *testing.T) {
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
		w.Delivered(f.clock(0), 1)
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
// snapshot, while its workers hold all of the next minutes.
func TestRedisForgets(t *testing.T) {
	const key = "redrive:budget:{payments}"
	for name, forget := range map[string]func(*miniredis.Miniredis, map[string]string){
		"all": func(s *miniredis.Miniredis, _ map[string]string) { s.FlushAll() },
		"the latest": func(s *miniredis.Miniredis, old map[string]string) {
			s.FlushAll()
			for field, value := range old {
				s.HSet(key, field, value)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, generator(t, 4), 5, budget.Config{Share: 0.1, Floor: 30, Window: 10 * time.Second})
			f.join()
			told := f.watch()
			old := map[string]string{}
			fields, _ := f.server.HKeys(key)
			for _, field := range fields {
				old[field] = f.server.HGet(key, field)
			}
			const forgets, opens = 500, 500 + 233 // 14 slots later
			fallen := map[int]bool{}
			for i := range 1500 {
				if i == forgets {
					forget(f.server, old)
				}
				for j, w := range f.workers {
					in := w.Status(f.clock(j)).Fleet
					if fallen[j] = fallen[j] || i > forgets && !in; fallen[j] && in && i < opens {
						t.Fatalf("worker %d uses the pool again %d ticks after the server forgot, want it closed for %d", j, i-forgets, opens-forgets)
					}
				}
				for j, w := range f.workers {
					w.Delivered(f.clock(j), 1)
					if j != i/300 { // one has nothing to do
						f.reserve(j, time.Second)
					}
				}
				f.pass(100 * time.Millisecond)
			}
			f.check(300 + 50)
			forgotten := 0
			for _, err := range told.take() {
				if errors.Is(err, ErrForgotten) {
					forgotten++
				}
			}
			if forgotten != len(f.workers) {
				t.Errorf("%d workers say that the server forgot, want %d", forgotten, len(f.workers))
			}
			if in, _, _ := f.status(); in != 5 {
				t.Errorf("%d workers are in the fleet at the end, want 5", in)
			}
		})
	}
}

// TestSomeAreCutOff cuts half of the workers off for a while.
func TestSomeAreCutOff(t *testing.T) {
	rng := generator(t, 5)
	f := newFleet(t, rng, 8, budget.Config{Share: 0.1, Floor: 5, Window: 10 * time.Second})
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
	for i := range 1500 {
		mu.Lock()
		cut = i/100%4 == 2
		mu.Unlock()
		for j, w := range f.workers {
			w.Delivered(f.clock(j), 2)
			for range rng.IntN(4) {
				f.reserve(j, time.Duration(rng.Int64N(int64(20*time.Second))))
			}
		}
		f.pass(100 * time.Millisecond)
	}
	f.check(50 + 160)
}

func TestMoreWorkersThanConfigured(t *testing.T) {
	f := newFleet(t, generator(t, 6), 3, budget.Mesh())
	for _, w := range f.workers {
		w.seats, w.seat = 2, 0
	}
	told := f.watch()
	for range 40 {
		for i, w := range f.workers {
			w.Delivered(f.clock(i), 1)
			w.idle()
		}
		f.pass(time.Second)
	}
	all := told.take()
	if len(all) != 1 || !errors.Is(all[0], ErrCrowded) {
		t.Errorf("reports %v, want ErrCrowded of one worker", all)
	}
	if in, _, _ := f.status(); in != 3 {
		t.Errorf("%d workers are in the fleet, want 3", in)
	}
	// When one is gone for good, another takes its seat.
	gone := f.workers[0].seat
	f.workers, f.skew = f.workers[1:], f.skew[1:]
	for range 80 {
		for i, w := range f.workers {
			w.Delivered(f.clock(i), 1)
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

// TestSlowServer stops the answers, in virtual time: Reserve waits for the
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
				b.Delivered(now, 1)
				b.idle()
				if b.Status(now).Fleet {
					return
				}
				time.Sleep(time.Second)
			}
			t.Fatalf("not in the fleet: %+v", b.Status(time.Now()))
		}
		// burst reserves more than is at hand, and returns the longest wait.
		burst := func() (longest time.Duration) {
			for range 200 {
				start := time.Now()
				server.SetTime(start)
				b.Reserve(start, start.Add(time.Second))
				longest = max(longest, time.Since(start))
			}
			return longest
		}
		join()
		if got := burst(); got != 0 || !b.Status(time.Now()).Fleet {
			t.Errorf("with a fast server, the longest Reserve took %v; %+v", got, b.Status(time.Now()))
		}
		time.Sleep(3 * time.Minute) // the leases are past
		delay(300 * time.Millisecond)
		if got := burst(); got != usualPatience {
			t.Errorf("with a slow server, the longest Reserve took %v, want %v", got, usualPatience)
		}
		if got := burst(); got != 0 {
			t.Errorf("the longest Reserve took %v after that, want no wait", got)
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
	w := f.workers[0]
	w.patience = -1
	f.reserve(0, 10*time.Second)
	for range 100 {
		f.reserve(0, time.Second)
	}
	w.idle()
	if s := w.Status(f.clock(0)); s.Fleet || s.Leased == 0 {
		t.Errorf("status %+v, want leases although the answer was late", s)
	}
}

func TestParse(t *testing.T) {
	fine := func() []any {
		return []any{"1772366400", "5", "e", int64(7), int64(1), int64(3), int64(50), int64(1), int64(10), int64(12), int64(11), int64(2)}
	}
	a, err := parse(fine())
	want := answer{
		time: 1772366400*int64(time.Second) + 5000, epoch: "e", calls: 7, settled: true, seat: 3, limit: 50,
		open: []pair{{10, 12}}, granted: []pair{{11, 2}},
	}
	if err != nil || fmt.Sprint(a) != fmt.Sprint(want) {
		t.Errorf("parse = %+v, %v, want %+v", a, err, want)
	}
	for name, change := range map[string]func([]any) any{
		"not a list":         func([]any) any { return "OK" },
		"nothing":            func([]any) any { return nil },
		"short":              func(r []any) any { return r[:7] },
		"odd":                func(r []any) any { return r[:11] },
		"no time":            func(r []any) any { r[0] = "noon"; return r },
		"time before 1970":   func(r []any) any { r[0] = "-5"; return r },
		"more open than are": func(r []any) any { r[7] = int64(3); return r },
		"negative open":      func(r []any) any { r[7] = int64(-1); return r },
		"grant is text":      func(r []any) any { r[11] = "two"; return r },
	} {
		if _, err := parse(change(fine())); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("1772366400 5 e 7 1 3 50 1 10 12 11 2")
	f.Add("1772366400 5 e 7 0 -1 50 0")
	f.Add("9223372036854775807 999999 1-2 0 1 0 0 1 -9223372036854775808 9223372036854775807 1 -5")
	b, err := New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), Config{Name: "fuzz", Budget: budget.Mesh(), Workers: 3})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var reply []any
		for word := range strings.FieldsSeq(text) {
			reply = append(reply, word)
		}
		a, err := parse(reply)
		if err != nil {
			return
		}
		if a.time <= 0 {
			t.Fatalf("time %d", a.time)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.prepare(noon)
		b.finish(&call{now: noon}, a, nil, 0, "")
		b.nextTry = noon.Add(time.Hour)
		if slot, _ := b.find(b.current); slot < b.current || slot > b.current+horizon {
			t.Fatalf("slot %d at %d", slot, b.current)
		}
	})
}

package redisbudget_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/budget/redisbudget"
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

func TestServerFaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(*server)
		mend  func(*server)
		want  string
	}{
		{
			"read-only replica",
			func(s *server) { s.SetError("READONLY You can't write against a read only replica.") },
			func(s *server) { s.SetError("") },
			"READONLY You can't write against a read only replica.: point the client at the primary",
		},
		{
			"wrong credentials",
			func(s *server) {
				s.SetError("WRONGPASS invalid username-password pair or user is disabled.")
			},
			func(s *server) { s.SetError("") },
			"check the client's user and password",
		},
		{
			"out of memory",
			func(s *server) {
				s.SetError("OOM command not allowed when used memory > 'maxmemory'.")
			},
			func(s *server) { s.SetError("") },
			"give the server more memory",
		},
		{
			"key of somebody else",
			func(s *server) {
				s.Del(key)
				_ = s.Set(key, "text")
			},
			func(s *server) { s.Del(key) },
			"use another Name",
		},
		{
			"gone",
			(*server).stop,
			(*server).back,
			"closed pipe", // in memory, go-redis does not see that before it writes
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			onFleet(t, 1, 3, budget.Config{Share: 0.2, Floor: 10}, func(t *testing.T, f *fleet) {
				f.told.take()
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
				all := f.told.take()
				if len(all) != 3 {
					t.Errorf("reports %v, want one of each worker", all)
				}
				for _, err := range all {
					if !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "redisbudget redrive:budget:{payments}: retries are paced by this worker's own part of the budget: ") {
						t.Errorf("report %q, want one with %q", err, tt.want)
					}
				}
				for i := range f.workers {
					if s := f.statusOf(i); s.Fleet || s.Err == nil {
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
		})
	}
}

func TestWrongPasswordFromTheStart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, generator(t, 2), 1, budget.Queue())
		f.server.RequireAuth("secret")
		f.told.take()
		for range 100 {
			f.withdraw(0)
			f.pass(time.Second)
		}
		if all := f.told.take(); len(all) != 1 || !strings.Contains(all[0].Error(), "NOAUTH") {
			t.Errorf("reports %v, want one with NOAUTH", all)
		}
		f.check(20)
	})
}

// TestReturnNeedsGoodAnswers has a server that fails every third call: a worker
// does not come and go with it.
func TestReturnNeedsGoodAnswers(t *testing.T) {
	onFleet(t, 3, 1, budget.Mesh(), func(t *testing.T, f *fleet) {
		calls := 0
		f.clients[0].AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if calls++; calls%3 == 0 {
				cmd.SetErr(errors.New("broken"))
				return cmd.Err()
			}
			return next(ctx, cmd)
		}))
		f.told.take()
		for range 100 {
			f.deposit(0, 1)
			f.pass(2 * time.Second)
		}
		if all := f.told.take(); len(all) != 1 {
			t.Errorf("reports %v, want one: the worker stays on its own", all)
		}
		if calls < 60 {
			t.Errorf("%d calls in 200 s, want it to go on trying", calls)
		}
	})
}

// TestRedisForgets has a server that restarts from nothing, or from an old
// snapshot, again and again.
func TestRedisForgets(t *testing.T) {
	t.Parallel()
	for name, snapshot := range map[string]bool{"all": false, "the latest": true} {
		t.Run(name, func(t *testing.T) {
			onFleet(t, 4, 5, budget.Config{Share: 0.1, Floor: 3}, func(t *testing.T, f *fleet) {
				f.told.take()
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
				if all := f.told.take(); len(all) != 0 {
					t.Errorf("reports %v, want none", all)
				}
				if in, _ := f.status(); in != 5 {
					t.Errorf("%d workers are in the fleet at the end, want 5", in)
				}
			})
		})
	}
}

// TestSomeAreCutOff cuts half of the workers off for a while: they have their
// part of the floor, which the pool has as well.
func TestSomeAreCutOff(t *testing.T) {
	onFleet(t, 5, 8, budget.Config{Share: 0.1, Floor: 5}, func(t *testing.T, f *fleet) {
		var mu sync.Mutex
		cut := false
		for _, c := range f.clients[:4] {
			c.AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
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
	})
}

func TestMoreWorkersThanConfigured(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, generator(t, 6), 2, budget.Mesh())
		f.add()
		work := func(seconds int, workers ...int) {
			for range seconds {
				for _, i := range workers {
					f.deposit(i, 1)
					synctest.Wait()
				}
				f.pass(time.Second)
			}
		}
		work(40, 0, 1, 2)
		all := f.told.take()
		if len(all) != 1 || !errors.Is(all[0], redisbudget.ErrCrowded) {
			t.Errorf("reports %v, want ErrCrowded of one worker", all)
		}
		if in, _ := f.status(); in != 3 {
			t.Errorf("%d workers are in the fleet, want 3", in)
		}
		// When one is gone for good, another takes its seat.
		before := f.seats()
		work(80, 1, 2)
		after := f.seats()
		if len(before) != 2 || len(after) != 2 || before[0] == before[1] || after[0] == after[1] {
			t.Fatalf("seats of %q, then of %q, want two workers each", before, after)
		}
		if stayed := slices.ContainsFunc(before, func(id string) bool { return slices.Contains(after, id) }); !stayed || slices.Equal(slices.Sorted(slices.Values(before)), slices.Sorted(slices.Values(after))) {
			t.Errorf("seats of %q, then of %q, want that of the worker that left to be taken, and no other", before, after)
		}
	})
}

// seats are the workers that have one, by seat.
func (f *fleet) seats() (ids []string) {
	for seat := range f.config.Workers {
		id, _, _ := strings.Cut(f.server.HGet(key, fmt.Sprintf("s%d", seat)), " ")
		ids = append(ids, id)
	}
	return ids
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
			inBubble(t, func(t *testing.T) {
				f := newFleet(t, generator(t, 7), 1, budget.Queue())
				f.clients[0].AddHook(tt.hook)
				f.told.take()
				f.join()
				all := f.told.take()
				if tt.want == "" && len(all) > 0 || tt.want != "" && (len(all) != 1 || !errors.Is(all[0], redisbudget.ErrEvicting) || !strings.Contains(all[0].Error(), tt.want)) {
					t.Errorf("reports %v, want %q", all, tt.want)
				}
			})
		})
	}
}

// TestLeasesOfALateAnswerAreOfUse answers after the patience, with leases.
func TestLeasesOfALateAnswerAreOfUse(t *testing.T) {
	onFleet(t, 8, 1, budget.Mesh(), func(t *testing.T, f *fleet) {
		f.lease(0, 8)
		f.pass(10 * time.Second) // they are past
		f.clients[0].AddHook(hook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			time.Sleep(2 * patience)
			return next(ctx, cmd)
		}))
		f.withdraw(0)
		if s := f.statusOf(0); s.Fleet || s.Leased != 0 {
			t.Errorf("status %+v, want no leases before the answer", s)
		}
		time.Sleep(2 * patience)
		synctest.Wait()
		if s := f.statusOf(0); s.Fleet || s.Leased == 0 {
			t.Errorf("status %+v, want leases although the answer was late", s)
		}
	})
}

// TestSlowServer stops the answers, in virtual time: Withdraw waits for the
// patience once, and not at all from then on, also for a call of its own.
func TestSlowServer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		server := newServer(t)
		var slow time.Duration
		var mu sync.Mutex
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: server.dial, MaxRetries: -1})
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
		b, err := redisbudget.New(client, redisbudget.Config{Name: "payments", Budget: budget.Config{Share: 0.1, Floor: 100}, Workers: 10, OnError: told.add})
		if err != nil {
			t.Fatal(err)
		}
		join := func() {
			t.Helper()
			for range 60 {
				now := time.Now()
				server.SetTime(now)
				b.Deposit(now, 1)
				synctest.Wait()
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
		if got := burst(); got != patience {
			t.Errorf("with a slow server, the longest Withdraw took %v, want %v", got, patience)
		}
		if got := burst(); got != 0 {
			t.Errorf("the longest Withdraw took %v after that, want no wait", got)
		}
		if s := b.Status(time.Now()); s.Fleet || !errors.Is(s.Err, redisbudget.ErrSlow) {
			t.Errorf("status %+v, want ErrSlow", s)
		}
		time.Sleep(2 * time.Second) // more than the call takes
		burst()                     // has it try again
		time.Sleep(time.Second)
		if all := told.take(); len(all) != 1 || !errors.Is(all[0], redisbudget.ErrSlow) {
			t.Errorf("reports %v, want ErrSlow once", all)
		}
		delay(0)
		join()
		if s := b.Status(time.Now()); !s.Fleet || s.Err != nil {
			t.Errorf("status %+v after the server is fast again", s)
		}
	})
}

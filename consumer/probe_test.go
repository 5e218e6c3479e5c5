package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/breaker"
)

// While a guard is closed, what has not failed before is tried first, and
// nothing twice in a row as long as others wait.
func TestProbesTakeTurns(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		broker := memory.New(memory.Options{})
		flood(t, broker, "orders", 15)
		d := &dependency{down: unavailable}
		var seen recorder
		cfg := quiet()
		cfg.HoldLimit, cfg.Observers = hold, []consumer.Observer{&seen}
		w := start(t, broker, cfg, d.register("orders"))
		time.Sleep(10 * time.Minute)
		if len(seen.of(consumer.EventPaused)) != 1 {
			t.Fatalf("paused %d times, want once", len(seen.of(consumer.EventPaused)))
		}
		fresh := time.Now()
		publish(t, broker, "orders", "new-1", "new-2", "new-3", "new-4", "new-5")
		time.Sleep(10 * time.Minute)
		probes := d.since(fresh)
		isNew := func(body string) bool { return strings.HasPrefix(body, "new") }
		first := 0 // one may have been under way
		for i, body := range probes {
			if i > 0 && probes[i-1] == body {
				t.Errorf("probe %d is of message %s again, which failed just before", i, body)
			}
			if i < 6 && isNew(body) {
				first++
			}
		}
		if first != 5 {
			t.Errorf("%d of the 5 new messages are among the first probes: %q", first, probes[:6])
		}
		uncounted(t, &seen, 10)
		var counted, probed int
		for _, e := range seen.of(consumer.EventFailed) {
			if e.Decision.Counted {
				counted++
			} else {
				probed++
			}
		}
		if counted > 30 || probed < 40 {
			t.Errorf("%d failures counted and %d not, want those that closed the guard, and no probe", counted, probed)
		}
		d.set(nil)
		time.Sleep(time.Hour)
		w.mustShutdown()
		if d.done() != 20 || broker.Len("orders.dead") != 0 {
			t.Errorf("%d of 20 served, %d dead", d.done(), broker.Len("orders.dead"))
		}
	})
}

// Five messages that always fail, beside a good one a minute: the good ones show
// that the failures are their own.
func TestMessagesThatAlwaysFailEndBesideGoodOnes(t *testing.T) {
	whereHeld(t, func(t *testing.T, hold time.Duration) {
		broker := memory.New(memory.Options{})
		publish(t, broker, "orders", "bad-1", "bad-2", "bad-3", "bad-4", "bad-5")
		sent := map[string]time.Time{}
		d := &dependency{}
		cfg := quiet()
		cfg.HoldLimit = hold
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			if strings.HasPrefix(string(m.Body), "bad") {
				return errors.New("no such column")
			}
			return d.handle(ctx, m)
		}))
		for i := range 12 * 60 {
			time.Sleep(time.Minute)
			body := fmt.Sprint("good-", i)
			sent[body] = time.Now()
			publish(t, broker, "orders", body)
		}
		time.Sleep(time.Minute)
		w.mustShutdown()
		for body, at := range sent {
			if wait := d.served[body].Sub(at); wait < 0 || wait > time.Minute {
				t.Errorf("%s was served after %v, want a minute at most", body, wait)
			}
		}
		letters := deadLetters(t, broker, "orders")
		for _, letter := range letters {
			if letter.Meta.Attempt != 6 || letter.Reason != "unclassified" {
				t.Errorf("%s is dead by %q after %d attempts, want the 6 of class unknown", letter.Message.Body, letter.Reason, letter.Meta.Attempt)
			}
		}
		if len(letters) != 5 {
			t.Errorf("%d of the 5 bad messages are dead after twelve hours", len(letters))
		}
	})
}

// A failed probe counts if another message has succeeded since its own last
// failure, and only then.
func TestProbeCountsInContrast(t *testing.T) {
	for _, contrast := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			guard := must(breaker.New(breaker.Config{}))
			var seen recorder
			cfg := quiet()
			cfg.Guard.Breaker, cfg.Retry, cfg.Observers = guard, every(time.Minute, 9), []consumer.Observer{&seen}
			w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
				if string(m.Body) == "bad" {
					return classify.Transient(errBusy)
				}
				return nil
			}))
			publish(t, broker, "orders", "bad")
			time.Sleep(10 * time.Second)
			if contrast {
				publish(t, broker, "orders", "good")
			}
			time.Sleep(10 * time.Second)
			guard.Trip(time.Now(), "by hand", 0)
			guard.Restore(time.Now())
			time.Sleep(time.Minute)
			w.mustShutdown()
			failed := seen.of(consumer.EventFailed)
			if len(failed) != 2 || !failed[0].Decision.Counted || failed[1].Decision.Counted != contrast || guard.Snapshot(time.Now()).Openings != 2 {
				t.Errorf("contrast %v: %d failures %+v, want a counted one and a probe that counts so", contrast, len(failed), failed)
			}
		})
	}
}

// Where nothing ever succeeds, only their age ends messages.
func TestProbesEndMessagesOnlyByTheirAge(t *testing.T) {
	for name, fail := range map[string]error{
		"unknown":   errors.New("no such column"),
		"transient": classify.Transient(errBusy),
		"poison":    classify.Permanent(errBusy),
	} {
		bubble(t, name, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			guard := must(breaker.New(breaker.Config{}))
			guard.Trip(time.Now(), "by hand", 0)
			publish(t, broker, "orders", "one", "two", "three")
			d := &dependency{down: func() error { return fail }}
			began := time.Now()
			cfg := quiet()
			cfg.Guard.Breaker, cfg.Retry.MaxAge = guard, 4*time.Hour // a day takes long to simulate
			w := start(t, broker, cfg, d.register("orders"))
			time.Sleep(3 * time.Hour)
			if n := broker.Len("orders"); n != 3 {
				t.Errorf("%d of 3 messages are left after three hours", n)
			}
			time.Sleep(3 * time.Hour)
			w.mustShutdown()
			letters := deadLetters(t, broker, "orders")
			for _, letter := range letters {
				age := letter.DeadAt.Sub(began)
				if letter.Reason != "expired" || letter.Meta.Attempt != 0 || age > 4*time.Hour+10*time.Minute || age < 3*time.Hour {
					t.Errorf("%s is dead by %q after %d attempts and %v, want it expired after four hours", letter.Message.Body, letter.Reason, letter.Meta.Attempt, age)
				}
			}
			if len(letters) != 3 {
				t.Errorf("%d dead letters, want 3", len(letters))
			}
		})
	}
}

// A message that fails alone ends after its attempts: too few runs to close a
// guard.
func TestSingleMessageEndsAfterItsAttempts(t *testing.T) {
	for name, tt := range map[string]struct {
		err      error
		attempts int
	}{
		"transient": {classify.Transient(errBusy), 10},
		"unknown":   {errors.New("no such column"), 6},
		"timeout":   {context.DeadlineExceeded, 10},
	} {
		t.Run(name, func(t *testing.T) {
			whereHeld(t, func(t *testing.T, hold time.Duration) {
				attempts, m, _ := failures(t, hold, retry.Policy{}, func(int) error { return tt.err })
				if len(attempts) != tt.attempts || m.Attempt != tt.attempts {
					t.Errorf("attempts %v, want %d", attempts, tt.attempts)
				}
			})
		})
	}
}

// What may have had its effect is not repeated where that is asked for, even if
// the run was a probe.
func TestNoRepeat(t *testing.T) {
	for _, tt := range []struct {
		name          string
		config, topic bool
		probe         bool
		fails         []error
		runs          int
		reason        string
	}{
		{"on the topic", false, true, false, []error{context.DeadlineExceeded, nil}, 1, "ambiguous"},
		{"for all", true, false, false, []error{context.DeadlineExceeded, nil}, 1, "ambiguous"},
		{"as a probe", true, false, true, []error{context.DeadlineExceeded, nil}, 1, "ambiguous"},
		{"after failures without effect", true, true, false, []error{errBusy, errBusy, context.DeadlineExceeded, nil}, 3, "ambiguous"},
		{"without effect", true, true, false, []error{errBusy, nil}, 2, ""},
		{"by default", false, false, false, []error{context.DeadlineExceeded, context.DeadlineExceeded, context.DeadlineExceeded, nil}, 4, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			whereHeld(t, func(t *testing.T, hold time.Duration) {
				broker := memory.New(memory.Options{})
				publish(t, broker, "orders", "one")
				cfg := quiet()
				cfg.NoRepeat, cfg.HoldLimit, cfg.Retry = tt.config, hold, every(time.Second, 9)
				if tt.probe {
					cfg.Guard.Breaker = must(breaker.New(breaker.Config{}))
					cfg.Guard.Breaker.Trip(time.Now(), "by hand", 0)
				}
				runs := 0
				w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
					runs++
					return tt.fails[runs-1]
				}, consumer.Topic{NoRepeat: tt.topic}))
				time.Sleep(time.Hour)
				w.mustShutdown()
				reason := ""
				if broker.Len("orders.dead") > 0 {
					reason = oneDeadLetter(t, broker, "orders").Reason
				}
				if runs != tt.runs || reason != tt.reason {
					t.Errorf("%d runs, reason %q, want %d and %q", runs, reason, tt.runs, tt.reason)
				}
			})
		})
	}
}

// While a probe may still be running, and be it for longer than breakers
// usually wait, no other one starts.
func TestProbeMayTakeAsLongAsAHandler(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Minute} { // of the others
		synctest.Test(t, func(t *testing.T) {
			broker := memory.New(memory.Options{})
			flood(t, broker, "orders", 200)
			var mu sync.Mutex
			slow, under, most := false, 0, 0
			cfg := quiet()
			cfg.HandlerTimeout = timeout
			w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
				mu.Lock()
				wait := slow
				if under++; wait {
					most = max(most, under)
				}
				mu.Unlock()
				if wait {
					select {
					case <-ctx.Done():
					case <-time.After(4 * time.Minute):
					}
				}
				mu.Lock()
				under--
				mu.Unlock()
				return unavailable()
			}, consumer.Topic{HandlerTimeout: 5 * time.Minute}))
			time.Sleep(time.Second)
			mu.Lock()
			slow = true
			mu.Unlock()
			time.Sleep(20 * time.Minute)
			mu.Lock()
			if most != 1 {
				t.Errorf("%d probes at once, want 1", most)
			}
			mu.Unlock()
			w.mustShutdown()
		})
	}
}

// A probe whose handler never returns keeps its slot, and not the others from
// theirs: after its time, another message is tried.
func TestProbeThatNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		d := &dependency{down: func() error { return errDisk }}
		flood(t, broker, "orders", 20)
		release := make(chan struct{})
		cfg := quiet()
		cfg.Rules = []classify.Rule{verdicts}
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			if string(m.Body) == "stuck" {
				<-release
			}
			return d.handle(ctx, m)
		}))
		time.Sleep(time.Second)
		publish(t, broker, "orders", "stuck") // the next probe
		d.set(nil)
		time.Sleep(20 * time.Minute)
		if d.done() != 20 {
			t.Errorf("%d of 20 served twenty minutes after a probe that never returns", d.done())
		}
		close(release)
		time.Sleep(time.Minute)
		w.mustShutdown()
		empty(t, broker, "orders", "orders.dead")
	})
}

// The same if nothing waits in the process, so that only the source can bring
// the next one to try.
func TestProbeThatNeverReturnsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := memory.New(memory.Options{})
		d := &dependency{down: func() error { return classify.Permanent(errBusy) }}
		flood(t, broker, "orders", 20)
		release := make(chan struct{})
		cfg := quiet()
		w := start(t, broker, cfg, func(c *consumer.Consumer) {
			c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
				if string(m.Body) == "stuck" {
					<-release
				}
				return d.handle(ctx, m)
			})
			c.Handle("mails", func(context.Context, *brokers.Message) error { return nil })
		})
		time.Sleep(time.Second)
		if n := broker.Len("orders.dead"); n != 20 {
			t.Fatalf("%d of 20 are poison", n)
		}
		publish(t, broker, "orders", "stuck") // the next probe
		d.set(nil)
		time.Sleep(3 * time.Minute)
		publish(t, broker, "mails", "one") // so that the source is told what to pause
		time.Sleep(time.Second)
		publish(t, broker, "orders", "new")
		time.Sleep(20 * time.Minute)
		if d.done() != 1 {
			t.Error("nothing is served twenty minutes after a probe that never returns")
		}
		close(release)
		time.Sleep(time.Minute)
		w.mustShutdown()
		empty(t, broker, "orders")
	})
}

// Messages that wait for a guard go back to the broker before their lease
// becomes too short for a run, also while a probe is out, and each runs once.
func TestWaitingForAGuardAsLongAsTheLeaseLasts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		probe time.Duration // 0 if the guard is isolated
		back  int           // to the broker
	}{{"isolated", 0, 4}, {"a long probe", 55 * time.Second, 3}, {"a probe", 30 * time.Second, 0}} {
		bubble(t, tt.name, func(t *testing.T) {
			broker := newTap(memory.Options{MaxLease: 2 * time.Minute})
			guard := must(breaker.New(breaker.Config{Lease: 2 * time.Minute}))
			flood(t, broker.Broker, "orders", 6)
			release := make(chan struct{})
			var mu sync.Mutex
			runs := map[string]int{}
			cfg := quiet()
			cfg.Guard.Breaker, cfg.Concurrency, cfg.Prefetch = guard, 2, 4
			cfg.HandlerTimeout, cfg.Lease = time.Minute, 20*time.Second
			var seen recorder
			cfg.Observers = []consumer.Observer{&seen}
			w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
				mu.Lock()
				runs[string(m.Body)]++
				n := len(runs)
				mu.Unlock()
				switch <-release; {
				case n == 3:
					time.Sleep(tt.probe)
				case n > 3:
					time.Sleep(5 * time.Second)
				}
				return nil
			}))
			time.Sleep(time.Second)
			if tt.probe == 0 {
				guard.Isolate(time.Now(), "by hand")
			} else {
				guard.Trip(time.Now(), "by hand", 1)
			}
			close(release)
			time.Sleep(64 * time.Second)
			if retried := broker.of("retry"); len(retried) != tt.back {
				t.Errorf("%d were sent back to the broker, want the %d that the lease would not last for", len(retried), tt.back)
			}
			if n := len(seen.of(consumer.EventHeld)); n > 4*2*65 {
				t.Errorf("4 messages were held %d times in 65 s, want twice a second each at most", n)
			}
			guard.Restore(time.Now())
			time.Sleep(time.Hour)
			w.mustShutdown()
			for body, n := range runs {
				if n != 1 {
					t.Errorf("%s ran %d times, want once", body, n)
				}
			}
			if len(runs) != 6 {
				t.Errorf("%d of 6 served in the end", len(runs))
			}
			for _, c := range broker.of("retry") {
				if c.meta.Attempt != 0 {
					t.Errorf("%s was counted", c.body)
				}
			}
		})
	}
}

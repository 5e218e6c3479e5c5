package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
)

func TestLeaseOfASlowHandlerIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Lease: 5 * time.Second})
		publish(t, broker.Broker, "orders", "slow", "queued")
		cfg := quiet()
		cfg.Concurrency = 1
		d := newDiary()
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			d.write("run %s", m.Body)
			time.Sleep(2 * time.Minute)
			return ctx.Err()
		}))
		time.Sleep(time.Minute)
		for _, r := range broker.Records("orders") {
			if left := time.Until(r.LeaseUntil); r.Abandoned != 0 || left < time.Second {
				t.Errorf("%s: lease ran out %d times, %v left", r.Message.Body, r.Abandoned, left)
			}
		}
		w.stopAfter(10 * time.Minute)
		d.expect(t, "0s run slow", "2m0s run queued")
		empty(t, broker.Broker, "orders")
	})
}

func TestLostLeaseEndsTheHandlerAndItsResult(t *testing.T) {
	for name, result := range map[string]error{"success": nil, "failure": errBusy} {
		synctest.Test(t, func(t *testing.T) {
			broker := newTap(memory.Options{Lease: 5 * time.Second, Fault: on(memory.Extend, 1, memory.Fault{Lost: true})})
			publish(t, broker.Broker, "orders", "one")
			cfg := quiet()
			seen := record(&cfg)
			var runs atomic.Int32
			w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
				if runs.Add(1) > 1 {
					return nil
				}
				<-ctx.Done()
				if cause := context.Cause(ctx); !errors.Is(cause, brokers.ErrLeaseLost) || !errors.Is(ctx.Err(), context.Canceled) {
					t.Errorf("the context ended with %v because of %v, want ErrLeaseLost", ctx.Err(), cause)
				}
				time.Sleep(time.Minute) // the second delivery is settled meanwhile
				return result
			}))
			w.stopAfter(10 * time.Minute)
			if runs.Load() != 2 {
				t.Errorf("%s: %d runs, want 2", name, runs.Load())
			}
			calls := broker.of("ack", "retry", "release")
			if len(calls) != 1 || calls[0].what != "ack" || calls[0].at > 10*time.Second {
				t.Errorf("%s: settlements %+v, want only that of the second delivery", name, calls)
			}
			lost := seen.of(consumer.EventLeaseLost)
			if len(lost) != 1 || !errors.Is(lost[0].Err, brokers.ErrLeaseLost) || len(seen.of(consumer.EventFailed)) != 0 {
				t.Errorf("%s: events %v, want one lease-lost and no failure", name, seen.kinds())
			}
			empty(t, broker.Broker, "orders", "orders.dead")
		})
	}
}

// starving is an observer that keeps the keeper of leases for an hour, as if
// that got no processor, from the first lease that it loses.
type starving struct {
	recorder
	starved atomic.Bool
}

func (s *starving) Observe(ctx context.Context, e consumer.Event) {
	s.recorder.Observe(ctx, e)
	if e.Kind == consumer.EventLeaseLost && e.Topic == "bait" && s.starved.CompareAndSwap(false, true) {
		time.Sleep(time.Hour)
	}
}

// bait is held for its retry when its lease is over, which the keeper loses.
func bait(c *consumer.Consumer) {
	policy := every(1500*time.Millisecond, 3)
	c.HandleWith("bait", func(context.Context, *brokers.Message) error {
		time.Sleep(29 * time.Second)
		return errBusy
	}, consumer.TopicConfig{Retry: &policy})
}

// Everything that is received at 20s may be somebody else's at 50s, and was
// delivered again by then. Here it is this worker that gets it.
func TestNothingStartsAfterItsLease(t *testing.T) {
	message := func(key, body string) brokers.Message { return brokers.Message{Key: key, Body: []byte(body)} }
	for name, tt := range map[string]struct {
		set   func(*consumer.Config)
		batch bool
		early []brokers.Message // published at 20s
		want  []string
	}{
		"prefetched": {
			set:   func(cfg *consumer.Config) { cfg.Concurrency = 1 },
			early: []brokers.Message{message("", "slow"), message("", "late")},
			want:  []string{"20s slow", "1m0s slow", "1m0s late", "1m0s good"},
		},
		"behind its key": {
			set:   func(cfg *consumer.Config) { cfg.OrderByKey = true },
			early: []brokers.Message{message("k", "slow"), message("k", "late")},
			want:  []string{"20s slow", "55s good", "1m0s slow", "1m0s late"},
		},
		"held for its retry": {
			set:   func(cfg *consumer.Config) { cfg.Retry = every(time.Second, 3) },
			early: []brokers.Message{message("", "failing late")},
			want:  []string{"20s failing late", "50s failing late", "55s good"},
		},
		"in a batch": {
			batch: true,
			early: []brokers.Message{message("", "late")},
			want:  []string{"1m0s late", "1m0s good"},
		},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := newTap(memory.Options{Lease: 30 * time.Second,
				Fault: on(memory.Extend, 1000, memory.Fault{Err: errors.New("i/o timeout")})})
			cfg := quiet()
			if tt.set != nil {
				tt.set(&cfg)
			}
			var seen starving
			cfg.Observers = []consumer.Observer{&seen}
			publish(t, broker.Broker, "bait", "bait") // its lease is over at 30s
			d := newDiary()
			var ran sync.Map
			handle := func(ctx context.Context, m *brokers.Message) error {
				d.write("%s", m.Body)
				if _, again := ran.LoadOrStore(string(m.Body), true); again {
					return nil
				}
				switch string(m.Body) {
				case "slow":
					time.Sleep(40 * time.Second)
				case "failing late":
					time.Sleep(29500 * time.Millisecond)
					return errBusy
				}
				return nil
			}
			w := start(t, broker, cfg, func(c *consumer.Consumer) {
				bait(c)
				if !tt.batch {
					c.Handle("orders", handle)
					return
				}
				c.HandleBatch("orders", func(ctx context.Context, batch []brokers.Item) []error {
					for _, item := range batch {
						_ = handle(ctx, item.Message)
					}
					return nil
				}, consumer.TopicConfig{BatchSize: 10, BatchWait: 40 * time.Second})
			})
			time.Sleep(20 * time.Second)
			send(t, broker.Broker, "orders", tt.early...)
			time.Sleep(35 * time.Second)
			publish(t, broker.Broker, "orders", "good")
			time.Sleep(5 * time.Minute)
			d.expect(t, tt.want...)
			late := func(body string) bool { return strings.HasSuffix(body, "late") }
			var lost, settled int
			for _, e := range seen.of(consumer.EventLeaseLost) {
				if !late(body(e)) {
					continue
				}
				lost++
				if !errors.Is(e.Err, brokers.ErrLeaseLost) || !strings.Contains(e.Err.Error(), "the lease ran out before it could be extended") {
					t.Errorf("the lease was lost because of %v, want ErrLeaseLost, because it ran out", e.Err)
				}
			}
			for _, c := range broker.of("ack", "retry", "release") {
				if late(c.body) {
					settled++
				}
			}
			if lost != 1 || settled != 1 {
				t.Errorf("%d leases were lost, and %d settlements sent, want one of each: the second delivery is settled", lost, settled)
			}
			empty(t, broker.Broker, "orders", "orders.dead")
			w.stop()
			<-w.done // an observer has kept the keeper
		})
	}
}

// A machine that was suspended may count nothing of that: then only the wall
// clock says that a lease is over. In a bubble there is no other.
func TestLeaseThatOnlyTheWallClockEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		session context.Context
		want    string
	}{
		"held by time alone": {session: nil, want: "lost"},
		"held by a session":  {session: t.Context(), want: "run"},
	} {
		t.Run(name, func(t *testing.T) {
			broker := newTap(memory.Options{})
			broker.deliver = func(d *brokers.Delivery) {
				d.Session, d.LeaseUntil = tt.session, beforeStep(d.LeaseUntil, time.Hour)
			}
			publish(t, broker.Broker, "orders", "one")
			came := make(chan string, 1)
			cfg := quiet()
			cfg.Observers = []consumer.Observer{observing(func(e consumer.Event) {
				if e.Kind == consumer.EventLeaseLost {
					came <- "lost"
				}
			})}
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				came <- "run"
				return nil
			}))
			if got := <-came; got != tt.want {
				t.Errorf("the message was %s, want %s", got, tt.want)
			}
			w.mustShutdown()
		})
	}
}

// beforeStep is t as it would be had it been read before the wall clock went
// forward by step. No function of package time parts the two readings.
func beforeStep(t time.Time, step time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t)) // seconds above 30 bits of nanoseconds, if t has both readings
	*wall -= uint64(step/time.Second) << 30
	return t
}

// One goes on to run, one waits for the only slot, one is held, and one waits
// behind its key when the session that they came in ends.
func TestEndOfASessionLosesWhatCameInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Lease: time.Hour})
		session, end := context.WithCancelCause(context.Background())
		broker.deliver = func(d *brokers.Delivery) { d.Session = session }
		for _, m := range []brokers.Message{
			{Body: []byte("held")}, {Body: []byte("running"), Key: "k"}, {Body: []byte("behind"), Key: "k"}, {Body: []byte("queued")},
		} {
			send(t, broker.Broker, "orders", m)
		}
		cfg := quiet()
		seen := record(&cfg)
		cfg.OrderByKey = true
		cfg.Concurrency, cfg.Prefetch, cfg.HoldLimit, cfg.Retry = 1, 5, time.Hour, every(10*time.Minute, 3)
		d := newDiary()
		w := start(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
			d.write("run %s", m.Body)
			if string(m.Body) == "held" {
				return errBusy
			}
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, brokers.ErrLeaseLost) || !errors.Is(cause, errChannel) {
				t.Errorf("the context ended because of %v, want ErrLeaseLost and the end of the session", cause)
			}
			return nil
		}))
		time.Sleep(time.Minute)
		end(errChannel)
		time.Sleep(20 * time.Minute)
		d.expect(t, "0s run held", "0s run running")
		var lost []string
		for _, e := range seen.of(consumer.EventLeaseLost) {
			lost = append(lost, string(e.Message.Body))
			if !errors.Is(e.Err, brokers.ErrLeaseLost) || !errors.Is(e.Err, errChannel) {
				t.Errorf("%s was lost because of %v", e.Message.Body, e.Err)
			}
		}
		slices.Sort(lost)
		if want := []string{"behind", "held", "queued", "running"}; !slices.Equal(lost, want) {
			t.Errorf("lost %q, want %q", lost, want)
		}
		if calls := broker.of("ack", "retry", "release"); len(calls) != 0 {
			t.Errorf("a stale worker settled: %+v", calls)
		}
		publish(t, broker.Broker, "orders", "room")
		synctest.Wait()
		if n := len(seen.of(consumer.EventReceived)); n != 5 {
			t.Errorf("%d deliveries received, want 5: the lost ones must leave their room", n)
		}
		w.mustShutdown()
	})
}

var errChannel = errors.New("the channel was closed")

// closingSession ends at the very moment that somebody has found it alive.
type closingSession struct {
	context.Context
	end   context.CancelCauseFunc
	asked atomic.Int32
}

func (s *closingSession) Err() error {
	err := s.Context.Err()
	if s.asked.Add(1) == 1 {
		s.end(errChannel)
		time.Sleep(time.Millisecond) // those who watch it are told meanwhile
	}
	return err
}

func TestSessionThatEndsWhileAHandlerStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Lease: time.Hour})
		inner, end := context.WithCancelCause(context.Background())
		session := &closingSession{Context: inner, end: end}
		broker.deliver = func(d *brokers.Delivery) { d.Session = session }
		publish(t, broker.Broker, "orders", "one")
		w := start(t, broker, quiet(), orders(func(ctx context.Context, _ *brokers.Message) error {
			began := time.Now()
			<-ctx.Done()
			if ran, cause := time.Since(began), context.Cause(ctx); ran > time.Second || !errors.Is(cause, brokers.ErrLeaseLost) {
				t.Errorf("the context ended after %v because of %v, want ErrLeaseLost at once", ran, cause)
			}
			return ctx.Err()
		}))
		w.stopAfter(10 * time.Minute)
		if calls := broker.of("ack", "retry", "release"); len(calls) != 0 {
			t.Errorf("a stale worker settled: %+v", calls)
		}
	})
}

// Temporary trouble with extensions is reported, and costs nothing while the
// lease lasts.
func TestFailedExtensionIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Lease: 30 * time.Second, Fault: on(memory.Extend, 1, memory.Fault{Err: errors.New("i/o timeout")})})
		publish(t, broker.Broker, "orders", "one", "two")
		cfg := quiet()
		seen := record(&cfg)
		var runs atomic.Int32
		w := start(t, broker, cfg, orders(func(ctx context.Context, _ *brokers.Message) error {
			runs.Add(1)
			time.Sleep(2 * time.Minute)
			return ctx.Err()
		}))
		w.stopAfter(10 * time.Minute)
		for _, e := range seen.of(consumer.EventError) {
			if e.Operation != "extend" {
				t.Errorf("operation %q failed, want %q", e.Operation, "extend")
			}
		}
		if n := len(seen.of(consumer.EventError)); n != 2 || runs.Load() != 2 {
			t.Errorf("%d errors and %d runs, want 2 and 2", n, runs.Load())
		}
		empty(t, broker.Broker, "orders")
	})
}

// Every extension that the broker confirmed is reported for its message, and no
// other.
func TestExtensionsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{Lease: 30 * time.Second})
		var confirmed, unanswered int
		broker.extend = func(errs []error) []error {
			if unanswered++; unanswered == 1 {
				return []error{} // says nothing of any lease
			}
			confirmed++
			return errs
		}
		publish(t, broker.Broker, "orders", "slow", "quick")
		cfg := quiet()
		seen := record(&cfg)
		w := start(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			if string(m.Body) == "slow" {
				time.Sleep(10 * time.Minute)
			}
			return nil
		}))
		w.stopAfter(20 * time.Minute)
		extended := seen.of(consumer.EventExtended)
		if len(extended) != confirmed || confirmed < 10*60/20 {
			t.Errorf("%d extensions reported, %d confirmed, want the same and one at least every 20 s", len(extended), confirmed)
		}
		for _, e := range extended {
			if body(e) != "slow" || e.Topic != "orders" || e.Attempt != 1 || e.Err != nil || e.Time.IsZero() {
				t.Fatalf("event %+v, want the message whose handler runs", e)
			}
		}
	})
}

// Both happen at one time, on two goroutines.
func TestExtensionFailsAsTheHandlerDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		asked := make(chan struct{})
		var once sync.Once
		broker.extend = func(errs []error) []error {
			once.Do(func() { close(asked) })
			time.Sleep(time.Second)
			return []error{errors.New("i/o timeout")}
		}
		publish(t, broker.Broker, "orders", "one")
		cfg := quiet()
		cfg.Retry = every(time.Hour, 2)
		w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
			<-asked
			time.Sleep(time.Second)
			return errBusy
		}))
		w.stopAfter(time.Minute)
		if got := broker.Records("orders"); len(got) != 1 || got[0].Meta.Attempt != 1 {
			t.Errorf("stored %+v, want the message with one attempt", got)
		}
	})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/store"
)

// worker handles a topic of the shop on its default configuration, until the test
// ends.
type worker struct {
	mu   sync.Mutex
	fate func(id string) error
	runs []string
}

func (w *worker) set(fate func(id string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fate = fate
}

func (w *worker) ran() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.runs)
}

func (w *worker) handle(_ context.Context, m *brokers.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs = append(w.runs, m.ID)
	return w.fate(m.ID)
}

var errBug = classify.Permanent(errors.New("nil pointer: the bug is still there"))

func good(string) error { return nil }
func bad(string) error  { return errBug }

// work starts a worker of a topic, with receipts. What it returns stops it.
func (s *shop) work(broker, topic string) (w *worker, stop func()) {
	s.Helper()
	w = &worker{fate: good}
	c, err := consumer.New(s.brokers[broker], consumer.Config{DeadLetter: "*-dead", Receipts: "receipts", Logger: slog.New(slog.DiscardHandler)})
	must(s, err)
	c.Handle(topic, w.handle)
	ctx, cancel := context.WithCancel(s.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			s.Error(err)
		}
	})
	synctest.Wait()
	return w, func() {
		cancel()
		running.Wait()
	}
}

// dead collects n dead orders.
func (s *shop) dead(broker, topic string, n int) {
	s.Helper()
	var letters []store.Collected
	for i := range n {
		e := died(i%60, topic, "panic", "unknown", "nil pointer")
		e.Message.ID = fmt.Sprintf("%s-%d", topic, i)
		letters = append(letters, store.Collected{Broker: broker, Source: topic + "-dead", Format: "redrive", Raw: e.Encode(0), Entry: e})
	}
	s.withStore(func(st *store.Store) {
		_, err := st.Collect(s.Context(), time.Now(), letters)
		must(s, err)
	})
}

// TestSendIsInterrupted pauses the job, which the printed command goes on with.
func TestSendIsInterrupted(t *testing.T) {
	inShop(t, func(s *shop) {
		s.dead("shop", "orders", 80)
		w, stop := s.work("shop", "orders")
		defer stop()
		ctx, cancel := context.WithTimeoutCause(s.Context(), 3*time.Second, errInterrupted)
		defer cancel()
		got := s.callWith(ctx, "dlq", "send", "--all", "--yes", "--waves", "none", "--without-receipts", "--config", "redrive.yaml", "--rate", "10")
		if got.code != exitInterrupted || !strings.HasPrefix(got.stdout, "Job 1 is paused: ") || !strings.HasSuffix(got.stderr, "interrupted by a test\nGo on with: redrive dlq jobs resume 1 --config redrive.yaml\n") {
			s.Fatalf("%+v", got)
		}
		if n := w.ran(); n == 0 || n > 40 {
			s.Errorf("%d letters ran, want those of 3 s", n)
		}
		if got := s.call("dlq", "jobs", "show", "1", "-o", "json"); !strings.Contains(got.stdout, `"note": "interrupted"`) {
			s.Errorf("%+v", got)
		}
		if got := s.call("dlq", "jobs", "resume", "1", "--config", "redrive.yaml"); got.code != exitOK || !strings.HasPrefix(got.stdout, "Job 1 is done: 80 of 80 moved, 80 confirmed, 0 left\n") {
			s.Errorf("%+v", got)
		}
		if w.ran() != 80 {
			s.Errorf("%d letters ran, want 80", w.ran())
		}
	})
}

// serve has redrive serve work on the jobs of the shop.
func (s *shop) serve() (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	st, err := store.Open(ctx, "letters.db")
	must(s, err)
	c, err := config.Load(config.DefaultFile)
	must(s, err)
	open := func(ctx context.Context, name string) (brokers.Broker, error) { return s.open(ctx, c, name) }
	server := &serve.Server{Config: c, Store: st, Brokers: serve.NewBrokers(open), Owner: "serve", Logger: slog.New(slog.DiscardHandler)}
	var serving sync.WaitGroup
	serving.Go(func() { server.Follow(ctx, nil, []config.Topic{{Broker: "demo", Receipts: "receipts"}}) })
	serving.Go(func() { _ = server.Runner().Serve(ctx) })
	return func() {
		cancel()
		serving.Wait()
		must(s, st.Close())
	}
}

const killed = "bob@shop-1, process 4711, run K7QXB2"

// leave creates a job over all letters. Its process was killed a moment ago,
// and had queued some letters that it did not send.
func (s *shop) leave(queued int) {
	s.Helper()
	if got := s.call("dlq", "send", "--all", "--yes", "--detach", "--waves", "none", "--without-receipts", "--who", "anna@desk"); got.code != exitOK {
		s.Fatalf("%+v", got)
	}
	s.withStore(func(st *store.Store) {
		l, err := st.Lease(s.Context(), time.Now(), 1, killed, 30*time.Second)
		must(s, err)
		_, _, err = st.Queue(s.Context(), time.Now(), l, queued, func(store.Letter) string { return "" })
		must(s, err)
	})
}

// TestResumeWatches tests that a second command watches a job until the first
// command has finished it.
func TestResumeWatches(t *testing.T) {
	inShop(t, func(s *shop) {
		s.dead("shop", "orders", 100)
		w, stop := s.work("shop", "orders")
		defer stop()
		first := make(chan result)
		go func() {
			first <- s.call("dlq", "send", "--all", "--yes", "--waves", "none", "--without-receipts", "--rate", "10")
		}()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		got := s.call("dlq", "jobs", "resume", "1")
		if one := <-first; one.code != exitOK || got.code != exitOK || got.stdout != one.stdout || w.ran() != 100 {
			s.Errorf("%+v\n%+v after %d runs", one, got, w.ran())
		}
		if said := strings.Join(strings.Fields(got.stderr), " "); !strings.Contains(said, whoami()+", process ") || strings.Contains(said, "goes on with it") {
			s.Errorf("messages %q", said)
		}
		ctx, cancel := context.WithTimeoutCause(s.Context(), time.Second, errInterrupted)
		defer cancel()
		if got := s.callWith(ctx, "dlq", "jobs", "resume", "1"); got.code != exitFailure || !strings.Contains(got.stderr, "job 1 is done") {
			s.Errorf("%+v", got)
		}
	})
}

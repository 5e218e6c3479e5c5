package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
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
	c, err := consumer.New(s.brokers[broker], consumer.Config{DeadLetter: dlq.Suffix("-dead"), Receipts: "receipts", Logger: slog.New(slog.DiscardHandler)})
	s.must(err)
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
		s.must(err)
	})
}

// job returns a job as the command prints it.
func (s *shop) job(id int) jobDoc {
	s.Helper()
	return printed[jobDoc](s, "dlq", "jobs", "show", fmt.Sprint(id))[0]
}

// jobs returns all jobs, the latest first.
func (s *shop) jobs() []jobRow { s.Helper(); return printed[jobRow](s, "dlq", "jobs") }

// printed returns what a command prints as JSON.
func printed[T any](s *shop, args ...string) (rows []T) {
	s.Helper()
	got := s.call(append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(got.stdout), &rows); err != nil || len(rows) == 0 {
		s.Fatalf("%v: %+v", err, got)
	}
	return rows
}

func TestSend(t *testing.T) {
	inShop(t, func(s *shop) {
		s.dead("shop", "orders", 300)
		w, stop := s.work("shop", "orders")
		defer stop()
		s.wants("send_dry_unproven.text", "dlq", "send", "--all", "--dry-run")
		s.refuses(exitFailure, "no receipt was ever seen", "dlq", "send", "--all", "--yes")
		s.wants("send_one.text", "dlq", "send", "1", "--who", "anna@desk")
		if w.ran() != 1 {
			s.Errorf("%d letters were sent, want 1", w.ran())
		}
		s.wants("send_dry.text", "dlq", "send", "--all", "--dry-run")
		s.wants("send_dry.json", "dlq", "send", "--all", "--dry-run", "-o", "json", "--rate", "20", "--waves", "none")
		s.refuses(exitUsage, "About to send 299 letters to orders: add --yes", "dlq", "send", "--all")
		if w.ran() != 1 {
			s.Errorf("dry runs have sent %d letters", w.ran()-1)
		}
		s.wants("send_all.text", "dlq", "send", "--all", "--yes", "--because", "mended", "--who", "anna@desk")
		time.Sleep(time.Hour)
		s.wants("jobs.text", "dlq", "jobs")
		s.wants("jobs_more.text", "dlq", "jobs", "--limit", "1")
		if w.ran() != 300 {
			s.Errorf("%d letters were sent, want 300", w.ran())
		}
		s.refuses(exitFailure, "no letter to send: of those that match, 300 confirmed", "dlq", "send", "--all", "--yes")
		want := []string{"job done 0: job: ", "anna@desk create 0: redrive dlq send --all: mended", "job done 0: job: ", "anna@desk create 0: redrive dlq send 1: "}
		acts := s.acts()
		for i := range acts {
			acts[i] = strings.ReplaceAll(acts[i], whoami()+" ", "job ")
		}
		slices.Sort(acts)
		slices.Sort(want)
		if !slices.Equal(slices.Compact(acts), slices.Compact(want)) {
			s.Errorf("the audit has %q, want %q", acts, want)
		}
	})
}

// TestCanary sends one letter while the bug is still there, and all when it is not.
func TestCanary(t *testing.T) {
	inShop(t, func(s *shop) {
		s.dead("shop", "orders", 101)
		w, stop := s.work("shop", "orders")
		defer stop()
		if got := s.call("dlq", "send", "1"); got.code != exitOK {
			s.Fatalf("%+v", got)
		}
		time.Sleep(time.Second) // no letter changes in the millisecond of the next plan
		w.set(bad)
		s.wants("canary_stops.text", "dlq", "send", "--all", "--yes", "--who", "anna@desk")
		if w.ran() != 2 {
			s.Errorf("%d letters ran before the job paused, want 2", w.ran())
		}
		s.wants("canary_collect.text", "dlq", "collect", "orders")
		s.wants("canary_show.text", "dlq", "jobs", "show", "2")
		s.wants("canary_show.json", "dlq", "jobs", "show", "2", "-o", "json")
		w.set(good)
		s.wants("canary_goes_on.text", "dlq", "jobs", "resume", "2", "--because", "mended", "--who", "anna@desk")
		if doc := s.job(2); doc.State != "done" || doc.Confirmed != 99 || doc.Returned != 1 || w.ran() != 101 {
			s.Errorf("%+v after %d runs", doc.jobRow, w.ran())
		}
		s.wants("canary_rest.text", "dlq", "send", "--all", "--yes", "--who", "anna@desk") // what came back
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
		if doc := s.job(1); doc.Note != "interrupted" {
			s.Errorf("%+v", doc.jobRow)
		}
		if got := s.call("dlq", "jobs", "resume", "1", "--config", "redrive.yaml"); got.code != exitOK || !strings.HasPrefix(got.stdout, "Job 1 is done: 80 of 80 moved, 80 confirmed, 0 left\n") {
			s.Errorf("%+v", got)
		}
		if w.ran() != 80 {
			s.Errorf("%d letters ran, want 80", w.ran())
		}
	})
}

// TestSendElsewhere watches a job on a broker that only redrive serve can reach.
func TestSendElsewhere(t *testing.T) {
	inShop(t, func(s *shop) {
		s.dead("demo", "visits", 5)
		w, stop := s.work("demo", "visits")
		defer stop()
		for _, line := range [][]string{{"dlq", "send", "1"}, {"dlq", "jobs", "resume", "1"}} {
			ctx, cancel := context.WithTimeoutCause(s.Context(), time.Second, errInterrupted)
			got := s.callWith(ctx, line...)
			cancel()
			if got.code != exitInterrupted || w.ran() != 0 || !strings.Contains(got.stderr, "Only redrive serve can reach the broker of job 1: this command watches.\n") ||
				!strings.Contains(got.stderr, "no process works on the job\nGo on with: redrive dlq jobs resume 1\n") {
				s.Errorf("%q: %+v after %d runs", line, got, w.ran())
			}
		}
		if doc := s.job(1); doc.State != "running" {
			s.Errorf("%+v", doc.jobRow)
		}
		s.wants("send_detached.text", "dlq", "send", "2", "3", "--because", "a test", "--detach")
		if got := s.call("dlq", "jobs", "pause", "1"); got.code != exitOK { // or redrive serve is done before somebody watches
			s.Errorf("%+v", got)
		}
		var serving sync.WaitGroup
		ctx, cancel := context.WithCancel(s.Context())
		s.withStore(func(st *store.Store) {
			c, err := config.Load("redrive.yaml")
			s.must(err)
			open := func(ctx context.Context, name string) (brokers.Broker, error) { return s.open(ctx, c, name) }
			server := &serve.Server{Config: c, Store: st, Brokers: serve.NewBrokers(open), Owner: "serve", Logger: slog.New(slog.DiscardHandler)}
			serving.Go(func() { server.Follow(ctx, nil, []config.Topic{{Broker: "demo", Receipts: "receipts"}}) })
			serving.Go(func() { _ = server.Runner().Serve(ctx) })
			s.wants("resume_elsewhere.text", "dlq", "jobs", "resume", "1")
			s.wants("send_elsewhere.text", "dlq", "send", "4", "5", "--because", "a test")
			cancel()
			serving.Wait()
		})
		if w.ran() != 5 {
			s.Errorf("%d letters ran, want 5", w.ran())
		}
	})
}

func TestJobsChange(t *testing.T) {
	inShop(t, func(s *shop) {
		s.dead("shop", "orders", 5)
		_, stop := s.work("shop", "orders")
		defer stop()
		for range 2 {
			s.call("dlq", "send", "1", "2", "--because", "a test", "--detach", "--who", "anna@desk")
		}
		s.wants("jobs_pause_dry.text", "dlq", "jobs", "pause", "1", "--dry-run")
		s.wants("jobs_pause.text", "dlq", "jobs", "pause", "1", "--because", "the bank is slow", "--who", "anna@desk")
		if doc := s.job(1); doc.State != "paused" || doc.Note != "by anna@desk: the bank is slow" {
			s.Errorf("%+v", doc.jobRow)
		}
		s.wants("jobs_resume_dry.text", "dlq", "jobs", "resume", "1", "--dry-run")
		s.wants("jobs_resume_detach.json", "dlq", "jobs", "resume", "1", "--detach", "--who", "anna@desk", "-o", "json")
		s.wants("jobs_cancel.text", "dlq", "jobs", "cancel", "1", "--who", "anna@desk")
		s.session("jobs_refuse")
		if l, _ := s.letter(1); l.State != store.StateCollected {
			s.Errorf("letter 1 is %s", l.State)
		}
	})
}

func TestSendRefuses(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		s.session("send_refuses")
	})
}

// TestSendPartly tells of what was skipped by the exit code.
func TestSendPartly(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		_, stop := s.work("shop", "orders")
		defer stop()
		s.wants("send_partly.text", "dlq", "send", "1", "8", "--because", "a test", "--who", "anna@desk")
	})
}

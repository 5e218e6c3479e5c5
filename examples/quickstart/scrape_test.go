package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redrive-go/redrive/consumer"
)

// TestScrape reads the metrics of a worker that has finished.
func TestScrape(t *testing.T) {
	t.Parallel()
	watch := testStage(t)
	s, err := scrape("127.0.0.1:0", &watch.guard)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	watch.observers = append(watch.observers, s)
	mustWork(t, t.Context(), parseLines(t, "{\"id\":\"a\",\"cents\":5}\nnot an order\n"), watch)
	resp, err := http.Get(s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, error %v", s.url, resp.StatusCode, err)
	}
	for _, want := range []string{
		`retry_attempts_total{class="none",outcome="success",policy="demo",topic="orders"} 1`,
		`redrive_dead_letters_total{reason="undecodable",topic="orders"} 1`,
		`redrive_limit_slots{dependency="bank"} 10`,
		`redrive_budget_deferred_total{dependency="bank"} 0`,
	} {
		if !strings.Contains(string(text), want+"\n") {
			t.Errorf("the metrics lack %s:\n%s", want, text)
		}
	}
}

func TestLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:9090": true, "localhost:9090": true, "[::1]:9090": true,
		":9090": false, "0.0.0.0:9090": false, "10.0.0.1:9090": false, "[::]:9090": false, "9090": false, "": false, "example.com:80": false,
	} {
		if got := loopback(address); got != want {
			t.Errorf("loopback(%q) = %v, want %v", address, got, want)
		}
	}
}

// A file of another format is not turned into dead letters as a whole: the worker
// puts its lines aside, and says why.
func TestAFileOfAnotherFormat(t *testing.T) {
	t.Parallel()
	watch := testStage(t)
	var out lockedBuffer
	watch.view.out = &out
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	watch.observers = append(watch.observers, &whenAside{stop: stop})
	r := mustWork(t, ctx, parseLines(t, strings.Repeat("not an order\n", 1000)), watch)
	if r.DeadLettered != 0 || r.Unfinished != 1000 || !r.OK {
		t.Errorf("%d of 1000 lines dead-lettered, %d unfinished, ok %v; want all of them kept", r.DeadLettered, r.Unfinished, r.OK)
	}
	if want := "practically all messages are poison"; strings.Count(out.String(), want) != 1 {
		t.Errorf("the view does not say %q once:\n%s", want, out.String())
	}
}

// whenAside calls stop when 100 runs were put off because all is poison.
type whenAside struct {
	stop func()
	n    atomic.Int64
}

func (w *whenAside) Observe(_ context.Context, e consumer.Event) {
	if e.Decision.Reason == "poison" && e.Kind == consumer.EventDeferred && w.n.Add(1) == 100 {
		w.stop()
	}
}

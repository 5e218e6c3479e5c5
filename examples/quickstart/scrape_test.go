package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestScrape reads the metrics of a worker that has finished.
func TestScrape(t *testing.T) {
	t.Parallel()
	watch := testStage(t)
	s, err := scrape("127.0.0.1:0", watch.guard)
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
		`redrive_breaker_state{dependency="bank",state="closed"} 1`,
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

// TestAFileOfAnotherFormat must not take long: the worker does not stop.
func TestAFileOfAnotherFormat(t *testing.T) {
	t.Parallel()
	start := time.Now()
	r := mustWork(t, t.Context(), parseLines(t, strings.Repeat("not an order\n", 200)), testStage(t))
	if r.DeadLettered != 200 || time.Since(start) > 20*time.Second {
		t.Errorf("%d of 200 lines dead-lettered in %v, want all of them soon", r.DeadLettered, time.Since(start))
	}
}

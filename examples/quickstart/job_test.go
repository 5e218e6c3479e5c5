package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
)

// testStage is the bad day at twenty times the speed. The rate limit comes last,
// because a Retry-After is in whole seconds, and stops the worker for as long.
func testStage(t *testing.T) stage {
	t.Helper()
	d := badDay()
	d.second /= 20
	d.patience = 250 * time.Millisecond
	d.scenes = []scene{
		{0, healthy}, {3, outage}, {5, healthy}, {6, resetting}, {8, healthy}, {9, slow}, {10, healthy}, {16, limiting}, {19, healthy},
	}
	limiter := flow.New(concurrency, rand.Float64)
	view := newView(io.Discard, false, limiter)
	paces := budget.Queue()
	paces.Floor *= 20
	retries, err := budget.New(paces)
	if err != nil {
		t.Fatal(err)
	}
	return stage{
		day:       d,
		guard:     consumer.Guard{Limiter: limiter, Budget: retries},
		observers: []consumer.Observer{view},
		listen:    bankPort,
		transport: http.DefaultTransport,
		policy:    retry.Policy{MaxAttempts: 50, Backoff: retry.Backoff{Base: 30 * time.Millisecond, Cap: 400 * time.Millisecond}},
		ledger:    newLedger(),
		view:      view,
		logger:    slog.New(slog.DiscardHandler),
	}
}

func parseLines(t *testing.T, text string) []line {
	t.Helper()
	lines, err := split(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func mustWork(t *testing.T, ctx context.Context, lines []line, watch stage) report {
	t.Helper()
	r, err := work(ctx, lines, watch)
	if err != nil {
		t.Fatalf("work: %v", err)
	}
	return r
}

func TestBadDay(t *testing.T) {
	t.Parallel()
	lines, err := readOrders("")
	if err != nil {
		t.Fatal(err)
	}
	r := mustWork(t, t.Context(), lines, testStage(t))
	if !r.OK || r.Lost != 0 || r.Early != 0 || r.Duplicates != 0 || r.Unfinished != 0 {
		t.Errorf("the accounts do not add up: %+v", r)
	}
	if r.Read != 1000 || r.Handled != 982 || r.DeadLettered != 18 {
		t.Errorf("read %d, handled %d, dead-lettered %d, want 1000, 982, 18", r.Read, r.Handled, r.DeadLettered)
	}
	if r.Retried == 0 || sum(r.Attempts) != r.Read || r.Attempts[0] != 0 {
		t.Errorf("retried %d, attempts %v: want some retries, and every order to have run", r.Retried, r.Attempts)
	}
	s := r.Server
	if parts := s.Charged + s.Repeated + s.Declined + s.Rejected + s.Unavailable + s.Limited + s.Reset + s.Slow; parts != s.Requests {
		t.Errorf("the outcomes of requests sum up to %d, want %d", parts, s.Requests)
	}
	checkGroups(t, r)
}

// checkGroups checks what dead letters the built-in orders lead to.
func checkGroups(t *testing.T, r report) {
	t.Helper()
	reasons := map[string]int{}
	fingerprints := map[string]bool{}
	for _, g := range r.Groups {
		reasons[g.Reason] += g.Count
		fingerprints[g.Fingerprint] = true
		if g.Fingerprint == "" || g.Error == "" || (g.Class != "poison") != (g.Reason == "panic") || g.Example.Line == 0 || g.Example.FirstFailed.IsZero() {
			t.Errorf("incomplete group: %+v", g)
		}
		if g.Reason == "panic" && (g.Example.Order != "ord-0025" || g.Example.Attempts < 6) {
			t.Errorf("panic of order %q after %d attempts, want ord-0025 after 6 at least", g.Example.Order, g.Example.Attempts)
		}
	}
	want := map[string]int{"undecodable": 5, "poison": 12, "panic": 1}
	if !maps.Equal(reasons, want) || len(fingerprints) != len(r.Groups) {
		t.Errorf("reasons %v in %d groups of %d fingerprints, want %v", reasons, len(r.Groups), len(fingerprints), want)
	}
	if len(r.Groups) < 2 || r.Groups[0].Count != 8 || r.Groups[1].Count != 4 {
		t.Errorf("the declined cards should be two groups of 8 and 4: %+v", r.Groups)
	}
}

func sum(counts map[int]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// hostile lines each become a dead letter, and harm nobody.
var hostile = []string{
	"\x1b[2J\x1b]0;owned\x07",
	"{\"id\":\"\x1b[31mred\",\"cents\":5}",
	`{"id":"\u001b[31mred\nnew line","cents":-5}`,
	`null`,
	`{}`,
	`"text"`,
	`12`,
	`{"id":"x","cents":1e400}`,
	`{"id":"x","cents":9223372036854775808}`,
	"\xff\xfe\x00",
	strings.Repeat("[", 50_000),
	`{"id":"huge","cents":1,"card":"` + strings.Repeat("x", maxBody) + `"}`,
	`{"id":"bidi` + "\u202e" + `","cents":0}`,
}

func TestHostileLines(t *testing.T) {
	t.Parallel()
	good := []string{`{"id":"twice","cents":5}`, `{"id":"twice","cents":5}`, "", "  ", `{"id":"once","cents":7}`}
	var text []string
	for _, line := range hostile {
		text = append(append(text, line), good...) // or they would be put aside, as all is poison
	}
	lines := parseLines(t, strings.Join(text, "\r\n"))
	r := mustWork(t, t.Context(), lines, testStage(t))
	if want := 3 * len(hostile); r.Read != want+len(hostile) || r.DeadLettered != len(hostile) || r.Handled != want || !r.OK {
		t.Errorf("read %d, dead-lettered %d, handled %d, ok %v; want %d, %d, %d, true",
			r.Read, r.DeadLettered, r.Handled, r.OK, want+len(hostile), len(hostile), want)
	}
	if r.Attempts[0] != 1 {
		t.Errorf("attempts = %v, want one order, the huge one, that never ran", r.Attempts)
	}
	for _, c := range r.text() {
		if c != '\n' && !unicode.IsPrint(c) {
			t.Errorf("the report contains %U, which could steer a terminal", c)
		}
	}
}

// spoiled sends requests on after spoil has changed them, or answers them
// itself if spoil returns false.
func spoiled(spoil func(*http.Request) bool) http.RoundTripper {
	return tapped(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		if spoil(r) {
			return http.DefaultTransport.RoundTrip(r)
		}
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	})
}

// TestPlantedBugs shows that the report would tell.
func TestPlantedBugs(t *testing.T) {
	t.Parallel()
	var input strings.Builder
	for n := range 40 {
		fmt.Fprintf(&input, "{\"id\":\"o-%d\",\"cents\":5}\n", n)
	}
	lines := parseLines(t, input.String())
	var requests atomic.Int64
	tests := []struct {
		name   string
		scenes []scene
		spoil  func(*http.Request) bool
		check  func(r report) bool
	}{
		{"a key of its own for every run", []scene{{0, resetting}, {4, healthy}}, func(r *http.Request) bool {
			r.Header.Set("Idempotency-Key", fmt.Sprint("run-", requests.Add(1)))
			return true
		}, func(r report) bool { return r.Duplicates > 0 && r.Lost == 0 && r.Handled == 40 }},
		{"an order reported as charged that was not", nil, func(r *http.Request) bool {
			return r.Header.Get("Idempotency-Key") != "line-7"
		}, func(r report) bool {
			return r.Lost == 1 && r.Handled == 39 && slices.Equal(r.LostLines, []int{7})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			watch := testStage(t)
			watch.day.scenes, watch.transport = tt.scenes, spoiled(tt.spoil)
			r := mustWork(t, t.Context(), lines, watch)
			if r.OK || !tt.check(r) {
				t.Errorf("not found, or not for what it is: %+v", r)
			}
			if !strings.Contains(r.text(), "BROKEN") {
				t.Errorf("the report does not say so:\n%s", r.text())
			}
		})
	}
}

func TestInterruption(t *testing.T) {
	t.Parallel()
	lines, err := readOrders("")
	if err != nil {
		t.Fatal(err)
	}
	watch := testStage(t)
	ctx, cancel := context.WithTimeout(t.Context(), watch.day.seconds(5)) // in the outage
	defer cancel()
	r := mustWork(t, ctx, lines, watch)
	if !r.OK || r.Unfinished == 0 || r.Handled+r.DeadLettered+r.Unfinished != r.Read {
		t.Errorf("handled %d + dead %d + unfinished %d of %d, ok %v: want all of them, some unfinished",
			r.Handled, r.DeadLettered, r.Unfinished, r.Read, r.OK)
	}
	if text := r.text(); !strings.Contains(text, "Interrupted") || !strings.Contains(text, "unfinished") {
		t.Errorf("the report does not mention the interruption:\n%s", text)
	}
}

// lockedBuffer may be written to by several goroutines, like a file.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func TestCommandJSON(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "mine.jsonl")
	if err := os.WriteFile(file, []byte("{\"id\":\"a\",\"cents\":5}\nnot an order\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	var stderr lockedBuffer
	if code := command(t.Context(), []string{"-json", "-log", "-orders", file}, &stdout, &stderr); code != exitOK {
		t.Fatalf("exit code %d, want %d; standard error:\n%s", code, exitOK, stderr.String())
	}
	decoder := json.NewDecoder(&stdout)
	var got map[string]any
	if err := decoder.Decode(&got); err != nil {
		t.Fatalf("standard output is not JSON: %v", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		t.Errorf("standard output has more than one object (error %v)", err)
	}
	for key, want := range map[string]any{
		"ok": true, "read": 2.0, "handled": 1.0, "dead_lettered": 1.0, "retried": 0.0, "lost": 0.0, "early": 0.0, "duplicates": 0.0,
	} {
		if got[key] != want {
			t.Errorf("%s = %v, want %v", key, got[key], want)
		}
	}
	if attempts, ok := got["attempts"].(map[string]any); !ok || attempts["1"] != 2.0 {
		t.Errorf("attempts = %v, want {1: 2}", got["attempts"])
	}
	if groups, _ := got["groups"].([]any); len(groups) != 1 {
		t.Errorf("groups = %v, want one", got["groups"])
	}
	for _, want := range []string{"2 orders from mine.jsonl", "handled 1", "worker started"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("standard error lacks %q:\n%s", want, stderr.String())
		}
	}
}

func TestCommandUsage(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	tests := []struct {
		name string
		args []string
		code int
		want string // on standard error
	}{
		{"help", []string{"-h"}, exitOK, "Usage"},
		{"unknown flag", []string{"-fast"}, exitUsage, "-fast"},
		{"no such file", []string{"-orders", filepath.Join(dir, "none")}, exitUsage, "cannot read the orders"},
		{"long line", []string{"-orders", write("long", "{}\n"+strings.Repeat("x", maxLine+1))}, exitUsage, "line 2 is longer than"},
		{"argument", []string{"orders.jsonl"}, exitUsage, `unexpected argument "orders.jsonl"`},
		{"directory", []string{"-orders", dir}, exitUsage, "cannot read the orders"},
		{"empty file", []string{"-orders", write("empty", "\n\n")}, exitUsage, "no orders"},
		{"metrics nowhere", []string{"-metrics", "127.0.0.1:99999"}, exitUsage, "cannot serve metrics"},
		{"metrics for everybody", []string{"-metrics", ":9090"}, exitUsage, "not an address of this machine alone"},
		{"too many lines", []string{"-orders", write("many", strings.Repeat("{}\n", maxLines+1))}, exitUsage, "more than 100000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := command(t.Context(), tt.args, &stdout, &stderr); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if !strings.Contains(stderr.String(), tt.want) || stdout.Len() > 0 {
				t.Errorf("standard error %q lacks %q, or standard output %q is not empty", stderr.String(), tt.want, stdout.String())
			}
		})
	}
}

// brokenPipe is a standard output that nobody reads.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestPublishReportsAWriteError(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		if err := publish(report{Attempts: map[int]int{1: 1}}, asJSON, brokenPipe{}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("publish(json %v) = %v, want %v", asJSON, err, io.ErrClosedPipe)
		}
	}
}

package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/health"
)

const testToken = "the token of all workers"

// puppet is a worker that notes what it is asked for.
type puppet struct {
	paused []health.ByHand
	asked  []string
	err    error
}

func (p *puppet) Status() health.Status {
	return health.Status{At: time.Now(), State: health.Running, ByHand: p.paused}
}

func (p *puppet) note(format string, args ...any) error {
	p.asked = append(p.asked, fmt.Sprintf(format, args...))
	return p.err
}

func (p *puppet) Pause(b health.ByHand) error {
	b.Since = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	p.paused = append(p.paused, b)
	return p.note("pause %s%s%s by %s: %s", b.Topic, b.Dependency, b.Tenant, b.By, b.Why)
}

func (p *puppet) Resume(b health.ByHand) error {
	p.paused = nil
	return p.note("resume %s%s%s", b.Topic, b.Dependency, b.Tenant)
}
func (p *puppet) Skip(topic, id, why string) error { return p.note("skip %s %s: %s", topic, id, why) }
func (p *puppet) Drain() error                     { return p.note("drain") }

// fleet serves workers, which are named w1, w2 and so on in what the command prints.
func fleet(t *testing.T, handlers ...http.Handler) (ask func(args ...string) result) {
	var words []string
	var addresses []string
	for i, h := range handlers {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		address := strings.TrimPrefix(server.URL, "http://")
		addresses = append(addresses, address)
		words = append(words, address, fmt.Sprintf("w%d", i+1))
	}
	return func(args ...string) result {
		got := call(t, append(append([]string{"worker"}, addresses...), args...)...)
		named := strings.NewReplacer(words...)
		return result{got.code, named.Replace(got.stdout), named.Replace(got.stderr)}
	}
}

func controlled(p *puppet) http.Handler {
	return health.HandlerFor(p, health.Options{Token: testToken})
}

func TestWorker(t *testing.T) {
	t.Setenv(workerToken, testToken)
	one, two := &puppet{}, &puppet{}
	ask := fleet(t, controlled(one), http.StripPrefix("", controlled(two)))
	who := whoami()
	const nothing = `[
  {
    "worker": "w1",
    "state": "running",
    "paused": [],
    "error": ""
  },
  {
    "worker": "w2",
    "state": "running",
    "paused": [],
    "error": ""
  }
]
`
	for _, tt := range []struct {
		args  []string
		asked string
		json  string
	}{
		{nil, "", nothing},
		{[]string{"status"}, "", nothing},
		{[]string{"pause", "payments", "--forever", "--who", "ada", "--because", "the bank asks"}, "pause payments by ada: the bank asks",
			strings.ReplaceAll(nothing, `[]`, "[\n      \"topic payments, since 2026-01-31T12:00:00Z, without an end, by ada: the bank asks\"\n    ]")},
		{[]string{"resume", "payments"}, "resume payments", nothing},
		{[]string{"pause", "--tenant", "acme", "--for", "2h"}, "pause acme by " + who + ": ", ""},
		{[]string{"resume", "--tenant", "acme"}, "resume acme", nothing},
		{[]string{"pause", "--dependency", "bank", "--until", time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}, "pause bank by " + who + ": ", ""},
		{[]string{"resume", "--dependency", "bank"}, "resume bank", nothing},
		{[]string{"skip", "orders", "order-1"}, "skip orders order-1: " + who, nothing},
		{[]string{"drain"}, "drain", nothing},
	} {
		one.asked, two.asked = nil, nil
		got := ask(append(tt.args, "-o", "json")...)
		if got.code != exitOK || got.stderr != "" || tt.json != "" && got.stdout != tt.json {
			t.Errorf("%q: exit code %d, %s%s", tt.args, got.code, got.stdout, got.stderr)
		}
		for _, p := range []*puppet{one, two} {
			if strings.Join(p.asked, "\n") != tt.asked {
				t.Errorf("%q: asked %q, want %q", tt.args, p.asked, tt.asked)
			}
		}
	}
}

func TestWorkerAsText(t *testing.T) {
	t.Setenv(workerToken, testToken)
	ask := fleet(t, controlled(&puppet{}), controlled(&puppet{err: errors.New("the worker is draining")}), health.Handler(&puppet{}))
	got := ask("pause", "orders", "--forever", "--who", "ada")
	lines := strings.Split(got.stdout, "\n")
	if got.code != exitPartial || len(lines) != 5 || !strings.Contains(lines[1], "w1") || !strings.Contains(lines[1], "topic orders, since") ||
		!strings.Contains(lines[2], "409 Conflict: the worker is") || !strings.Contains(lines[3], "404 Not Found: the worker has no") ||
		got.stderr != "redrive worker: 2 of 3 workers did not do it: w2, w3\n" {
		t.Errorf("exit code %d:\n%s%s", got.code, got.stdout, got.stderr)
	}
}

func TestWorkerFails(t *testing.T) {
	absent := fmt.Errorf("message is %w", health.ErrUnknown)
	hangs := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	moved := http.RedirectHandler("http://elsewhere.invalid/", http.StatusTemporaryRedirect)
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") })
	t.Setenv(workerToken, testToken)
	for _, tt := range []struct {
		name     string
		handlers []http.Handler
		args     []string
		code     int
		want     []string
	}{
		{"another has the message", []http.Handler{controlled(&puppet{err: absent}), controlled(&puppet{})}, []string{"skip", "orders", "1"}, exitOK, nil},
		{"none has the message", []http.Handler{controlled(&puppet{err: absent}), controlled(&puppet{err: absent})}, []string{"skip", "orders", "1"}, exitFailure, []string{"no worker has the message"}},
		{"none has the topic", []http.Handler{controlled(&puppet{err: absent})}, []string{"pause", "orders", "--for", "1h"}, exitFailure, []string{"404 Not Found: message is not known", "no worker did it: w1"}},
		{"one hangs", []http.Handler{hangs, controlled(&puppet{})}, []string{"drain", "--timeout", "200ms"}, exitPartial, []string{"no answer within 200ms", "1 of 2 workers did not do it: w1"}},
		{"one has moved", []http.Handler{moved}, []string{"drain"}, exitFailure, []string{"307 Temporary Redirect"}},
		{"no worker", []http.Handler{page}, nil, exitFailure, []string{"this is no worker"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := fleet(t, tt.handlers...)(append(tt.args, "-o", "json")...)
			for _, want := range tt.want {
				if !strings.Contains(got.stdout+got.stderr, want) {
					t.Errorf("got %s%s, want %q", got.stdout, got.stderr, want)
				}
			}
			if got.code != tt.code || strings.Contains(got.stdout+got.stderr, testToken) {
				t.Errorf("exit code %d, want %d, and no token in %s%s", got.code, tt.code, got.stdout, got.stderr)
			}
		})
	}
}

func TestWorkerToken(t *testing.T) {
	p := &puppet{}
	ask := fleet(t, controlled(p))
	t.Setenv(workerToken, "")
	if got := ask("drain"); got.code != exitUsage || !strings.Contains(got.stderr, workerToken) {
		t.Errorf("no token: exit code %d, %s", got.code, got.stderr)
	}
	if got := ask("status"); got.code != exitOK {
		t.Errorf("a status needs a token: %s", got.stderr)
	}
	t.Setenv(workerToken, "the token of another worker")
	if got := ask("drain"); got.code != exitFailure || !strings.Contains(got.stdout, "401 Unauthorized") {
		t.Errorf("a wrong token: exit code %d, %s", got.code, got.stdout)
	}
	file := t.TempDir() + "/token"
	must(t, os.WriteFile(file, []byte(testToken+"\n"), 0o600))
	if got := ask("drain", "--token-file", file); got.code != exitOK || !slices.Equal(p.asked, []string{"drain"}) {
		t.Errorf("a token in a file: exit code %d, %s, asked %q", got.code, got.stderr, p.asked)
	}
	if got := ask("drain", "--token-file", file+"s"); got.code != exitFailure || !strings.Contains(got.stderr, "cannot be read") {
		t.Errorf("a file that is not there: exit code %d, %s", got.code, got.stderr)
	}
}

func TestWorkerRefuses(t *testing.T) {
	t.Setenv(workerToken, testToken)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "name one worker"},
		{[]string{"pause", "orders", "--for", "1h"}, "name one worker"},
		{[]string{"w:1", "pause", "orders"}, "say how long"},
		{[]string{"w:1", "pause", "orders", "--for", "1h", "--forever"}, "say how long"},
		{[]string{"w:1", "pause", "--for", "1h"}, "pause takes 1 names after it (topic)"},
		{[]string{"w:1", "pause", "orders", "--tenant", "a", "--for", "1h"}, "pause takes 0 names"},
		{[]string{"w:1", "skip", "orders"}, "skip takes 2 names after it (topic id)"},
		{[]string{"w:1", "drain", "orders"}, "drain takes 0 names"},
		{[]string{"w:1", "resume", "orders", "--for", "1h"}, "are for pause, not for resume"},
		{[]string{"w:1", "drain", "--tenant", "a"}, "are for pause and resume, not for drain"},
		{[]string{"ftp://w:1", "drain"}, "no address of a worker"},
		{[]string{"http://user:pass@w:1", "drain"}, "no address of a worker"},
		{[]string{"w:1?x=y", "drain"}, "no address of a worker"},
	} {
		got := call(t, append([]string{"worker"}, tt.args...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, tt.want) || got.stdout != "" {
			t.Errorf("%q: exit code %d, %s%s, want %q", tt.args, got.code, got.stdout, got.stderr, tt.want)
		}
	}
}

package proof

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// target is whom the service calls, at several addresses. It keeps the ledger.
type target struct {
	*testing.T
	urls   []string
	mended atomic.Bool // every call succeeds
	made   atomic.Int64

	mu      sync.Mutex
	calls   map[string][]call // by idempotency key
	letters map[string]int    // by task
}

// call is one that has arrived.
type call struct {
	at     time.Time
	status int // that was answered, or was to be; 0 if there was no answer
}

func (c call) String() string { return fmt.Sprintf("%s: %d", c.at.Format("04:05.000"), c.status) }

// addresses is how many a target has, each with a breaker and a budget of its own.
const addresses = 8

func newTarget(t *testing.T) *target {
	g := &target{T: t, calls: map[string][]call{}, letters: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{what}/{times}", g.serve)
	mux.HandleFunc("POST /letters/{task}", g.bury)
	for range addresses {
		s := httptest.NewServer(mux)
		t.Cleanup(s.Close)
		g.urls = append(g.urls, s.URL)
	}
	return g
}

// bodyOf is what every call of a key brings.
func bodyOf(key string, lines int) string { return strings.Repeat(key+"\n", lines) }

// serve does what the path says with the first calls of a key, so many, and then
// succeeds. What is no status, is "hang" or "reset".
func (g *target) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	key := r.Header.Get("Idempotency-Key")
	if lines, _ := strconv.Atoi(r.Header.Get("X-Lines")); err == nil && string(body) != bodyOf(key, lines) {
		g.Errorf("a call of %q brings %d bytes, want %d lines of its key", key, len(body), lines)
	}
	what := r.PathValue("what")
	times, _ := strconv.Atoi(r.PathValue("times"))
	status := g.note(key, what, times)
	pause(r.Context(), time.Duration(rand.Int64N(int64(30*time.Millisecond))))
	switch {
	case status == http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "1")
	case status == 0 && what == "hang":
		<-r.Context().Done()
		return
	case status == 0:
		reset(w)
		return
	}
	w.WriteHeader(status)
}

// note notes a call, and says what it is answered.
func (g *target) note(key, what string, times int) (status int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	status = http.StatusOK
	if len(g.calls[key]) < times && !g.mended.Load() {
		status, _ = strconv.Atoi(what)
	}
	g.calls[key] = append(g.calls[key], call{time.Now(), status})
	g.made.Add(1)
	return status
}

func reset(w http.ResponseWriter) {
	if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

// bury takes dead letters, but not all, and does not confirm all that it takes.
func (g *target) bury(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	luck := rand.IntN(10)
	if luck > 0 {
		g.letters[r.PathValue("task")]++
	}
	if luck < 2 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (g *target) of(key string) []call {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls[key]
}

func (g *target) lettersOf(task string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.letters[task]
}

// buried is how many tasks have a letter.
func (g *target) buried() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int64(len(g.letters))
}

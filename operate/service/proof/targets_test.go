package proof

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/internal/retries"
)

// here runs a service in this process until the test ends, and returns its address.
func here(t *testing.T, server *retries.Server) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.ServeOn(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

// onFile is a service with a file, and the default configuration.
func onFile(t *testing.T) *retries.Server {
	t.Helper()
	s, err := setup{store: filepath.Join(t.TempDir(), "tasks.db"), bodies: t.TempDir()}.server(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Store.Close(); err != nil {
			t.Error(err)
		}
	})
	s.Letters = nil
	return s
}

// must makes a request that must be answered so.
func must(t *testing.T, method, url string, body, into any, want int) {
	t.Helper()
	if status, err := ask(t.Context(), http.DefaultClient, method, url, body, into); status != want || err != nil {
		t.Fatalf("%s %s is answered %d, %v, want %d", method, url, status, err, want)
	}
}

// in waits some minutes until something is so.
func in(t *testing.T, so func() bool, otherwise ...any) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !so(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(otherwise...)
		}
	}
}

// await asks for a task until something is so.
func await(t *testing.T, url string, so func(task map[string]any) bool) map[string]any {
	t.Helper()
	task := map[string]any{}
	in(t, func() bool {
		clear(task)
		must(t, http.MethodGet, url, nil, &task, http.StatusOK)
		return so(task)
	}, "the task is", task)
	return task
}

func serve(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.URL
}

// TestBadTargets has targets beside good ones that are as bad as can be. Those that
// hang do so for as long as the good ones are called.
func TestBadTargets(t *testing.T) {
	released := make(chan struct{})
	var givenUp, sent, good atomic.Int64
	drip := func(w http.ResponseWriter, r *http.Request) {
		for {
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			if !pause(r.Context(), time.Second) {
				return
			}
		}
	}
	targets := []struct {
		tasks        int
		method       string
		serve        http.HandlerFunc
		status, says string // of the tasks, if they end
	}{
		{40, "POST", func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				givenUp.Add(1)
			case <-released:
			}
		}, "", ""},
		{20, "POST", drip, "SUCCEEDED", ""},
		{20, "POST", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusConflict); drip(w, r) }, "EXHAUSTED", "409"},
		{20, "POST", func(w http.ResponseWriter, _ *http.Request) { reset(w) }, "", ""},
		{10, "GET", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://10.0.0.1/", http.StatusFound)
		}, "EXHAUSTED", "must not be called"},
		{10, "POST", func(w http.ResponseWriter, _ *http.Request) {
			for chunk := make([]byte, 64<<10); ; {
				n, err := w.Write(chunk)
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
		}, "SUCCEEDED", ""},
	}
	service := here(t, onFile(t))
	must(t, http.MethodPost, service+"/retry-policies", map[string]any{"policyId": "default"}, nil, http.StatusOK)
	send := func(key, url, method string) string {
		var task struct{ TaskID string }
		must(t, http.MethodPost, service+"/retry-tasks", map[string]any{"policyId": "default", "idempotencyKey": key, "targetUrl": url, "method": method}, &task, http.StatusAccepted)
		return service + "/retry-tasks/" + task.TaskID
	}
	ends := map[string]int{} // what becomes of which task
	for i, target := range targets {
		url := serve(t, target.serve)
		for n := range target.tasks {
			ends[send(fmt.Sprint(i, "-", n), url, target.method)] = i
		}
	}
	t.Cleanup(func() { close(released) }) // before the servers end
	url := serve(t, func(http.ResponseWriter, *http.Request) { good.Add(1) })
	for n := range 100 {
		ends[send(fmt.Sprint("good-", n), url, http.MethodPost)] = -1
	}
	for task, i := range ends {
		status, says := "SUCCEEDED", ""
		if i >= 0 {
			status, says = targets[i].status, targets[i].says
		}
		if status == "" {
			continue
		}
		got := await(t, task, func(task map[string]any) bool { return task["status"] == "SUCCEEDED" || task["status"] == "EXHAUSTED" })
		if got["status"] != status || !strings.Contains(fmt.Sprint(got["lastError"]), says) {
			t.Errorf("a task of target %d is %v, want %s, %q", i, got, status, says)
		}
	}
	// By then only a part of those that hang has been given up, after 30 s each.
	if n := givenUp.Load(); good.Load() != 100 || n > 32 {
		t.Errorf("%d calls of good targets, while %d others were given up", good.Load(), n)
	}
	if n := sent.Load(); n > 10*32<<20 {
		t.Errorf("%d MiB of endless answers were taken", n>>20)
	}
}

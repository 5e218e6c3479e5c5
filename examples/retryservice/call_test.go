// Package retryservice has a caller of the retry service that is not written in Go,
// and its test.
package retryservice

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// python returns an interpreter. Without one the test ends here: it is skipped, or
// fails where CI=true.
func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	switch {
	case err != nil && os.Getenv("CI") == "true":
		t.Fatalf("%v; with CI=true this is a failure, not a skip", err)
	case err != nil:
		t.Skipf("%v: the example is in Python", err)
	}
	return path
}

// serve runs redrive service on SQLite, as a user does, for the length of a test.
func serve(t *testing.T) *url.URL {
	t.Helper()
	program := filepath.Join(t.TempDir(), "redrive.exe")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./operate/cmd/redrive")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	service := exec.Command(program, "service", "--listen", "127.0.0.1:0", "--allow", "127.0.0.0/8")
	service.Dir = t.TempDir()
	service.Env = append(os.Environ(), "REDRIVE_CONFIG=")
	log, err := service.StderrPipe()
	if err == nil {
		err = service.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = service.Process.Signal(os.Interrupt)
		if err := service.Wait(); err != nil {
			t.Errorf("redrive service: %v", err)
		}
	})
	lines := bufio.NewReader(log)
	line, err := lines.ReadString('\n')
	found := regexp.MustCompile(`listens at (http://\S+)\. `).FindStringSubmatch(line)
	if err != nil || found == nil {
		t.Fatalf("the first line is %q, %v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }() // until the service ends
	address, err := url.Parse(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// forgetful passes requests on, and loses the answer to the first task.
func forgetful(t *testing.T, to *url.URL) string {
	var lose sync.Once
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.Method == http.MethodPost && r.Request.URL.Path == "/retry-tasks" {
			lose.Do(func() { panic(http.ErrAbortHandler) })
		}
		return nil
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL
}

// bank fails the first two calls, and whatever it is sent to /gone.
type bank struct {
	mu    sync.Mutex
	calls []string
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, r.Header.Get("Idempotency-Key")+" "+string(body))
	switch {
	case r.URL.Path == "/gone":
		w.WriteHeader(http.StatusGone)
	case len(b.calls) <= 2:
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// seen is which calls came.
func (b *bank) seen() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

func TestCall(t *testing.T) {
	interpreter, b := python(t), &bank{}
	target := httptest.NewServer(b)
	defer target.Close()
	service := forgetful(t, serve(t))
	call := func(address, patience string, args ...string) (code int, said string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), interpreter, append([]string{"call.py"}, args...)...)
		cmd.Env = append(os.Environ(), "RETRY_SERVICE="+address, "PATIENCE="+patience, "no_proxy=*", "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	once := slices.Repeat([]string{"order-17 1999 cents"}, 3)
	for _, tt := range []struct {
		name  string
		args  []string
		code  int
		said  string
		calls []string // all so far
	}{
		{"two failures, and a lost answer", []string{"order-17", target.URL, "1999 cents"}, 0, "SUCCEEDED", once},
		{"again", []string{"order-17", target.URL, "1999 cents"}, 0, "SUCCEEDED", once},
		{"another call with the key", []string{"order-17", target.URL, "1 cent"}, 2, "#idempotency-key-reused", once},
		{"a call that cannot succeed", []string{"order-18", target.URL + "/gone", "1 cent"}, 1, "EXHAUSTED poison: ", append(once, "order-18 1 cent")},
		{"no call", []string{"order-19"}, 2, "python3 call.py KEY URL", append(once, "order-18 1 cent")},
	} {
		code, said := call(service, "300", tt.args...)
		if code != tt.code || !strings.Contains(said, tt.said) {
			t.Fatalf("%s: exit code %d, %s\nwant %d, %s", tt.name, code, said, tt.code, tt.said)
		}
		if calls := b.seen(); !slices.Equal(calls, tt.calls) {
			t.Errorf("%s: the target was called with %q, want %q", tt.name, calls, tt.calls)
		}
	}
	nobody := httptest.NewServer(nil)
	nobody.Close()
	if code, said := call(nobody.URL, "1", "order-20", target.URL); code != 75 || !strings.Contains(said, "nothing is known yet") {
		t.Errorf("without a service: exit code %d, %s", code, said)
	}
}

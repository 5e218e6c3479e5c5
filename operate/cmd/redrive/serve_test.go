package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/internal/goldentest"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
)

// serving starts redrive serve in a folder of its own, on real time, with a broker
// in memory. It returns its address, and what ends it.
func serving(t *testing.T, more string) (address string, broker *memory.Broker, stop func() int) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv(config.Variable, "")
	text := strings.Replace(shopConfig, "events: {kind: kafka, addresses: [\"localhost:9092\"]}", "events: {kind: kafka, addresses: [\"127.0.0.1:1\"]}", 1) + more
	must(t, os.WriteFile(config.DefaultFile, []byte(text), 0o600))
	broker = memory.New(memory.Options{})
	open := func(context.Context, *config.Config, string) (brokers.Broker, error) { return lent{broker}, nil }
	address, stop = inBackground(t, open, `metrics=(https?://\S+)/metrics`, "serve")
	return address, broker, stop
}

// inBackground starts a command on real time. It returns the address that a pattern
// finds in the first line of its log, and what ends it.
func inBackground(t *testing.T, open opener, pattern string, args ...string) (address string, stop func() int) {
	t.Helper()
	log, to := io.Pipe()
	streams := term.Streams{In: strings.NewReader(""), Out: io.Discard, Err: to, Width: 80}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, newRootOn(streams, open, open), args, streams)
		to.Close()
	}()
	lines := bufio.NewReader(log)
	line, err := lines.ReadString('\n')
	found := regexp.MustCompile(pattern).FindStringSubmatch(line)
	if err != nil || found == nil {
		t.Fatalf("the first line of the log is %q, error %v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }() // until the pipe is closed
	return found[1], func() int {
		cancel()
		return <-ended
	}
}

func get(t *testing.T, address string, header http.Header) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	must(t, err)
	req.Header = header
	answer, err := http.DefaultClient.Do(req)
	must(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, string(body)
}

func TestServe(t *testing.T) {
	t.Setenv("SERVE_TOKEN", "correct horse battery staple")
	address, broker, stop := serving(t, "serve: {listen: \"127.0.0.1:0\", token: {env: SERVE_TOKEN}}\n")
	must(t, broker.Publish(t.Context(), "orders-dead", died(0, "orders", "poison", "poison", "declined").Encode(0)))
	for _, tt := range []struct {
		path, token string
		code        int
		body        string
	}{
		{"/healthz", "", http.StatusOK, "ok\n"},
		{"/metrics", "", http.StatusUnauthorized, ""},
		{"/metrics", "Bearer correct horse battery staple", http.StatusOK, "redrive_store_up 1\n"},
	} {
		if code, body := get(t, address+tt.path, http.Header{"Authorization": {tt.token}}); code != tt.code || !strings.Contains(body, tt.body) {
			t.Errorf("%s with the token %q: %d %q, want %d %q", tt.path, tt.token, code, body, tt.code, tt.body)
		}
	}
	text := shopConfig + fmt.Sprintf("serve: {listen: %q}\n", strings.TrimPrefix(address, "http://"))
	must(t, os.WriteFile("second.yaml", []byte(text), 0o600))
	got := call(t, "serve", "--config", "second.yaml")
	if want := "serve.listen of second.yaml cannot be used"; got.code != exitFailure || !strings.Contains(got.stderr, want) || !strings.HasSuffix(got.stderr, "is another redrive serve running?\n") {
		t.Errorf("another one at the same address: %+v, want %q", got, want)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestServeRefuses(t *testing.T) {
	inShop(t, func(s *shop) {
		s.must(os.WriteFile(config.DefaultFile, []byte(shopConfig+"serve: {listen: \"127.0.0.1:99999\"}\n"), 0o600))
		s.refuses(exitFailure, "nothing was done: serve.listen of redrive.yaml cannot be used", "serve")
		s.refuses(exitUsage, "takes flags only", "serve", "now")
	})
}

// TestMetricsReference holds the table of the metrics of redrive serve.
func TestMetricsReference(t *testing.T) {
	file, err := filepath.Abs(filepath.Join(root, cliPage))
	must(t, err)
	address, _, stop := serving(t, "serve: {listen: \"127.0.0.1:0\"}\n")
	defer stop()
	var text string
	for !strings.Contains(text, "redrive_receipts_total") || !strings.Contains(text, "redrive_collect_lag_seconds") {
		_, text = get(t, address+"/metrics", nil) // until all of it has begun
	}
	var names []string
	help, kinds, labels := map[string]string{}, map[string]string{}, map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, meaning, _ := strings.Cut(rest, " ")
			names, help[name] = append(names, name), meaning
		} else if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			kinds[name] = kind
		} else if name, rest, ok := strings.Cut(line, "{"); ok {
			var found []string
			for _, label := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(rest, -1) {
				found = append(found, "`"+label[1]+"`")
			}
			labels[name] = strings.Join(found, ", ")
		}
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("| Metric | Type | Labels | What it says |\n|---|---|---|---|\n")
	for _, name := range names {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, kinds[name], labels[name], help[name])
	}
	goldentest.Parts(t, file, map[string]string{"metrics": b.String()}, "redrive", "rows ")
}

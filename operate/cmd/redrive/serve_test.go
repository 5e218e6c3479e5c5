package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/certtest"
)

// serving starts redrive serve in a folder of its own, on real time, with a broker
// in memory. It returns its address, and what ends it.
func serving(t *testing.T, more string) (address string, broker *memory.Broker, stop func()) {
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
func inBackground(t *testing.T, open opener, pattern string, args ...string) (address string, stop func()) {
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
	return found[1], func() {
		cancel()
		if code := <-ended; code != exitOK {
			t.Errorf("exit code %d", code)
		}
	}
}

// request returns the status and the body of an answer.
func request(t *testing.T, method, address, body string, header http.Header) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	must(t, err)
	r.Header = header
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, string(text)
}

func get(t *testing.T, address string, header http.Header) (int, string) {
	t.Helper()
	return request(t, http.MethodGet, address, "", header)
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
	stop()
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

// newCertificate writes a certificate for this machine and its key as cert.pem
// and key.pem. It returns a client that trusts only this certificate.
func newCertificate(t *testing.T, end time.Time) *http.Client {
	t.Helper()
	cert, key := certtest.New(t, "localhost", end)
	must(t, errors.Join(os.WriteFile("cert.pem", cert, 0o600), os.WriteFile("key.pem", key, 0o600)))
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(cert)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, ServerName: "localhost"}, DisableKeepAlives: true}}
}

// TestServersWithTLS tests that both servers show a certificate, and replace
// it.
func TestServersWithTLS(t *testing.T) {
	t.Setenv("A_TOKEN", "correct horse battery staple")
	const keys = `listen: "127.0.0.1:0", tls: {cert: cert.pem, key: key.pem}`
	healthy := func(client *http.Client, address string) error {
		answer, err := client.Get("https://" + address + "/healthz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if body, _ := io.ReadAll(answer.Body); string(body) != "ok\n" {
			return fmt.Errorf("answered with %s", body)
		}
		return nil
	}
	t.Chdir(t.TempDir())
	first := newCertificate(t, time.Now().Add(time.Hour))
	must(t, os.WriteFile(config.DefaultFile, []byte("service: {tokens: {a: [{env: A_TOKEN}]}, "+keys+"}"), 0o600))
	address, stop := retrying(t, nil)
	if err := healthy(first, address); err != nil {
		t.Errorf("the service: %v", err)
	}
	if answer, err := http.Get("http://" + address + "/healthz"); err != nil || answer.StatusCode != http.StatusBadRequest {
		t.Errorf("a plain request is answered with %+v, %v", answer, err)
	}
	second := newCertificate(t, time.Now().Add(time.Hour))
	for begin := time.Now(); healthy(second, address) != nil; time.Sleep(100 * time.Millisecond) { // it looks at the files from time to time
		if time.Since(begin) > time.Minute {
			t.Fatal("the service goes on with its first certificate")
		}
	}
	stop()
	inShop(t, func(s *shop) {
		for _, command := range []string{"serve", "service"} {
			must(s, os.WriteFile(config.DefaultFile, []byte(shopConfig+command+": {"+keys+"}\n"), 0o600))
			s.refuses(exitFailure, command+".tls.cert: open cert.pem", command)
			newCertificate(t, time.Now().Add(-time.Hour))
			s.refuses(exitFailure, command+".tls: the certificate has expired", command)
			s.refuses(exitFailure, command+".tls: the certificate has expired", "config", "check")
			must(s, os.Remove("cert.pem"))
			must(s, os.WriteFile(config.DefaultFile, []byte(shopConfig+command+": {connections: 100000000}\n"), 0o600))
			s.refuses(exitFailure, command+".connections: 100000000 are too many", command)
		}
	})
	third, dir := newCertificate(t, time.Now().Add(time.Hour)), t.TempDir()
	must(t, errors.Join(os.Rename("cert.pem", filepath.Join(dir, "cert.pem")), os.Rename("key.pem", filepath.Join(dir, "key.pem"))))
	address, _, stop = serving(t, "serve: {"+strings.NewReplacer("cert.pem", filepath.Join(dir, "cert.pem"), "key.pem", filepath.Join(dir, "key.pem")).Replace(keys)+"}\n")
	if err := healthy(third, strings.TrimPrefix(address, "https://")); err != nil {
		t.Errorf("serve: %v", err)
	}
	stop()
}

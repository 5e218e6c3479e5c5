package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/breaktest"
)

// withFewFiles starts a command in its own process, which may have 1,024 files
// open, a usual limit. It returns the address at which the command listens.
func withFewFiles(t *testing.T, listens string, args ...string) (address string, p *breaktest.Process) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", `ulimit -n 1024 && exec "$0" "$@"`, os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), asCommand+"=yes", config.Variable+"=")
	p = breaktest.Start(cmd)
	t.Cleanup(func() { p.Kill() })
	pattern := regexp.MustCompile(listens)
	for begin := time.Now(); time.Since(begin) < time.Minute && !p.Ended(); time.Sleep(10 * time.Millisecond) {
		if found := pattern.FindStringSubmatch(p.Log()); found != nil {
			return found[1], p
		}
	}
	t.Fatalf("the command does not listen: %s", p.Log())
	return "", nil
}

// flood opens idle connections from 127.0.0.1, and keeps them until the test
// ends. A third of them send a request without a token first. Another third
// send half a header.
func flood(t *testing.T, address string, n int) {
	t.Helper()
	var opening sync.WaitGroup
	turns := make(chan struct{}, 32)
	for i := range n {
		opening.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			c, err := net.DialTimeout("tcp", address, time.Minute)
			if err != nil {
				t.Errorf("connection %d: %v", i, err)
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			switch i % 3 { // the server may have closed it by now
			case 0:
				_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
				_, _ = c.Read(make([]byte, 1))
			case 1:
				_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nX: ")
			}
		})
	}
	opening.Wait()
}

// callFrom returns a client whose connections come from an address of this
// machine.
func callFrom(t *testing.T, ip string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, address)
	}, MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// TestAttackIdleConnections opens 1,200 connections of a caller without a
// token. The service must still serve all callers with a token.
func TestAttackIdleConnections(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("SHOP_TOKEN", "the token of the shop")
	t.Setenv("METRICS_TOKEN", "the token of metrics")
	text := `service: {listen: "127.0.0.1:0", tokens: {shop: [{env: SHOP_TOKEN}]}, metrics_token: {env: METRICS_TOKEN}}`
	must(t, os.WriteFile(config.DefaultFile, []byte(text), 0o600))
	address, p := withFewFiles(t, `listens at http://(\S+)\. `, "service")
	for _, ip := range []string{"127.0.0.2", "127.0.0.1"} { // another address, and that of the attacker
		flood(t, address, 1200)
		client := callFrom(t, ip)
		post := func(path, body string) (int, string, error) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+path, strings.NewReader(body))
			if err != nil {
				return 0, "", err
			}
			r.Header.Set("Authorization", "Bearer the token of the shop")
			r.Header.Set("Content-Type", "application/json")
			answer, err := client.Do(r)
			if err != nil {
				return 0, "", err
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			return answer.StatusCode, string(text), err
		}
		if code, said, err := post("/retry-policies", `{"policyId": "standard"}`); code != http.StatusOK {
			t.Fatalf("from %s: the policy is answered with %d %s, %v", ip, code, said, err)
		}
		var callers sync.WaitGroup
		for caller := range 8 {
			callers.Go(func() {
				for n := range 10 {
					task := fmt.Sprintf(`{"policyId": "standard", "idempotencyKey": "%s-%d-%d", "targetUrl": "https://api.example.com", "delayMs": 3600000}`, ip, caller, n)
					if code, said, err := post("/retry-tasks", task); code != http.StatusAccepted {
						t.Errorf("from %s: a task is answered with %d %s, %v", ip, code, said, err)
					}
				}
			})
		}
		callers.Wait()
	}
	flooded(t, address, p)
}

// flooded fails the test unless the server has counted and logged the
// connections that it closed, and then stops without an error.
func flooded(t *testing.T, address string, p *breaktest.Process) {
	t.Helper()
	_, text := get(t, "http://"+address+"/metrics", http.Header{"Authorization": {"Bearer the token of metrics"}})
	if !regexp.MustCompile(`(?m)^redrive_http_connections_refused_total\{reason="idle"\} [1-9]\d{2,}$`).MatchString(text) {
		t.Errorf("the metrics count no refused connections: %s", regexp.MustCompile(`(?m)^redrive_http.*$`).FindAllString(text, -1))
	}
	if n := strings.Count(p.Log(), "there are more connections than places"); n == 0 || n > 5 {
		t.Errorf("the log says %d times that connections were closed:\n%s", n, p.Log())
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// TestAttackIdleConnectionsOfServe does the same with redrive serve, and
// requests its metrics and health.
func TestAttackIdleConnectionsOfServe(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("METRICS_TOKEN", "the token of metrics")
	text := `brokers: {shop: {kind: memory}}
topics: [{name: orders, broker: shop, dead: [orders-dead], collect: true}]
store: {url: letters.db}
serve: {listen: "127.0.0.1:0", token: {env: METRICS_TOKEN}}
`
	must(t, os.WriteFile(config.DefaultFile, []byte(text), 0o600))
	address, p := withFewFiles(t, `metrics=http://(\S+)/metrics`, "serve")
	flood(t, address, 1200)
	client := callFrom(t, "127.0.0.2")
	for range 20 {
		for _, path := range []string{"/metrics", "/healthz"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
			must(t, err)
			r.Header.Set("Authorization", "Bearer the token of metrics")
			answer, err := client.Do(r)
			if err != nil || answer.StatusCode != http.StatusOK {
				t.Fatalf("%s is answered with %+v, %v", path, answer, err)
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
	}
	flooded(t, address, p)
}

package main

import (
	"errors"
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

// withFewFiles starts a command in its own process and folder, which may have 1,024
// files open, a usual limit. It returns the address at which the command listens.
func withFewFiles(t *testing.T, listens, command, text string) (address string, p *breaktest.Process) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv("METRICS_TOKEN", "the token of metrics")
	must(t, os.WriteFile(config.DefaultFile, []byte(text), 0o600))
	cmd := exec.Command("sh", "-c", `ulimit -n 1024 && exec "$0" "$@"`, os.Args[0], command)
	cmd.Env = append(os.Environ(), asCommand+"=yes", config.Variable+"=")
	p = breaktest.Start(cmd)
	t.Cleanup(func() { p.Kill() })
	pattern := regexp.MustCompile(listens)
	for begin := time.Now(); time.Since(begin) < time.Minute && !p.Ended(); time.Sleep(10 * time.Millisecond) { // another process says it
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

// callsFrom returns a function that makes requests with a token, from an address of
// this machine.
func callsFrom(t *testing.T, ip, token string) func(method, url, body string) (int, error) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	transport := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	return func(method, url, body string) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode, errors.Join(err, answer.Body.Close())
	}
}

// TestAttackIdleConnections opens 1,200 connections of a caller without a
// token. The service must still serve all callers with a token.
func TestAttackIdleConnections(t *testing.T) {
	t.Setenv("SHOP_TOKEN", "the token of the shop")
	address, p := withFewFiles(t, `listens at http://(\S+)\. `, "service",
		`service: {listen: "127.0.0.1:0", tokens: {shop: [{env: SHOP_TOKEN}]}, metrics_token: {env: METRICS_TOKEN}}`)
	for _, ip := range []string{"127.0.0.2", "127.0.0.1"} { // another address, and that of the attacker
		flood(t, address, 1200)
		call := callsFrom(t, ip, "the token of the shop")
		if code, err := call(http.MethodPost, "http://"+address+"/retry-policies", `{"policyId": "standard"}`); code != http.StatusOK {
			t.Fatalf("from %s: the policy is answered with %d, %v", ip, code, err)
		}
		var callers sync.WaitGroup
		for caller := range 8 {
			callers.Go(func() {
				for n := range 10 {
					task := fmt.Sprintf(`{"policyId": "standard", "idempotencyKey": "%s-%d-%d", "targetUrl": "https://api.example.com", "delayMs": 3600000}`, ip, caller, n)
					if code, err := call(http.MethodPost, "http://"+address+"/retry-tasks", task); code != http.StatusAccepted {
						t.Errorf("from %s: a task is answered with %d, %v", ip, code, err)
					}
				}
			})
		}
		callers.Wait()
	}
	flooded(t, address, p)
}

// TestAttackIdleConnectionsOfServe does the same with redrive serve, and
// requests its metrics and health.
func TestAttackIdleConnectionsOfServe(t *testing.T) {
	address, p := withFewFiles(t, `metrics=http://(\S+)/metrics`, "serve", `brokers: {shop: {kind: memory}}
topics: [{name: orders, broker: shop, dead: [orders-dead], collect: true}]
store: {url: letters.db}
serve: {listen: "127.0.0.1:0", token: {env: METRICS_TOKEN}}
`)
	flood(t, address, 1200)
	call := callsFrom(t, "127.0.0.2", "the token of metrics")
	for range 20 {
		for _, path := range []string{"/metrics", "/healthz"} {
			if code, err := call(http.MethodGet, "http://"+address+path, ""); code != http.StatusOK {
				t.Fatalf("%s is answered with %d, %v", path, code, err)
			}
		}
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

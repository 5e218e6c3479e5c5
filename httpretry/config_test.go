package httpretry_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/httpretry"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/settings"
)

func TestConfigFaults(t *testing.T) {
	b := breaker.New(breaker.Config{})
	tests := []struct {
		field  string
		policy httpretry.Policy
	}{
		{"Retries", httpretry.Policy{Retries: 2}},
		{"Retries", httpretry.Policy{Retries: -2}},
		{"Timeout", httpretry.Policy{Timeout: -time.Second}},
		{"Delay", httpretry.Policy{Delay: -1}},
		{"Delay", httpretry.Policy{Delay: time.Minute}},
		{"Delay", httpretry.Policy{MaxWait: time.Millisecond}},
		{"MaxWait", httpretry.Policy{MaxWait: -1}},
		{"MaxBody", httpretry.Policy{MaxBody: -2}},
		{"NoBreaker", httpretry.Policy{NoBreaker: true, Breaker: b}},
		{"NoBudget", httpretry.Policy{NoBudget: true, Budget: &tokens{}}},
	}
	for _, tt := range tests {
		for _, c := range []struct {
			config httpretry.Config
			field  string
		}{
			{httpretry.Config{Default: tt.policy}, "Default." + tt.field},
			{httpretry.Config{Policies: map[string]httpretry.Policy{"a:8080": tt.policy}}, `Policies["a:8080"].` + tt.field},
		} {
			transport, err := httpretry.New(c.config)
			fault, ok := errors.AsType[*settings.Error](err)
			if transport != nil || !ok || fault.Field != "Config."+c.field || fault.Problem == "" || fault.Fix == "" {
				t.Errorf("New = %v, want a fault of %s with a fix", err, c.field)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("one mistake is reported more than once:\n%v", err)
			}
		}
	}
	_, err := httpretry.New(httpretry.Config{
		Default:  httpretry.Policy{Retries: 5, Delay: -1},
		Policies: map[string]httpretry.Policy{"https://bank.example/": {}, "Bank.example": {}, "": {MaxBody: -9}},
	})
	if err == nil || strings.Count(err.Error(), "\n") != 5 {
		t.Errorf("New = %v, want 6 faults at once", err)
	}
	named := httpretry.Config{Policies: map[string]httpretry.Policy{"The Bank": {}}, Dependency: func(*http.Request) string { return "The Bank" }}
	if _, err := httpretry.New(named); err != nil {
		t.Errorf("names of the caller's: %v", err)
	}
}

func TestDependencies(t *testing.T) {
	sent := 0
	failing := base(func(req *http.Request) (*http.Response, error) {
		sent++
		return answer(req, 503, ""), nil
	})
	retried := func(transport *httpretry.Transport, address string) bool {
		t.Helper()
		sent = 0
		must(transport.RoundTrip(&http.Request{Method: "GET", URL: must(url.Parse(address))(t)}))(t)
		return sent == 2
	}
	off := httpretry.Policy{Retries: -1, NoBreaker: true}
	on := httpretry.Policy{NoBreaker: true, NoBudget: true, Delay: time.Microsecond}

	byHost := newTransport(t, httpretry.Config{Base: failing, Default: on, Policies: map[string]httpretry.Policy{
		"bank.example": off, "localhost:8080": off, "[::1]:8080": off,
	}})
	for address, want := range map[string]bool{
		"https://bank.example/charges":     false,
		"https://BANK.example:443/charges": false,
		"http://bank.example:80":           false,
		"https://bank.example:80":          true,
		"https://user:pw@bank.example/":    false,
		"https://www.bank.example/":        true,
		"http://localhost:8080/":           false,
		"http://localhost/":                true,
		"http://[::1]:8080/":               false,
		"ftp://bank.example:21/":           true,
	} {
		if got := retried(byHost, address); got != want {
			t.Errorf("%s: retried = %t, want %t", address, got, want)
		}
	}

	byPath := newTransport(t, httpretry.Config{
		Base: failing, Default: on, Policies: map[string]httpretry.Policy{"search": off},
		Dependency: func(req *http.Request) string { return strings.Trim(req.URL.Path, "/") },
	})
	if retried(byPath, "https://api.example/search") || !retried(byPath, "https://api.example/users") {
		t.Error("the caller's function does not decide")
	}
}

func TestCloseIdleConnections(t *testing.T) {
	c := &closing{}
	(&http.Client{Transport: newTransport(t, httpretry.Config{Base: c})}).CloseIdleConnections()
	if !c.closed {
		t.Error("the base was not told")
	}
	newTransport(t, httpretry.Config{Base: c.base}).CloseIdleConnections() // has no such method
}

type closing struct {
	base
	closed bool
}

func (c *closing) CloseIdleConnections() { c.closed = true }

func TestCheck(t *testing.T) {
	if err := httpretry.Check(nil); err == nil {
		t.Error("Check(nil) = nil")
	}
	for _, code := range []int{200, 204, 302, 399} {
		body := &closer{Reader: strings.NewReader("body")}
		if err := httpretry.Check(&http.Response{StatusCode: code, Body: body}); err != nil || body.closed.Load() != 0 {
			t.Errorf("status %d: %v, closed %d times, want nil and a body to read", code, err, body.closed.Load())
		}
	}
	body := &closer{Reader: strings.NewReader(`{"type":"https://bank.example/broke","title":"Not enough money"}`)}
	resp := &http.Response{StatusCode: 402, Body: body, Header: http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"7"}}}
	err := httpretry.Check(resp)
	failed, ok := errors.AsType[*classify.HTTPError](err)
	if !ok || failed.Type != "https://bank.example/broke" || failed.Wait != 7*time.Second {
		t.Errorf("Check = %#v, want the problem and the hint", err)
	}
	if rest, _ := body.Read(make([]byte, 1)); body.closed.Load() != 1 || rest != 0 {
		t.Errorf("closed %d times with %d bytes left, want a drained and closed body", body.closed.Load(), rest)
	}
	if err := httpretry.Check(&http.Response{StatusCode: 500}); classify.Of(err).Code != "500" {
		t.Errorf("without a body: %v", err)
	}
}

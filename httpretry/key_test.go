package httpretry_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/consumer/consumertest"
	"github.com/redrive-go/redrive/httpretry"
	"github.com/redrive-go/redrive/settings"
)

// keySent returns the Idempotency-Key that arrives when a handler of m makes a
// request with method.
func keySent(t *testing.T, m brokers.Message, method string, p httpretry.Policy, own string) string {
	t.Helper()
	var sent http.Header
	transport := newTransport(t, httpretry.Config{Default: p, Base: base(func(req *http.Request) (*http.Response, error) {
		sent = req.Header
		return answer(req, 200, ""), nil
	})})
	result := consumertest.Run(t, func(ctx context.Context, _ *brokers.Message) error {
		req := request(t, ctx, method, nil)
		if own != "" {
			req.Header.Set("Idempotency-Key", own)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}, m, consumer.Config{})
	if result.Err != nil {
		t.Fatal(result.Err)
	}
	return sent.Get("Idempotency-Key")
}

// FuzzKey has the keys that not every server takes.
func TestKey(t *testing.T) {
	hashOf := func(k string) string { return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(k))) }
	key := func(k string) httpretry.Policy {
		return httpretry.Policy{Key: func(*http.Request) string { return k }}
	}
	for name, tt := range map[string]struct {
		method, id string
		policy     httpretry.Policy
		own, want  string
	}{
		"POST":                         {"POST", "m1", httpretry.Policy{}, "", "m1"},
		"PATCH":                        {"PATCH", "m1", httpretry.Policy{}, "", "m1"},
		"GET needs none":               {"GET", "m1", httpretry.Policy{}, "", ""},
		"PUT needs none":               {"PUT", "m1", httpretry.Policy{}, "", ""},
		"the caller's own stays":       {"POST", "m1", httpretry.Policy{}, "mine", "mine"},
		"a function":                   {"POST", "m1", key("k1"), "", "k1"},
		"a function that says none":    {"POST", "m1", key(""), "", ""},
		"200 bytes":                    {"POST", "m1", key(strings.Repeat("k", 200)), "", strings.Repeat("k", 200)},
		"a function, and a line break": {"POST", "m1", key("k1\r\nHost: evil"), "", hashOf("k1\r\nHost: evil")},
		"10 kB":                        {"POST", strings.Repeat("k", 10_000), httpretry.Policy{}, "", hashOf(strings.Repeat("k", 10_000))},
	} {
		got := keySent(t, brokers.Message{Topic: "orders", ID: tt.id}, tt.method, tt.policy, tt.own)
		if got != tt.want {
			t.Errorf("%s: key = %q, want %q", name, got, tt.want)
		}
	}
}

type traceKey struct{}

func TestPropagate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		s := serve(t, status(503))
		calls := 0
		client := s.client(t, httpretry.Policy{Propagate: func(ctx context.Context, h http.Header) {
			calls++
			if trace, ok := ctx.Value(traceKey{}).(string); ok {
				h.Set("Traceparent", trace)
			}
		}})
		req := request(t, context.WithValue(t.Context(), traceKey{}, parent), "GET", nil)
		read(t, must(client.Do(req))(t))
		got := s.got()
		if len(got) != 2 || calls != 2 {
			t.Fatalf("%d requests and %d calls of the hook, want 2 and 2", len(got), calls)
		}
		for i, r := range got {
			if h := r.header.Get("Traceparent"); h != parent {
				t.Errorf("attempt %d carried %q, want the same trace", i+1, h)
			}
		}
		if len(req.Header) != 0 {
			t.Errorf("the caller's headers became %v", req.Header)
		}
	})
}

// TestInstrumentedBase passes the trace on without Propagate: each attempt has the
// request's context, and no header that Base gave the attempt before.
func TestInstrumentedBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, status(503, 200, 503))
		for name, timeout := range map[string]time.Duration{"default": 0, "no time limit": settings.None} {
			attempts := 0
			instrumented := base(func(req *http.Request) (*http.Response, error) {
				if h := req.Header.Values("Traceparent"); len(h) > 0 {
					t.Errorf("%s: attempt %d begins with %q", name, attempts+1, h)
				}
				attempts++
				trace, _ := req.Context().Value(traceKey{}).(string)
				req.Header.Set("Traceparent", fmt.Sprintf("%s-%d", trace, attempts))
				return s.base.RoundTrip(req)
			})
			client := &http.Client{Transport: newTransport(t, httpretry.Config{Base: instrumented, Default: httpretry.Policy{Timeout: timeout}})}
			before := len(s.got())
			read(t, must(client.Do(request(t, context.WithValue(t.Context(), traceKey{}, "a"), "GET", nil)))(t))
			got := s.got()[before:]
			if len(got) != 2 || got[0].header.Get("Traceparent") != "a-1" || got[1].header.Get("Traceparent") != "a-2" {
				t.Errorf("%s: the server got %+v", name, got)
			}
		}
	})
}

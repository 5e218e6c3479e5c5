package health_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/health"
)

// worker is one whose status a function makes.
type worker func() health.Status

func (w worker) Status() health.Status { return w() }

func get(t *testing.T, h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	return ask(t, h, http.MethodGet, path, header...)
}

func ask(t *testing.T, h http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// full has something in each field.
func full() health.Status {
	return health.Status{
		At: noon, State: health.Running, Since: noon.Add(-time.Hour), Opened: noon.Add(-time.Hour),
		Broker: health.Connection{State: health.Running, Since: noon.Add(-time.Hour), Error: "i/o timeout", ErrorAt: noon.Add(-2 * time.Hour),
			Partitions: []health.Partition{{Topic: "orders", Partition: 3, Position: 12, Lag: 5, LastRecord: noon.Add(-time.Hour), StalledSince: noon.Add(-59 * time.Minute)}}},
		Loops:  []health.Loop{{Name: "settle", Late: health.Duration(2 * time.Second)}},
		ByHand: []health.ByHand{{Tenant: "acme", Since: noon.Add(-time.Minute), Until: noon.Add(time.Hour), By: "ada", Why: "too loud"}},
		Topics: []health.Topic{{
			Name: "orders", Slots: 10, Running: 3, Stuck: 1, InFlight: 12, Waiting: 4, Dying: 1, Oldest: noon.Add(-90 * time.Second),
			LastSuccess: noon.Add(-4 * time.Minute), Attempts10m: 20, DeadLetters10m: 2, Dependency: "bank", Limit: 0.05,
			Pause:  &health.Pause{Cause: "9 of the last 10 messages failed", Since: noon.Add(-time.Minute), Next: noon.Add(3600 * time.Millisecond)},
			Budget: &health.Budget{Tokens: 3.25, Capacity: 10, Waiting: 2},
			Policy: health.Policy{MaxAttempts: 10, MaxDelay: health.Duration(15 * time.Minute), MaxAge: health.Duration(24 * time.Hour), Timeout: health.Duration(5 * time.Minute)},
		}},
	}
}

func TestStatusAsText(t *testing.T) {
	const want = `running for 1h0m0s
connected to the broker for 1h0m0s; last error of the broker 2h0m0s ago: i/o timeout
paused by hand: tenant acme, since 2026-11-30T11:59:00Z, until 2026-11-30T13:00:00Z, by ada: too loud
loop "settle" is late by 2s

orders: 3 of 10 slots run, 1 stuck; 12 messages in flight, 4 wait, 1 die; the oldest came 1m30s ago
  paused for 1m0s, next probe in 3.6s: 9 of the last 10 messages failed
  10 min: 20 attempts, 2 dead letters; last success 4m0s ago
  dependency bank: limit 0.05, budget 3.2 of 10 tokens, 2 retries wait for one
  policy: 10 attempts in 24h0m0s, delay up to 15m0s, timeout 5m0s

orders/3: position 12, lag 5, last record 1h0m0s ago; stalled for 59m0s
`
	w := get(t, health.Handler(worker(full)), "/statusz")
	if w.Body.String() != want {
		t.Errorf("got  %s\nwant %s", w.Body, want)
	}
	if got := w.Header().Get("Content-Type"); got != "text/plain; charset=utf-8" {
		t.Errorf("content type %q", got)
	}
}

func TestStatusAsJSON(t *testing.T) {
	h := health.Handler(worker(full))
	for _, w := range []*httptest.ResponseRecorder{get(t, h, "/statusz?format=json"), get(t, h, "/statusz", "Accept", "application/json")} {
		var got health.Status
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || !reflect.DeepEqual(got, full()) {
			t.Errorf("%s: got %+v, %v", w.Body, got, err)
		}
		if !strings.Contains(w.Body.String(), `"maxDelay":"15m0s"`) || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%q: %s", w.Header().Get("Content-Type"), w.Body)
		}
	}
	empty := get(t, health.Handler(worker(func() health.Status { return health.Status{At: noon, State: health.New} })), "/statusz?format=json")
	if got, want := empty.Body.String(), `{"at":"2026-11-30T12:00:00Z","state":"new"}`+"\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A process that stood still has late loops, and none a moment later.
func TestLivezLooksTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for frozenFor, want := range map[time.Duration]int{100 * time.Millisecond: 200, time.Second: 503} {
			began := time.Now()
			h := health.Handler(worker(func() health.Status {
				s := health.Status{At: time.Now(), State: health.Running}
				if time.Since(began) < frozenFor {
					s.Loops = []health.Loop{{Name: "settle", Late: health.Duration(time.Hour)}}
				}
				return s
			}))
			if w := get(t, h, "/livez"); w.Code != want || time.Since(began) > 300*time.Millisecond {
				t.Errorf("frozen for %v: %d %s after %v, want %d within 300ms", frozenFor, w.Code, w.Body, time.Since(began), want)
			}
		}
	})
}

func TestMethodsAndPaths(t *testing.T) {
	h := health.Handler(worker(full))
	for _, path := range []string{"/livez", "/readyz", "/startupz", "/statusz"} {
		for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405, "DELETE": 405} {
			if w := ask(t, h, method, path); w.Code != want {
				t.Errorf("%s %s is %d, want %d", method, path, w.Code, want)
			}
		}
		if w := get(t, http.StripPrefix("/billing", h), "/billing"+path); w.Code != 200 || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s under a prefix is %d, %v", path, w.Code, w.Header())
		}
	}
	if w := get(t, h, "/metrics"); w.Code != 404 {
		t.Errorf("/metrics is %d", w.Code)
	}
}

func TestOptions(t *testing.T) {
	s := full()
	s.Loops[0].Late = health.Duration(time.Minute)
	s.Topics[0].StuckSince = noon.Add(-time.Hour)
	w := worker(func() health.Status { return s })
	for _, tt := range []struct {
		options health.Options
		want    string
	}{
		{health.Options{}, "loop \"settle\" is frozen: it should have ticked 1m0s ago\ntopic \"orders\" has no free slot: for 1h0m0s, handlers have ignored that their context has ended\n"},
		{health.Options{LoopFor: 2 * time.Minute}, "topic \"orders\" has no free slot: for 1h0m0s, handlers have ignored that their context has ended\n"},
		{health.Options{LoopFor: 2 * time.Minute, StuckFor: 2 * time.Hour}, "ok\n"},
		{health.Options{LoopFor: 2 * time.Minute, StuckFor: -1}, "ok\n"},
	} {
		if got := get(t, health.HandlerFor(w, tt.options), "/livez").Body.String(); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.options, got, tt.want)
		}
	}
}

package httpretry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/httpretry"
)

func TestWhatIsRetried(t *testing.T) {
	tests := []struct {
		name   string
		method string
		key    string
		codes  []int
		policy httpretry.Policy
		sent   int
		status int
	}{
		{"a success", "GET", "", nil, httpretry.Policy{}, 1, 200},
		{"GET once", "GET", "", []int{503}, httpretry.Policy{}, 2, 200},
		{"never twice", "GET", "", []int{503, 502}, httpretry.Policy{}, 2, 502},
		{"HEAD", "HEAD", "", []int{500}, httpretry.Policy{}, 2, 200},
		{"OPTIONS", "OPTIONS", "", []int{504}, httpretry.Policy{}, 2, 200},
		{"TRACE", "TRACE", "", []int{502}, httpretry.Policy{}, 2, 200},
		{"PUT", "PUT", "", []int{500}, httpretry.Policy{}, 2, 200},
		{"DELETE", "DELETE", "", []int{408}, httpretry.Policy{}, 2, 200},
		{"POST without a key", "POST", "", []int{503}, httpretry.Policy{}, 1, 503},
		{"PATCH without a key", "PATCH", "", []int{503}, httpretry.Policy{}, 1, 503},
		{"an unknown method", "MERGE", "", []int{503}, httpretry.Policy{}, 1, 503},
		{"lower-case get is another method", "get", "", []int{503}, httpretry.Policy{}, 1, 503},
		{"POST with a key", "POST", "k1", []int{503}, httpretry.Policy{}, 2, 200},
		{"PATCH with a key", "PATCH", "k1", []int{500}, httpretry.Policy{}, 2, 200},
		{"retries off", "GET", "", []int{503}, httpretry.Policy{Retries: -1}, 1, 503},
		{"400", "GET", "", []int{400}, httpretry.Policy{}, 1, 400},
		{"401", "GET", "", []int{401}, httpretry.Policy{}, 1, 401},
		{"404", "GET", "", []int{404}, httpretry.Policy{}, 1, 404},
		{"409 would only conflict again", "POST", "k1", []int{409}, httpretry.Policy{}, 1, 409},
		{"429 without a hint", "GET", "", []int{429}, httpretry.Policy{}, 1, 429},
		{"501", "GET", "", []int{501}, httpretry.Policy{}, 1, 501},
		{"a rule says no", "GET", "", []int{503}, httpretry.Policy{Rules: []classify.Rule{always(classify.ClassPoison)}}, 1, 503},
		{"a rule says yes", "GET", "", []int{404}, httpretry.Policy{Rules: []classify.Rule{always(classify.ClassTransient)}}, 2, 200},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			s := serve(t, status(tt.codes...))
			began := time.Now()
			resp := must(s.client(t, tt.policy).Do(keyed(t, tt.method, tt.key, nil)))(t)
			body := read(t, resp)
			if want := map[bool]string{true: "done", false: "failed"}[tt.status == 200]; body != want && tt.method != "HEAD" {
				t.Errorf("body = %q, want %q", body, want)
			}
			got := s.got()
			if len(got) != tt.sent || resp.StatusCode != tt.status {
				t.Errorf("sent %d times with status %d, want %d times with %d", len(got), resp.StatusCode, tt.sent, tt.status)
			}
			if key := got[0].header.Get("Idempotency-Key"); key != tt.key {
				t.Errorf("sent with the key %q, want %q: no handler makes this call", key, tt.key)
			}
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("took %v, want at most the default delay of 100ms", took)
			}
			if got := s.dials.Load(); got != 1 {
				t.Errorf("%d connections, want 1: the first response was not drained", got)
			}
		})
	}
}

func always(c string) classify.Rule {
	return func(err error) error { return classify.With(err, classify.Verdict{Class: c}) }
}

func TestConnectionErrors(t *testing.T) {
	for _, tt := range []struct {
		method, key string
		sent        int
	}{{"GET", "", 2}, {"POST", "", 1}, {"POST", "k1", 2}} {
		bubble(t, tt.method+tt.key, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
				if n == 1 {
					conn, _, _ := http.NewResponseController(w).Hijack()
					conn.Close()
				}
			})
			resp, err := s.client(t, httpretry.Policy{}).Do(keyed(t, tt.method, tt.key, strings.NewReader("body")))
			if got := len(s.got()); got != tt.sent {
				t.Errorf("sent %d times, want %d", got, tt.sent)
			}
			if tt.sent == 2 {
				read(t, must(resp, err)(t))
			} else if v := classify.Of(err); v.Class != classify.ClassTransient || !v.Ambiguous {
				t.Errorf("error %v is %+v, want transient and ambiguous", err, v)
			}
		})
	}
	bubble(t, "refused", func(t *testing.T) {
		s := serve(t, status())
		s.down.Store(true)
		_, err := call(t, s.client(t, httpretry.Policy{}), t.Context())
		if n := s.dials.Load(); !errors.Is(err, errRefused) || n != 2 {
			t.Errorf("after %d dials: %v, want the refusal after 2", n, err)
		}
	})
}

// Package classify reads the header; its tests have the other forms of it.
func TestRetryAfter(t *testing.T) {
	const none = -1
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of a bubble
	skewed := start.Add(48 * time.Hour)
	tests := []struct {
		name   string
		status int
		hint   string
		date   time.Time
		min    time.Duration // of the wait; none for no retry
		max    time.Duration
	}{
		{"seconds", 503, "1", start, time.Second, 1100 * time.Millisecond},
		{"seconds on 429", 429, "1", start, time.Second, 1100 * time.Millisecond},
		{"exactly MaxWait", 429, "2", start, 2 * time.Second, 2 * time.Second},
		{"longer than MaxWait", 503, "3", start, none, 0},
		{"longer than MaxWait on 502", 502, "3600", start, none, 0},
		{"beyond an int64", 503, strings.Repeat("9", 40), start, none, 0},
		{"against the clock of the server", 503, skewed.Add(time.Second).Format(http.TimeFormat), skewed, time.Second, 1100 * time.Millisecond},
		{"a date far ahead", 503, start.Add(100 * 365 * 24 * time.Hour).Format(http.TimeFormat), start, none, 0},
		{"zero is no hint", 503, "0", start, 0, 100 * time.Millisecond},
		{"a past date on 429 is no hint", 429, start.Add(-time.Hour).Format(http.TimeFormat), start, none, 0},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			var times []time.Time
			transport := newTransport(t, httpretry.Config{Base: base(func(req *http.Request) (*http.Response, error) {
				times = append(times, time.Now())
				if len(times) > 1 {
					return answer(req, 200, ""), nil
				}
				resp := answer(req, tt.status, "")
				resp.Header.Set("Retry-After", tt.hint)
				resp.Header.Set("Date", tt.date.Format(http.TimeFormat))
				return resp, nil
			})})
			resp := must(transport.RoundTrip(request(t, t.Context(), "GET", nil)))(t)
			resp.Body.Close()
			if tt.min == none {
				if len(times) != 1 || resp.StatusCode != tt.status {
					t.Errorf("sent %d times with status %d, want once with %d", len(times), resp.StatusCode, tt.status)
				}
				return
			}
			if len(times) != 2 {
				t.Fatalf("sent %d times, want 2", len(times))
			}
			if wait := times[1].Sub(times[0]); wait < tt.min || wait > tt.max {
				t.Errorf("waited %v, want %v to %v", wait, tt.min, tt.max)
			}
		})
	}
}

func TestDelayIsRandom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
			if n%2 == 1 {
				w.WriteHeader(502)
			}
		})
		client := s.client(t, httpretry.Policy{Delay: time.Second, NoBudget: true, NoBreaker: true})
		var sum time.Duration
		const calls = 200
		for range calls {
			began := time.Now()
			must(call(t, client, t.Context()))(t)
			took := time.Since(began)
			if took > time.Second {
				t.Fatalf("waited %v, want at most Delay (1s)", took)
			}
			sum += took
		}
		if mean := sum / calls; mean < 400*time.Millisecond || mean > 600*time.Millisecond {
			t.Errorf("waited %v on average, want about half of Delay (1s)", mean)
		}
	})
}

// A retry that would begin or end after the context is not made. Nothing waits for
// it, and no token is spent.
func TestContextHasNoTimeForARetry(t *testing.T) {
	slow := func(w http.ResponseWriter, _ *http.Request, _ int) {
		time.Sleep(6 * time.Second)
		w.WriteHeader(500)
	}
	for name, tt := range map[string]struct {
		handle func(http.ResponseWriter, *http.Request, int)
		limit  time.Duration
		took   time.Duration
		status int
	}{
		"for the wait":                           {asking(1), time.Second, 0, 503},
		"for an attempt as slow as the first is": {slow, 10 * time.Second, 6 * time.Second, 500},
	} {
		bubble(t, name, func(t *testing.T) {
			s := serve(t, tt.handle)
			ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
			defer cancel()
			spent, began := &tokens{}, time.Now()
			s.want(t, s.client(t, httpretry.Policy{Budget: spent}), ctx, tt.status, 1)
			if took := time.Since(began); took != tt.took {
				t.Errorf("took %v, want %v, and no wait for a retry that cannot be", took, tt.took)
			}
			spent.want(t, 0, 0, 1)
		})
	}
}

func TestContextEnds(t *testing.T) {
	bubble(t, "with the first attempt", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		spent, sent := &tokens{}, 0
		transport := newTransport(t, httpretry.Config{Default: httpretry.Policy{Budget: spent}, Base: base(func(*http.Request) (*http.Response, error) {
			sent++
			cancel()
			return nil, io.ErrUnexpectedEOF
		})})
		if _, err := transport.RoundTrip(request(t, ctx, "GET", nil)); !errors.Is(err, io.ErrUnexpectedEOF) || sent != 1 {
			t.Errorf("sent %d times: %v, want once", sent, err)
		}
		spent.want(t, 0, 0, 1)
	})
	bubble(t, "while waiting", func(t *testing.T) {
		s, spent := serve(t, asking(1)), &tokens{}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(500*time.Millisecond, cancel)
		began := time.Now()
		resp := must(s.client(t, httpretry.Policy{Budget: spent}).Do(request(t, ctx, "GET", nil)))(t)
		resp.Body.Close()
		if resp.StatusCode != 503 {
			t.Errorf("got status %d, want that of the first response", resp.StatusCode)
		}
		if took := time.Since(began); took != 500*time.Millisecond || len(s.got()) != 1 {
			t.Errorf("sent %d times in %v, want once and an end with the context", len(s.got()), took)
		}
		spent.want(t, 1, 1, 1)
	})
	bubble(t, "before", func(t *testing.T) {
		s := serve(t, status())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := call(t, s.client(t, httpretry.Policy{}), ctx)
		if n := len(s.got()); !errors.Is(err, context.Canceled) || n != 0 {
			t.Errorf("sent %d times: %v, want none and Canceled", n, err)
		}
	})
}

func TestTimeout(t *testing.T) {
	bubble(t, "slow headers", func(t *testing.T) {
		s := serve(t, func(_ http.ResponseWriter, r *http.Request, n int) {
			if n == 1 {
				<-r.Context().Done()
			}
		})
		began := time.Now()
		s.want(t, s.client(t, httpretry.Policy{Timeout: 3 * time.Second}), t.Context(), 200, 2)
		if took := time.Since(began); took < 3*time.Second || took > 3100*time.Millisecond {
			t.Errorf("took %v, want the timeout of 3s and a retry", took)
		}
	})
	bubble(t, "slow headers of a POST", func(t *testing.T) {
		s := serve(t, hangs)
		_, err := s.client(t, httpretry.Policy{}).Do(request(t, t.Context(), "POST", strings.NewReader("b")))
		wantTimeout(t, err, "30s")
		if got := len(s.got()); got != 1 {
			t.Errorf("sent %d times, want once", got)
		}
	})
	bubble(t, "slow body", func(t *testing.T) {
		s := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "x")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(time.Second):
				case <-r.Context().Done():
				}
			}
		})
		resp := must(s.client(t, httpretry.Policy{Timeout: 5 * time.Second}).Do(request(t, t.Context(), "GET", nil)))(t)
		defer resp.Body.Close()
		began := time.Now()
		_, err := io.ReadAll(resp.Body)
		wantTimeout(t, err, "5s")
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("read for %v, want 5s", took)
		}
	})
	bubble(t, "none", func(t *testing.T) {
		s := serve(t, func(http.ResponseWriter, *http.Request, int) { <-time.After(time.Hour) })
		s.want(t, s.client(t, httpretry.Policy{Timeout: -1}), t.Context(), 200, 1)
	})
	bubble(t, "of the caller is not ours", func(t *testing.T) {
		s := serve(t, hangs)
		client := s.client(t, httpretry.Policy{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, limited := range []struct {
			ctx    context.Context
			client time.Duration
		}{{ctx, 0}, {t.Context(), time.Second}} {
			client.Timeout = limited.client
			_, err := call(t, client, limited.ctx)
			if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "Policy.Timeout") {
				t.Errorf("error %v, want that of the caller's limit", err)
			}
		}
		if got := len(s.got()); got != 2 {
			t.Errorf("sent %d times, want once for each call", got)
		}
	})
}

func wantTimeout(t *testing.T, err error, limit string) {
	t.Helper()
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	if !ok || !timeout.Timeout() || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v, want a timeout", err)
	}
	if v := classify.Of(err); v.Class != classify.ClassTransient || !v.Ambiguous {
		t.Errorf("error %v is %+v, want transient and ambiguous", err, v)
	}
	if !strings.Contains(err.Error(), "Policy.Timeout ("+limit+")") {
		t.Errorf("error %q does not name the limit of %s", err, limit)
	}
}

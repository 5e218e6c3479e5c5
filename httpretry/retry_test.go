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
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, status(tt.codes...))
				req := request(t, t.Context(), tt.method, nil)
				if tt.key != "" {
					req.Header.Set("Idempotency-Key", tt.key)
				}
				began := time.Now()
				resp, err := s.client(t, tt.policy).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				body := read(t, resp)
				if want := map[bool]string{true: "done", false: "failed"}[tt.status == 200]; body != want && tt.method != "HEAD" {
					t.Errorf("body = %q, want %q", body, want)
				}
				if got := s.got(); len(got) != tt.sent || resp.StatusCode != tt.status {
					t.Errorf("sent %d times with status %d, want %d times with %d", len(got), resp.StatusCode, tt.sent, tt.status)
				}
				if took := time.Since(began); took > 100*time.Millisecond {
					t.Errorf("took %v, want at most the default delay of 100ms", took)
				}
				if got := s.dials.Load(); got != 1 {
					t.Errorf("%d connections, want 1: the first response was not drained", got)
				}
			})
		})
	}
}

func always(c classify.Class) classify.Rule {
	return func(err error) error { return classify.With(err, classify.Verdict{Class: c}) }
}

func TestConnectionErrors(t *testing.T) {
	cut := func(w http.ResponseWriter, _ *http.Request, n int) {
		if n > 1 {
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Close()
		}
	}
	tests := []struct {
		name, method, key string
		sent              int
	}{
		{"GET", "GET", "", 2},
		{"POST", "POST", "", 1},
		{"POST with a key", "POST", "k1", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, cut)
				req := request(t, t.Context(), tt.method, strings.NewReader("body"))
				if tt.key != "" {
					req.Header.Set("Idempotency-Key", tt.key)
				}
				resp, err := s.client(t, httpretry.Policy{}).Do(req)
				if got := len(s.got()); got != tt.sent {
					t.Errorf("sent %d times, want %d", got, tt.sent)
				}
				if tt.sent == 1 {
					if v := classify.Of(err); v.Class != classify.ClassTransient || !v.Ambiguous {
						t.Errorf("error %v is %+v, want transient and ambiguous", err, v)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				read(t, resp)
			})
		})
	}
}

func TestRefusedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, status())
		s.down.Store(true)
		_, err := s.client(t, httpretry.Policy{}).Do(request(t, t.Context(), "GET", nil))
		if !errors.Is(err, errRefused) || s.dials.Load() != 2 {
			t.Errorf("after %d dials: %v, want the refusal after 2", s.dials.Load(), err)
		}
	})
}

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
		{"IMF-fixdate", 503, start.Add(time.Second).Format(http.TimeFormat), start, time.Second, 1100 * time.Millisecond},
		{"RFC 850", 503, start.Add(time.Second).Format("Monday, 02-Jan-06 15:04:05 GMT"), start, time.Second, 1100 * time.Millisecond},
		{"asctime", 503, start.Add(time.Second).Format(time.ANSIC), start, time.Second, 1100 * time.Millisecond},
		{"against the clock of the server", 503, skewed.Add(time.Second).Format(http.TimeFormat), skewed, time.Second, 1100 * time.Millisecond},
		{"a date far ahead", 503, start.Add(100 * 365 * 24 * time.Hour).Format(http.TimeFormat), start, none, 0},
		{"a past date is no hint", 503, start.Add(-time.Hour).Format(http.TimeFormat), start, 0, 100 * time.Millisecond},
		{"a past date on 429 is no hint", 429, start.Add(-time.Hour).Format(http.TimeFormat), start, none, 0},
		{"zero is no hint", 503, "0", start, 0, 100 * time.Millisecond},
		{"negative is no hint", 503, "-5", start, 0, 100 * time.Millisecond},
		{"negative on 429 is no hint", 429, "-5", start, none, 0},
		{"a fraction is no hint", 503, "1.5", start, 0, 100 * time.Millisecond},
		{"garbage is no hint", 503, "soon\x01", start, 0, 100 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				resp, err := transport.RoundTrip(request(t, t.Context(), "GET", nil))
				if err != nil {
					t.Fatal(err)
				}
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
			resp, err := client.Do(request(t, t.Context(), "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			read(t, resp)
			if took := time.Since(began); took > time.Second {
				t.Fatalf("waited %v, want at most Delay (1s)", took)
			}
			sum += time.Since(began)
		}
		if mean := sum / calls; mean < 400*time.Millisecond || mean > 600*time.Millisecond {
			t.Errorf("waited %v on average, want about half of Delay (1s)", mean)
		}
	})
}

func TestContext(t *testing.T) {
	slow := func(w http.ResponseWriter, _ *http.Request, n int) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(503)
	}
	t.Run("no time for a retry", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, slow)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			resp, err := s.client(t, httpretry.Policy{}).Do(request(t, ctx, "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			read(t, resp)
			if got := s.got(); len(got) != 1 || time.Since(got[0].at) > 0 {
				t.Errorf("sent %d times in %v, want once, and no wait for a retry that cannot be", len(got), time.Since(got[0].at))
			}
		})
	})
	t.Run("no time for a retry as slow as the first attempt", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				time.Sleep(6 * time.Second)
				w.WriteHeader(500)
			})
			for _, p := range []httpretry.Policy{{}, {NoBudget: true}} {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				before := len(s.got())
				code, err := call(t, s.client(t, p), ctx)
				if got := len(s.got()) - before; code != 500 || err != nil || got != 1 {
					t.Errorf("status %d, %v after %d requests, want 500 after 1", code, err, got)
				}
				cancel()
			}
		})
	})
	t.Run("ends with the first attempt", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
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
	})
	t.Run("ends while waiting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, slow)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(500*time.Millisecond, cancel)
			began := time.Now()
			resp, err := s.client(t, httpretry.Policy{}).Do(request(t, ctx, "GET", nil))
			if err != nil || resp.StatusCode != 503 {
				t.Fatalf("got %v, %v, want the first response", resp, err)
			}
			resp.Body.Close()
			if took := time.Since(began); took != 500*time.Millisecond || len(s.got()) != 1 {
				t.Errorf("sent %d times in %v, want once and an end with the context", len(s.got()), took)
			}
		})
	})
	t.Run("has ended before", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, slow)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := s.client(t, httpretry.Policy{}).Do(request(t, ctx, "GET", nil))
			if !errors.Is(err, context.Canceled) || len(s.got()) != 0 {
				t.Errorf("sent %d times: %v, want none and Canceled", len(s.got()), err)
			}
		})
	})
}

func TestTimeout(t *testing.T) {
	t.Run("slow headers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, func(_ http.ResponseWriter, r *http.Request, n int) {
				if n == 1 {
					<-r.Context().Done()
				}
			})
			began := time.Now()
			resp, err := s.client(t, httpretry.Policy{Timeout: 3 * time.Second}).Do(request(t, t.Context(), "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			read(t, resp)
			if took := time.Since(began); took < 3*time.Second || took > 3100*time.Millisecond {
				t.Errorf("took %v, want the timeout of 3s and a retry", took)
			}
		})
	})
	t.Run("slow headers of a POST", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() })
			_, err := s.client(t, httpretry.Policy{}).Do(request(t, t.Context(), "POST", strings.NewReader("b")))
			wantTimeout(t, err, "30s")
			if got := len(s.got()); got != 1 {
				t.Errorf("sent %d times, want once", got)
			}
		})
	})
	t.Run("slow body", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
				for r.Context().Err() == nil {
					_, _ = io.WriteString(w, "x")
					_ = http.NewResponseController(w).Flush()
					pause := time.NewTimer(time.Second)
					select {
					case <-pause.C:
					case <-r.Context().Done():
					}
				}
			})
			resp, err := s.client(t, httpretry.Policy{Timeout: 5 * time.Second}).Do(request(t, t.Context(), "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			began := time.Now()
			_, err = io.ReadAll(resp.Body)
			wantTimeout(t, err, "5s")
			if took := time.Since(began); took != 5*time.Second {
				t.Errorf("read for %v, want 5s", took)
			}
		})
	})
	t.Run("none", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, func(http.ResponseWriter, *http.Request, int) { <-time.After(time.Hour) })
			resp, err := s.client(t, httpretry.Policy{Timeout: -1}).Do(request(t, t.Context(), "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			read(t, resp)
		})
	})
	t.Run("of the caller is not ours", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() })
			client := s.client(t, httpretry.Policy{})
			client.Timeout = time.Second
			_, err := client.Do(request(t, t.Context(), "GET", nil))
			if err == nil || strings.Contains(err.Error(), "Policy.Timeout") {
				t.Errorf("error %v, want that of http.Client", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = s.transport(t, httpretry.Policy{}).RoundTrip(request(t, ctx, "GET", nil))
			if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "Policy.Timeout") {
				t.Errorf("error %v, want that of the context", err)
			}
			if got := len(s.got()); got != 2 {
				t.Errorf("sent %d times, want once for each call", got)
			}
		})
	})
}

func wantTimeout(t *testing.T, err error, limit string) {
	t.Helper()
	v := classify.Of(err)
	var timeout interface{ Timeout() bool }
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() || v.Class != classify.ClassTransient || !v.Ambiguous {
		t.Errorf("error %v is %+v, want a timeout, transient and ambiguous", err, v)
	}
	if err != nil && !strings.Contains(err.Error(), "Policy.Timeout ("+limit+")") {
		t.Errorf("error %q does not name the limit of %s", err, limit)
	}
}

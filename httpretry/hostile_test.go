package httpretry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/httpretry"
	"github.com/redrive-go/redrive/retry/breaker"
)

// flooding answers with bodies of 100 MB that claim to be a problem.
func flooding(bodies *[]*closer, code int) base {
	return func(req *http.Request) (*http.Response, error) {
		body := &closer{Reader: io.LimitReader(readerFunc(func(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte("["), len(p))), nil }), 100<<20)}
		*bodies = append(*bodies, body)
		resp := answer(req, code, "")
		resp.Header.Set("Content-Type", "application/problem+json")
		resp.Body = body
		return resp, nil
	}
}

func TestAttackHugeProblem(t *testing.T) {
	for _, rules := range [][]classify.Rule{nil, {httpretry.ProblemTypes(map[string]string{"x": classify.ClassPoison})}} {
		bubble(t, fmt.Sprintf("%d rules", len(rules)), func(t *testing.T) {
			var bodies []*closer
			transport := newTransport(t, httpretry.Config{Base: flooding(&bodies, 503), Default: httpretry.Policy{Rules: rules}})
			resp := must(transport.RoundTrip(request(t, t.Context(), "GET", nil)))(t)
			err := httpretry.Check(resp)
			var failed *classify.HTTPError
			if !errors.As(err, &failed) || failed.Status != 503 {
				t.Errorf("Check = %v, want an HTTPError", err)
			}
			if len(bodies) != 2 {
				t.Fatalf("%d attempts, want 2", len(bodies))
			}
			for i, b := range bodies {
				if read, closed := b.read.Load(), b.closed.Load(); read > 64<<10 || closed != 1 {
					t.Errorf("of response %d, %d bytes were read, and it was closed %d times; want at most 64 KiB, and once", i+1, read, closed)
				}
			}
		})
	}
}

func TestProblemTypes(t *testing.T) {
	rules := []classify.Rule{httpretry.ProblemTypes(map[string]string{"https://bank.example/upstream": classify.ClassTransient})}
	for kind, sent := range map[string]int{"https://bank.example/upstream": 2, "https://bank.example/validation": 1} {
		bubble(t, kind, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
				if n == 1 {
					w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
					w.WriteHeader(422)
					_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "title": "No", "padding": strings.Repeat("x", 1000)})
				}
			})
			resp := must(s.client(t, httpretry.Policy{Rules: rules}).Do(request(t, t.Context(), "GET", nil)))(t)
			defer resp.Body.Close()
			if got := len(s.got()); got != sent {
				t.Errorf("sent %d times, want %d", got, sent)
			}
			err := httpretry.Check(resp)
			failed, ok := errors.AsType[*classify.HTTPError](err)
			if ok != (sent == 1) || ok && (failed.Type != kind || failed.Title != "No") {
				t.Errorf("Check = %+v, want the problem, if there is one, though the rules have read it", err)
			}
		})
	}
}

// A rule that looks at the body must not hide that it is cut.
func TestCutProblem(t *testing.T) {
	errCut := errors.New("cut")
	transport := newTransport(t, httpretry.Config{
		Base: base(func(req *http.Request) (*http.Response, error) {
			resp := answer(req, 400, "")
			resp.Body = io.NopCloser(io.MultiReader(strings.NewReader("start"), readerFunc(func([]byte) (int, error) { return 0, errCut })))
			return resp, nil
		}),
		Default: httpretry.Policy{Rules: []classify.Rule{always(classify.ClassPoison)}},
	})
	resp := must(transport.RoundTrip(request(t, t.Context(), "GET", nil)))(t)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if string(body) != "start" || !errors.Is(err, errCut) {
		t.Errorf("read %q, %v, want what there was, and the cut", body, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestCutBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
		})
		resp := must(s.client(t, httpretry.Policy{}).Do(request(t, t.Context(), "GET", nil)))(t)
		body, err := io.ReadAll(resp.Body)
		if string(body) != "half" || !errors.Is(err, io.ErrUnexpectedEOF) || len(s.got()) != 1 {
			t.Errorf("read %q, %v after %d requests, want the cut as it is", body, err, len(s.got()))
		}
		resp.Body.Close()
	})
}

// A failing response whose body never ends must not hold up its retry.
func TestAttackSlowRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 1 {
				w.WriteHeader(502)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
		})
		began := time.Now()
		s.want(t, s.client(t, httpretry.Policy{}), t.Context(), 200, 2)
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("took %v, want at most 200ms", took)
		}
	})
}

func TestAttackRedirectLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) { http.Redirect(w, r, place, http.StatusFound) })
		_, err := s.client(t, httpretry.Policy{}).Do(request(t, t.Context(), "GET", nil))
		if v := classify.Of(err); v.Class != classify.ClassEnvironment || len(s.got()) != 10 {
			t.Errorf("%d requests, and %v is %+v, want 10 and environment", len(s.got()), err, v)
		}
	})
}

func TestRedirectKeepsTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 1 {
				http.Redirect(w, r, place+"/here", http.StatusTemporaryRedirect)
			}
		})
		req := keyed(t, "POST", "k1", strings.NewReader("hello"))
		read(t, must(s.client(t, httpretry.Policy{}).Do(req))(t))
		for i, r := range s.got() {
			if r.body != "hello" || r.header.Get("Idempotency-Key") != "k1" {
				t.Errorf("request %d: body %q with key %q", i+1, r.body, r.header.Get("Idempotency-Key"))
			}
		}
	})
}

// TestAttackRedirect has a server send its caller on to another host, which
// is to learn neither the key nor the trace.
func TestAttackRedirect(t *testing.T) {
	for _, tt := range []struct {
		name, to, key, trace string
	}{
		{"same host", place + "/here", "k1", "t1"},
		{"other host", "http://elsewhere.example/here", "", ""},
		{"same host, other port", "http://bank.example:8081/here", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []http.Header
			transport := newTransport(t, httpretry.Config{
				Default: httpretry.Policy{
					Key:       func(*http.Request) string { return "k1" },
					Propagate: func(_ context.Context, h http.Header) { h.Set("traceparent", "t1") },
				},
				Base: base(func(req *http.Request) (*http.Response, error) {
					got = append(got, req.Header)
					if len(got) > 1 {
						return answer(req, 200, ""), nil
					}
					resp := answer(req, http.StatusTemporaryRedirect, "")
					resp.Header.Set("Location", tt.to)
					return resp, nil
				}),
			})
			req := request(t, t.Context(), "POST", strings.NewReader("hello"))
			read(t, must((&http.Client{Transport: transport}).Do(req))(t))
			if len(got) != 2 || got[0].Get("Idempotency-Key") != "k1" || got[0].Get("traceparent") != "t1" {
				t.Fatalf("headers %v, want two requests, the first with key and trace", got)
			}
			if key, trace := got[1].Get("Idempotency-Key"), got[1].Get("traceparent"); key != tt.key || trace != tt.trace {
				t.Errorf("the redirect got key %q and trace %q, want %q and %q", key, trace, tt.key, tt.trace)
			}
		})
	}
}

func TestBrokenBase(t *testing.T) {
	transport := newTransport(t, httpretry.Config{Base: base(func(*http.Request) (*http.Response, error) { return nil, nil })})
	resp, err := transport.RoundTrip(request(t, t.Context(), "POST", nil))
	if resp != nil || err == nil || !strings.Contains(err.Error(), "Config.Base") {
		t.Errorf("got %v, %v, want an error that names the base", resp, err)
	}
}

func TestOddRequests(t *testing.T) {
	var got *http.Request
	transport := newTransport(t, httpretry.Config{Base: base(func(req *http.Request) (*http.Response, error) {
		got = req
		resp := answer(req, 200, "")
		resp.Body = nil
		return resp, nil
	})})
	bare := &http.Request{}
	if _, err := transport.RoundTrip(bare); err != nil || got == bare || got.Header == nil {
		t.Errorf("a request without anything: %v, %+v", err, got)
	}
	upgrade := request(t, t.Context(), "GET", nil)
	upgrade.Header.Set("Upgrade", "websocket")
	connect := request(t, t.Context(), "CONNECT", nil)
	for _, req := range []*http.Request{upgrade, connect} {
		if _, err := transport.RoundTrip(req); err != nil || got != req {
			t.Errorf("%s with %v was not passed on untouched: %v", req.Method, req.Header, err)
		}
	}
}

// Many goroutines, hosts, failures and cancellations at once.
func TestRace(t *testing.T) {
	var n atomic.Int64
	transport := newTransport(t, httpretry.Config{
		Base: base(func(req *http.Request) (*http.Response, error) {
			if req.Body != nil {
				go func() { // reads on after the answer
					_, _ = io.Copy(io.Discard, req.Body)
					req.Body.Close()
				}()
			}
			switch n.Add(1) % 4 {
			case 0:
				return nil, io.ErrUnexpectedEOF
			case 1:
				return answer(req, 503, "failed"), nil
			}
			return answer(req, 200, "done"), nil
		}),
		Default: httpretry.Policy{Delay: time.Microsecond, NoBudget: true},
	})
	client := &http.Client{Transport: transport}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				req, err := http.NewRequestWithContext(t.Context(), "PUT", fmt.Sprintf("http://host%d.example/", (i*j)%150), text("body"))
				if err != nil {
					t.Error(err)
				} else if resp, err := client.Do(req); err == nil {
					_ = httpretry.Check(resp)
					resp.Body.Close()
				}
			}
		})
	}
	wg.Wait()
}

func TestDependenciesAreBounded(t *testing.T) {
	transport := newTransport(t, httpretry.Config{
		Base:    base(func(req *http.Request) (*http.Response, error) { return answer(req, 500, ""), nil }),
		Default: httpretry.Policy{Retries: -1},
	})
	get := func(host string) error {
		_, err := transport.RoundTrip(must(http.NewRequestWithContext(t.Context(), "GET", "http://"+host+"/", nil))(t))
		return err
	}
	for i := range 100 {
		for range 2 { // one less than opens a breaker
			if err := get(fmt.Sprintf("host%d.example", i)); err != nil {
				t.Fatalf("host %d: %v, want a breaker of its own", i, err)
			}
		}
	}
	var open *httpretry.OpenError
	for i := 0; open == nil && i < 1000; i++ {
		if errors.As(get(fmt.Sprintf("another%d.example", i)), &open) && i < 3 {
			t.Fatalf("host %d beyond the limit: %v, want the others to open at 3", i, open)
		}
	}
	if open == nil || open.Dependency != "(others)" || open.State != breaker.Open {
		t.Errorf("error = %+v, want that of the others", open)
	}
}

package httpretry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/redrive-go/redrive/httpretry"
)

func TestRequestBodies(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 10<<10) // 160 KiB
	tests := []struct {
		name   string
		body   io.Reader
		length int64 // 0 leaves it
		policy httpretry.Policy
		want   string
		sent   int
	}{
		{"GetBody, of any length", strings.NewReader(long), 0, httpretry.Policy{}, long, 2},
		{"kept", text("hello"), 0, httpretry.Policy{}, "hello", 2},
		{"kept, of a known length", text("hello"), 5, httpretry.Policy{}, "hello", 2},
		{"kept to the last byte", text(long[:64<<10]), 0, httpretry.Policy{}, long[:64<<10], 2},
		{"a byte too long", text(long[:64<<10+1]), 0, httpretry.Policy{}, long[:64<<10+1], 1},
		{"known to be too long", text(long), int64(len(long)), httpretry.Policy{}, long, 1},
		{"a larger limit", text(long), 0, httpretry.Policy{MaxBody: 1 << 20}, long, 2},
		{"keeping nothing", text("hello"), 0, httpretry.Policy{MaxBody: -1}, "hello", 1},
		{"keeping nothing, with GetBody", strings.NewReader("hello"), 0, httpretry.Policy{MaxBody: -1}, "hello", 2},
		{"http.NoBody", http.NoBody, 0, httpretry.Policy{MaxBody: -1}, "", 2},
		{"none", nil, 0, httpretry.Policy{MaxBody: -1}, "", 2},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			s := serve(t, status(503))
			req := request(t, t.Context(), "PUT", tt.body)
			if tt.length > 0 {
				req.ContentLength = tt.length
			}
			read(t, must(s.client(t, tt.policy).Do(req))(t))
			got := s.got()
			if len(got) != tt.sent {
				t.Errorf("sent %d times, want %d", len(got), tt.sent)
			}
			for i, r := range got {
				if r.body != tt.want {
					t.Errorf("attempt %d had a body of %d bytes, want %d", i+1, len(r.body), len(tt.want))
				}
			}
		})
	}
}

// closer counts the bytes that are read, and how often it is closed.
type closer struct {
	io.Reader
	read, closed atomic.Int64
}

func (c *closer) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read.Add(int64(n))
	return n, err
}

func (c *closer) Close() error { c.closed.Add(1); return nil }

func TestBodiesAreClosed(t *testing.T) {
	for name, budget := range map[string]*tokens{"of requests": {}, "of a retry that is not made": {empty: true}} {
		bubble(t, name, func(t *testing.T) {
			s := serve(t, status(503))
			first, second := &closer{Reader: strings.NewReader("b")}, &closer{Reader: strings.NewReader("b")}
			req := request(t, t.Context(), "PUT", first)
			req.GetBody = func() (io.ReadCloser, error) { return second, nil }
			read(t, must(s.client(t, httpretry.Policy{Budget: budget}).Do(req))(t))
			synctest.Wait()
			if first.closed.Load() == 0 || second.closed.Load() == 0 {
				t.Errorf("closed %d and %d times, want both closed", first.closed.Load(), second.closed.Load())
			}
		})
	}
	bubble(t, "of responses", func(t *testing.T) {
		var bodies []*closer
		transport := newTransport(t, httpretry.Config{Base: base(func(req *http.Request) (*http.Response, error) {
			resp, body := answer(req, 503, ""), &closer{Reader: strings.NewReader("failed")}
			bodies = append(bodies, body)
			resp.Body = body
			return resp, nil
		})})
		resp := must(transport.RoundTrip(request(t, t.Context(), "GET", nil)))(t)
		if got := bodies[1].closed.Load(); got != 0 {
			t.Errorf("the body for the caller was closed %d times", got)
		}
		read(t, resp)
		for i, b := range bodies {
			if got := b.closed.Load(); got != 1 {
				t.Errorf("the body of response %d was closed %d times, want 1", i+1, got)
			}
		}
	})
}

func TestGetBodyFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, status(503))
		req := request(t, t.Context(), "PUT", strings.NewReader("b"))
		req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
		resp := must(s.client(t, httpretry.Policy{}).Do(req))(t)
		if got := read(t, resp); got != "failed" || resp.StatusCode != 503 {
			t.Errorf("got status %d and %q, want the first response", resp.StatusCode, got)
		}
	})
}

// A base may answer before it has read the body, and read on. What it has not
// read by then cannot be sent again.
func TestBodyReadLater(t *testing.T) {
	var calls atomic.Int64
	done := make(chan struct{})
	transport := newTransport(t, httpretry.Config{Base: base(func(req *http.Request) (*http.Response, error) {
		calls.Add(1)
		go func() {
			defer close(done)
			_, _ = io.Copy(io.Discard, req.Body)
			req.Body.Close()
		}()
		return answer(req, 503, ""), nil
	})})
	source, sink := io.Pipe()
	resp, err := transport.RoundTrip(request(t, t.Context(), "PUT", source))
	if err != nil || resp.StatusCode != 503 || calls.Load() != 1 {
		t.Fatalf("got %v, %v after %d attempts, want the first response", resp, err, calls.Load())
	}
	_, _ = io.Copy(sink, bytes.NewReader(make([]byte, 1<<20)))
	sink.Close()
	<-done
	resp.Body.Close()
}

func TestRequestIsNotChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, status(503))
		req := request(t, t.Context(), "POST", text("hello"))
		body := req.Body
		transport := s.transport(t, httpretry.Policy{Key: func(*http.Request) string { return "k1" }})
		read(t, must(transport.RoundTrip(req))(t))
		if len(req.Header) != 0 || req.Body != body || req.GetBody != nil {
			t.Errorf("the caller's request was changed: %+v", req)
		}
		if got := s.got(); len(got) != 2 || got[1].header.Get("Idempotency-Key") != "k1" {
			t.Errorf("sent %+v, want two with the key", got)
		}
	})
}

// The context of an attempt must not outlive it, or its timer would.
func TestContextOfAnAttemptEnds(t *testing.T) {
	tests := []struct {
		name string
		body io.ReadCloser
		err  error
		use  func(io.ReadCloser)
	}{
		{"an error", nil, io.ErrUnexpectedEOF, nil},
		{"no body", http.NoBody, nil, nil},
		{"read to the end", io.NopCloser(strings.NewReader("x")), nil, func(b io.ReadCloser) { _, _ = io.Copy(io.Discard, b) }},
		{"closed", io.NopCloser(strings.NewReader("x")), nil, func(b io.ReadCloser) { b.Close() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var ctx context.Context
			transport := newTransport(t, httpretry.Config{Base: base(func(req *http.Request) (*http.Response, error) {
				ctx = req.Context()
				if tt.err != nil {
					return nil, tt.err
				}
				resp := answer(req, 200, "")
				resp.Body = tt.body
				return resp, nil
			})})
			resp, err := transport.RoundTrip(request(t, t.Context(), "POST", nil))
			if !errors.Is(err, tt.err) {
				t.Fatal(err)
			}
			if tt.use != nil {
				if ctx.Err() != nil {
					t.Error("the context ended before the body was read")
				}
				tt.use(resp.Body)
			}
			if !errors.Is(ctx.Err(), context.Canceled) {
				t.Errorf("the context of the attempt: %v, want that it has ended", ctx.Err())
			}
		})
	}
}

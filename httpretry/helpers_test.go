package httpretry_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/httpretry"
)

// pipes is a network inside a bubble.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	close func()
	down  atomic.Bool // refuses connections
	dials atomic.Int64
}

func newPipes() *pipes {
	p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.done) })
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

var errRefused = errors.New("connection refused")

func (p *pipes) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	p.dials.Add(1)
	if p.down.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errRefused}
	}
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// seen is a request as the server got it.
type seen struct {
	at     time.Time
	method string
	header http.Header
	body   string
}

// service is a server in a bubble, and what it saw.
type service struct {
	*pipes
	base *http.Transport

	mu       sync.Mutex
	requests []seen
}

// serve starts a server. The handler gets the number of the request, from 1.
func serve(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, n int)) *service {
	s := &service{pipes: newPipes()}
	s.base = &http.Transport{DialContext: s.dial}
	server := &httptest.Server{Listener: s.pipes, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.requests = append(s.requests, seen{time.Now(), r.Method, r.Header.Clone(), string(body)})
		n := len(s.requests)
		s.mu.Unlock()
		handle(w, r, n)
	})}}
	server.Start()
	t.Cleanup(func() {
		s.base.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
	})
	return s
}

func (s *service) got() []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// transport returns a Transport to the service.
func (s *service) transport(t *testing.T, p httpretry.Policy) *httpretry.Transport {
	t.Helper()
	return newTransport(t, httpretry.Config{Base: s.base, Default: p})
}

func (s *service) client(t *testing.T, p httpretry.Policy) *http.Client {
	t.Helper()
	return &http.Client{Transport: s.transport(t, p)}
}

// want has the client make a GET, and checks the status of the answer and how many
// requests have arrived in all.
func (s *service) want(t *testing.T, client *http.Client, ctx context.Context, status, requests int) {
	t.Helper()
	got, err := call(t, client, ctx)
	if n := len(s.got()); got != status || err != nil || n != requests {
		t.Errorf("got status %d, error %v and %d requests, want status %d and %d requests", got, err, n, status, requests)
	}
}

// status answers the first requests with codes, and all others with 200.
func status(codes ...int) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, n int) {
		if n <= len(codes) {
			w.WriteHeader(codes[n-1])
			_, _ = io.WriteString(w, "failed")
			return
		}
		_, _ = io.WriteString(w, "done")
	}
}

// hangs answers nothing until the client gives up.
func hangs(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }

const place = "http://bank.example/charges"

// must returns what a call gives that must not fail.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// bubble runs a subtest in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func request(t *testing.T, ctx context.Context, method string, body io.Reader) *http.Request {
	t.Helper()
	return must(http.NewRequestWithContext(ctx, method, place, body))(t)
}

// keyed is a request with an Idempotency-Key, unless that is empty.
func keyed(t *testing.T, method, key string, body io.Reader) *http.Request {
	t.Helper()
	req := request(t, t.Context(), method, body)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return req
}

// text hides that it is a strings.Reader, so that there is no GetBody.
func text(s string) io.Reader { return struct{ io.Reader }{strings.NewReader(s)} }

// read returns the body and closes it.
func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	return string(must(io.ReadAll(resp.Body))(t))
}

// call makes a GET and returns the status, 0 for an error.
func call(t *testing.T, client *http.Client, ctx context.Context) (int, error) {
	t.Helper()
	resp, err := client.Do(request(t, ctx, "GET", nil))
	if err != nil {
		return 0, err
	}
	read(t, resp)
	return resp.StatusCode, nil
}

// base is a RoundTripper in a function.
type base func(*http.Request) (*http.Response, error)

func (b base) RoundTrip(req *http.Request) (*http.Response, error) { return b(req) }

// answer makes a response without a network.
func answer(req *http.Request, status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: req}
}

func newTransport(t *testing.T, c httpretry.Config) *httpretry.Transport {
	t.Helper()
	return must(httpretry.New(c))(t)
}

package service

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// thisMachine lets tests call their servers.
var thisMachine = Targets{Networks: []string{"127.0.0.0/8", "::1/128"}}

// callOnce makes one call with a client of its own.
func callOnce(t testing.TB, targets Targets, resolver *net.Resolver, task Task, limit time.Duration) (int, error) {
	t.Helper()
	ts := newTargets(newTestGuard(t, targets), resolver, 16)
	t.Cleanup((&http.Client{Transport: ts.base}).CloseIdleConnections)
	u, err := url.Parse(task.TargetURL)
	must(t, err)
	to, err := ts.of("a", u)
	must(t, err)
	status, _, err := call(t.Context(), to.client, task, nil, limit)
	return status, err
}

// says reports whether an error has a text in it. With the text "", there must be no
// error.
func says(err error, text string) bool {
	if err == nil || text == "" {
		return err == nil && text == ""
	}
	return strings.Contains(err.Error(), text)
}

func serve(t testing.TB, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.URL
}

func post(to string) Task {
	return Task{TargetURL: to, Method: http.MethodPost, IdempotencyKey: "key-1", Body: []byte("hello")}
}

func TestCallSendsTheTask(t *testing.T) {
	for _, tt := range []struct {
		method, body string
		length       int64
	}{{"POST", "hello", 5}, {"POST", "", 0}, {"PUT", "x", 1}, {"DELETE", "", 0}, {"GET", "", 0}, {"PATCH", "y", 1}} {
		var got *http.Request
		var body []byte
		target := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			got = r
			body, _ = io.ReadAll(r.Body)
		})
		task := Task{TargetURL: target + "/a?b=c", Method: tt.method, IdempotencyKey: "key-1", Body: []byte(tt.body),
			Headers: map[string]string{"content-type": "text/plain", "X-One": "1"}}
		status, err := callOnce(t, thisMachine, nil, task, time.Minute)
		if status != 200 || err != nil {
			t.Fatalf("%s: %d, %v", tt.method, status, err)
		}
		if got.Method != tt.method || got.RequestURI != "/a?b=c" || string(body) != tt.body || got.ContentLength != tt.length {
			t.Errorf("%s %s with %q of %d bytes, want %+v", got.Method, got.RequestURI, body, got.ContentLength, tt)
		}
		for name, want := range map[string]string{"Idempotency-Key": "key-1", "Content-Type": "text/plain", "X-One": "1", "User-Agent": "redrive-service", "Accept-Encoding": ""} {
			if got.Header.Get(name) != want {
				t.Errorf("%s: header %s is %q, want %q", tt.method, name, got.Header.Get(name), want)
			}
		}
	}
}

// TestCallIsSentOnce has a server close connections under requests, of which several
// are idle: net/http must not repeat a request by itself.
func TestCallIsSentOnce(t *testing.T) {
	const idle = 4
	var calls atomic.Int64
	var together sync.WaitGroup // when it is done, each has a connection
	target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) > idle {
			hijack(w, nil)
			return
		}
		together.Done()
		together.Wait()
	})
	for _, tt := range []struct{ method, body string }{{"POST", "hello"}, {"POST", ""}, {"GET", ""}, {"HEAD", ""}, {"OPTIONS", ""}, {"GET", "hello"}, {"DELETE", ""}} {
		ts := newTargets(newTestGuard(t, thisMachine), nil, 16)
		u, _ := url.Parse(target)
		to, err := ts.of("a", u)
		must(t, err)
		calls.Store(0)
		together.Add(idle)
		task := post(target)
		task.Method, task.Body, task.Headers = tt.method, []byte(tt.body), map[string]string{"X-Idempotency-Key": "of the target's own"}
		var first sync.WaitGroup
		for range idle {
			first.Go(func() {
				if status, _, err := call(t.Context(), to.client, task, nil, time.Minute); status != 200 || err != nil {
					t.Error(status, err)
				}
			})
		}
		first.Wait()
		if status, _, err := call(t.Context(), to.client, task, nil, time.Minute); err == nil || calls.Load() != idle+1 {
			t.Errorf("%s %q: %d, %v after %d requests, want an error after %d", tt.method, tt.body, status, err, calls.Load(), idle+1)
		}
	}
}

// hijack takes a connection over, and closes it with a reset after f.
func hijack(w http.ResponseWriter, f func(net.Conn)) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	if f != nil {
		f(c)
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

func TestCallOfATargetInTrouble(t *testing.T) {
	release := make(chan struct{}) // of handlers that hang, anew for each
	closed := httptest.NewServer(nil)
	closed.Close()
	for _, tt := range []struct {
		name   string
		serve  http.HandlerFunc
		url    string
		limit  time.Duration
		status int
		err    string // part of it; none if empty
	}{
		{name: "hangs", serve: func(http.ResponseWriter, *http.Request) { <-release }, limit: 50 * time.Millisecond, err: "no answer in time, within 50ms"},
		{name: "resets", serve: func(w http.ResponseWriter, _ *http.Request) { hijack(w, nil) }, err: "reset"},
		{name: "is down", url: closed.URL, err: "connection refused"},
		{name: "slow body of a problem", status: 503, err: "http status 503", serve: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(503)
			_ = http.NewResponseController(w).Flush()
			<-release
		}},
		{name: "body is cut", status: 202, serve: func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\nhalf") })
		}},
		{name: "endless headers", err: "headers exceeded", serve: func(w http.ResponseWriter, _ *http.Request) {
			for i := range 2000 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 100))
			}
		}},
		{name: "no HTTP", err: "malformed HTTP", serve: func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, func(c net.Conn) { _, _ = io.WriteString(c, "220 mail.example ESMTP\r\n\r\n") })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			target := tt.url
			if tt.serve != nil {
				target = serve(t, tt.serve)
			}
			release = make(chan struct{})
			t.Cleanup(func() { close(release) }) // before the server is closed
			if tt.limit == 0 {
				tt.limit = time.Minute
			}
			status, err := callOnce(t, thisMachine, nil, post(target+"/?token=secret"), tt.limit)
			if status != tt.status || !says(err, tt.err) {
				t.Errorf("%d, %v; want %d, %q", status, err, tt.status, tt.err)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error has the query: %v", err)
			}
		})
	}
}

func TestRedirects(t *testing.T) {
	type seen struct{ method, key, token string }
	var got []seen
	var elsewhere string
	mux := http.NewServeMux()
	mux.HandleFunc("/end", func(_ http.ResponseWriter, r *http.Request) {
		got = append(got, seen{r.Method, r.Header.Get(keyHeader), r.Header.Get("X-Token")})
		if ref := r.Header.Get("Referer"); ref != "" {
			t.Errorf("referer %q", ref)
		}
	})
	mux.HandleFunc("/to/{status}", func(w http.ResponseWriter, r *http.Request) { // what the query says
		if to := r.URL.RawQuery; to == "circle" {
			got = append(got, seen{r.Method, r.Header.Get(keyHeader), ""})
			http.Redirect(w, r, "/to/302?circle", http.StatusFound)
		} else {
			status, _ := strconv.Atoi(r.PathValue("status"))
			http.Redirect(w, r, strings.Replace(to, "elsewhere", elsewhere, 1), status)
		}
	})
	target := serve(t, mux.ServeHTTP)
	elsewhere = serve(t, mux.ServeHTTP)
	for _, tt := range []struct {
		method, path string
		status       int
		err          string
		poison       bool
		got          []seen
	}{
		{"GET", "/to/302?/end", 200, "", false, []seen{{"GET", "key-1", "secret"}}},
		{"GET", "/to/308?/end", 200, "", false, []seen{{"GET", "key-1", "secret"}}},
		{"GET", "/to/302?elsewhere/end", 200, "", false, []seen{{"GET", "", ""}}},
		{"POST", "/to/302?/end", 302, "not followed", true, nil},
		{"POST", "/to/307?/end", 307, "not followed", true, nil},
		{"DELETE", "/to/308?/end", 308, "not followed", true, nil},
		{"GET", "/to/302?http://10.0.0.1/", 0, "must not be called", true, nil},
		{"GET", "/to/307?http://169.254.169.254/latest/meta-data/", 0, "must not be called", true, nil},
		{"POST", "/to/307?http://169.254.169.254/latest/meta-data/", 307, "not followed", true, nil},
		{"GET", "/to/302?file:///etc/passwd", 0, "must not be called", true, nil},
		{"GET", "/to/302?circle", 302, "not followed", true, slices.Repeat([]seen{{"GET", "key-1", ""}}, 6)},
	} {
		got = nil
		task := Task{TargetURL: target + tt.path, Method: tt.method, IdempotencyKey: "key-1", Headers: map[string]string{"X-Token": "secret"}}
		status, err := callOnce(t, thisMachine, nil, task, time.Minute)
		if status != tt.status || !says(err, tt.err) {
			t.Errorf("%s %s: %d, %v; want %d, %q", tt.method, tt.path, status, err, tt.status, tt.err)
		}
		if fmt.Sprint(got) != fmt.Sprint(tt.got) {
			t.Errorf("%s %s: arrived %v, want %v", tt.method, tt.path, got, tt.got)
		}
		p := Policy{}.WithDefaults()
		if v := p.verdict(result{status: status, err: err}); err != nil && (v.Class == classify.ClassPoison) != tt.poison {
			t.Errorf("%s %s is %+v", tt.method, tt.path, v)
		}
	}
}

// TestRebinding has a name resolve to a public address first, and then to this
// machine: what is looked at is what is connected to.
func TestRebinding(t *testing.T) {
	var calls atomic.Int64
	target := serve(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) })
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(target, "http://"))
	var asked atomic.Int64
	resolver := fakeResolver(func(string) net.IP {
		asked.Add(1)
		return net.IPv4(127, 0, 0, 1)
	})
	status, err := callOnce(t, Targets{}, resolver, post("http://rebind.example.:"+port), time.Minute)
	e, ok := errors.AsType[*TargetError](err)
	if !ok || e.Target != "127.0.0.1" || status != 0 || calls.Load() > 0 || asked.Load() == 0 {
		t.Errorf("%d, %v; %d calls, %d queries", status, err, calls.Load(), asked.Load())
	}
	if status, err := callOnce(t, thisMachine, resolver, post("http://rebind.example.:"+port), time.Minute); status != 200 || err != nil || calls.Load() != 1 {
		t.Errorf("where it is allowed: %d, %v", status, err)
	}
	fails(t, errOf(callOnce(t, Targets{}, nil, post("http://localhost:"+port), time.Minute)), "must not be called")
}

// fakeResolver answers questions for IPv4 addresses.
func fakeResolver(answer func(name string) net.IP) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go serveDNS(theirs, answer) // ends when the resolver closes its end
		return ours, nil
	}}
}

// serveDNS speaks DNS as over TCP, of one question with one answer.
func serveDNS(c net.Conn, answer func(name string) net.IP) {
	defer c.Close()
	for {
		var length [2]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		end := 12
		var name []string
		for query[end] != 0 {
			name = append(name, string(query[end+1:end+1+int(query[end])]))
			end += 1 + int(query[end])
		}
		question := query[12 : end+5]
		reply := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
		if binary.BigEndian.Uint16(question[len(question)-4:]) == 1 {
			reply[7] = 1
			reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
			reply = append(reply, answer(strings.Join(name, ".")).To4()...)
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

func TestProxyOfTheEnvironmentIsIgnored(t *testing.T) {
	proxied := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the proxy was called") })
	t.Setenv("HTTP_PROXY", proxied)
	t.Setenv("http_proxy", proxied)
	target := serve(t, func(http.ResponseWriter, *http.Request) {})
	gives(t, 200)(callOnce(t, thisMachine, nil, post(target), time.Minute))
}

func TestReservedHeaders(t *testing.T) {
	target := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("called") })
	for _, name := range []string{"Host", "host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Te", "Idempotency-Key"} {
		task := post(target)
		task.Headers = map[string]string{name: "x"}
		_, err := callOnce(t, thisMachine, nil, task, time.Minute)
		if _, ok := errors.AsType[*TargetError](err); !ok || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, value := range []string{"a\r\nX-Injected: 1", "a\x00"} {
		task := post(target)
		task.Headers = map[string]string{"X-A": value}
		if _, err := callOnce(t, thisMachine, nil, task, time.Minute); err == nil {
			t.Errorf("%q: no error", value)
		}
	}
}

// TestBreakerOfATarget has a target hang: after a round of timeouts nobody calls it.
func TestBreakerOfATarget(t *testing.T) {
	var calls atomic.Int64
	down := serve(t, func(w http.ResponseWriter, _ *http.Request) { calls.Add(1); w.WriteHeader(503) })
	up := serve(t, func(http.ResponseWriter, *http.Request) {})
	ts := newTargets(newTestGuard(t, thisMachine), nil, 16)
	do := func(target string) error {
		u, _ := url.Parse(target)
		to, err := ts.of("a", u)
		must(t, err)
		_, _, err = call(t.Context(), to.client, post(target), nil, time.Minute)
		return to.closed(err, time.Now())
	}
	var err error
	for range 100 {
		err = do(down)
	}
	off, ok := err.(*deferral)
	if !ok || off.wait < 500*time.Millisecond || calls.Load() >= 100 {
		t.Errorf("after %d calls: %v", calls.Load(), err)
	}
	if !classify.Of(err).Deferred {
		t.Errorf("%v counts", err)
	}
	if err := do(up); err != nil { // the same address, and another port
		t.Errorf("the other target: %v", err)
	}
}

// TestCallStreams sends a body that is read only once: by its length, and to one
// address. Each has a server of its own, since the request of a body that ends
// early may reach its server after its call ended.
func TestCallStreams(t *testing.T) {
	ts := newTargets(newTestGuard(t, thisMachine), nil, 16)
	for _, tt := range []struct {
		method, path string
		reader       io.Reader
		size         int64
		status       int
		err          string
	}{
		{"POST", "/", strings.NewReader("large"), 5, 200, ""},
		{"POST", "/", strings.NewReader(""), 0, 200, ""},
		{"GET", "/elsewhere", strings.NewReader("large"), 5, 308, "not followed"},
		{"POST", "/", io.MultiReader(strings.NewReader("la"), iotest.ErrReader(errors.New("cut"))), 5, 0, "its body could not be read to its end: cut"},
		{"POST", "/", strings.NewReader("la"), 5, 0, "its body could not be read to its end: unexpected EOF"},
	} {
		var calls atomic.Int64
		target := serve(t, func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			if r.URL.Path == "/elsewhere" {
				http.Redirect(w, r, "/", http.StatusPermanentRedirect)
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil || int64(len(body)) != r.ContentLength {
				w.WriteHeader(http.StatusUnprocessableEntity)
			}
		})
		u, _ := url.Parse(target)
		to, err := ts.of("a", u)
		must(t, err)
		task := post(target + tt.path)
		task.Method, task.Body = tt.method, nil
		status, _, err := call(t.Context(), to.client, task, &stream{body: io.NopCloser(tt.reader), size: tt.size}, time.Minute)
		if status != tt.status || !says(err, tt.err) || calls.Load() > 1 {
			t.Errorf("%s %s: %d, %v after %d calls, want %+v and at most one", tt.method, tt.path, status, err, calls.Load(), tt)
		}
	}
}

package classify_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// listen serves each connection to a loopback address by serve, which has to
// close it.
func listen(t *testing.T, serve func(net.Conn)) (addr string) {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

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

// refusing returns an address that nobody listens on.
func refusing(t *testing.T) (addr string) {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn := must(net.Dial("tcp", addr))(t)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// newClient shares no connection with other tests.
func newClient(t *testing.T, transport *http.Transport) *http.Client {
	t.Helper()
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// fetch returns the error of a call that must fail.
func fetch(t *testing.T, c *http.Client, req *http.Request) error {
	t.Helper()
	resp, err := c.Do(req)
	if err == nil {
		resp.Body.Close()
		t.Fatalf("%s %s succeeded with status %d", req.Method, req.URL, resp.StatusCode)
	}
	return err
}

func get(t *testing.T, url string) *http.Request {
	t.Helper()
	return must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
}

func post(t *testing.T, url string) *http.Request {
	t.Helper()
	return must(http.NewRequestWithContext(t.Context(), http.MethodPost, url, io.NopCloser(strings.NewReader("order"))))(t)
}

func TestDial(t *testing.T) {
	addr := refusing(t)
	_, refused := net.Dial("tcp", addr)
	check(t, refused, transient("errno ECONNREFUSED", "ECONNREFUSED"))
	check(t, fetch(t, newClient(t, &http.Transport{}), get(t, "http://"+addr)), transient("errno ECONNREFUSED", "ECONNREFUSED"))

	_, late := (&net.Dialer{Deadline: time.Now().Add(-time.Second)}).Dial("tcp", addr)
	check(t, late, transient("context deadline exceeded", ""))

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, stopped := (&net.Dialer{}).DialContext(canceled, "tcp", addr)
	check(t, stopped, unknown("context canceled", ""))

	for _, address := range []string{"127.0.0.1", "[::1", "127.0.0.1:80:80"} {
		_, malformed := net.Dial("tcp", address)
		check(t, malformed, environment("network address", ""))
	}
	_, network := net.Dial("carrier pigeon", addr)
	check(t, network, environment("network address", ""))

	strange := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("strange")}
	check(t, strange, transient("net dial", ""))
	_, _, mask := net.ParseCIDR("10.0.0.0/99")
	check(t, mask, environment("network address", ""))
}

func TestReset(t *testing.T) {
	addr := listen(t, func(c net.Conn) {
		io.ReadFull(c, make([]byte, 1))
		c.(*net.TCPConn).SetLinger(0) // close with a reset
		c.Close()
	})
	conn := dial(t, addr)
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_, reset := conn.Read(make([]byte, 1))
	check(t, reset, ambiguous("errno ECONNRESET", "ECONNRESET"))
	_, pipe := conn.Write([]byte("x"))
	check(t, pipe, ambiguous("errno EPIPE", "EPIPE"))
}

func TestDeadlineAndClosed(t *testing.T) {
	addr := listen(t, func(c net.Conn) {
		io.Copy(io.Discard, c)
		c.Close()
	})
	conn := dial(t, addr)
	conn.SetReadDeadline(time.Now().Add(-time.Second))
	_, late := conn.Read(make([]byte, 1))
	check(t, late, ambiguous("i/o deadline exceeded", ""))

	conn.Close()
	_, closed := conn.Read(make([]byte, 1))
	check(t, closed, transient("net.ErrClosed", ""))
}

func TestConnectionCutBeforeReply(t *testing.T) {
	replies := map[string]string{
		"no reply":    "",
		"half a line": "HTTP/1.1 200 O",
		"half a head": "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n",
	}
	for name, reply := range replies {
		t.Run(name, func(t *testing.T) {
			addr := listen(t, func(c net.Conn) {
				if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					io.Copy(io.Discard, req.Body)
				}
				io.WriteString(c, reply)
				c.Close()
			})
			err := fetch(t, newClient(t, &http.Transport{}), post(t, "http://"+addr))
			check(t, err, ambiguous("http connection cut before the reply", ""))
		})
	}
}

func TestBodyCut(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "short")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer srv.Close()
	resp := must(newClient(t, &http.Transport{}).Do(get(t, srv.URL)))(t)
	defer resp.Body.Close()
	_, err := io.ReadAll(resp.Body)
	check(t, err, unknown("io.ErrUnexpectedEOF", ""))
}

func TestBodyTooLarge(t *testing.T) {
	body := http.MaxBytesReader(httptest.NewRecorder(), io.NopCloser(strings.NewReader("order")), 3)
	_, err := io.ReadAll(body)
	check(t, err, poison("http body too large", ""))
}

// silent never answers, until the test ends.
func silent(t *testing.T) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	return srv
}

func TestHTTPTimeouts(t *testing.T) {
	srv := silent(t)
	const soon = 20 * time.Millisecond

	client := newClient(t, &http.Transport{})
	client.Timeout = soon
	check(t, fetch(t, client, get(t, srv.URL)), ambiguous("context deadline exceeded", ""))

	header := newClient(t, &http.Transport{ResponseHeaderTimeout: soon})
	check(t, fetch(t, header, post(t, srv.URL)), ambiguous("context deadline exceeded", ""))

	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	plain := newClient(t, &http.Transport{})
	check(t, fetch(t, plain, get(t, srv.URL).WithContext(ctx)), ambiguous("context deadline exceeded", ""))

	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	check(t, fetch(t, plain, get(t, srv.URL).WithContext(ctx)), unknown("context canceled", ""))

	ctx, cancel = context.WithTimeoutCause(t.Context(), soon, classify.ErrAttemptTimeout)
	defer cancel()
	check(t, errors.Join(context.Cause(ctx), fetch(t, plain, get(t, srv.URL).WithContext(ctx))), late)
}

func TestRequestsThatCannotBeSent(t *testing.T) {
	client := newClient(t, &http.Transport{})
	for _, address := range []string{"http://[::1", "http://a b"} {
		_, malformed := url.Parse(address)
		check(t, malformed, poison("url parse", ""))
		_, malformed = http.NewRequest(http.MethodGet, address, nil)
		check(t, malformed, poison("url parse", ""))
	}
	check(t, fetch(t, client, get(t, "gopher://127.0.0.1")), environment("http unsupported scheme", ""))
	check(t, fetch(t, client, get(t, "http:///path")), environment("http no host", ""))
	_, direct := client.Transport.RoundTrip(get(t, "gopher://127.0.0.1"))
	check(t, direct, environment("http unsupported scheme", ""))

	loop := httptest.NewServer(http.RedirectHandler("/", http.StatusFound))
	defer loop.Close()
	check(t, fetch(t, client, get(t, loop.URL)), environment("http too many redirects", ""))
}

// These texts need a race with the server, or an HTTP/2 server that misbehaves.
func TestTexts(t *testing.T) {
	below := func(text string) error {
		return &url.Error{Op: "Post", URL: "http://127.0.0.1", Err: errors.New(text)}
	}
	check(t, errors.New("http: server closed idle connection"), transient("http idle connection closed", ""))
	check(t, below("http: server closed idle connection"), transient("http idle connection closed", ""))
	check(t, below("http2: server sent GOAWAY and closed the connection"), ambiguous("http2 goaway", ""))
	check(t, below("http2: client connection lost"), ambiguous("http2 connection lost", ""))
	check(t, below("stream error: stream ID 1; INTERNAL_ERROR"), ambiguous("http2 stream error", ""))
	check(t, errors.New("stopped after lunch"), unknown("", ""))
	check(t, errors.New("stream error: no water"), unknown("", ""))
	check(t, errors.New("http2: server sent GOAWAY and closed the connection"), unknown("", ""))
}

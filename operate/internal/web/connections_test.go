package web

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// pipes is a listener whose connections come from addresses that a test
// chooses.
type pipes struct{ conns chan net.Conn }

func (p *pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p *pipes) Close() error   { close(p.conns); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// from is a connection from an address.
type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

// hall is a server in virtual time, with a log. It admits requests that show a
// token. It answers a request for /slow when slow receives a value.
type hall struct {
	*testing.T
	connections *Connections
	pipes       *pipes
	slow        chan struct{}
	log         bytes.Buffer
}

func inHall(t *testing.T, o Options, test func(h *hall)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &hall{T: t, pipes: &pipes{make(chan net.Conn)}, slow: make(chan struct{})}
		h.connections = New(o, slog.New(slog.NewTextHandler(&h.log, nil)))
		server := &http.Server{ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Hour, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				Admit(r)
			}
			if r.URL.Path == "/slow" {
				<-h.slow
			}
		})}
		ended := make(chan error)
		go func() { ended <- h.connections.Serve(server, h.pipes) }()
		test(h)
		close(h.slow)
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-ended
		synctest.Wait()
		if n := len(h.connections.open) + len(h.connections.from); n > 0 {
			t.Errorf("%d places were not given back", n)
		}
	})
}

// client is the end of a connection at the client.
type client struct {
	*hall
	net.Conn
	answers *bufio.Reader
}

// connect makes a connection from an address, and waits for a second.
func (h *hall) connect(addr string) *client {
	h.Helper()
	ours, theirs := net.Pipe()
	h.pipes.conns <- from{theirs, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))}
	time.Sleep(time.Second)
	return &client{h, ours, bufio.NewReader(ours)}
}

// begin sends a request.
func (c *client) begin(path, token string) {
	c.Helper()
	if _, err := fmt.Fprintf(c.Conn, "GET %s HTTP/1.1\r\nHost: here\r\n%s\r\n", path, token); err != nil {
		c.Errorf("%s cannot be sent: %v", path, err)
	}
}

// end reads the answer, and waits for a second.
func (c *client) end() {
	c.Helper()
	answer, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		c.Errorf("there is no answer: %v", err)
		return
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	time.Sleep(time.Second)
}

func (c *client) ask(token string) { c.Helper(); c.begin("/", token); c.end() }

// is fails the test unless the connection is open, or closed, as wanted.
func (c *client) is(open bool, what string) {
	c.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	_ = c.SetReadDeadline(time.Time{})
	if timeout, ok := err.(net.Error); (ok && timeout.Timeout()) != open {
		c.Errorf("%s: open is %v, want %v: %v", what, !open, open, err)
	}
}

const token = "Authorization: Bearer of a tenant\r\n"

// TestWhoLosesItsPlace fills all places, and tests which connections make room.
func TestWhoLosesItsPlace(t *testing.T) {
	inHall(t, Options{Most: 4}, func(h *hall) {
		good := h.connect("10.0.0.1:1")
		good.ask(token)
		stranger := h.connect("10.0.0.2:1")
		stranger.ask("")
		old, young := h.connect("10.0.0.3:1"), h.connect("10.0.0.3:2")
		h.connect("10.0.0.4:1").is(true, "the fifth")
		old.is(false, "the oldest connection of the address with the most")
		stranger.is(true, "a connection with an address of its own")
		h.connect("10.0.0.5:1").is(true, "the sixth")
		stranger.is(false, "the older one of two connections without a token")
		young.is(true, "the younger connection without a token")
		h.connect("10.0.0.6:1")
		h.connect("10.0.0.7:1")
		h.connect("10.0.0.8:1")
		good.is(true, "a connection that has shown a token")
		good.ask(token)
		h.counts(refusedIdle, 5)
		h.counts(refusedAll, 0)
	})
}

// TestRequestsKeepTheirPlaces runs as many requests as there are places.
func TestRequestsKeepTheirPlaces(t *testing.T) {
	inHall(t, Options{Most: 4, BehindProxy: true}, func(h *hall) {
		var busy []*client
		for n := range 4 {
			c := h.connect(fmt.Sprint("10.0.0.1:", n+1))
			c.begin("/slow", token)
			busy = append(busy, c)
		}
		synctest.Wait()
		h.connect("10.0.0.2:1").is(false, "a new connection while requests use all places")
		h.counts(refusedAll, 1)
		for range busy {
			h.slow <- struct{}{}
		}
		for _, c := range busy {
			c.end()
		}
		h.connect("10.0.0.2:1").is(true, "a new connection when no request is under way")
	})
}

// TestOneAddress tests that one address cannot take all places.
func TestOneAddress(t *testing.T) {
	inHall(t, Options{Most: 6}, func(h *hall) {
		for n := range 3 {
			h.connect(fmt.Sprintf("[2001:db8::%d]:1", n+1)).begin("/slow", token)
		}
		synctest.Wait()
		h.connect("[2001:db8::ffff:1]:1").is(false, "one more connection from the same network")
		h.counts(refusedAddress, 1)
		h.connect("[2001:db8:0:1::1]:1").is(true, "a connection from another network")
		h.connect("10.0.0.1:1").is(true, "a connection from IPv4")
		for range 3 {
			h.slow <- struct{}{}
		}
	})
}

// TestDrippingHeadersLoseTheirPlace sends headers that never end. Their
// connection loses its place to a new one, or is closed after
// ReadHeaderTimeout.
func TestDrippingHeadersLoseTheirPlace(t *testing.T) {
	inHall(t, Options{Most: 2}, func(h *hall) {
		drip := h.connect("10.0.0.1:1")
		_, _ = io.WriteString(drip, "GET / HTTP/1.1\r\nX: ")
		good := h.connect("10.0.0.2:1")
		good.ask(token)
		h.connect("10.0.0.3:1").ask(token)
		drip.is(false, "a request whose headers do not end")
		late := h.connect("10.0.0.4:1")
		_, _ = io.WriteString(late, "GET / HTTP/1.1\r\nX: ")
		time.Sleep(10 * time.Second)
		if answer, err := io.ReadAll(late); len(answer) > 0 || err != nil {
			t.Errorf("after ten seconds: %q, %v", answer, err)
		}
	})
}

// TestRefusalsAreSaid tests that one line a minute logs all refused
// connections.
func TestRefusalsAreSaid(t *testing.T) {
	inHall(t, Options{Most: 2}, func(h *hall) {
		for n := range 50 {
			h.connect(fmt.Sprint("10.0.0.1:", n+1))
		}
		time.Sleep(time.Minute)
		h.connect("10.0.0.1:60")
		h.connect("10.0.0.1:61")
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(h.log.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "idle=1 ") || !strings.Contains(lines[1], "most=2 most_of_an_address=1 from=10.0.0.1 idle=49 address=0 all=0") {
			t.Errorf("the log is\n%s", h.log.String())
		}
	})
}

// counts fails the test unless the metric counts so many connections of a
// reason.
func (h *hall) counts(why refusal, want int) {
	h.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(h.connections)
	families, err := registry.Gather()
	if err != nil {
		h.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			if len(m.Label) == 1 && m.Label[0].GetValue() == string(why) {
				if got := int(m.Counter.GetValue()); got != want {
					h.Errorf("%d connections were refused for the reason %s, want %d", got, why, want)
				}
				return
			}
		}
	}
	h.Errorf("the reason %s has no metric", why)
}

func TestMost(t *testing.T) {
	for _, tt := range []struct {
		most  int
		files uint64
		want  int
		fits  bool
	}{
		{0, 1024, 341, true}, {0, 20, 16, true}, {0, 1 << 20, 2048, true}, {0, 1<<64 - 1, 2048, true}, {0, 0, 2048, true},
		{100, 1024, 100, true}, {682, 1024, 682, true}, {683, 1024, 683, false}, {5000, 0, 5000, true}, {5000, 1 << 20, 5000, true},
	} {
		o := Options{Most: tt.most}
		if got, err := o.most(tt.files), o.check(tt.files); got != tt.want || (err == nil) != tt.fits {
			t.Errorf("%d with %d files: %d, %v; want %d, %v", tt.most, tt.files, got, err, tt.want, tt.fits)
		}
	}
}

package web

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options say how a server takes connections.
type Options struct {
	// Most is the most connections at a time. Zero is a third of the files that the
	// process may have open, from 16 to 2048: calls, the store and bodies need the rest.
	Most int

	// BehindProxy says that a proxy makes the connections, so that all may come from one
	// address. Otherwise an address has half of them at most.
	BehindProxy bool

	// Certificate encrypts the connections. Nil leaves them plain.
	Certificate *Certificate
}

// Bounds of Options.Most.
const (
	leastMost = 16
	mostMost  = 2048
)

// most is Options.Most for a process that may have so many files open; zero means that
// nothing bounds them.
func (o Options) most(files uint64) int {
	if o.Most > 0 {
		return o.Most
	}
	if files == 0 {
		return mostMost
	}
	return int(min(max(files/3, leastMost), mostMost))
}

// Check reports a number of connections that leaves the process too few files.
func (o Options) Check() error { return o.check(openFiles()) }

func (o Options) check(files uint64) error {
	if o.Most > 0 && files > 0 && uint64(o.Most) > files/3*2 {
		return fmt.Errorf("%d are too many for a process that may have %d files open: use at most %d, or raise ulimit -n", o.Most, files, files/3*2)
	}
	return nil
}

// Connections are those of a server. There is a bound on them in all, and on those of
// one address; of IPv6 a network of 64 bits counts as one address.
//
// At a bound, a new connection takes the place of one that no admitted request uses:
// rather of one that has shown no token, then of the address with the most, then of
// the one that has been idle for longest. If all are in use, the new one is closed.
//
// It is a prometheus.Collector.
type Connections struct {
	most, each int
	cert       *Certificate
	log        *slog.Logger

	mu      sync.Mutex
	open    map[*conn]bool
	from    map[netip.Addr]int
	refused map[refusal]int64
	said    map[refusal]int64 // of these, the log knows
	at      time.Time         // when the log had its latest line
}

// refusal is why a connection was closed.
type refusal string

const (
	refusedIdle    refusal = "idle"    // another took its place
	refusedAddress refusal = "address" // its address has as many as it may
	refusedAll     refusal = "all"     // all places are in use
)

func refusals() []refusal { return []refusal{refusedIdle, refusedAddress, refusedAll} }

// New returns the connections of a server that has none yet.
func New(o Options, log *slog.Logger) *Connections {
	c := &Connections{
		most: o.most(openFiles()), cert: o.Certificate, log: cmp.Or(log, slog.Default()),
		open: map[*conn]bool{}, from: map[netip.Addr]int{}, refused: map[refusal]int64{}, said: map[refusal]int64{},
	}
	if c.each = c.most; !o.BehindProxy {
		c.each = (c.most + 1) / 2
	}
	return c
}

// Serve has a server take connections from a listener, as http.Server.Serve does.
func (c *Connections) Serve(s *http.Server, l net.Listener) error {
	s.ConnContext, s.ConnState = remember, idle
	l = &listener{l, c}
	if c.cert != nil {
		l = tls.NewListener(l, c.cert.config())
	}
	return s.Serve(l)
}

// Scheme is how the addresses of the server begin.
func (o Options) Scheme() string {
	if o.Certificate != nil {
		return "https"
	}
	return "http"
}

// listener has the connections of another one counted.
type listener struct {
	net.Listener
	all *Connections
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if in := l.all.enter(raw); in != nil {
			return in, nil
		}
	}
}

// conn is a connection that has a place.
type conn struct {
	net.Conn
	all  *Connections
	from netip.Addr

	// The mutex of all guards these.
	since time.Time // when it came, or its latest request was admitted, or ended
	known bool      // it has shown a token, if there are tokens
	busy  bool      // with a request that was admitted
}

// Close implements net.Conn, and gives back the place.
func (c *conn) Close() error {
	c.all.mu.Lock()
	c.all.leave(c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends what is sent, as a *net.TCPConn does: net/http looks for it.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// enter gives a connection a place, or closes it and returns nil.
func (c *Connections) enter(raw net.Conn) net.Conn {
	in := &conn{Conn: raw, all: c, from: addressOf(raw), since: time.Now()}
	out, say := c.place(in)
	if out != nil {
		_ = out.Conn.Close()
	}
	if say != nil {
		c.log.Warn("there are more connections than places: the server closes idle ones, or new ones while none is idle", say...)
	}
	if out == in {
		return nil
	}
	return in
}

// place finds a place for a connection. It returns the one that has to be closed for
// that, which may be the new one, and what is to be logged.
func (c *Connections) place(in *conn) (out *conn, say []any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	crowded := c.from[in.from] >= c.each
	if crowded || len(c.open) >= c.most {
		why := refusedIdle
		if out = c.idlest(in.from, crowded); out != nil {
			c.leave(out)
		} else if out, why = in, refusedAll; crowded {
			why = refusedAddress
		}
		c.refused[why]++
		say = c.line(in.from)
	}
	if out != in {
		c.open[in] = true
		c.from[in.from]++
	}
	return out, say
}

// leave takes the place of a connection away.
func (c *Connections) leave(out *conn) {
	if !c.open[out] {
		return
	}
	delete(c.open, out)
	if c.from[out.from]--; c.from[out.from] == 0 {
		delete(c.from, out.from)
	}
}

// idlest is the connection that loses its place for another one: of one address alone,
// if only is set. It is nil if all are in use.
func (c *Connections) idlest(from netip.Addr, only bool) (worst *conn) {
	for candidate := range c.open {
		switch {
		case candidate.busy, only && candidate.from != from:
		case worst == nil || c.idler(candidate, worst):
			worst = candidate
		}
	}
	return worst
}

// idler reports whether a loses its place before b.
func (c *Connections) idler(a, b *conn) bool {
	if a.known != b.known {
		return b.known
	}
	return cmp.Or(cmp.Compare(c.from[b.from], c.from[a.from]), a.since.Compare(b.since)) < 0
}

// remind is how long the log says nothing more about connections that are refused.
const remind = time.Minute

// line is what the log says of those that were refused since its latest line, after
// one from an address; nil if it said something lately.
func (c *Connections) line(from netip.Addr) []any {
	if now := time.Now(); c.at.IsZero() || now.Sub(c.at) >= remind {
		c.at = now
	} else {
		return nil
	}
	all := []any{"most", c.most, "most_of_an_address", c.each, "from", from}
	for _, why := range refusals() {
		all = append(all, string(why), c.refused[why]-c.said[why])
		c.said[why] = c.refused[why]
	}
	return all
}

// addressOf is the address that a connection counts for.
func addressOf(c net.Conn) netip.Addr {
	at, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() {
		network, _ := addr.Prefix(64) // one customer's
		return network.Addr()
	}
	return addr
}

type contextKey struct{}

// bare is the connection below TLS; nil if it is none of ours.
func bare(c net.Conn) *conn {
	if encrypted, ok := c.(*tls.Conn); ok {
		c = encrypted.NetConn()
	}
	own, _ := c.(*conn)
	return own
}

// remember has requests know their connection.
func remember(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, contextKey{}, bare(c))
}

// Admit notes that a request has shown its token, or needs none: its connection keeps
// its place as long as the request lasts.
func Admit(r *http.Request) {
	if c, _ := r.Context().Value(contextKey{}).(*conn); c != nil {
		c.set(true)
	}
}

// idle notes that a request has ended.
func idle(raw net.Conn, s http.ConnState) {
	if c := bare(raw); c != nil && s == http.StateIdle {
		c.set(false)
	}
}

func (c *conn) set(busy bool) {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.busy, c.known, c.since = busy, c.known || busy, time.Now()
}

// Describe implements prometheus.Collector.
func (c *Connections) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements prometheus.Collector.
func (c *Connections) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := prometheus.NewDesc("redrive_http_connections", "Connections that are open.", nil, nil)
	refused := prometheus.NewDesc("redrive_http_connections_refused_total", "Connections that were closed for want of a place: idle ones, for another; new ones of an address that has as many as it may; and new ones while all places are in use.", []string{"reason"}, nil)
	out <- prometheus.MustNewConstMetric(open, prometheus.GaugeValue, float64(len(c.open)))
	for _, why := range refusals() {
		out <- prometheus.MustNewConstMetric(refused, prometheus.CounterValue, float64(c.refused[why]), string(why))
	}
}

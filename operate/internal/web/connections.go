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

// Options say how a server accepts connections.
type Options struct {
	// Most is the most connections at a time. Zero is a third of the files that the
	// process may have open, from 16 to 2048: calls, the store and bodies need the rest.
	Most int

	// BehindProxy says that a proxy makes the connections, so that all may come
	// from one address. Otherwise an address may have at most half of the
	// connections.
	BehindProxy bool

	// Certificate encrypts the connections. Nil leaves them plain.
	Certificate *Certificate
}

// Bounds of Options.Most.
const (
	leastMost = 16
	mostMost  = 2048
)

// most returns the bound on connections of a process that may have so many
// files open. Zero files means that their limit is unknown.
func (o Options) most(files uint64) int {
	if o.Most > 0 {
		return o.Most
	}
	if files == 0 {
		return mostMost
	}
	return int(min(max(files/3, leastMost), mostMost))
}

// Check returns an error if Most leaves the process too few files for other
// uses.
func (o Options) Check() error { return o.check(openFiles()) }

func (o Options) check(files uint64) error {
	if o.Most > 0 && files > 0 && uint64(o.Most) > files/3*2 {
		return fmt.Errorf("%d are too many for a process that may have %d files open: use at most %d, or raise ulimit -n", o.Most, files, files/3*2)
	}
	return nil
}

// Connections bounds the connections of a server: in all, and of each address.
// A network of 64 bits counts as one address in IPv6.
//
// At a bound, a new connection takes the place of a connection that no admitted
// request uses. Connections that have shown no token lose their place first,
// then those of the address with the most connections, then those that have
// been idle for longest. If requests use all connections, the server closes the
// new one.
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
	said    map[refusal]int64 // the numbers of refused that were logged
	at      time.Time         // when the log had its latest line
}

// refusal is why a connection was closed.
type refusal string

const (
	refusedIdle    refusal = "idle"    // a new connection took its place
	refusedAddress refusal = "address" // its address has the most connections that it may have
	refusedAll     refusal = "all"     // all places are in use
)

func refusals() []refusal { return []refusal{refusedIdle, refusedAddress, refusedAll} }

// New returns the Connections of a server that has no connections yet.
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

// Serve makes a server accept connections from a listener, as http.Server.Serve
// does.
func (c *Connections) Serve(s *http.Server, l net.Listener) error {
	s.ConnContext, s.ConnState = remember, idle
	l = &listener{l, c}
	if c.cert != nil {
		l = tls.NewListener(l, c.cert.config())
	}
	return s.Serve(l)
}

// Scheme returns the scheme of the URLs of the server: http or https.
func (o Options) Scheme() string {
	if o.Certificate != nil {
		return "https"
	}
	return "http"
}

// listener counts and bounds the connections that another listener accepts.
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
	since time.Time // when it opened, or its latest request was admitted or ended
	known bool      // a request on it was admitted
	busy  bool      // an admitted request is under way
}

// Close implements net.Conn, and gives back the place.
func (c *conn) Close() error {
	c.all.mu.Lock()
	c.all.leave(c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes the writing side, as a *net.TCPConn does. net/http calls it
// if a connection has it.
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
		c.log.Warn("there are more connections than places: the server closes idle connections, and new ones while no connection is idle", say...)
	}
	if out == in {
		return nil
	}
	return in
}

// place finds a place for a new connection. It returns the connection that must
// be closed for it, which may be the new one, and the arguments of a line for
// the log.
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

// idlest returns the connection that loses its place to a new one. If only is
// set, it is a connection from that address. It is nil if requests use all of
// them.
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

// remind is the time between two lines in the log about refused connections.
const remind = time.Minute

// line returns the arguments of a line for the log: how many connections were
// refused since the latest line, and the address of the newest connection. It
// returns nil if the latest line is younger than remind.
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

// addressOf returns the address that a connection counts for.
func addressOf(c net.Conn) netip.Addr {
	at, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() {
		network, _ := addr.Prefix(64) // usually the network of one customer
		return network.Addr()
	}
	return addr
}

type contextKey struct{}

// bare returns the conn below TLS; nil if there is none.
func bare(c net.Conn) *conn {
	if encrypted, ok := c.(*tls.Conn); ok {
		c = encrypted.NetConn()
	}
	own, _ := c.(*conn)
	return own
}

// remember puts a connection into the context of its requests, for Admit.
func remember(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, contextKey{}, bare(c))
}

// Admit notes that a request has shown its token, or needs none. Its connection
// keeps its place while the request lasts.
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
func (c *Connections) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *Connections) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := Sink(out)
	to.Gauge("http_connections", "Connections that are open.", float64(len(c.open)))
	for _, why := range refusals() {
		to.Counter("http_connections_refused_total", "Connections that the server closed because it had too many, by reason: idle, an idle connection made room for a new one; address, a new connection came from an address with its most connections; all, a new connection came while requests used all connections.", c.refused[why], "reason", string(why))
	}
}

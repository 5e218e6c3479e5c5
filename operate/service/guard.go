package service

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/redrive-go/redrive/classify"
)

// Targets says which targets may be called.
type Targets struct {
	// Hosts are patterns: "api.example.com", "*.example.com" for all names below it,
	// "*" for every host. "https://" before it allows that scheme alone; ":8443" after
	// it that port, and ":*" every port, instead of the usual one of the scheme. None
	// means "*:*".
	Hosts []string

	// Networks are those that may be called although they are not public, such as
	// "10.1.0.0/16", or "127.0.0.0/8" for this machine. An address of the metadata
	// service of a cloud must be named by itself, such as "169.254.169.254/32".
	Networks []string
}

// Guard keeps the service from calling what it must not. It looks at the URL, and
// then at each address that is about to be connected to, so that neither a name that
// resolves to something else nor a redirect leads around it.
type Guard struct {
	hosts    []pattern
	networks []netip.Prefix
}

// NewGuard returns a guard. Its error names every entry that cannot be read.
func NewGuard(t Targets) (*Guard, error) {
	g := &Guard{}
	var faults []error
	for _, text := range t.Hosts {
		p, err := parsePattern(text)
		if err != nil {
			faults = append(faults, err)
		}
		g.hosts = append(g.hosts, p)
	}
	if len(t.Hosts) == 0 {
		g.hosts = []pattern{anyHost}
	}
	for _, text := range t.Networks {
		n, err := netip.ParsePrefix(text)
		if err != nil || n.Addr().Is4In6() {
			faults = append(faults, fmt.Errorf("targets: the network %.100q cannot be read: write one such as 10.1.0.0/16 or fd00:1::/32", text))
			continue
		}
		g.networks = append(g.networks, n.Masked())
	}
	return g, errors.Join(faults...)
}

// TargetError reports a target that must not be called, so that it was not.
type TargetError struct {
	Target string // host and port, or an address
	Reason string
}

// Error says what was refused, and why.
func (e *TargetError) Error() string {
	return fmt.Sprintf("the target %s must not be called: %s", e.Target, e.Reason)
}

// pattern is one of Targets.Hosts. Empty means any scheme, and the usual port.
type pattern struct{ scheme, host, port string }

var anyHost = pattern{host: "*", port: "*"}

func parsePattern(text string) (pattern, error) {
	var p pattern
	rest := strings.ToLower(text)
	if scheme, after, ok := strings.Cut(rest, "://"); ok {
		p.scheme, rest = scheme, after
	}
	p.host = rest
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && !strings.HasSuffix(rest, "]") {
		p.host, p.port = rest[:i], rest[i+1:]
	}
	p.host = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(p.host, "["), "]"), ".")
	port := p.port
	if port == "*" {
		port = ""
	}
	name := strings.TrimPrefix(p.host, "*.")
	_, notAddr := netip.ParseAddr(name)
	switch {
	case p.scheme != "" && p.scheme != "http" && p.scheme != "https",
		strings.HasSuffix(rest, "*."),
		strings.Contains(p.host, ":") != strings.HasPrefix(rest, "["),
		p.port == "" && strings.HasSuffix(rest, ":"),
		port != "" && !isPort(port),
		p.host != "*" && notAddr != nil && !isName(name):
		return p, fmt.Errorf("targets: the host %.100q cannot be read: write one such as api.example.com, *.example.com or https://api.example.com:8443", text)
	}
	return p, nil
}

func isPort(s string) bool {
	return s != "" && len(s) <= 5 && strings.Trim(s, "0123456789") == "" && s[0] != '0' && (len(s) < 5 || s <= "65535")
}

// isName reports whether s may be the name of a host, in ASCII.
func isName(s string) bool {
	return s != "" && len(s) <= 253 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_')
	})
}

func (p pattern) matches(scheme, host, port string) bool {
	switch {
	case p.scheme != "" && p.scheme != scheme,
		p.port == "" && port != usualPorts[scheme],
		p.port != "" && p.port != "*" && p.port != port:
		return false
	case p.host == "*":
		return true
	}
	if below, ok := strings.CutPrefix(p.host, "*."); ok {
		return strings.HasSuffix(host, "."+below)
	}
	return p.host == host
}

var usualPorts = map[string]string{"http": "80", "https": "443"}

// Allowed returns nil if u may be called as far as it tells: a name may still resolve
// to an address that must not. Otherwise it returns a [*TargetError].
func (g *Guard) Allowed(u *url.URL) error {
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	port := u.Port()
	if port == "" {
		port = usualPorts[u.Scheme]
	}
	refuse := func(reason string) error { return &TargetError{Target: fmt.Sprintf("%.300q", u.Host), Reason: reason} }
	addr, notAddr := netip.ParseAddr(host)
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return refuse("only http and https can be called")
	case notAddr != nil && !isName(host):
		return refuse("its host is no name in ASCII, and no address")
	case !isPort(port):
		return refuse("its port is none")
	case u.User != nil:
		return refuse("it has a user: use the header Authorization")
	case !slices.ContainsFunc(g.hosts, func(p pattern) bool { return p.matches(u.Scheme, host, port) }):
		return refuse("it is not among the hosts that are allowed")
	}
	if notAddr != nil {
		return nil
	}
	return g.address(addr)
}

// control is that of a net.Dialer: address is what the name was resolved to. Its
// errors are marked, as they say nothing about the target to a breaker.
func (g *Guard) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return classify.Permanent(&TargetError{Target: address, Reason: "it is no address"})
	}
	return classify.Permanent(g.address(at.Addr()))
}

// address returns nil if addr may be connected to.
func (g *Guard) address(addr netip.Addr) error {
	plain := addr.WithZone("").Unmap()
	refuse := func(reason string) error {
		return &TargetError{Target: addr.String(), Reason: reason}
	}
	if slices.Contains(metadata, plain) {
		if slices.Contains(g.networks, netip.PrefixFrom(plain, plain.BitLen())) {
			return nil
		}
		return refuse("it is that of a cloud's metadata, and the networks do not name it by itself")
	}
	named := slices.ContainsFunc(g.networks, func(n netip.Prefix) bool { return n.Contains(plain) })
	if nat64.Contains(plain) && named { // then it stands for another, which must be allowed itself
		b := plain.As16()
		return g.address(netip.AddrFrom4([4]byte(b[12:])))
	}
	if !named && !public(plain) {
		return refuse("it is not public, and not in the networks that are allowed")
	}
	return nil
}

// metadata are addresses by which clouds give out credentials, or that take orders
// for the machine: of nearly all, Amazon's for IPv6, containers and pods, Alibaba's,
// Google's for IPv6 and Azure's.
var metadata = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"),
	netip.MustParseAddr("fd00:ec2::254"),
	netip.MustParseAddr("169.254.170.2"),
	netip.MustParseAddr("169.254.170.23"),
	netip.MustParseAddr("fd00:ec2::23"),
	netip.MustParseAddr("100.100.100.200"),
	netip.MustParseAddr("fd20:ce::254"),
	netip.MustParseAddr("168.63.129.16"),
}

// nat64 has an IPv4 address in its last four bytes.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// global is all of IPv6 that is public.
var global = netip.MustParsePrefix("2000::/3")

// special are the networks that are not public, by the registries of IANA for
// special purposes: here, private, shared, loopback, link-local, protocols, relays to
// IPv6, documentation, benchmarks, multicast and reserved; and in IPv6 Teredo and
// others that stand for something else, documentation and 6to4.
var special = func() (all []netip.Prefix) {
	for _, text := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
		"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}()

// public reports whether addr, which is no IPv4 address within IPv6, is one of
// everybody's.
func public(addr netip.Addr) bool {
	if !addr.Is4() && !global.Contains(addr) {
		return false
	}
	return !slices.ContainsFunc(special, func(n netip.Prefix) bool { return n.Contains(addr) })
}

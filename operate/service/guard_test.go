package service

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func newTestGuard(t testing.TB, targets Targets) *Guard {
	t.Helper()
	g, err := NewGuard(targets)
	must(t, err)
	return g
}

func TestAllowed(t *testing.T) {
	for _, tt := range []struct {
		hosts   string // separated by spaces
		allowed string
		refused string
	}{
		{"",
			"http://example.com https://example.com:8443/a?b http://93.184.215.14 http://[2606:2800::1]:80 https://EXAMPLE.com. http://a_b.example",
			"ftp://example.com //example.com http://127.0.0.1 http://[::1]:8080 http://169.254.169.254/latest http://10.1.2.3 http://[::ffff:10.1.2.3] " +
				"http://[fe80::1%25eth0] http://0.0.0.0 http://example.com:0 http://user@example.com http://ex%C3%A4mple.com http://" + "\u2460" + ".com http:///path"},
		{"example.com", "http://example.com https://example.com http://example.com:80 https://Example.COM:443",
			"http://example.com:8080 https://example.com:80 http://www.example.com http://example.com.evil.example http://evilexample.com http://93.184.215.14"},
		{"example.com:8443", "https://example.com:8443 http://example.com:8443", "https://example.com"},
		{"example.com:*", "https://example.com:1 http://example.com", "http://other.example"},
		{"https://example.com", "https://example.com", "http://example.com http://example.com:443"},
		{"*.example.com", "http://a.example.com http://a.b.example.com", "http://example.com http://xexample.com http://example.com.evil.example"},
		{"https://*:8443 http://b.example", "https://a.example:8443 http://b.example", "http://a.example:8443 https://b.example"},
		{"93.184.215.14:* [2606:2800::1]", "http://93.184.215.14:9 https://[2606:2800::1]", "http://93.184.215.15 http://[2606:2800::1]:9"},
		{"127.0.0.1:*", "", "http://127.0.0.1:80"}, // which the networks do not have
	} {
		g := newTestGuard(t, Targets{Hosts: strings.Fields(tt.hosts)})
		check := func(target string, want bool) {
			u, err := url.Parse(target)
			must(t, err)
			err = g.Allowed(u)
			if _, ok := errors.AsType[*TargetError](err); (err == nil) != want || ok == want {
				t.Errorf("with hosts %q, %s: %v", tt.hosts, target, err)
			}
		}
		for target := range strings.FieldsSeq(tt.allowed) {
			check(target, true)
		}
		for target := range strings.FieldsSeq(tt.refused) {
			check(target, false)
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, tt := range []struct{ networks, allowed, refused string }{
		{"",
			"8.8.8.8 93.184.215.14 2606:2800::1 ::ffff:8.8.8.8",
			"0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.1.2.3 169.254.169.254 169.254.1.1 172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1 " +
				"192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 168.63.129.16 " +
				":: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::1 100::1 2001::1 2001:db8::1 2002:7f00:1:: 2002:808:808:: " +
				"3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1"},
		{"10.1.0.0/16", "10.1.2.3 ::ffff:10.1.2.3", "10.2.0.1 127.0.0.1 64:ff9b::a01:203"},
		{"127.0.0.0/8 ::1/128", "127.0.0.1 ::1", "10.0.0.1"},
		{"0.0.0.0/0 ::/0", "10.0.0.1 127.0.0.1 fe80::1 64:ff9b::a00:1", "169.254.169.254 fd00:ec2::254 100.100.100.200 64:ff9b::a9fe:a9fe ::ffff:169.254.169.254"},
		{"169.254.169.254/32", "169.254.169.254", "169.254.169.253"},
		{"64:ff9b::/96", "64:ff9b::808:808", "64:ff9b::7f00:1 64:ff9b::a00:1"},
		{"fd00::/8", "fd12::1", "fd00:ec2::254"},
	} {
		g := newTestGuard(t, Targets{Networks: strings.Fields(tt.networks)})
		for text := range strings.FieldsSeq(tt.allowed) {
			if err := g.control("tcp", netip.AddrPortFrom(netip.MustParseAddr(text), 80).String(), nil); err != nil {
				t.Errorf("with networks %q, %s: %v", tt.networks, text, err)
			}
		}
		for text := range strings.FieldsSeq(tt.refused) {
			err := g.control("tcp", netip.AddrPortFrom(netip.MustParseAddr(text), 80).String(), nil)
			if _, ok := errors.AsType[*TargetError](err); !ok {
				t.Errorf("with networks %q, %s: %v", tt.networks, text, err)
			}
		}
	}
}

func TestNewGuardRefuses(t *testing.T) {
	bad := Targets{
		Hosts:    []string{"", "ftp://a.example", "a.example:", "a.example:http", "a.example:0", "a.example:70000", "a b", "a.*.example", "*.", "https://a.example/path", "::1:80", "ä.example", "*.*"},
		Networks: []string{"", "10.0.0.1", "10.0.0.0/33", "::ffff:10.0.0.0/104", "example.com"},
	}
	for _, host := range bad.Hosts {
		if _, err := NewGuard(Targets{Hosts: []string{host}}); err == nil || !strings.Contains(err.Error(), "cannot be read") {
			t.Errorf("host %q: %v", host, err)
		}
	}
	for _, network := range bad.Networks {
		if _, err := NewGuard(Targets{Networks: []string{network}}); err == nil || !strings.Contains(err.Error(), "cannot be read") {
			t.Errorf("network %q: %v", network, err)
		}
	}
	if _, err := NewGuard(bad); strings.Count(err.Error(), "cannot be read") != len(bad.Hosts)+len(bad.Networks) {
		t.Errorf("not all faults are named: %v", err)
	}
}

// FuzzAllowed holds that no URL passes whose host is not of the pattern.
func FuzzAllowed(f *testing.F) {
	for _, u := range []string{"http://a.example", "http://a.example@evil.example", `http://a.example\@evil.example`, "http://evil.example#a.example", "http://[::1]", "http://a.example:80:80"} {
		f.Add(u)
	}
	f.Fuzz(func(t *testing.T, target string) {
		g, err := NewGuard(Targets{Hosts: []string{"*.a.example:*"}})
		must(t, err)
		u, err := url.Parse(target)
		if err != nil {
			return
		}
		if g.Allowed(u) == nil && !strings.HasSuffix(strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), ".a.example") {
			t.Errorf("%q passes", target)
		}
	})
}

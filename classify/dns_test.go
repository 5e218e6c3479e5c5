package classify_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
)

const (
	rcodeServerFailure = 2
	rcodeNameError     = 3
	rcodeRefused       = 5
	noAnswer           = 0xff
)

// resolver asks a name server on loopback that answers every question with
// rcode, or not at all.
func resolver(t *testing.T, rcode byte) *net.Resolver {
	t.Helper()
	server := must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			if n < 12 || rcode == noAnswer {
				continue
			}
			server.WriteTo(answer(buf[:n], rcode), from)
		}
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// answer turns a query into a response without records, as RFC 1035 section
// 4.1.1 lays out the header.
func answer(query []byte, rcode byte) []byte {
	msg := slices.Clone(query)
	msg[2] |= 0x80          // QR: a response
	msg[3] = 0x80 | rcode   // RA, and nothing else
	msg[10], msg[11] = 0, 0 // no additional records
	return msg[:12+questionLen(msg[12:])]
}

// questionLen is the length of the one question that b starts with.
func questionLen(b []byte) int {
	n := 0
	for n < len(b) && b[n] != 0 {
		n += 1 + int(b[n])
	}
	return n + 5 // the root label, the type and the class
}

func lookup(t *testing.T, ctx context.Context, r *net.Resolver) error {
	t.Helper()
	addrs, err := r.LookupNetIP(ctx, "ip4", "orders.test.")
	if err == nil {
		t.Fatalf("the name resolves to %v", addrs)
	}
	return err
}

func TestDNS(t *testing.T) {
	notFound := lookup(t, t.Context(), resolver(t, rcodeNameError))
	check(t, notFound, upTo(3, "dns not found", ""))

	failing := lookup(t, t.Context(), resolver(t, rcodeServerFailure))
	check(t, failing, transient("dns temporary", ""))

	refused := lookup(t, t.Context(), resolver(t, rcodeRefused))
	check(t, refused, transient("dns failure", ""))

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	check(t, lookup(t, ctx, resolver(t, noAnswer)), transient("dns timeout", ""))

	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	check(t, lookup(t, ctx, resolver(t, noAnswer)), unknown("context canceled", ""))

	// errors.As would stop at the name that does not exist.
	check(t, errors.Join(notFound, failing), transient("dns temporary", ""))
	check(t, errors.Join(failing, notFound), transient("dns temporary", ""))
}

func TestDNSBelowHTTP(t *testing.T) {
	dialer := &net.Dialer{Resolver: resolver(t, rcodeNameError)}
	client := newClient(t, &http.Transport{DialContext: dialer.DialContext})
	check(t, fetch(t, client, get(t, "http://orders.test.")), upTo(3, "dns not found", ""))
	check(t, classify.Permanent(fetch(t, client, get(t, "http://orders.test."))), poison("mark: permanent", ""))
}

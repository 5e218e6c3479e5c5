package classify_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

// certificate makes a self-signed one for 127.0.0.1 and the pool that trusts it.
func certificate(t *testing.T, change func(*x509.Certificate)) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "redrive test"},
		NotBefore:             time.Now().Add(-48 * time.Hour),
		NotAfter:              time.Now().Add(48 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	change(template)
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	leaf := must(x509.ParseCertificate(der))(t)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func tlsServer(t *testing.T, config *tls.Config) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.TLS = config
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

func TestCertificates(t *testing.T) {
	tests := []struct {
		name   string
		change func(*x509.Certificate)
		rule   string
	}{
		{"expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-24 * time.Hour) }, "x509 expired or not yet valid"},
		{"not yet valid", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(24 * time.Hour) }, "x509 expired or not yet valid"},
		{"wrong host", func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 2)} }, "x509 wrong host name"},
		{"wrong usage", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} }, "x509 verification"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cert, pool := certificate(t, tt.change)
			srv := tlsServer(t, &tls.Config{Certificates: []tls.Certificate{cert}})
			client := newClient(t, &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}})
			check(t, fetch(t, client, post(t, srv.URL)), environment(tt.rule, ""))
		})
	}
	t.Run("unknown authority", func(t *testing.T) {
		srv := tlsServer(t, nil)
		client := newClient(t, &http.Transport{TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool()}})
		check(t, fetch(t, client, get(t, srv.URL)), environment("x509 unknown authority", ""))
	})
	strange := &tls.CertificateVerificationError{Err: errors.New("strange")}
	check(t, strange, environment("tls certificate verification", ""))
	check(t, &tls.ECHRejectionError{}, environment("tls ech rejected", ""))
}

// A connection returns alerts of the other side in a type of its own.
func TestAlerts(t *testing.T) {
	const lasting, passing = "tls alert of a misconfiguration", "tls alert"
	tests := []struct {
		name           string
		server, client *tls.Config
	}{
		{"client certificate missing", &tls.Config{ClientAuth: tls.RequireAnyClientCert}, &tls.Config{MaxVersion: tls.VersionTLS12}},
		{"version", &tls.Config{MinVersion: tls.VersionTLS13}, &tls.Config{MaxVersion: tls.VersionTLS12}},
		{"application protocol", &tls.Config{NextProtos: []string{"http/1.1"}}, &tls.Config{NextProtos: []string{"orders/1"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := tlsServer(t, tt.server)
			tt.client.InsecureSkipVerify = true
			_, err := tls.Dial("tcp", srv.Listener.Addr().String(), tt.client)
			check(t, err, environment(lasting, ""))
		})
	}
	ofConfiguration := []int{40, 42, 43, 44, 45, 46, 48, 49, 51, 70, 71, 109, 110, 112, 115, 116, 120}
	for alert := range 256 {
		want := ambiguous(passing, "")
		if slices.Contains(ofConfiguration, alert) {
			want = environment(lasting, "")
		}
		check(t, tls.AlertError(alert), want)
	}
	check(t, &net.OpError{Op: "local error", Err: errors.New("strange")}, unknown("", ""))
}

func TestPlainTextOnTLSPort(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	_, direct := tls.Dial("tcp", srv.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	check(t, direct, environment("tls record header", ""))

	client := newClient(t, &http.Transport{})
	err := fetch(t, client, get(t, "https://"+srv.Listener.Addr().String()))
	check(t, err, environment("http.ErrSchemeMismatch", ""))
}

func TestHandshakeTimeout(t *testing.T) {
	addr := listen(t, func(c net.Conn) {
		io.Copy(io.Discard, c)
		c.Close()
	})
	client := newClient(t, &http.Transport{TLSHandshakeTimeout: 20 * time.Millisecond})
	check(t, fetch(t, client, post(t, "https://"+addr)), transient("tls handshake timeout", ""))
}

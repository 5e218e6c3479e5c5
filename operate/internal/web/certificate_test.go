package web

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/operate/internal/certtest"
)

// TestCertificateIsReplaced renews a certificate whose files are written one
// after the other, and tries files with faults.
func TestCertificateIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		year := time.Now().Add(365 * 24 * time.Hour)
		var cert, key []byte
		var unreadable error
		read := func() ([]byte, []byte, error) { return cert, key, unreadable }
		cert, key = certtest.New(t, "first", year)
		c, err := LoadCertificate(read, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		shows := func(name, says string) {
			t.Helper()
			log.Reset()
			time.Sleep(reread)
			for range 3 {
				if got := c.current().Leaf.Subject.CommonName; got != name {
					t.Errorf("it shows %s, want %s", got, name)
				}
			}
			if lines := strings.Count(log.String(), "\n"); !strings.Contains(log.String(), says) || (says == "") != (lines == 0) || lines > 1 {
				t.Errorf("the log is %q, want one line with %q", log.String(), says)
			}
		}
		shows("first", "")
		newCert, newKey := certtest.New(t, "second", year)
		cert = newCert
		shows("first", "are no pair")
		shows("first", "") // the fault was logged already
		key = newKey
		shows("second", "was replaced")
		key = key[:len(key)/2]
		shows("second", "are no pair")
		key = nil
		unreadable = errors.New("there is no such file")
		shows("second", "no such file")
		time.Sleep(complains)
		shows("second", "no such file") // the fault lasts
		unreadable = nil
		cert, key = certtest.New(t, "third", time.Now().Add(-time.Hour))
		shows("second", "has expired")
		cert, key = certtest.New(t, "fourth", year)
		shows("fourth", "was replaced")
	})
}

func TestCertificateIsRefused(t *testing.T) {
	cert, key := certtest.New(t, "a", time.Now().Add(time.Hour))
	_, other := certtest.New(t, "b", time.Now().Add(time.Hour))
	late, lateKey := certtest.New(t, "c", time.Now().Add(-time.Hour))
	for says, files := range map[string][2][]byte{"no pair": {cert, other}, "failed to find any PEM": {nil, key}, "has expired": {late, lateKey}} {
		_, err := LoadCertificate(func() ([]byte, []byte, error) { return files[0], files[1], nil }, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want it to say %q", err, says)
		}
	}
}

// TestTLS tests that a server demands TLS 1.2, and that each connection takes
// one place.
func TestTLS(t *testing.T) {
	cert, key := certtest.New(t, "retries.example.com", time.Now().Add(time.Hour))
	loaded, err := LoadCertificate(func() ([]byte, []byte, error) { return cert, key, nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := New(Options{Most: 8, Certificate: loaded}, slog.New(slog.DiscardHandler))
	server := &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Admit(r)
		c.mu.Lock()
		defer c.mu.Unlock()
		for conn := range c.open {
			if conn.busy {
				w.WriteHeader(http.StatusNoContent)
			}
		}
	})}
	ended := make(chan error)
	go func() { ended <- c.Serve(server, listener) }()
	defer func() { _ = server.Close(); <-ended }()
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(cert)
	for most, fine := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, ServerName: "retries.example.com", MinVersion: tls.VersionTLS10, MaxVersion: most}, ForceAttemptHTTP2: true}
		answer, err := (&http.Client{Transport: transport}).Get("https://" + listener.Addr().String())
		if (err == nil) != fine || fine && (answer.StatusCode != http.StatusNoContent || answer.ProtoMajor != 1) {
			t.Errorf("%s: %+v, %v", tls.VersionName(most), answer, err)
		}
		if answer != nil {
			_ = answer.Body.Close()
		}
		transport.CloseIdleConnections()
	}
}

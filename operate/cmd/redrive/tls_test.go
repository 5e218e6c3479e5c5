package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/certtest"
)

// newCertificate writes a certificate for this machine and its key as cert.pem
// and key.pem. It returns a client that trusts only this certificate.
func newCertificate(t *testing.T, end time.Time) *http.Client {
	t.Helper()
	cert, key := certtest.New(t, "localhost", end)
	must(t, errors.Join(os.WriteFile("cert.pem", cert, 0o600), os.WriteFile("key.pem", key, 0o600)))
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(cert)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, ServerName: "localhost"}, DisableKeepAlives: true}}
}

// TestServersWithTLS tests that both servers show a certificate, and replace
// it.
func TestServersWithTLS(t *testing.T) {
	t.Setenv("A_TOKEN", "correct horse battery staple")
	const keys = `listen: "127.0.0.1:0", tls: {cert: cert.pem, key: key.pem}`
	healthy := func(client *http.Client, address string) error {
		answer, err := client.Get("https://" + address + "/healthz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if body, _ := io.ReadAll(answer.Body); string(body) != "ok\n" {
			return fmt.Errorf("answered with %s", body)
		}
		return nil
	}
	t.Chdir(t.TempDir())
	first := newCertificate(t, time.Now().Add(time.Hour))
	must(t, os.WriteFile(config.DefaultFile, []byte("service: {tokens: {a: [{env: A_TOKEN}]}, "+keys+"}"), 0o600))
	address, stop := retrying(t, nil)
	if err := healthy(first, address); err != nil {
		t.Errorf("the service: %v", err)
	}
	if answer, err := http.Get("http://" + address + "/healthz"); err != nil || answer.StatusCode != http.StatusBadRequest {
		t.Errorf("a plain request is answered with %+v, %v", answer, err)
	}
	second := newCertificate(t, time.Now().Add(time.Hour))
	for begin := time.Now(); healthy(second, address) != nil; time.Sleep(100 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal("the service goes on with its first certificate")
		}
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	inShop(t, func(s *shop) {
		for _, command := range []string{"serve", "service"} {
			s.must(os.WriteFile(config.DefaultFile, []byte(shopConfig+command+": {"+keys+"}\n"), 0o600))
			s.refuses(exitFailure, command+".tls.cert: open cert.pem", command)
			newCertificate(t, time.Now().Add(-time.Hour))
			s.refuses(exitFailure, command+".tls: the certificate has expired", command)
			s.refuses(exitFailure, command+".tls: the certificate has expired", "config", "check")
			s.must(os.Remove("cert.pem"))
			s.must(os.WriteFile(config.DefaultFile, []byte(shopConfig+command+": {connections: 100000000}\n"), 0o600))
			s.refuses(exitFailure, command+".connections: 100000000 are too many", command)
		}
	})
	third, dir := newCertificate(t, time.Now().Add(time.Hour)), t.TempDir()
	must(t, errors.Join(os.Rename("cert.pem", filepath.Join(dir, "cert.pem")), os.Rename("key.pem", filepath.Join(dir, "key.pem"))))
	address, _, stop = serving(t, "serve: {"+strings.NewReplacer("cert.pem", filepath.Join(dir, "cert.pem"), "key.pem", filepath.Join(dir, "key.pem")).Replace(keys)+"}\n")
	if err := healthy(third, strings.TrimPrefix(address, "https://")); err != nil {
		t.Errorf("serve: %v", err)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

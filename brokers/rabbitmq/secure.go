package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
)

// secureScheme begins the URLs of endpoints that speak TLS.
const secureScheme = "amqps"

// secure speaks TLS over conn, where the endpoint says so. The library would do
// that, too, but below what it reads through.
func (e endpoint) secure(ctx context.Context, conn net.Conn, config *tls.Config) (net.Conn, error) {
	if e.Scheme != secureScheme {
		return conn, nil
	}
	config = config.Clone()
	if config == nil {
		var err error
		if config, err = e.tls(); err != nil {
			return nil, err
		}
	}
	config.ServerName = cmp.Or(config.ServerName, e.Host)
	client := tls.Client(conn, config)
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return client, nil
}

// tls is what the parameters of the URL say, or the system.
func (e endpoint) tls() (*tls.Config, error) {
	config := &tls.Config{ServerName: e.ServerName, MinVersion: tls.VersionTLS12}
	if e.CACertFile != "" {
		pem, err := os.ReadFile(e.CACertFile)
		if err != nil {
			return nil, fmt.Errorf("cacertfile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cacertfile: no certificate in %s", e.CACertFile)
		}
	}
	if e.CertFile != "" && e.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(e.CertFile, e.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certfile and keyfile: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

package web

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	reread    = 10 * time.Second // how long a pair is used before it is read anew
	complains = time.Hour        // how often the log has a fault that goes on
)

// Certificate is one that a server shows, and its key. It is read anew as connections
// come, so that it may be replaced while the server runs.
type Certificate struct {
	read func() (cert, key []byte, err error)
	log  *slog.Logger

	mu    sync.Mutex
	pair  *tls.Certificate
	files [2][]byte // that it was made of
	at    time.Time // when they were read last
	fault string    // of those that were read last
	said  time.Time // when the log had it
}

// LoadCertificate returns a certificate that read returns with its key, in PEM.
func LoadCertificate(read func() (cert, key []byte, err error), log *slog.Logger) (*Certificate, error) {
	c := &Certificate{read: read, log: log}
	pair, files, err := c.load(time.Now())
	if err != nil {
		return nil, err
	}
	c.pair, c.files, c.at = pair, files, time.Now()
	return c, nil
}

// load reads a pair that can be used now.
func (c *Certificate) load(now time.Time) (*tls.Certificate, [2][]byte, error) {
	cert, key, err := c.read()
	files := [2][]byte{cert, key}
	if err != nil {
		return nil, files, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, files, fmt.Errorf("the certificate and the key are no pair: %w", err)
	}
	if end := pair.Leaf.NotAfter; now.After(end) {
		return nil, files, errors.New("the certificate has expired, at " + end.UTC().Format(time.RFC3339))
	}
	return &pair, files, nil
}

// config has a server show the certificate.
func (c *Certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, // streams of HTTP/2 would not count as connections
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil },
	}
}

// current is the pair in the files if it can be used, or else the one before.
func (c *Certificate) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Sub(c.at) < reread {
		return c.pair
	}
	c.at = now
	pair, files, err := c.load(now)
	switch {
	case err != nil:
		c.complain(now, err.Error())
	case !bytes.Equal(files[0], c.files[0]) || !bytes.Equal(files[1], c.files[1]):
		c.pair, c.files = pair, files
		c.log.Info("the certificate was replaced", "expires", pair.Leaf.NotAfter)
		fallthrough
	default:
		c.fault = ""
	}
	return c.pair
}

func (c *Certificate) complain(now time.Time, fault string) {
	if fault == c.fault && now.Sub(c.said) < complains {
		return
	}
	c.fault, c.said = fault, now
	c.log.Error("the certificate cannot be replaced: the server still shows the one before", "error", fault, "expires", c.pair.Leaf.NotAfter)
}

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
	reread    = 10 * time.Second // how long a pair is used before it is read again
	complains = time.Hour        // how often the log repeats a lasting fault
)

// Certificate is the certificate that a server shows, with its key. It is read
// again when connections arrive, so that it can be replaced while the server
// runs.
type Certificate struct {
	read func() (cert, key []byte, err error)
	log  *slog.Logger

	mu    sync.Mutex
	pair  *tls.Certificate
	files [2][]byte // the contents of the files that pair was made of
	at    time.Time // when the files were read last
	fault string    // why the files that were read last cannot be used
	said  time.Time // when fault was logged
}

// LoadCertificate loads a certificate and its key, which read returns in PEM.
func LoadCertificate(read func() (cert, key []byte, err error), log *slog.Logger) (*Certificate, error) {
	c := &Certificate{read: read, log: log}
	pair, files, err := c.load(time.Now())
	if err != nil {
		return nil, err
	}
	c.pair, c.files, c.at = pair, files, time.Now()
	return c, nil
}

// load reads the pair. It returns an error if the pair cannot be used now.
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

// config makes a server show the certificate.
func (c *Certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, // streams of HTTP/2 would not count as connections
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil },
	}
}

// current returns the pair in the files if it can be used, or else the previous
// pair.
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
	c.log.Error("the certificate cannot be replaced: the server still shows the previous one", "error", fault, "expires", c.pair.Leaf.NotAfter)
}

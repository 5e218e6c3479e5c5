package kafkatest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// certify makes two authorities, and has the first certify the server and a client.
func (s *Server) certify() error {
	known, err := newAuthority()
	if err != nil {
		return err
	}
	unknown, err := newAuthority()
	if err != nil {
		return err
	}
	server, err := known.certify("server", net.IPv4(127, 0, 0, 1))
	if err != nil {
		return err
	}
	client, err := known.certify(User, nil)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		path   *string
		name   string
		blocks []*pem.Block
	}{
		{&s.CA, "ca.pem", known.blocks()},
		{&s.OtherCA, "other-ca.pem", unknown.blocks()},
		{new(string), "server.pem", server},
		{&s.Cert, "client.pem", client[:1]},
		{&s.Key, "client.key", client[1:]},
	} {
		var text []byte
		for _, block := range f.blocks {
			text = append(text, pem.EncodeToMemory(block)...)
		}
		*f.path = filepath.Join(s.dir, f.name)
		if err := os.WriteFile(*f.path, text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func newAuthority() (*authority, error) {
	a := &authority{}
	block, key, err := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	if err != nil {
		return nil, err
	}
	a.key = key
	a.cert, err = x509.ParseCertificate(block.Bytes)
	return a, err
}

func (a *authority) blocks() []*pem.Block {
	return []*pem.Block{{Type: "CERTIFICATE", Bytes: a.cert.Raw}}
}

// certify returns a certificate and its key. The certificate is of the address,
// unless that is nil.
func (a *authority) certify(name string, address net.IP) ([]*pem.Block, error) {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if address != nil {
		template.IPAddresses = []net.IP{address}
	}
	block, key, err := a.sign(template)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	return []*pem.Block{block, {Type: "PRIVATE KEY", Bytes: private}}, err
}

// sign completes a certificate with a key of its own. An authority without a
// certificate signs its own.
func (a *authority) sign(template *x509.Certificate) (*pem.Block, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	number, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, nil, err
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = number, time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	template.KeyUsage |= x509.KeyUsageDigitalSignature
	parent, signer := template, crypto.Signer(key)
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	return &pem.Block{Type: "CERTIFICATE", Bytes: raw}, key, err
}

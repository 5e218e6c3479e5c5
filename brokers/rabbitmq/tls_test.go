package rabbitmq_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/livetest"
	"github.com/redrive-go/redrive/integration/rabbitmqtest"
)

// secureNode is a RabbitMQ that requires a certificate from each client.
type secureNode struct {
	*admin
	ca     *authority
	server string // host:port for AMQP with TLS
	web    string // host:port of the management API, which requires no certificate
	plain  string // URL for AMQP without TLS
}

// secureSettings are the settings of a secureNode. The common name of a
// client's certificate is its user.
const secureSettings = `
listeners.ssl.1 = 127.0.0.1:%[1]d
ssl_options.cacertfile = /mnt/ca.pem
ssl_options.certfile   = /mnt/server.pem
ssl_options.keyfile    = /mnt/server.key
ssl_options.verify     = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = EXTERNAL
management.ssl.ip         = 127.0.0.1
management.ssl.port       = %[2]d
management.ssl.cacertfile = /mnt/ca.pem
management.ssl.certfile   = /mnt/server.pem
management.ssl.keyfile    = /mnt/server.key
`

func newSecureNode(t *testing.T, target livetest.Target) *secureNode {
	n := &secureNode{ca: newAuthority(t)}
	certificate, key := inPEM(t, n.ca.leaf(t, x509.ExtKeyUsageServerAuth))
	var ports [2]int
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = l.Addr().(*net.TCPAddr).Port
		l.Close()
	}
	b := rabbitmqtest.New(t, target.Broker, map[string]string{
		"ca.pem":             string(n.ca.inPEM()),
		"server.pem":         string(certificate),
		"server.key":         string(key),
		"conf.d/50-tls.conf": fmt.Sprintf(secureSettings, ports[0], ports[1]),
		"enabled_plugins":    "[rabbitmq_management,rabbitmq_auth_mechanism_ssl].\n",
	})
	n.server, n.web = fmt.Sprintf("localhost:%d", ports[0]), fmt.Sprintf("localhost:%d", ports[1])
	n.plain = b.URL()
	n.admin = newAdmin(t, n.plain)
	return n
}

// let creates a user without a password, who may do everything.
func (n *secureNode) let(user string) {
	n.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: n.ca.pool}}}
	for _, put := range [][2]string{
		{"users/" + user, `{"password_hash": "", "tags": ""}`},
		{"permissions/%2f/" + user, `{"configure": ".*", "write": ".*", "read": ".*"}`},
	} {
		request, err := http.NewRequestWithContext(n.Context(), http.MethodPut, "https://"+n.web+"/api/"+put[0], strings.NewReader(put[1]))
		if err != nil {
			n.Fatal(err)
		}
		request.SetBasicAuth("guest", "guest")
		answer, err := client.Do(request)
		if err != nil {
			n.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode >= 300 {
			n.Fatalf("PUT %s: %s", put[0], answer.Status)
		}
	}
}

// at returns a URL of the node for a user, with or without a password.
func (n *secureNode) at(user *url.Userinfo, server string, parameters url.Values) string {
	u := url.URL{Scheme: "amqps", User: user, Host: server, Path: "/", RawQuery: parameters.Encode()}
	return u.String()
}

var guest = url.UserPassword("guest", "guest")

func inPEM(t *testing.T, c tls.Certificate) (certificate, key []byte) {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (a *authority) inPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

// files writes a certificate, its key and the certificate of its authority to
// files. It returns the parameters of a URL that name them.
func (a *authority) files(t *testing.T, c tls.Certificate) url.Values {
	certificate, key := inPEM(t, c)
	dir := t.TempDir()
	parameters := url.Values{}
	for name, text := range map[string][]byte{"cacertfile": a.inPEM(), "certfile": certificate, "keyfile": key} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		parameters.Set(name, path)
	}
	return parameters
}

// A worker runs on a RabbitMQ that speaks TLS. Each side refuses a peer that it
// does not trust.
func TestTLSOnRabbitMQ(t *testing.T) {
	each(t, func(t *testing.T, target livetest.Target) {
		n, stranger := newSecureNode(t, target), newAuthority(t)
		client, foreign := n.ca.leaf(t, x509.ExtKeyUsageClientAuth), stranger.leaf(t, x509.ExtKeyUsageClientAuth)
		_, port, _ := net.SplitHostPort(n.server)
		byNumber := net.JoinHostPort("127.0.0.1", port)
		with := func(roots *x509.CertPool, certificates ...tls.Certificate) *tls.Config {
			return &tls.Config{RootCAs: roots, Certificates: certificates}
		}
		n.let("test") // the common name of the certificate
		byFiles := n.ca.files(t, client)
		named := n.ca.files(t, client)
		named.Set("server_name_indication", "localhost")
		certified := n.ca.files(t, client)
		certified.Set("auth_mechanism", "external")
		accepted := map[string]rabbitmq.Options{
			"options":               {URLs: []string{n.at(guest, n.server, nil)}, TLS: with(n.ca.pool, client)},
			"files":                 {URLs: []string{n.at(guest, n.server, byFiles)}},
			"a name for a number":   {URLs: []string{n.at(guest, byNumber, named)}},
			"no password":           {URLs: []string{n.at(nil, n.server, certified)}},
			"not this password":     {URLs: []string{n.at(url.UserPassword("somebody", "s3cr3t"), n.server, certified)}},
			"TLS 1.2":               {URLs: []string{n.at(guest, n.server, nil)}, TLS: &tls.Config{RootCAs: n.ca.pool, Certificates: []tls.Certificate{client}, MaxVersion: tls.VersionTLS12}},
			"TLS of the management": {URLs: []string{n.at(guest, n.server, nil)}, TLS: with(n.ca.pool, client), ManagementURL: "https://" + n.web},
		}
		for name, options := range accepted {
			t.Run(name, func(t *testing.T) { n.works(t, options) })
		}

		for name, tt := range map[string]struct {
			url  string
			tls  *tls.Config
			part string // of the error
		}{
			"an unknown authority":           {n.at(guest, n.server, nil), with(stranger.pool, client), "certificate"},
			"the authorities of the system":  {n.at(guest, n.server, nil), with(nil, client), "certificate"},
			"another host name":              {n.at(guest, byNumber, nil), with(n.ca.pool, client), "certificate"},
			"no client certificate":          {n.at(guest, n.server, nil), with(n.ca.pool), "certificate"},
			"a client certificate of others": {n.at(guest, n.server, nil), with(n.ca.pool, foreign), "certificate"},
			"a port without TLS":             {strings.Replace(n.plain, "amqp:", "amqps:", 1), with(n.ca.pool, client), "check Options.TLS"},
			"a client without TLS":           {strings.Replace(n.at(guest, n.server, nil), "amqps:", "amqp:", 1), nil, "use amqps://"},
		} {
			t.Run(name, func(t *testing.T) {
				b := open(t, rabbitmq.Options{URLs: []string{tt.url}, TLS: tt.tls})
				err := b.Declare(t.Context(), "none")
				for range 20 { // the library may find its connection closed before it reads the reason
					if err == nil || errors.Is(err, brokers.ErrMisconfigured) {
						break
					}
					err = b.Declare(t.Context(), "none")
				}
				fault(t, err, tt.part, "Options.")
			})
		}
		if err := n.do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive("none", true, false, false, false, nil)
			return err
		}); err == nil {
			t.Error("a refused client has declared a queue")
		}
	})
}

// works publishes, retries and acks a message.
func (n *secureNode) works(t *testing.T, options rabbitmq.Options) {
	w := &world{admin: &admin{t, n.conn}, topic: "orders." + filepath.Base(t.Name()), prefix: "p" + filepath.Base(t.Name())}
	options.Prefix = w.prefix
	w.broker = open(t, options)
	w.source = w.open(w.topic)
	w.publish("paid")
	d := w.receive(1)[0]
	if err := w.settle(retry(d, 0))[0]; err != nil {
		t.Fatal(err)
	}
	d = w.receive(1)[0]
	if string(d.Message.Body) != "paid" || d.Meta().Attempt != 1 {
		t.Errorf("received %q with attempt %d, want paid and 1", d.Message.Body, d.Meta().Attempt)
	}
	w.ack(d)
	w.closeSource()
}

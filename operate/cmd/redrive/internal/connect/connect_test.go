package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/certtest"
	"github.com/redrive-go/redrive/redisguard"
)

// must fails the test at once if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const secret = "correct horse battery staple"

// parse reads a configuration with a broker called b, in a folder with files.
func parse(t *testing.T, broker string, files map[string]string) *config.Config {
	t.Helper()
	folder := t.TempDir()
	for name, content := range files {
		must(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
	}
	text := "store: {url: letters.db}\nbrokers:\n  b: {" + broker + "}\n"
	c, err := config.Parse(filepath.Join(folder, "redrive.yaml"), []byte(text))
	must(t, err)
	return c
}

func TestBroker(t *testing.T) {
	cert, key := certificate(t)
	t.Setenv("PASSWORD", secret)
	t.Setenv("AWS_ACCESS_KEY_ID", "AKID")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	files := map[string]string{"cert.pem": cert, "key.pem": key, "empty.pem": "", "key": strings.Repeat("k", 32), "short": "k"}
	for _, tt := range []struct{ broker, fault string }{
		{"kind: memory", ""},
		{"kind: rabbitmq, urls: [amqp://localhost]", ""},
		{"kind: rabbitmq, urls: [amqps://rabbit.example.com], user: u, password: {env: PASSWORD}, tls: {ca: cert.pem, cert: cert.pem, key: key.pem}, secret: [{file: key}], prefix: shop, message_limit: 1MiB", ""},
		{"kind: rabbitmq, urls: [http://localhost]", "3:3: brokers.b: rabbitmq: entry 0 of urls"},
		{"kind: rabbitmq, urls: [amqp://rabbit.example.com], user: u, password: {env: PASSWORD}", "or set allow_plaintext"},
		{"kind: rabbitmq, urls: [amqp://rabbit.example.com], user: u, password: {env: PASSWORD}, allow_plaintext: true", ""},
		{"kind: rabbitmq, urls: [amqp://localhost], user: u, password: {env: NOT_THERE}", "brokers.b.password: the environment variable NOT_THERE is not set"},
		{"kind: rabbitmq, urls: [amqp://localhost], secret: [{file: short}]", "brokers.b.secret[0]: the file short is too short"},
		{"kind: rabbitmq, urls: [amqps://localhost], tls: {ca: empty.pem}", "brokers.b.tls.ca: has no certificates"},
		{"kind: rabbitmq, urls: [amqps://localhost], tls: {ca: none.pem}", "brokers.b.tls.ca: open"},
		{"kind: rabbitmq, urls: [amqps://localhost], tls: {cert: cert.pem, key: empty.pem}", "brokers.b.tls.cert: is no certificate of the key"},
		{"kind: kafka, addresses: ['localhost:9092']", ""},
		{"kind: kafka, addresses: ['kafka.example.com:9092'], tls: {}, user: u, password: {env: PASSWORD}, secret: [{file: key}]", ""},
		{"kind: kafka, addresses: ['kafka.example.com:9092'], user: u, password: {env: PASSWORD}", "set allow_plaintext"},
		{"kind: kafka, addresses: ['kafka.example.com:9092'], user: u, password: {env: PASSWORD}, mechanism: scram-sha-256", ""},
		{"kind: kafka, addresses: ['kafka.example.com:9092'], user: u, password: {env: PASSWORD}, mechanism: scram-sha-512", ""},
		{"kind: kafka, addresses: ['kafka.example.com:9092'], user: u, password: {env: PASSWORD}, allow_plaintext: true", ""},
		{"kind: kafka, addresses: [kafka, other], prefix: 'a b'", `entry 0 of addresses is "kafka": use host:port; entry 1 of addresses is "other": use host:port; prefix is "a b"`},
		{"kind: sqs, region: eu-central-1, secret: [{file: key}]", ""},
		{"kind: sqs", "no region: set region"},
		{"kind: sqs, region: eu-central-1, endpoint: localhost", "the address endpoint is no URL of a server"},
		{"kind: sqs, region: eu-central-1, profile: nobody", "nobody"},
	} {
		c := parse(t, tt.broker, files)
		broker, err := Broker(t.Context(), c, "b")
		if checked := Check(t.Context(), c); (checked == nil) != (err == nil) {
			t.Errorf("%s: Check says %v", tt.broker, checked)
		}
		if tt.fault == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.broker, err)
			} else if err := broker.Close(t.Context()); err != nil {
				t.Errorf("%s: close: %v", tt.broker, err)
			}
			continue
		}
		fault, ok := errors.AsType[*config.Fault](err)
		if !ok || fault.Line != 3 || !strings.Contains(err.Error(), tt.fault) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: error %v, want one in line 3 with %q", tt.broker, err, tt.fault)
		}
	}
	if _, err := Broker(t.Context(), parse(t, "kind: memory", nil), "other"); err == nil || !strings.Contains(err.Error(), `no broker "other"`) {
		t.Errorf("another broker: %v", err)
	}
}

// TestBudget makes a client of every key that a budget has.
func TestBudget(t *testing.T) {
	cert, _ := certificate(t)
	t.Setenv("PASSWORD", secret)
	for _, tt := range []struct{ budget, fault string }{
		{"redis: 'localhost:6379', user: u, password: {env: PASSWORD}, tls: {ca: cert.pem, server_name: redis.example.com}", ""},
		{"redis: 'localhost:6379', password: {env: NOT_THERE}", "budgets.tokens.password: the environment variable NOT_THERE is not set"},
		{"redis: 'localhost:6379', tls: {ca: empty.pem}", "budgets.tokens.tls.ca: has no certificates"},
	} {
		c := parse(t, "kind: memory}\nbudgets:\n  tokens: {"+tt.budget, map[string]string{"cert.pem": cert, "empty.pem": ""})
		client, err := Budget(c, "tokens")
		if checked := Check(t.Context(), c); (checked == nil) != (err == nil) {
			t.Errorf("%s: Check says %v", tt.budget, checked)
		}
		if tt.fault != "" {
			if _, ok := errors.AsType[*config.Fault](err); !ok || !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("%s: error %v, want %q", tt.budget, err, tt.fault)
			}
			continue
		}
		must(t, err)
		if o := client.Options(); o.Addr != "localhost:6379" || o.Username != "u" || o.Password != secret || o.TLSConfig.RootCAs == nil || o.TLSConfig.ServerName != "redis.example.com" {
			t.Errorf("%s: %+v", tt.budget, o)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAdapterErrors keeps what adapters say recognisable.
func TestAdapterErrors(t *testing.T) {
	_, err := Broker(t.Context(), parse(t, "kind: kafka, addresses: [kafka]", nil), "b")
	if !errors.Is(err, brokers.ErrMisconfigured) {
		t.Errorf("%v is not brokers.ErrMisconfigured", err)
	}
}

// TestRotation replaces a password and a certificate that are in use.
func TestRotation(t *testing.T) {
	cert, key := certificate(t)
	c := parse(t, "kind: kafka, addresses: ['localhost:9092'], tls: {cert: cert.pem, key: key.pem}, user: u, password: {file: password}",
		map[string]string{"password": "old", "cert.pem": cert, "key.pem": key})
	write := func(name, content string) {
		must(t, os.WriteFile(filepath.Join(filepath.Dir(c.File()), name), []byte(content), 0o600))
	}
	b := c.Brokers["b"]
	sent := func() string {
		_, first, err := (&login{b}).Start(t.Context())
		must(t, err)
		return string(first)
	}
	if got := sent(); got != "\x00u\x00old" {
		t.Errorf("the login sends %q", got)
	}
	write("password", "new")
	if got := sent(); got != "\x00u\x00new" {
		t.Errorf("the login sends %q, want the new password", got)
	}
	if got := again(b.Password, "old"); got != "new" {
		t.Errorf("the password is %q, want the new one", got)
	}
	must(t, os.Remove(filepath.Join(filepath.Dir(c.File()), "password")))
	if got := again(b.Password, "old"); got != "old" {
		t.Errorf("the password is %q, want the last one that could be read", got)
	}

	shown, err := certificates(c, "brokers.b.tls", b.TLS)
	must(t, err)
	before, err := shown.GetClientCertificate(nil)
	must(t, err)
	cert, key = certificate(t)
	write("cert.pem", cert)
	write("key.pem", key)
	after, err := shown.GetClientCertificate(nil)
	must(t, err)
	if before.Leaf.Equal(after.Leaf) {
		t.Error("the client certificate is the old one")
	}
}

// TestTLS has a broker speak to a server whose certificate only the configured
// authority vouches for.
func TestTLS(t *testing.T) {
	cert, key := certificate(t)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	must(t, err)
	server, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	must(t, err)
	spoken := make(chan error, 1)
	go func() { // ends with the server, whose result it sends
		conn, err := server.Accept()
		if err == nil {
			err = conn.(*tls.Conn).HandshakeContext(t.Context())
			conn.Close()
		}
		spoken <- err
	}()
	c := parse(t, "kind: rabbitmq, urls: ['amqps://"+server.Addr().String()+"'], tls: {ca: cert.pem, server_name: broker.example.com}", map[string]string{"cert.pem": cert})
	alone := x509.NewCertPool()
	alone.AppendCertsFromPEM([]byte(cert))
	if certs, err := certificates(c, "brokers.b.tls", c.Brokers["b"].TLS); err != nil || !certs.RootCAs.Equal(alone) {
		t.Errorf("others than the configured authority are trusted; error %v", err)
	}
	broker, err := Broker(t.Context(), c, "b")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_ = broker.Publish(ctx, "orders", brokers.Message{ID: "1"}) // of a server that hangs up
	server.Close()
	if err := <-spoken; err != nil {
		t.Errorf("the handshake failed: %v", err)
	}
	if err := broker.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// certificate makes one that is its own authority.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	pair, private := certtest.New(t, "broker.example.com", time.Now().Add(time.Hour))
	return string(pair), string(private)
}

// TestAttackAbsurdAnswers connects to what is named as the Redis of a budget and of a
// schedule. It announces more than the memory has, on which the runtime would end the
// process.
func TestAttackAbsurdAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "*9000000000000\r\n")
			defer c.Close()
		}
	}()
	text := fmt.Sprintf("brokers: {b: {kind: memory}}\nstore: {url: letters.db}\nbudgets: {shared: {redis: %q}}\nservice: {schedule: {redis: %[1]q}}\n", l.Addr())
	c, err := config.Parse("redrive.yaml", []byte(text))
	must(t, err)
	budget, e1 := Budget(c, "shared")
	schedule, e2 := Schedule(c)
	must(t, errors.Join(e1, e2))
	for _, client := range []*redis.Client{budget, schedule} {
		defer client.Close()
		if err := client.Ping(t.Context()).Err(); !errors.Is(err, redisguard.ErrMalformed) {
			t.Errorf("error %v, want ErrMalformed", err)
		}
	}
}

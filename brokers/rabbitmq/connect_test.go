package rabbitmq_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/livetest"
)

func TestParametersOfURL(t *testing.T) {
	each(t, func(t *testing.T, target livetest.Target) {
		url := target.URL
		for _, tt := range []struct {
			parameters string
			options    rabbitmq.Options
			heartbeat  uint16 // in seconds
			mechanism  string
		}{
			{"", rabbitmq.Options{}, 10, "PLAIN"},
			{"", rabbitmq.Options{Heartbeat: 7 * time.Second}, 7, "PLAIN"},
			{"?heartbeat=3", rabbitmq.Options{Heartbeat: 7 * time.Second}, 3, "PLAIN"},
			{"?heartbeat=4&auth_mechanism=amqplain", rabbitmq.Options{}, 4, "AMQPLAIN"},
			{"?auth_mechanism=external&auth_mechanism=plain", rabbitmq.Options{}, 10, "PLAIN"}, // the broker has no EXTERNAL
		} {
			var mu sync.Mutex
			var heartbeat uint16
			var login []byte
			tap := &tap{sent: func(f frame) {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case f.is(classConnection, methodStartOK):
					login = f.raw[11+tableSize(f.raw[11:]):]
				case f.is(classConnection, methodTuneOK):
					heartbeat = binary.BigEndian.Uint16(f.raw[17:])
				}
			}}
			options := tt.options
			options.URLs, options.Dial = []string{url + tt.parameters}, tap.Dial
			if err := open(t, options).Declare(t.Context(), newAdmin(t, url).topic("orders")); err != nil {
				t.Errorf("%q: %v", tt.parameters, err)
			}
			mu.Lock()
			if heartbeat != tt.heartbeat || !bytes.HasPrefix(login, short(tt.mechanism)) {
				t.Errorf("%q: a heartbeat of %d s, and a login by %.10q; want %d s and %s", tt.parameters, heartbeat, login, tt.heartbeat, tt.mechanism)
			}
			mu.Unlock()
		}
		b := open(t, rabbitmq.Options{URLs: []string{url + "?auth_mechanism=external"}})
		if err := b.Declare(t.Context(), "test.never"); err == nil || !strings.Contains(err.Error(), "auth_mechanism") {
			t.Errorf("EXTERNAL where the broker has none: error %v, want one that names auth_mechanism", err)
		}
	})
}

// Each attempt to connect tries every endpoint, in random order, so that workers
// spread over a cluster.
func TestEndpointsAreTriedInRandomOrder(t *testing.T) {
	var tried []string
	refuse := func(_ context.Context, _, address string) (net.Conn, error) {
		tried = append(tried, address)
		return nil, errors.New("nobody listens")
	}
	b := open(t, rabbitmq.Options{URLs: []string{"amqp://one/", "amqp://two/", "amqp://three:7/"}, Dial: refuse, AllowPlaintext: true})
	first := map[string]bool{}
	for range 100 { // of which all begin with two of three once in 10^17
		tried = nil
		if err := b.Declare(t.Context(), "orders"); err == nil || strings.Count(err.Error(), "nobody listens") != 3 {
			t.Fatalf("Declare returned %v, want what is wrong with each of three endpoints", err)
		}
		if len(tried) != 3 {
			t.Fatalf("tried %q, want each endpoint once", tried)
		}
		first[tried[0]] = true
		slices.Sort(tried)
		if want := []string{"one:5672", "three:7", "two:5672"}; !slices.Equal(tried, want) {
			t.Fatalf("tried %q, want %q", tried, want)
		}
	}
	if len(first) != 3 {
		t.Errorf("the first of 100 attempts were %v alone, want each of three", first)
	}
}

// Declare is for producers that start before any worker.
func TestDeclare(t *testing.T) {
	inWorlds(t, rabbitmq.Options{}, func(w *world) {
		fresh := w.topic + ".fresh"
		w.Cleanup(func() { w.delete(fresh, w.prefix+".retry.v1."+fresh) })
		m := brokers.Message{ID: "a", Body: []byte("a")}
		fault(w.T, w.broker.Publish(w.Context(), fresh, m), fresh, "Broker.Declare")
		verifying := open(w.T, w.options(w.url, true))
		fault(w.T, verifying.Declare(w.Context(), fresh), fresh, "no such queue")
		fault(w.T, w.broker.Declare(w.Context()), "no topic")
		if err := w.broker.Declare(w.Context(), fresh, w.topic); err != nil {
			w.Fatalf("Declare: %v", err)
		}
		if err := verifying.Declare(w.Context(), fresh); err != nil {
			w.Errorf("Declare with Verify: %v", err)
		}
		w.await("the queue takes a message", func() bool { return w.broker.Publish(w.Context(), fresh, m) == nil })
		for _, sub := range []brokers.Subscription{w.subscription(fresh), {Topics: []string{fresh}, MaxAttempts: 1}, {Topics: []string{fresh}}} {
			src, err := w.broker.Open(w.Context(), sub)
			if err != nil {
				w.Fatalf("Open of a queue that was declared: %v", err)
			}
			src.Close(w.Context())
		}
		w.delete(fresh + ".dead")
	})
}

func TestLeaseThatTheBrokerCannotKeep(t *testing.T) {
	inWorlds(t, rabbitmq.Options{ConsumerTimeout: 10 * time.Minute}, func(w *world) {
		sub := w.subscription(w.topic)
		sub.Lease = 10 * time.Minute
		_, err := w.broker.Open(w.Context(), sub)
		fault(w.T, err, "leases of 10m0s", "more than 9m0s", "Options.ConsumerTimeout")
		sub.Lease = time.Minute
		src, err := w.broker.Open(w.Context(), sub)
		if err != nil {
			w.Fatalf("Open with a shorter lease: %v", err)
		}
		defer src.Close(w.Context())
		if got := src.Capabilities().Lease; got != 9*time.Minute {
			w.Errorf("the lease is %v, want what the broker allows less a margin: 9 min", got)
		}
	})
}

// authority makes certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pool        *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	a := &authority{pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, key := a.sign(t, template)
	a.key = key
	var err error
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.certificate)
	return a
}

// sign signs by itself as long as it has no certificate.
func (a *authority) sign(t *testing.T, template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, by := a.certificate, a.key
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

func (a *authority) leaf(t *testing.T, usage x509.ExtKeyUsage) tls.Certificate {
	der, key := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// tableSize is how many bytes a table takes in a frame.
func tableSize(raw []byte) int { return 4 + int(binary.BigEndian.Uint32(raw)) }

func short(text string) []byte { return append([]byte{byte(len(text))}, text...) }

// lockedBuffer takes what several goroutines log.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// Passwords rotate, and are in no error and no log.
func TestPasswordsStayHidden(t *testing.T) {
	var logs lockedBuffer
	log.SetOutput(&logs)
	t.Cleanup(func() { // after both brokers
		log.SetOutput(os.Stderr)
		if strings.Contains(logs.text.String(), "s3cr3t") {
			t.Errorf("the log shows a password: %s", logs.text.String())
		}
	})
	each(t, func(t *testing.T, target livetest.Target) {
		url := target.URL
		uri, err := amqp.ParseURI(url)
		if err != nil {
			t.Fatal(err)
		}
		var said []error
		passwords := []string{"s3cr3t-one", "s3cr3t#%zz", uri.Password}
		b := open(t, rabbitmq.Options{URLs: []string{url}, Credentials: func() (string, string) {
			password := passwords[0]
			if len(passwords) > 1 {
				passwords = passwords[1:]
			}
			return uri.Username, password
		}})
		topic := newAdmin(t, url).topic("orders")
		_, err = b.Open(t.Context(), brokers.Subscription{Topics: []string{topic}})
		said = append(said, err, b.Publish(t.Context(), topic, brokers.Message{}))
		for _, err := range said {
			fault(t, err, "check user and password")
		}
		if err := b.Declare(t.Context(), topic); err != nil {
			t.Errorf("Declare with the password that has come by now: %v", err)
		}

		for _, tt := range []struct {
			change func(*amqp.URI)
			says   string // of what is misconfigured
		}{
			{func(*amqp.URI) {}, "check user and password"},
			{func(u *amqp.URI) { u.Vhost, u.Password = "missing", uri.Password }, "create the vhost"},
			{func(u *amqp.URI) { u.Port = 1 }, ""},
			{func(u *amqp.URI) { u.Scheme = "amqps" }, "Options.TLS"},
		} {
			to := uri
			to.Password = "s3cr3t-url"
			tt.change(&to)
			b := open(t, rabbitmq.Options{URLs: []string{to.String(), to.String() + "?heartbeat=5&auth_mechanism=amqplain"}})
			_, err := b.Open(t.Context(), brokers.Subscription{Topics: []string{topic}})
			if tt.says != "" {
				fault(t, err, tt.says)
			} else if err == nil || errors.Is(err, brokers.ErrMisconfigured) {
				t.Errorf("Open where nobody listens: error %v, want a temporary one", err)
			}
			published := b.Publish(t.Context(), topic, brokers.Message{})
			if perr, ok := errors.AsType[*brokers.PublishError](published); !ok || len(perr.Failed) != 1 {
				t.Errorf("Publish: error %v, want a *PublishError", published)
			}
			said = append(said, err, b.Declare(t.Context(), topic), published)
		}
		b = open(t, rabbitmq.Options{URLs: []string{"amqp://127.0.0.1:1/", url, "amqp://127.0.0.1:2/"}})
		if err := b.Declare(t.Context(), topic); err != nil {
			t.Errorf("Declare with one good endpoint of three: %v", err)
		}
		for _, err := range said {
			if err == nil || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("error %v, want one without a password", err)
			}
			for ; err != nil; err = errors.Unwrap(err) {
				if strings.Contains(err.Error(), "s3cr3t") {
					t.Errorf("a cause shows a password: %v", err)
				}
			}
		}
	})
}

// A port that speaks TLS answers a client without TLS by an alert. The client's
// error says what to change, and is permanent: no worker tries again for ever.
func TestClientWithoutTLS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(work.Wait)
	t.Cleanup(func() { l.Close() })
	work.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		io.ReadFull(conn, make([]byte, 8))                     // the version of the protocol
		conn.Write([]byte{0x15, 0x03, 0x01, 0, 2, 0x02, 0x0a}) // fatal: unexpected message
		io.Copy(io.Discard, conn)
	})
	b := open(t, rabbitmq.Options{URLs: []string{"amqp://" + l.Addr().String()}})
	fault(t, b.Declare(t.Context(), "orders"), "this port speaks TLS", "use amqps:// in Options.URLs")
}

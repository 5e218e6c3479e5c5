// Package connect makes brokers out of their configuration. It is the only package
// of the command that knows the adapters.
package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/redisguard"
)

// Broker returns the broker that has a name in the configuration. It reads secrets
// and certificates, and connects to nothing: the broker does when it is used. The
// error is a *config.Fault.
func Broker(ctx context.Context, c *config.Config, name string) (brokers.Broker, error) {
	return broker(ctx, c, name, 0)
}

// Brief is Broker for a command that ends soon. On SQS, closing waits for open
// polls. So polls wait up to 2 s instead of 20 s, which takes up to ten times
// as many requests.
func Brief(ctx context.Context, c *config.Config, name string) (brokers.Broker, error) {
	return broker(ctx, c, name, 2*time.Second)
}

func broker(ctx context.Context, c *config.Config, name string, pollWait time.Duration) (brokers.Broker, error) {
	if c.Brokers[name] == nil {
		return nil, c.Fault("brokers", fmt.Errorf("there is no broker %q", name))
	}
	broker, err := open(ctx, c, name, pollWait)
	if err == nil {
		return broker, nil
	}
	if _, ok := errors.AsType[*config.Fault](err); ok {
		return nil, err
	}
	return nil, c.Fault("brokers."+name, &optionsError{err})
}

// Budget returns a client for the Redis of a budget in the configuration. It connects
// to nothing. The error is a *config.Fault.
func Budget(c *config.Config, name string) (*redis.Client, error) {
	return client(c, "budgets."+name, c.Budgets[name])
}

// Schedule returns a client for the Redis of the retry service; nil if it has none.
// It connects to nothing. The error is a *config.Fault.
func Schedule(c *config.Config) (*redis.Client, error) {
	if c.Service.Schedule == nil {
		return nil, nil
	}
	return client(c, "service.schedule", c.Service.Schedule)
}

func client(c *config.Config, key string, b *config.Redis) (*redis.Client, error) {
	o := &redis.Options{Addr: b.Redis, Username: b.User, MaxRetries: -1, DisableIdentity: true, ContextTimeoutEnabled: true}
	if b.Password != nil {
		password, err := b.Password.Read()
		if err != nil {
			return nil, err
		}
		o.Password = password
	}
	certs, err := certificates(c, key+".tls", b.TLS)
	if err != nil {
		return nil, err
	}
	o.TLSConfig = certs
	made := redis.NewClient(o)
	redisguard.Protect(made)
	return made, nil
}

// Check makes every broker, a client for every budget, and the parts of redrive
// serve and the retry service, and closes them. The error joins an error for
// each part that cannot be made, and for each topic whose name its broker does
// not allow.
func Check(ctx context.Context, c *config.Config) error {
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(c.Brokers)) {
		broker, err := Broker(ctx, c, name)
		if err == nil {
			err = errors.Join(checkTopics(c, name, broker), broker.Close(ctx))
		}
		faults = append(faults, err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Budgets)) {
		client, err := Budget(c, name)
		if err == nil {
			err = client.Close()
		}
		faults = append(faults, err)
	}
	return errors.Join(append(faults, CheckServe(c), CheckService(ctx, c))...)
}

// Topologist is a broker that describes the queues and topics that
// subscriptions need, in a format for its own tools. It connects to nothing.
// Its error names a topic that no broker of this kind allows.
type Topologist interface {
	Topology(...brokers.Subscription) (string, error)
}

// checkTopics joins a fault for each topic whose name its broker does not
// allow.
func checkTopics(c *config.Config, name string, broker brokers.Broker) error {
	knows, ok := broker.(Topologist)
	if !ok {
		return nil
	}
	var faults []error
	check := func(key string, sub brokers.Subscription) {
		sub.Group = cmp.Or(sub.Group, serve.Group(c.Brokers[name])) // Kafka needs a group
		if _, err := knows.Topology(sub); err != nil {
			faults = append(faults, c.Fault(key, &optionsError{err}))
		}
	}
	reads := func(key, topic string) {
		if topic != "" {
			check(key, brokers.Subscription{Topics: []string{topic}})
		}
	}
	for i, t := range c.Topics {
		if t.Broker != name {
			continue
		}
		key := fmt.Sprintf("topics[%d]", i)
		groups := t.Groups
		if len(groups) == 0 {
			groups = []string{""}
		}
		for _, group := range groups {
			sub := brokers.Subscription{Group: group, DeadLetters: map[string]string{}}
			add(&sub, t, 0)
			sub.DeadLetters = nil // checked below, each with its own key
			check(key+".name", sub)
		}
		for j, dead := range t.Dead {
			reads(fmt.Sprintf("%s.dead[%d]", key, j), dead)
		}
		reads(key+".receipts", t.Receipts)
	}
	return errors.Join(faults...)
}

func open(ctx context.Context, c *config.Config, name string, pollWait time.Duration) (brokers.Broker, error) {
	b := c.Brokers[name]
	secret, err := keys(b.Secret)
	if err != nil {
		return nil, err
	}
	certs, err := certificates(c, "brokers."+name+".tls", b.TLS)
	if err != nil {
		return nil, err
	}
	switch b.Kind {
	case config.RabbitMQ:
		return openRabbitMQ(b, secret, certs)
	case config.Kafka:
		return openKafka(b, secret, certs)
	case config.SQS:
		return openSQS(ctx, b, secret, pollWait)
	case config.Memory:
		return memory.New(memory.Options{}), nil
	}
	return nil, fmt.Errorf("there is no adapter for brokers of the kind %s", b.Kind)
}

// keys is nil for no keys: workers who sign nothing have none.
func keys(list []config.Key) (secret [][]byte, err error) {
	for _, k := range list {
		key, err := k.Read()
		if err != nil {
			return nil, err
		}
		secret = append(secret, key)
	}
	return secret, nil
}

func openRabbitMQ(b *config.Broker, secret [][]byte, certs *tls.Config) (brokers.Broker, error) {
	o := rabbitmq.Options{URLs: b.URLs, TLS: certs, AllowPlaintext: b.AllowPlaintext, Prefix: b.Prefix, MessageLimit: int(b.MessageLimit), Secret: secret,
		ManagementURL: b.Management, Verify: b.Verify}
	if b.Password != nil {
		password, err := b.Password.Read()
		if err != nil {
			return nil, err
		}
		o.Credentials = func() (string, string) { return b.User, again(b.Password, password) }
	}
	return rabbitmq.New(o)
}

// again is a secret that may have changed since it was read first. If it cannot be
// read now, the old one has to do.
func again(s *config.Secret, first string) string {
	if now, err := s.Read(); err == nil {
		return now
	}
	return first
}

func openKafka(b *config.Broker, secret [][]byte, certs *tls.Config) (brokers.Broker, error) {
	o := kafka.Options{Brokers: b.Addresses, TLS: certs, AllowPlaintext: b.AllowPlaintext, Group: b.Group, Prefix: b.Prefix, Rack: b.Rack, MessageLimit: int(b.MessageLimit), Secret: secret, Verify: b.Verify}
	if b.Password != nil {
		m := &login{broker: b}
		if _, err := m.mechanism(); err != nil {
			return nil, err
		}
		o.SASL = m
	}
	return kafka.New(o)
}

// login reads the password anew for each connection.
type login struct{ broker *config.Broker }

// Name implements sasl.Mechanism.
func (l *login) Name() string { return strings.ToUpper(l.broker.Mechanism) }

// Start implements sasl.Mechanism.
func (l *login) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	m, err := l.mechanism()
	if err != nil {
		return nil, nil, err
	}
	return m.Start(ctx)
}

func (l *login) mechanism() (sasl.Mechanism, error) {
	password, err := l.broker.Password.Read()
	if err != nil {
		return nil, err
	}
	switch l.broker.Mechanism {
	case "scram-sha-256":
		return scram.Mechanism(scram.SHA256, l.broker.User, password)
	case "scram-sha-512":
		return scram.Mechanism(scram.SHA512, l.broker.User, password)
	}
	return plain.Mechanism{Username: l.broker.User, Password: password}, nil
}

func openSQS(ctx context.Context, b *config.Broker, secret [][]byte, pollWait time.Duration) (brokers.Broker, error) {
	cfg, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(b.Region), awsconfig.WithSharedConfigProfile(b.Profile))
	if err != nil {
		return nil, err
	}
	return sqs.New(sqs.Options{Config: cfg, Endpoint: b.Endpoint, Secret: secret, Create: b.Create, PollWait: pollWait})
}

// certificates is nil for nil. The client certificate is read anew for each
// connection, so that it may be replaced.
func certificates(c *config.Config, key string, t *config.TLS) (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA.String() != "" {
		pem, err := t.CA.Read()
		if err != nil {
			return nil, err
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, c.Fault(key+".ca", errors.New("has no certificates: write the name of a PEM file"))
		}
	}
	if t.Cert.String() != "" {
		shown := func() (*tls.Certificate, error) { return pair(c, key, t) }
		if _, err := shown(); err != nil {
			return nil, err
		}
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown() }
	}
	return out, nil
}

func pair(c *config.Config, key string, t *config.TLS) (*tls.Certificate, error) {
	cert, err := t.Cert.Read()
	if err != nil {
		return nil, err
	}
	private, err := t.Key.Read()
	if err != nil {
		return nil, err
	}
	both, err := tls.X509KeyPair(cert, private)
	if err != nil {
		return nil, c.Fault(key+".cert", fmt.Errorf("is no certificate of the key: %w", err))
	}
	return &both, nil
}

// optionsError is what an adapter says of its Options, with the keys of the
// configuration in the place of their fields.
type optionsError struct{ cause error }

var optionField = regexp.MustCompile(`Options\.(?:Config\.)?(\w+)`)

func (e *optionsError) Error() string {
	text := strings.ReplaceAll(e.cause.Error(), brokers.ErrMisconfigured.Error()+": ", "")
	return InKeys(strings.ReplaceAll(text, "\n", "; ")) // a fault is one line
}

func (e *optionsError) Unwrap() error { return e.cause }

// InKeys is what an adapter says, with the keys of the configuration in the place of
// the fields of its Options.
func InKeys(text string) string {
	return optionField.ReplaceAllStringFunc(text, func(s string) string {
		field := optionField.FindStringSubmatch(s)[1]
		if key := fieldKeys[field]; key != "" {
			return key
		}
		return s
	})
}

// fieldKeys are the keys of the configuration that fields of Options come from.
var fieldKeys = map[string]string{
	"URLs": "urls", "Brokers": "addresses", "TLS": "tls", "AllowPlaintext": "allow_plaintext", "SASL": "user", "ManagementURL": "management",
	"Verify": "verify", "Create": "create", "Prefix": "prefix", "MessageLimit": "message_limit", "Secret": "secret", "Group": "group",
	"Region": "region", "Endpoint": "endpoint", "Credentials": "profile",
}

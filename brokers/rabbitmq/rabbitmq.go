package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// Options configure a Broker. URLs is required.
type Options struct {
	// URLs are the endpoints of one cluster: amqp://user:password@host:5672/vhost,
	// or amqps:// for TLS. Each attempt to connect tries them in random order.
	// User, password and vhost are percent-encoded. Of the parameters of a
	// RabbitMQ URL, connection_timeout has no effect; see CallTimeout.
	URLs []string

	// TLS is used for amqps:// endpoints. Nil means what the parameters of the
	// URL say, or else the certificates of the system.
	TLS *tls.Config

	// AllowPlaintext lets amqp:// and http:// addresses of other machines be used,
	// where whoever is on the way reads the password. Without it that is an error.
	AllowPlaintext bool

	// Credentials, unless nil, is asked for user and password at every attempt
	// to connect, and those of the URLs are ignored. To log in with a client
	// certificate instead, add auth_mechanism=external to the URLs.
	Credentials func() (user, password string)

	// Verify lets Open declare no queue and no exchange: it fails where one is
	// missing. It does bind what it finds, which changes nothing where the binding
	// is there.
	Verify bool

	// ManagementURL is the address of the management API, such as
	// http://host:15672, for Open to read the policies of queues, which AMQP does
	// not show. User and password are those of the address, or else of the first
	// of URLs; the user needs the tag management, or monitoring for all that
	// Inspect looks at. Empty means that policies are not looked at. An http
	// address of another machine needs AllowPlaintext.
	ManagementURL string

	// Prefix begins the names of the exchanges and queues that retries go
	// through. Workers share them if their prefixes are equal. Empty means
	// "redrive".
	Prefix string

	// ConsumerTimeout is how long the broker lets a consumer hold a message,
	// its setting consumer_timeout. It bounds leases. 0 means 30 minutes,
	// RabbitMQ's default.
	ConsumerTimeout time.Duration

	// ConfirmTimeout is how long to wait until the broker confirms what was
	// published; then the outcome counts as unknown. 0 means 30 s.
	ConfirmTimeout time.Duration

	// CallTimeout is how long an attempt to connect or a single request may
	// take; then the connection is given up. 0 means 10 s.
	CallTimeout time.Duration

	// Heartbeat is the interval agreed with the broker; a connection that is
	// silent for twice as long is dead. 0 means 10 s. A heartbeat parameter of
	// a URL wins.
	Heartbeat time.Duration

	// MessageLimit is the largest message in bytes, body and headers together;
	// larger ones are refused. 0 means 16 MiB, the default of RabbitMQ 4. Set
	// it to the broker's max_message_size if that is less.
	MessageLimit int

	// IDFrom says where the ID of a message is that has no property message-id: in
	// the first of these places that has a text. See [CeleryID]. Without an ID a
	// message has another one in each delivery, so that nothing can tell a repeated
	// one (brokers.Delivery.Anonymous).
	IDFrom []IDPlace

	// Secret, if it is not nil, is what workers sign the progress of retries with:
	// the first key signs, all of them are accepted. What came from elsewhere to a
	// queue of retries then starts over at attempt 0. All workers of a queue need
	// the same keys; each has 32 bytes or more. It never shows in what is printed.
	Secret adapter.Secret

	// Dial connects, for tests and proxies. Nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Broker is a RabbitMQ cluster, or a single node. It connects when it is first
// used: one connection for each source, and one for everything that is
// published.
type Broker struct {
	options   Options
	endpoints []endpoint
	names     names
	publisher *publisher
	grace     time.Duration // of paused topics; tests shorten it
	look      time.Duration // between two looks for a queue that is gone, see lookPace
	tick      time.Duration // of acks that wait; tests lengthen it
	deletion  time.Duration // of a queue; tests lengthen it
	seal      adapter.Seal
	manager   *http.Client

	sources adapter.Sources[*source]
}

var _ brokers.Broker = (*Broker)(nil)

// New checks options, and does not connect. Its error names every fault and
// no password.
func New(options Options) (*Broker, error) {
	endpoints, err := parse(options.URLs, options.AllowPlaintext)
	seal, fault := options.Secret.Seal()
	options.Secret = nil
	if err = errors.Join(err, options.complete(), fault); err != nil {
		return nil, fmt.Errorf("rabbitmq: %w: %w", brokers.ErrMisconfigured, err)
	}
	b := &Broker{
		options:   options,
		endpoints: endpoints,
		seal:      seal,
		manager:   &http.Client{Timeout: options.CallTimeout, Transport: &http.Transport{TLSClientConfig: options.TLS, DisableKeepAlives: true}},
		grace:     grace,
		look:      lookPace,
		tick:      tick,
		deletion:  deletion,
	}
	b.names = names{prefix: b.options.Prefix}
	b.publisher = newPublisher(b, "publisher")
	return b, nil
}

// parse tells of an URL that it cannot use no more than its place: the rest may
// be a password.
func parse(urls []string, allowPlaintext bool) ([]endpoint, error) {
	if len(urls) == 0 {
		return nil, errors.New("no endpoint: name at least one in Options.URLs, such as amqp://localhost:5672/")
	}
	var endpoints []endpoint
	var faults []error
	for i, address := range urls {
		e, err := newEndpoint(address)
		if err == nil && e.Scheme != secureScheme && adapter.IsRemote(e.Host) && !allowPlaintext {
			err = errors.New("would send the password to another machine where others can read it: use amqps://, or set Options.AllowPlaintext")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("entry %d of Options.URLs %w", i, err))
			continue
		}
		endpoints = append(endpoints, e)
	}
	return endpoints, errors.Join(faults...)
}

// complete sets the defaults of o, and returns all that is wrong with it.
func (o *Options) complete() error {
	faults := []error{ // each with its least value and its default, or with its default
		adapter.Duration("ConsumerTimeout", &o.ConsumerTimeout, time.Second, 30*time.Minute),
		adapter.Duration("ConfirmTimeout", &o.ConfirmTimeout, 1, 30*time.Second),
		adapter.Duration("CallTimeout", &o.CallTimeout, 1, 10*time.Second),
		adapter.Duration("Heartbeat", &o.Heartbeat, time.Second, 10*time.Second),
		adapter.Number("MessageLimit", &o.MessageLimit, 16<<20),
		o.checkManagement(),
	}
	for i, place := range o.IDFrom {
		if err := place.check(); err != nil {
			faults = append(faults, fmt.Errorf("entry %d of Options.IDFrom %w", i, err))
		}
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if o.Prefix = cmp.Or(o.Prefix, "redrive"); len(o.Prefix) > longestPrefix {
		faults = append(faults, fmt.Errorf("Options.Prefix has %d bytes, the longest has %d", len(o.Prefix), longestPrefix))
	}
	return errors.Join(faults...)
}

// checkManagement tells nothing of the address: it may have a password in it.
func (o Options) checkManagement() error {
	if o.ManagementURL == "" {
		return nil
	}
	switch u, err := url.Parse(o.ManagementURL); {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("Options.ManagementURL is no address of a management API: use one such as https://host:15671")
	case u.Scheme == "http" && adapter.IsRemote(u.Hostname()) && !o.AllowPlaintext:
		return errors.New("Options.ManagementURL would send the password to another machine where others can read it: use https://, or set Options.AllowPlaintext")
	}
	return nil
}

// Open declares what the subscription needs, or verifies it if Options.Verify
// is set, and starts to consume. Group is ignored: on RabbitMQ a queue is what
// workers share. So is a Lease that is shorter than Options.ConsumerTimeout
// allows; a longer one is an error. See the package documentation for what is
// declared, and what is refused.
func (b *Broker) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	s, err := b.open(ctx, sub)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: open %q: %w", sub.Topics, err)
	}
	return s, nil
}

func (b *Broker) open(ctx context.Context, sub brokers.Subscription) (*source, error) {
	if err := b.names.check(sub); err != nil {
		return nil, err
	}
	s := newSource(b, sub)
	if sub.Lease > s.caps.Lease {
		return nil, fmt.Errorf("%w: the subscription asks for leases of %v, and the broker lets nobody hold a message for more than %v: "+
			"ask for less, or raise consumer_timeout on the broker and Options.ConsumerTimeout", brokers.ErrMisconfigured, sub.Lease, s.caps.Lease)
	}
	if !b.sources.Add(s) {
		return nil, brokers.ErrClosed
	}
	if err := s.start(ctx); err != nil {
		s.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return s, nil
}

// Declare makes sure that the queues of topics exist, as Open does, for a
// program that publishes and may be there before any worker. With
// Options.Verify it declares nothing, and fails where one is missing.
func (b *Broker) Declare(ctx context.Context, topics ...string) error {
	if err := b.declare(ctx, topics); err != nil {
		return fmt.Errorf("rabbitmq: declare %q: %w", topics, err)
	}
	return nil
}

func (b *Broker) declare(ctx context.Context, topics []string) error {
	if err := b.names.check(brokers.Subscription{Topics: topics, MaxAttempts: 1}); err != nil {
		return err
	}
	var t topology
	for _, topic := range topics {
		t.queues = append(t.queues, queue{topic, entry, true, b.names.topicArgs(topic, deliveryLimit)})
	}
	return b.bounded(ctx, "declarations", func(l *link) error {
		_, err := l.establish(ctx, t, b)
		return err
	})
}

// Close closes the sources that are still open and then the connection for
// publishing: what is on its way there is waited for as long as ctx lives.
func (b *Broker) Close(ctx context.Context) error {
	err := b.sources.Close(ctx)
	b.publisher.close(ctx)
	return err
}

package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// Options configure a Broker. Brokers is required.
type Options struct {
	// Brokers are the addresses of some brokers of the cluster, host:port.
	Brokers []string

	// TLS encrypts the connections. Nil means that they are plain.
	TLS *tls.Config

	// SASL authenticates the connections. Its Start is called for each of
	// them, so credentials may rotate. Nil means none.
	SASL sasl.Mechanism

	// ClientID names the worker in the logs and quotas of the broker. Empty
	// means "redrive".
	ClientID string

	// Group is the consumer group of subscriptions that name none. Workers
	// that share it share the messages, and the delay topics; they must
	// subscribe to the same topics.
	Group string

	// Verify lets Open create no topic: it fails where one is missing, or
	// voids a promise.
	Verify bool

	// Prefix begins the names of the delay topics. Empty means "redrive".
	Prefix string

	// DelayPartitions is how many partitions a delay topic gets that Open
	// creates. 0 means 4.
	DelayPartitions int

	// Replication is how many replicas a topic gets that Open creates. 0 means
	// the default of the broker.
	Replication int

	// SessionTimeout is after how long without a heartbeat a worker is taken
	// for dead, and its partitions go to others. 0 means 30 s.
	SessionTimeout time.Duration

	// RebalanceTimeout is how long the members of a group have to join again
	// when it changes. A third of it is left to running handlers to come to
	// their end; what they settle later is brokers.ErrLeaseLost. 0 means 30 s.
	RebalanceTimeout time.Duration

	// CallTimeout is how long an attempt to connect or a single request may
	// take. 0 means 10 s.
	CallTimeout time.Duration

	// MessageLimit is the largest message in bytes, key and headers included,
	// that Publish takes; larger ones are refused. Retries, and dead letters of
	// open sources, are as large as their topics allow. 0 means 1,000,000, which
	// all brokers take unless told otherwise (max.message.bytes).
	MessageLimit int

	// Dial connects, for tests and proxies. Nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	defaultClientID         = "redrive"
	defaultPrefix           = "redrive"
	defaultDelayPartitions  = 4
	defaultSessionTimeout   = 30 * time.Second
	defaultRebalanceTimeout = 30 * time.Second
	defaultMessageLimit     = 1_000_000
)

// Broker is a Kafka cluster. It connects when it is first used.
type Broker struct {
	options  Options
	client   *client
	producer *producer
	memory   memory // of each partition, if there are few

	sources adapter.Sources[*source]
}

var _ brokers.Broker = (*Broker)(nil)

// New checks options, and does not connect. Its error names every fault.
func New(options Options) (*Broker, error) {
	if err := options.check(); err != nil {
		return nil, fmt.Errorf("kafka: %w: %w", brokers.ErrMisconfigured, err)
	}
	o := options.withDefaults()
	reach := clientOptions{brokers: o.Brokers, dial: o.Dial, tls: o.TLS, sasl: o.SASL, clientID: o.ClientID, timeout: o.CallTimeout}
	return &Broker{
		options:  o,
		client:   newClient(reach),
		producer: newProducer(reach),
		memory:   memory{bufferBytes, mostWaiting, bodyBytes, soonBytes},
	}, nil
}

func (o Options) check() error {
	var faults []error
	if len(o.Brokers) == 0 {
		faults = append(faults, errors.New("no address: name at least one broker in Options.Brokers, such as localhost:9092"))
	}
	for i, address := range o.Brokers {
		if _, _, err := net.SplitHostPort(address); err != nil {
			faults = append(faults, fmt.Errorf("entry %d of Options.Brokers is %q: use host:port", i, address))
		}
	}
	faults = append(faults,
		adapter.AtLeast("SessionTimeout", o.SessionTimeout, 100*time.Millisecond),
		adapter.AtLeast("RebalanceTimeout", o.RebalanceTimeout, time.Second),
		adapter.AtLeast("CallTimeout", o.CallTimeout, 1),
		adapter.NotNegative("DelayPartitions", o.DelayPartitions),
		adapter.NotNegative("Replication", o.Replication),
		adapter.NotNegative("MessageLimit", o.MessageLimit),
	)
	if o.Prefix != "" && !isName(o.Prefix) {
		faults = append(faults, fmt.Errorf("Options.Prefix is %q: use letters, digits, dots, hyphens and underscores", o.Prefix))
	}
	return errors.Join(faults...)
}

func (o Options) withDefaults() Options {
	o.ClientID = cmp.Or(o.ClientID, defaultClientID)
	o.Prefix = cmp.Or(o.Prefix, defaultPrefix)
	o.DelayPartitions = cmp.Or(o.DelayPartitions, defaultDelayPartitions)
	o.Replication = cmp.Or(o.Replication, -1)
	o.SessionTimeout = cmp.Or(o.SessionTimeout, defaultSessionTimeout)
	o.RebalanceTimeout = cmp.Or(o.RebalanceTimeout, defaultRebalanceTimeout)
	o.CallTimeout = cmp.Or(o.CallTimeout, defaultTimeout)
	o.MessageLimit = cmp.Or(o.MessageLimit, defaultMessageLimit)
	return o
}

// Open creates the delay topics and dead-letter topics that the subscription
// needs, or only verifies them if Options.Verify is set, and joins the group.
// The topics of the subscription must exist. Lease is ignored: a delivery is
// held for as long as its generation lives.
func (b *Broker) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	s, err := b.open(ctx, sub)
	if err != nil {
		return nil, fmt.Errorf("kafka: open %q: %w", sub.Topics, err)
	}
	return s, nil
}

func (b *Broker) open(ctx context.Context, sub brokers.Subscription) (*source, error) {
	sub.Group = cmp.Or(sub.Group, b.options.Group)
	plan, err := b.options.plan(sub)
	if err != nil {
		return nil, err
	}
	if plan, err = b.adopt(ctx, plan); err != nil {
		return nil, err
	}
	if b.sources.Closed() {
		return nil, brokers.ErrClosed
	}
	layout, err := b.establish(ctx, plan)
	if err != nil {
		return nil, err
	}
	s, err := newSource(b, sub, plan, layout)
	if err != nil {
		return nil, err
	}
	if !b.sources.Add(s) {
		s.Close(ctx)
		return nil, brokers.ErrClosed
	}
	return s, nil
}

// Publish stores msgs in topic, which must exist, and returns when all replicas
// in sync have them. Messages with a Key go to the partition that the Java
// client chooses for it, others are spread. Errors are *brokers.PublishError.
func (b *Broker) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	limit := b.options.MessageLimit
	if b.hasDeadLetters(topic) {
		limit = 0
	}
	compose := func(m brokers.Message) (outgoing, error) {
		r := published(m)
		err := checkSize(r, limit)
		if err == nil && !isName(topic) {
			err = fmt.Errorf("%q cannot be the name of a topic: %w", topic, brokers.ErrMisconfigured)
		}
		return outgoing{topic: topic, partition: byKey, record: r}, err
	}
	return adapter.Publish(topic, msgs, compose, func(out []outgoing) []error { return b.producer.produce(ctx, out) })
}

// hasDeadLetters reports whether an open source dead-letters to topic, which
// then takes larger messages than those that came in.
func (b *Broker) hasDeadLetters(topic string) bool {
	return slices.ContainsFunc(b.sources.Open(), func(s *source) bool { return slices.Contains(s.plan.dead, topic) })
}

// Close closes the sources, waits for what is being published, and cuts the
// connections when ctx ends. Its error has those of the sources, too.
func (b *Broker) Close(ctx context.Context) error {
	err := errors.Join(b.sources.Close(ctx), b.producer.close(ctx))
	b.client.close()
	return err
}

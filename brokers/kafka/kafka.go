package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
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

	// AllowPlaintext lets SASL log in although TLS is nil. Without it that is an
	// error, unless all Brokers are addresses of this machine or the mechanism is
	// SCRAM, which sends no secret: whoever is on the way reads the password, or
	// the token, of any other.
	AllowPlaintext bool

	// ClientID names the worker in the logs and quotas of the broker. Empty
	// means "redrive".
	ClientID string

	// Group is the consumer group of subscriptions that name none. Workers
	// that share it share the messages, and the delay topics; they must
	// subscribe to the same topics.
	Group string

	// InstanceID makes the worker a static member of its group (KIP-345): one that
	// comes back with the same ID within SessionTimeout has its partitions again, and
	// the group does not change. So a rollout moves nothing. Each worker needs an ID
	// of its own that it keeps, such as the name of its pod in a StatefulSet
	// (os.Hostname). If two have the same, Kafka goes on with the one that came last,
	// and the other one ends with an error. Empty means none: partitions move when the
	// worker stops and when it comes back. A Broker with an InstanceID can have one
	// open source of a group. Needs Kafka 2.4.
	InstanceID string

	// LeaveGroup lets a worker with an InstanceID leave its group when it is closed,
	// so that others have its partitions at once, and not after SessionTimeout.
	LeaveGroup bool

	// CooperativeOnly lets no worker into the group that knows only the eager protocol,
	// by which all workers stop when one joins or leaves: the versions of redrive before
	// cooperative rebalancing (KIP-429). Without it a worker offers both protocols, and
	// the group stops only what moves as soon as all its workers do. Set it in a second
	// deployment, when all workers offer both.
	CooperativeOnly bool

	// Rack is where the worker runs, such as the zone of a cloud, by the names of
	// broker.rack: partitions are read from a replica there, if the brokers have
	// replica.selector.class set (KIP-392), and otherwise from their leaders. Empty
	// means the leaders.
	Rack string

	// Verify lets Open create no topic: it fails where one is missing, or
	// voids a promise.
	Verify bool

	// Start is where the group begins with partitions for which it has committed
	// nothing. The zero value is the oldest record of each.
	Start Start

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
	// when it changes. A third of it is left to running handlers of partitions that
	// move to come to their end; what they settle later is brokers.ErrLeaseLost. 0
	// means 30 s.
	RebalanceTimeout time.Duration

	// CallTimeout is how long an attempt to connect or a single request may
	// take. 0 means 10 s.
	CallTimeout time.Duration

	// MessageLimit is the largest message in bytes, key and headers included,
	// that Publish takes; larger ones are refused. Retries, and dead letters of
	// open sources, are as large as their topics allow. 0 means 1,000,000, which
	// all brokers take unless told otherwise (max.message.bytes).
	MessageLimit int

	// MaxDecompressed bounds in bytes what one compressed batch may become when it
	// is read, and what one record of it may take in memory, each header counted
	// as 64 bytes besides its own: a few kilobytes in a log can become gigabytes.
	// What becomes more is passed over, with one Delivery that is Unreadable and
	// stands for all offsets of it; in a delay topic, where only workers write,
	// it is an error, and the partition waits. 0 means 16 times the largest
	// max.message.bytes of the topics at Open, but at least 16 MiB: text rarely
	// becomes 16 times as large, and a batch that fits no bound costs a letter.
	MaxDecompressed int

	// Secret is keys of at least 32 random bytes that the workers of the group
	// share. The first signs the copies of retries and the done records in the
	// delay topics, all of them verify: what nobody signed starts as new, and is due.
	// Nil signs nothing, and believes what the delay topics say. It is never printed.
	Secret adapter.Secret

	// Dial connects, for tests and proxies. Nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Broker is a Kafka cluster. It connects when it is first used.
type Broker struct {
	options  Options // without the Secret
	seal     adapter.Seal
	client   *client
	producer *producer
	memory   memory        // of each partition, if there are few
	pace     time.Duration // of heartbeats

	sources adapter.Sources[*source]
}

var _ brokers.Broker = (*Broker)(nil)

// New checks options, and does not connect. Its error names every fault.
func New(options Options) (*Broker, error) {
	seal, fault := options.Secret.Seal()
	options.Secret = nil
	o, faults := options.complete()
	if err := errors.Join(faults, fault); err != nil {
		return nil, fmt.Errorf("kafka: %w: %w", brokers.ErrMisconfigured, err)
	}
	return &Broker{
		options:  o,
		seal:     seal,
		client:   newClient(o),
		producer: newProducer(o),
		memory:   memory{bufferBytes, mostWaiting, bodyBytes, soonBytes},
		pace:     heartbeatPace(o),
	}, nil
}

// complete returns o with its defaults, and all that is wrong with it.
func (o Options) complete() (Options, error) {
	faults := []error{ // each with its least value and its default, or with its default
		adapter.Duration("SessionTimeout", &o.SessionTimeout, 100*time.Millisecond, 30*time.Second),
		adapter.Duration("RebalanceTimeout", &o.RebalanceTimeout, time.Second, 30*time.Second),
		adapter.Duration("CallTimeout", &o.CallTimeout, 1, defaultTimeout),
		adapter.Number("DelayPartitions", &o.DelayPartitions, 4),
		adapter.Number("Replication", &o.Replication, -1), // that of the broker
		adapter.Number("MessageLimit", &o.MessageLimit, 1_000_000),
		adapter.Number("MaxDecompressed", &o.MaxDecompressed, 0), // see decompressed
	}
	o.ClientID, o.Prefix = cmp.Or(o.ClientID, "redrive"), cmp.Or(o.Prefix, "redrive")
	if len(o.Brokers) == 0 {
		faults = append(faults, errors.New("no address: name at least one broker in Options.Brokers, such as localhost:9092"))
	}
	for i, address := range o.Brokers {
		switch _, _, err := net.SplitHostPort(address); {
		case strings.ContainsAny(address, "@/?"): // perhaps with a password, which no error may have
			faults = append(faults, fmt.Errorf("entry %d of Options.Brokers is a URL, or has a user: use host:port, and Options.SASL to log in", i))
		case err != nil:
			faults = append(faults, fmt.Errorf("entry %d of Options.Brokers is %q: use host:port", i, address))
		}
	}
	if name := o.exposed(); name != "" {
		faults = append(faults, fmt.Errorf("Options.SASL would log in by %s on plain connections, where others can read the secret: "+
			"set Options.TLS, use SCRAM, or set Options.AllowPlaintext", name))
	}
	if !isName(o.Prefix) {
		faults = append(faults, fmt.Errorf("Options.Prefix is %q: use letters, digits, dots, hyphens and underscores", o.Prefix))
	}
	if o.InstanceID != "" && !isName(o.InstanceID) {
		faults = append(faults, fmt.Errorf("Options.InstanceID is %q: use at most 249 letters, digits, dots, hyphens and underscores", o.InstanceID))
	}
	if o.LeaveGroup && o.InstanceID == "" {
		faults = append(faults, errors.New("Options.LeaveGroup is set without an InstanceID: a worker without one leaves its group in any case"))
	}
	return o, errors.Join(faults...)
}

// exposed returns the mechanism of a login that whoever is on the way could read,
// or "".
func (o Options) exposed() string {
	if o.SASL == nil || o.TLS != nil || o.AllowPlaintext || strings.HasPrefix(o.SASL.Name(), "SCRAM-") || !slices.ContainsFunc(o.Brokers, isRemote) {
		return ""
	}
	return o.SASL.Name()
}

// isRemote reports whether an address may be another machine's.
func isRemote(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err != nil || adapter.IsRemote(host)
}

// decompressed is what a batch may become of topics that take batches as large as
// largest.
func (o Options) decompressed(largest int) int {
	return cmp.Or(o.MaxDecompressed, max(leastDecompressed, min(largest, math.MaxInt32)*timesDecompressed))
}

// Open creates the delay topics and dead-letter topics that the subscription
// needs, or only verifies them if Options.Verify is set, and joins the group.
// The topics of the subscription must exist. Lease is ignored: a delivery is
// held for as long as the worker owns its partition. Where the subscription only reads, Open
// also waits until the group has let this member in: for some seconds where the
// group is new, and for Options.SessionTimeout after the death of another member.
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
	if b.sources.Closed() {
		return nil, brokers.ErrClosed
	}
	if id := b.options.InstanceID; id != "" && slices.ContainsFunc(b.sources.Open(), func(s *source) bool { return s.plan.group == plan.group }) {
		return nil, fmt.Errorf("%w: another source of the group %q has the InstanceID %q: close it first, or use a Broker with another ID", brokers.ErrMisconfigured, plan.group, id)
	}
	layout, taken, err := b.establish(ctx, &plan)
	if err != nil {
		return nil, err
	}
	s := newSource(b, sub, plan, layout)
	s.findings = taken
	if !b.sources.Add(s) {
		s.Close(ctx)
		return nil, brokers.ErrClosed
	}
	if plan.readOnly { // what has no partitions yet looks like topics that are empty
		if err := s.await(ctx); err != nil {
			s.Close(ctx)
			return nil, err
		}
	}
	return s, nil
}

// Publish stores msgs in topic, which must exist, and returns when all replicas
// in sync have them. Messages with a Key go to the partition that the Java
// client chooses for it, others are spread. Publish waits for a topic that was
// created a moment ago, for up to 5 s or Options.CallTimeout if that is less.
// Errors are *brokers.PublishError.
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
	return adapter.Publish(topic, msgs, compose, func(out []outgoing) []error { return b.producer.publish(ctx, out) })
}

// SendBack stores msgs in the delay topic of group for short delays, where they are
// due: no other group reads it. Options.Group does not stand in for a group that
// nobody named. The delay topic is there once a worker of the group was, with the
// same Options.Prefix; its workers need the same Options.Secret. A message is as
// large as that topic allows. Errors are *brokers.PublishError.
func (b *Broker) SendBack(ctx context.Context, group, topic string, msgs ...brokers.Item) error {
	to, fault := b.options.returnTopic(group, topic)
	compose := func(m brokers.Message, meta brokers.Meta) (outgoing, error) {
		return outgoing{topic: to, partition: byKey, record: copyOf(b.seal, m, meta)}, fault
	}
	return adapter.SendBack(topic, msgs, compose, func(out []outgoing) []error {
		errs := b.producer.produce(ctx, out)
		for i, err := range errs {
			if errors.Is(err, kafka.UnknownTopicOrPartition) {
				errs[i] = fmt.Errorf("%w: the topic %q is not there: start a worker of the group %q once, which creates it, or publish to %q, which every group sees; "+
					"without the right to describe it, it looks missing too", brokers.ErrNotFound, to, group, topic)
			}
		}
		return errs
	})
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
	b.client.Close()
	return err
}

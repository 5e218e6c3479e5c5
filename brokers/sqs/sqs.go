package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
)

// Options configure a Broker. Config is required.
type Options struct {
	// Config is the configuration of the AWS SDK, as config.LoadDefaultConfig
	// returns it. Region and Credentials are required; its Retryer, if any, is
	// the only one that repeats a call. Polls are not repeated: a queue whose
	// poll fails is left alone for a second or more.
	Config aws.Config

	// Endpoint is the address of another server than AWS, such as
	// http://localhost:9324, for tests. Empty means what Config says.
	Endpoint string

	// Create lets Open create queues that are missing, dead-letter queues with a
	// retention of 14 days, and queues with a RedrivePolicy to them; and a source
	// those that are gone later, as on a development server that was restarted. It
	// never changes a queue. Without it, what is missing is an error.
	Create bool

	// Copies makes every retry a copy of the message, which carries its exact
	// Meta to any worker, instead of retrying in place where that is possible.
	// It costs three calls instead of two. It has no effect on FIFO queues.
	Copies bool

	// PollWait is how long a poll waits for a message, in whole seconds from 1
	// to 20. It is also how long Close may take at least. 0 means 20 s.
	PollWait time.Duration

	// Polls is the most polls that are open at once per queue. 0 means 32.
	Polls int

	// CallTimeout is how long a call may take, repeats by the SDK included; a
	// poll has PollWait in addition. 0 means 10 s.
	CallTimeout time.Duration

	// Secret is keys of at least 32 random bytes that the workers of the queues
	// share, a [][]byte. With it a retry that travels as a copy is signed, by the
	// first key, and how far a message has come is believed only where one of the
	// keys has signed it: anything else starts as new. Nil believes whoever may
	// send to the queue. It is never printed.
	Secret adapter.Secret
}

const (
	longestPollWait = 20 * time.Second

	// callsAtOnce is how many calls one settlement, publish or survey has open, and of
	// polls, which bring what is settled, how many each queue has by default.
	callsAtOnce = 32

	defaultCallTimeout = 10 * time.Second
)

// Broker is Amazon SQS in one account and region, as seen with one set of
// credentials.
type Broker struct {
	options Options // without the Secret
	client  *client
	seal    adapter.Seal

	sources adapter.Sources[*source]

	mu     sync.Mutex
	queues map[string]queue // that were resolved, by topic
}

var _ brokers.Broker = (*Broker)(nil)

// New checks options, and does not connect. Its error names every fault.
func New(options Options) (*Broker, error) {
	seal, err := options.Secret.Seal()
	o := options
	o.Secret = nil
	if err := errors.Join(o.complete(), err); err != nil {
		return nil, fmt.Errorf("sqs: %w: %w", brokers.ErrMisconfigured, err)
	}
	return &Broker{
		options: o,
		seal:    seal,
		client:  newClient(o),
		queues:  make(map[string]queue),
	}, nil
}

// complete sets the defaults of o, and returns all that is wrong with it.
func (o *Options) complete() error {
	faults := []error{
		adapter.Number("Polls", &o.Polls, callsAtOnce),
		adapter.Duration("CallTimeout", &o.CallTimeout, 1, defaultCallTimeout),
	}
	if o.Config.Region == "" {
		faults = append(faults, errors.New("no region: set Options.Config.Region, or AWS_REGION where config.LoadDefaultConfig is used"))
	}
	if o.Config.Credentials == nil {
		faults = append(faults, errors.New("no credentials: set Options.Config.Credentials, or use config.LoadDefaultConfig, which finds them"))
	}
	faults = append(faults, checkEndpoint("Options.Endpoint", o.Endpoint), checkEndpoint("Options.Config.BaseEndpoint", aws.ToString(o.Config.BaseEndpoint)))
	if w := o.PollWait; w != 0 && (w < time.Second || w > longestPollWait || w%time.Second != 0) {
		faults = append(faults, fmt.Errorf("the duration Options.PollWait is %v: use whole seconds from 1 s to 20 s, or 0 for 20 s", w))
	}
	o.PollWait = cmp.Or(o.PollWait, longestPollWait)
	return errors.Join(faults...)
}

// checkEndpoint says what is wrong with the address of a server, and not what it
// is: it may have a password in it.
func checkEndpoint(field, address string) error {
	if address == "" {
		return nil
	}
	const use = "use one such as http://localhost:9324; credentials belong into Options.Config.Credentials"
	switch u, err := url.Parse(address); {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("the address %s is no URL of a server: %s", field, use)
	case u.User != nil:
		return fmt.Errorf("the address %s has a user name in it, which SQS does not take: %s", field, use)
	}
	return nil
}

// Open verifies the queues of the subscription and their dead-letter queues,
// or creates them if Options.Create is set, and refuses what voids a promise;
// see the package documentation. A topic is the name of a queue, or its URL
// where it belongs to another account. Group is ignored: on SQS a queue is
// what workers share. A Lease of 0 means 30 s.
func (b *Broker) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	s, err := b.open(ctx, sub)
	if err != nil {
		return nil, fmt.Errorf("sqs: open %q: %w", printable(sub.Topics...), err)
	}
	return s, nil
}

func (b *Broker) open(ctx context.Context, sub brokers.Subscription) (*source, error) {
	if b.sources.Closed() {
		return nil, brokers.ErrClosed
	}
	t := termsOf(sub, b.options)
	if err := check(sub, t); err != nil {
		return nil, err
	}
	sites, found, _, err := b.establish(ctx, sub)
	if err != nil {
		return nil, err
	}
	s := newSource(b, sub, t, b.learnAll(sub, sites))
	s.caps.Findings = found
	if !b.sources.Add(s) {
		return nil, brokers.ErrClosed
	}
	return s, nil
}

// Publish stores msgs in the queue that topic names, or whose URL it is, and
// returns when SQS has them on several servers. On FIFO queues a message
// without a Key has a group of its own. Errors are *brokers.PublishError.
func (b *Broker) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	q, err := b.queue(ctx, topic)
	compose := func(m brokers.Message) (outgoing, error) {
		if err != nil {
			return outgoing{}, err
		}
		return q.compose(m, nil, 0)
	}
	return adapter.Publish(printable(topic)[0], msgs, compose, func(out []outgoing) []error { return b.missed(topic, b.send(ctx, &q, out)) })
}

// SendBack stores msgs in the queue that topic names, or whose URL it is, as a retry
// that is a copy is stored: its workers need the same Options.Secret. On FIFO queues
// they join the end of their groups. Group is ignored. Errors are
// *brokers.PublishError.
func (b *Broker) SendBack(ctx context.Context, group, topic string, msgs ...brokers.Item) error {
	q, err := b.queue(ctx, topic)
	compose := func(m brokers.Message, meta brokers.Meta) (outgoing, error) {
		if err != nil {
			return outgoing{}, err
		}
		return q.compose(m, &meta, 0)
	}
	return adapter.SendBack(printable(topic)[0], msgs, compose, func(out []outgoing) []error { return b.client.send(ctx, &q, out) })
}

// send stores messages, and those dead letters bare that SQS refuses although they
// seem to fit: the limit of a queue that nobody may look at is not known.
func (b *Broker) send(ctx context.Context, q *queue, out []outgoing) []error {
	errs := b.client.send(ctx, q, out)
	for i, err := range errs {
		if bare := out[i].bare; bare != nil && errors.Is(err, brokers.ErrRefused) {
			errs[i] = b.client.send(ctx, q, []outgoing{{entry: *bare, size: out[i].size}})[0]
		}
	}
	return errs
}

// queue returns what is known about the queue of topic, and asks for its URL
// if that is nothing.
func (b *Broker) queue(ctx context.Context, topic string) (queue, error) {
	b.mu.Lock()
	q, known := b.queues[topic]
	b.mu.Unlock()
	switch {
	case b.sources.Closed():
		return queue{}, brokers.ErrClosed
	case known:
		return q, nil
	}
	if err := checkName(topic); err != nil {
		return queue{}, fmt.Errorf("%w: %w", brokers.ErrMisconfigured, err)
	}
	address, err := b.client.resolve(ctx, topic)
	if err != nil {
		return queue{}, err
	}
	q = queue{topic: topic, url: address, fifo: isFIFO(topic), seal: b.seal}
	b.learn(q)
	return q, nil
}

func (b *Broker) learn(q queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queues[q.topic] = q
}

// Close closes the sources that are still open, which waits for their polls to
// end, and then the idle connections. When ctx ends first, its cause is
// returned, and the sources go on in the background until they are done.
func (b *Broker) Close(ctx context.Context) error {
	err := b.sources.Close(ctx)
	b.client.http.closeIdle()
	return err
}

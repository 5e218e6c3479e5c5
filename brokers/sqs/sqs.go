package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

	// Create lets Open create queues that are missing: dead-letter queues with
	// a retention of 14 days, and queues with a RedrivePolicy to them. It never
	// changes a queue. Without it, what is missing is an error.
	Create bool

	// AllowUnverified lets Open go on where the attributes of a queue cannot be
	// read for lack of the right sqs:GetQueueAttributes. It is for you to see
	// then that the queue keeps what the package documentation asks for.
	AllowUnverified bool

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
}

const (
	longestPollWait    = 20 * time.Second
	defaultPolls       = 32
	defaultCallTimeout = 10 * time.Second
)

// Broker is Amazon SQS in one account and region, as seen with one set of
// credentials.
type Broker struct {
	options Options
	client  *client

	sources adapter.Sources[*source]

	mu     sync.Mutex
	queues map[string]queue // that were resolved, by topic
}

var _ brokers.Broker = (*Broker)(nil)

// New checks options, and does not connect. Its error names every fault.
func New(options Options) (*Broker, error) {
	if err := options.check(); err != nil {
		return nil, fmt.Errorf("sqs: %w: %w", brokers.ErrMisconfigured, err)
	}
	o := options.withDefaults()
	return &Broker{
		options: o,
		client:  newClient(clientOptions{config: o.Config, endpoint: o.Endpoint, timeout: o.CallTimeout, pollWait: o.PollWait}),
		queues:  make(map[string]queue),
	}, nil
}

func (o Options) check() error {
	var faults []error
	if o.Config.Region == "" {
		faults = append(faults, errors.New("no region: set Options.Config.Region, or AWS_REGION where config.LoadDefaultConfig is used"))
	}
	if o.Config.Credentials == nil {
		faults = append(faults, errors.New("no credentials: set Options.Config.Credentials, or use config.LoadDefaultConfig, which finds them"))
	}
	if w := o.PollWait; w != 0 && (w < time.Second || w > longestPollWait || w%time.Second != 0) {
		faults = append(faults, fmt.Errorf("the duration Options.PollWait is %v: use whole seconds from 1 s to 20 s, or 0 for 20 s", w))
	}
	if o.Polls < 0 {
		faults = append(faults, fmt.Errorf("the number Options.Polls is %d: use a positive one, or 0 for %d", o.Polls, defaultPolls))
	}
	if o.CallTimeout < 0 {
		faults = append(faults, fmt.Errorf("the duration Options.CallTimeout is %v: use a positive one, or 0 for %v", o.CallTimeout, defaultCallTimeout))
	}
	return errors.Join(faults...)
}

func (o Options) withDefaults() Options {
	o.PollWait = cmp.Or(o.PollWait, longestPollWait)
	o.Polls = cmp.Or(o.Polls, defaultPolls)
	o.CallTimeout = cmp.Or(o.CallTimeout, defaultCallTimeout)
	return o
}

// Open verifies the queues of the subscription and their dead-letter queues,
// or creates them if Options.Create is set, and refuses what voids a promise;
// see the package documentation. A topic is the name of a queue, or its URL
// where it belongs to another account. Group is ignored: on SQS a queue is
// what workers share. A Lease of 0 means 30 s.
func (b *Broker) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	s, err := b.open(ctx, sub)
	if err != nil {
		return nil, fmt.Errorf("sqs: open %q: %w", sub.Topics, err)
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
	queues, err := b.establish(ctx, sub)
	if err != nil {
		return nil, err
	}
	s := newSource(b, sub, t, queues)
	b.client.callers.enter()
	if !b.sources.Add(s) {
		b.client.callers.leave()
		return nil, brokers.ErrClosed
	}
	return s, nil
}

func (b *Broker) forget(s *source) {
	b.sources.Remove(s)
	b.client.callers.leave()
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
		return compose(m, nil, q.fifo, q.limit, 0)
	}
	return adapter.Publish(topic, msgs, compose, func(out []outgoing) []error { return b.client.send(ctx, q.url, out) })
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
	url, err := b.client.resolve(ctx, topic)
	if err != nil {
		return queue{}, err
	}
	q = queue{topic: topic, url: url, fifo: isFIFO(topic)}
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
	b.client.close()
	return err
}

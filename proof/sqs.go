package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs"
)

const (
	sqsLease    = 3 * time.Second
	sqsPollWait = time.Second
)

// sqsTarget is a server of Amazon SQS's protocol, as the driver sees it. The
// workers create the queues.
type sqsTarget struct {
	target
	tag   string
	link  link
	calls *awssqs.Client
}

func newSQSTarget(j job) (*sqsTarget, error) {
	t := &sqsTarget{tag: j.tag, calls: awssqs.NewFromConfig(sqsConfig(plainHTTP()), func(o *awssqs.Options) { o.BaseEndpoint = &j.url })}
	var err error
	t.link, err = connectSQS(j, nil)
	return t, err
}

func sqsConfig(client aws.HTTPClient) aws.Config {
	return aws.Config{
		Region:     "us-east-1",
		HTTPClient: client,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "proof", SecretAccessKey: "proof"}, nil
		}),
	}
}

// plainHTTP has a connection for every call that a worker has open.
func plainHTTP() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 100
	return &http.Client{Transport: transport}
}

func (t *sqsTarget) worker(int) link { return t.link }

func (t *sqsTarget) declared(string, string) {}

func (t *sqsTarget) watch(context.Context, *ledger) (stop func()) { return func() {} }

// urls are those of the queues with the tag, by name.
func (t *sqsTarget) urls(ctx context.Context) (map[string]string, error) {
	out, err := t.calls.ListQueues(ctx, &awssqs.ListQueuesInput{QueueNamePrefix: aws.String(t.tag + "-")})
	if err != nil {
		return nil, fmt.Errorf("list the queues: %w", err)
	}
	urls := map[string]string{}
	for _, url := range out.QueueUrls {
		urls[path.Base(url)] = url
	}
	return urls, nil
}

// wait returns when the workers have created all queues.
func (t *sqsTarget) wait(ctx context.Context, s *scenario) error {
	const limit, pause = 30 * time.Second, 100 * time.Millisecond
	for begun := time.Now(); ; wait(ctx, pause) {
		urls, err := t.urls(ctx)
		missing := ""
		for _, topic := range s.topics {
			for _, name := range []string{topic.name, topic.dead} {
				if name != "" && urls[name] == "" {
					missing = name
				}
			}
		}
		switch {
		case err == nil && missing == "":
			return nil
		case ctx.Err() != nil || time.Since(begun) > limit:
			return errors.Join(fmt.Errorf("no worker has created %s", missing), err)
		}
	}
}

// counts has also what is in flight or delayed.
func (t *sqsTarget) counts() (map[string]int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*callTimeout)
	defer cancel()
	urls, err := t.urls(ctx)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for name, url := range urls {
		out, err := t.calls.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{
			types.QueueAttributeNameApproximateNumberOfMessages,
			types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
			types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
		}})
		if err != nil {
			return nil, fmt.Errorf("count %s: %w", name, err)
		}
		for what, value := range out.Attributes {
			n, err := strconv.Atoi(value)
			if err != nil {
				return nil, fmt.Errorf("count %s: %s: %w", name, what, err)
			}
			if n > 0 {
				counts[name] += n
			}
		}
	}
	return counts, nil
}

// drain takes everything out of a queue, also what would be in flight.
func (t *sqsTarget) drain(ctx context.Context, topic string) ([]brokers.Message, error) {
	counts, err := t.counts()
	if err != nil {
		return nil, err
	}
	return readLetters(ctx, t.link, brokers.Subscription{Topics: []string{topic}}, counts[topic])
}

// close deletes all queues with the tag.
func (t *sqsTarget) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout)
	defer cancel()
	errs := []error{t.link.Close(ctx)}
	urls, err := t.urls(ctx)
	errs = append(errs, err)
	for _, url := range urls {
		_, err := t.calls.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: &url})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// asQueue makes a queue name of the name of a topic: there are no dots in it but
// that before fifo.
func asQueue(name string, fifo bool) string {
	name = strings.ReplaceAll(name, ".", "-")
	if fifo {
		name += ".fifo"
	}
	return name
}

// connectSQS connects by way of a tap, if there is one.
func connectSQS(j job, t *sqsTap) (link, error) {
	var client aws.HTTPClient = plainHTTP()
	if t != nil {
		t.next = client
		client = t
	}
	b, err := sqs.New(sqs.Options{
		Config:      sqsConfig(client),
		Endpoint:    j.url,
		Create:      true,
		Copies:      j.copies,
		PollWait:    sqsPollWait,
		CallTimeout: callTimeout,
	})
	if err != nil {
		return nil, err
	}
	return sqsLink{b, t}, nil
}

// sqsLink is a worker's way to SQS, or the driver's.
type sqsLink struct {
	*sqs.Broker
	tap *sqsTap
}

func (sqsLink) kill() {} // the driver does that

// Publish tells the tap of dead letters.
func (l sqsLink) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	if l.tap == nil {
		return l.Broker.Publish(ctx, topic, msgs...)
	}
	err := l.Broker.Publish(context.WithValue(ctx, intentKey{}, &intent{buries: true}), topic, msgs...)
	failed := unconfirmed(msgs, err)
	for _, m := range msgs {
		if !slices.ContainsFunc(failed, func(f brokers.Message) bool { return f.ID == m.ID }) {
			l.tap.buried.Store(m.ID, true)
		}
	}
	return err
}

func (l sqsLink) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	s, err := l.Broker.Open(ctx, sub)
	if err != nil || l.tap == nil {
		return s, err
	}
	return sqsSource{s, l.tap}, nil
}

// sqsSource tells the tap what settlements are about.
type sqsSource struct {
	brokers.Source
	tap *sqsTap
}

func (s sqsSource) Settle(ctx context.Context, batch []brokers.Settlement) []error {
	in := &intent{}
	for _, st := range batch {
		switch st.Action {
		case brokers.Retry:
			in.retries = true
		case brokers.Ack:
			if _, buried := s.tap.buried.LoadAndDelete(st.Delivery.Message.ID); buried {
				in.copied.Store(true)
			}
		}
	}
	return s.Source.Settle(context.WithValue(ctx, intentKey{}, in), batch)
}

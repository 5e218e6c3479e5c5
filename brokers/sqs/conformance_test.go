package sqs

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/brokers/wire"
	"github.com/redrive-go/redrive/integration/livetest"
)

// TestMain runs tests beside each other, as those on a server mostly wait.
func TestMain(m *testing.M) { os.Exit(livetest.Main(m, 16)) }

// typed are headers that SQS has types for.
var typed = brokers.Headers{
	{Name: "number", Value: "42", Type: "Number"},
	{Name: "price", Value: "12.5", Type: "Number.eur"},
	{Name: "picture", Value: "\x89PNG\x00", Type: "Binary.png"},
	{Name: "document", Value: "{}", Type: "String.json"},
	{Name: "AWSTraceHeader", Value: "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1", Type: "system"},
}

// kinds are the ways to use SQS that differ in what the suite may expect.
var kinds = []struct {
	name      string
	options   Options
	suffix    string // of queues
	estimates bool
	margin    int // of abandoned deliveries
}{
	{name: "standard", estimates: true, margin: bystanders},
	{name: "copies", options: Options{Copies: true}, margin: bystanders},
	{name: "fifo", suffix: fifoSuffix, estimates: true, margin: bystandersFIFO},
}

// harness is what is the same on the fake and on servers. Each source has
// connections of its own.
func harness(suffix string, estimates bool, margin int, open func(t testing.TB) brokers.Broker) brokertest.Harness {
	return brokertest.Harness{
		Open:            open,
		EstimatesMeta:   estimates,
		AbandonedMargin: margin,
		Unordered:       suffix == "",
		SortsHeaders:    true,
		TypedHeaders:    typed,
		Refused:         refused,
		PublishUnreadable: func(ctx context.Context, b brokers.Broker, topic string) error {
			return b.(*fleet).sendNewer(ctx, topic)
		},
		Crash:        func(b brokers.Broker, s brokers.Source) { b.(*fleet).crash(s) },
		Delete:       func(b brokers.Broker, topic string) (restore func()) { return b.(*fleet).delete(topic) },
		LoseRequests: func(b brokers.Broker) (heal func()) { return b.(*fleet).lose(mute) },
		LoseConfirms: func(b brokers.Broker) (heal func()) { return b.(*fleet).lose(deaf) },
	}
}

// TestConformance runs the suite on the fake, in virtual time.
func TestConformance(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			h := harness(kind.suffix, kind.estimates, kind.margin, func(t testing.TB) brokers.Broker {
				if strings.HasSuffix(t.Name(), "/retry-longest") && kind.suffix != "" {
					t.Skip("Open refuses delays of a day on FIFO queues; see TestFIFODelayThatDoesNotFit")
				}
				server := sqstest.New(sqstest.Options{})
				t.Cleanup(server.Close)
				o := kind.options
				o.Config, o.Create = server.Config(), true
				return newFleet(t, o)
			})
			h.Topic = func(name string) string { return name + kind.suffix }
			h.Virtual, h.Unit = true, 5*time.Second
			brokertest.Run(t, h)
		})
	}
}

// TestConformanceOnServers runs the suite on servers with sockets.
func TestConformanceOnServers(t *testing.T) {
	t.Parallel()
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		for _, kind := range kinds {
			t.Run(kind.name, func(t *testing.T) {
				t.Parallel() // nearly all of the time is waiting
				h := harness(kind.suffix, kind.estimates, kind.margin, func(t testing.TB) brokers.Broker {
					o := kind.options
					o.Config = aws.Config{Region: "us-east-1", Credentials: anyCredentials()}
					o.Endpoint, o.Create, o.PollWait = target.URL, true, time.Second
					return newFleet(t, o)
				})
				var topics atomic.Int64
				h.Topic = func(name string) string {
					return fmt.Sprintf("%s-%s-%d-%d%s", name, kind.name, time.Now().UnixNano(), topics.Add(1), kind.suffix)
				}
				h.Unit, h.Slack = 3*time.Second, 2*time.Second
				brokertest.Run(t, h)
			})
		}
	})
}

// refused is more than SQS takes of any text; Capabilities.MessageLimit is what
// it takes of any bytes.
func refused() brokers.Message { return brokers.Message{Body: bytes.Repeat([]byte("x"), largest)} }

func anyCredentials() aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
	})
}

// fleet is a Broker whose sources have connections of their own, so that one of
// them can die.
type fleet struct {
	*Broker // for what is published
	t       testing.TB
	options Options

	mu     sync.Mutex
	links  map[brokers.Source]*link
	others []*Broker
	all    []*link
}

// delete deletes a queue. Its workers may create it again.
func (f *fleet) delete(topic string) (restore func()) {
	if err := f.client.drop(f.t.Context(), topic); err != nil {
		f.t.Error(err)
	}
	return func() {
		if err := createAnew(f.t.Context(), f.client, topic, wanted(brokers.Subscription{}, topic, "")); err != nil {
			f.t.Errorf("create the queue %q: %v", topic, err)
		}
	}
}

// drop deletes a queue.
func (c *client) drop(ctx context.Context, topic string) error {
	url, err := c.resolve(ctx, topic)
	if err == nil {
		_, err = c.sends.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: &url})
	}
	return err
}

// createAnew creates a deleted queue again. SQS refuses that for a minute.
func createAnew(ctx context.Context, c *client, topic string, attributes map[string]string) error {
	for {
		_, err := c.create(ctx, topic, attributes)
		if code, _ := codeOf(err); code != "QueueDeletedRecently" {
			return err
		}
		time.Sleep(time.Minute) // of virtual time: ElasticMQ does not refuse it
	}
}

func newFleet(t testing.TB, o Options) *fleet {
	f := &fleet{t: t, options: o, links: make(map[brokers.Source]*link)}
	f.Broker, _ = f.start()
	return f
}

func (f *fleet) start() (*Broker, *link) {
	l := &link{next: f.options.Config.HTTPClient}
	if l.next == nil {
		l.next = newHTTPClient(nil)
	}
	o := f.options
	o.Config.HTTPClient = l
	b, err := New(o)
	if err != nil {
		f.t.Fatalf("New: %v", err)
	}
	f.all = append(f.all, l)
	return b, l
}

func (f *fleet) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	if f.Broker.sources.Closed() {
		return f.Broker.Open(ctx, sub)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b, l := f.start()
	s, err := b.Open(ctx, sub)
	f.others = append(f.others, b)
	if err != nil {
		return nil, err
	}
	f.links[s] = l
	return s, nil
}

func (f *fleet) Close(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	errs := make([]error, len(f.others)+1)
	var work sync.WaitGroup
	for i, b := range append(f.others, f.Broker) {
		work.Go(func() { errs[i] = b.Close(ctx) })
	}
	work.Wait()
	return errors.Join(errs...)
}

// sendNewer sends an envelope that no worker can open, as anybody can.
func (f *fleet) sendNewer(ctx context.Context, topic string) error {
	q, err := f.Broker.queue(ctx, topic)
	if err != nil {
		return err
	}
	packed := types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(newerNote(topic))}
	in := &awssqs.SendMessageInput{
		QueueUrl: &q.url, MessageBody: aws.String(newerEnvelope),
		MessageAttributes: map[string]types.MessageAttributeValue{wire.Packed: packed},
	}
	if q.fifo {
		in.MessageGroupId, in.MessageDeduplicationId = aws.String("newer"), aws.String(rand.Text())
	}
	_, err = f.Broker.client.sends.SendMessage(ctx, in)
	return err
}

// newerEnvelope is an envelope that no worker can open, with newerNote in its packed
// attribute, which says one of this queue.
const newerEnvelope = `{"redrive":{"v":2}}`

func newerNote(topic string) string {
	return fmt.Sprintf(`{"sqs":"envelope","topic":%q}`, queueName(topic))
}

// crash cuts a source off for good.
func (f *fleet) crash(s brokers.Source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links[s].set(cut)
}

// lose loses what is to be stored, or the answers.
func (f *fleet) lose(how condition) (heal func()) {
	set := func(to condition) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, l := range f.all {
			l.set(to)
		}
	}
	set(how)
	return func() { set(well) }
}

type condition uint8

const (
	well condition = iota
	mute           // what is to be stored gets lost
	deaf           // answers to what is stored get lost
	cut            // nothing comes through
)

// link is a way to a server that can fail.
type link struct {
	next aws.HTTPClient

	mu sync.Mutex
	is condition
}

func (l *link) set(to condition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.is != cut {
		l.is = to
	}
}

func (l *link) get() condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.is
}

var errCut = errors.New("the link is cut")

func (l *link) Do(req *http.Request) (*http.Response, error) {
	operation := req.Header.Get("X-Amz-Target")
	storing := strings.HasSuffix(operation, ".SendMessageBatch") || strings.HasSuffix(operation, ".ChangeMessageVisibilityBatch")
	if is := l.get(); is == cut || is == mute && storing {
		return nil, errCut
	}
	resp, err := l.next.Do(req)
	if is := l.get(); err == nil && (is == cut || is == deaf && storing) {
		resp.Body.Close()
		return nil, errCut
	}
	return resp, err
}

package integration_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	amqp "github.com/rabbitmq/amqp091-go"
	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/livetest"
)

// walled is a broker whose dead-letter topic refuses messages until open is
// set.
type walled struct {
	brokers.Broker
	dead string
	open atomic.Bool
}

var errWalled = errors.New("the dead-letter topic is down")

func (b *walled) Publish(ctx context.Context, topic string, msgs ...brokers.Message) error {
	if topic == b.dead && !b.open.Load() {
		return errWalled
	}
	return b.Broker.Publish(ctx, topic, msgs...)
}

// The dead-letter topic is down while more poison comes in than the worker holds,
// on the default Config. Each dead letter has the error of its run, all are one
// group, and the good messages are handled. A broker may deliver a message twice, as
// after a lost connection.
func TestLettersThatWaitTellWhy(t *testing.T) {
	onBrokers(t, "letters", lettersThatWait)
}

// onBrokers runs a test on each of the real brokers, with a topic of its own. The
// test closes the broker.
func onBrokers(t *testing.T, name string, test func(t *testing.T, b brokers.Broker, err error, topic string)) {
	topic := name + "-" + strings.ToLower(rand.Text()[:10])
	t.Run("rabbitmq", func(t *testing.T) {
		t.Parallel()
		livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
			t.Cleanup(func() { dropQueues(t, target.URL, topic, topic+"-dead", "redrive.retry.v1."+topic) })
			b, err := rabbitmq.New(rabbitmq.Options{URLs: []string{target.URL}})
			test(t, b, err, topic)
		})
	})
	t.Run("kafka", func(t *testing.T) {
		t.Parallel()
		livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
			admin := &kafkago.Client{Addr: kafkago.TCP(strings.Split(target.URL, ",")...), Timeout: time.Minute}
			made, err := admin.CreateTopics(t.Context(), &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}}})
			if err = errors.Join(err, made.Errors[topic]); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				delays := "redrive.delay.v1." + topic
				names := []string{topic, topic + "-dead", delays + ".1m", delays + ".15m", delays + ".3h", delays + ".24h"}
				admin.DeleteTopics(context.WithoutCancel(t.Context()), &kafkago.DeleteTopicsRequest{Topics: names}) // the policy makes only some of them
			})
			b, err := kafka.New(kafka.Options{Brokers: strings.Split(target.URL, ","), Group: topic})
			test(t, b, err, topic)
		})
	})
	t.Run("sqs", func(t *testing.T) {
		t.Parallel()
		livetest.SQS(t, func(t *testing.T, target livetest.Target) {
			anyone := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
			})
			config := aws.Config{Region: "us-east-1", Credentials: anyone, BaseEndpoint: &target.URL}
			t.Cleanup(func() {
				client, ctx := awssqs.NewFromConfig(config), context.WithoutCancel(t.Context())
				for _, queue := range []string{topic, topic + "-dead"} {
					out, err := client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: &queue})
					if err == nil {
						_, err = client.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: out.QueueUrl})
					}
					if err != nil {
						t.Errorf("delete queue %q: %v", queue, err)
					}
				}
			})
			b, err := sqs.New(sqs.Options{Config: config, Create: true})
			test(t, b, err, topic)
		})
	})
}

func dropQueues(t *testing.T, url string, queues ...string) {
	t.Helper()
	conn, err := amqp.Dial(url)
	must(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	must(t, err)
	for _, queue := range queues {
		if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
			t.Errorf("delete queue %q: %v", queue, err)
		}
	}
}

// observing is an Observer that is a function.
type observing func(consumer.Event)

func (o observing) Observe(_ context.Context, e consumer.Event) { o(e) }

func lettersThatWait(t *testing.T, b brokers.Broker, err error, topic string) {
	t.Helper()
	must(t, err)
	const poison, waiting = 1200, 50
	broker := &walled{Broker: b, dead: topic + "-dead"}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() {
		if err := b.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	var mu sync.Mutex
	back := 0
	opened, done := make(chan struct{}), make(chan struct{})
	open, finish := sync.OnceFunc(func() { close(opened) }), sync.OnceFunc(func() { close(done) })
	good, dead, published := map[string]bool{}, map[string]bool{}, 0
	c, err := consumer.New(broker, consumer.Config{
		DeadLetter: "*-dead",
		Logger:     slog.New(slog.NewTextHandler(io.Discard, nil)),
		Observers: []consumer.Observer{observing(func(e consumer.Event) {
			mu.Lock()
			defer mu.Unlock()
			switch e.Kind {
			case consumer.EventSettled:
				if e.Action == brokers.Retry && e.DeadLetter != nil {
					back++
				}
				if back == waiting {
					open()
				}
			case consumer.EventDeadLettered:
				dead[e.Message.ID] = true
				published++
			case consumer.EventSucceeded:
				if strings.HasPrefix(e.Message.ID, "good") {
					good[e.Message.ID] = true
				}
			}
			if len(good) == poison && len(dead) == poison {
				finish()
			}
		})},
	})
	must(t, err)
	c.Handle(topic, func(_ context.Context, m *brokers.Message) error {
		if strings.HasPrefix(m.ID, "bad") {
			return classify.Permanent(fmt.Errorf("no article %s", m.ID[4:]))
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	var batch []brokers.Message
	for i := range poison {
		batch = append(batch, brokers.Message{ID: fmt.Sprint("bad-", i), Body: []byte("order")}, brokers.Message{ID: fmt.Sprint("good-", i), Body: []byte("order")})
	}
	for tries := 0; ; tries++ { // the worker makes the queue
		err := b.Publish(ctx, topic, batch...)
		if err == nil {
			break
		}
		if tries == 30 {
			t.Fatal(err)
		}
		<-time.After(time.Second)
	}
	traffic, cut := context.WithCancel(ctx)
	defer cut()
	go func() { // without other successes poison would be put aside for an hour
		for n := 0; traffic.Err() == nil; n++ {
			_ = b.Publish(traffic, topic, brokers.Message{ID: fmt.Sprint("later-", n), Body: []byte("order")})
			select {
			case <-traffic.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	select {
	case <-opened:
	case <-time.After(3 * time.Minute):
		t.Error("no dead messages wait in their queue within 3 min")
	}
	broker.open.Store(true)
	began := time.Now()
	select {
	case <-done:
	case <-time.After(5 * time.Minute):
		t.Error("the dead letters are not all there within 5 min")
	}
	t.Logf("the last dead letter came %v after the topic was back", time.Since(began).Round(time.Second))
	cut()
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	prints := map[string]int{}
	letters := readLetters(t, b, broker.dead, published)
	for id, l := range letters {
		want := fmt.Sprintf("no article %s", strings.TrimPrefix(id, "bad-"))
		if l.Reason != "poison" || l.ErrorText != want || l.Meta.Attempt != 1 || l.Meta.Class != "poison" || len(l.Meta.History) == 0 || len(l.Truncated) > 0 {
			t.Errorf("%+v, want a dead letter of one attempt with the text %q", l, want)
		}
		prints[l.Fingerprint]++
	}
	if len(letters) != poison || len(prints) != 1 || len(good) != poison {
		t.Errorf("%d of %d letters in %d groups, %d of %d good messages", len(letters), poison, len(prints), len(good), poison)
	}
}

// readLetters takes n letters out of the dead-letter topic, by their IDs.
func readLetters(t *testing.T, b brokers.Broker, topic string, n int) map[string]dlq.Entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	source, err := b.Open(ctx, brokers.Subscription{Topics: []string{topic}, Group: topic, InFlight: 100})
	must(t, err)
	defer source.Close(context.WithoutCancel(ctx))
	letters := map[string]dlq.Entry{}
	for got := 0; got < n; {
		ds, err := source.Receive(ctx, 100)
		if ctx.Err() != nil {
			t.Errorf("%d of %d dead letters: %v", got, n, err)
			break
		}
		var acks []brokers.Settlement
		for _, d := range ds {
			letter, err := dlq.Decode(d.Message)
			if err != nil {
				t.Errorf("message %q: %v", d.Message.ID, err)
			}
			letters[d.Message.ID] = letter
			acks = append(acks, brokers.Settlement{Delivery: d, Action: brokers.Ack})
		}
		got += len(ds)
		source.Settle(ctx, acks)
	}
	return letters
}

// must fails the test at once if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

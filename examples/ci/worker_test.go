// Package ci tests a handler on the broker that the environment names. It is an
// example, to be copied beside a handler of your own: see
// docs/how-to/test-in-your-ci.md.
package ci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/settings"
)

type order struct{ Cents int }

// charge is the handler under test. Yours is elsewhere.
func charge(ctx context.Context, o order) error {
	switch {
	case o.Cents <= 0:
		return classify.Permanent(errors.New("there is nothing to charge"))
	case o.Cents < 100 && consumer.MetaFrom(ctx).Attempt == 1:
		return classify.Transient(errors.New("the bank is busy"))
	}
	return nil
}

// connect returns the broker that the environment names, or one in memory.
func connect() (brokers.Broker, error) {
	if url := os.Getenv("RABBITMQ_URL"); url != "" {
		return rabbitmq.New(rabbitmq.Options{URLs: []string{url}, AllowPlaintext: true})
	}
	if addresses := os.Getenv("KAFKA_BROKERS"); addresses != "" {
		return kafka.New(kafka.Options{Brokers: strings.Split(addresses, ",")})
	}
	if endpoint := os.Getenv("AWS_ENDPOINT_URL"); endpoint != "" {
		return sqs.New(sqs.Options{Config: local(endpoint), Create: true, PollWait: time.Second})
	}
	return memory.New(memory.Options{}), nil
}

// local is the configuration for a server that takes any keys.
func local(endpoint string) aws.Config {
	return aws.Config{
		Region:       "us-east-1",
		BaseEndpoint: &endpoint,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "any", SecretAccessKey: "any"}, nil
		}),
	}
}

// ends collects how messages end, and calls all when there are n.
type ends struct {
	n   int
	all func()

	mu  sync.Mutex
	how map[string]string // by ID
}

func (e *ends) Observe(_ context.Context, event consumer.Event) {
	if event.Kind != consumer.EventSucceeded && event.Kind != consumer.EventDeadLettered {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.how[event.Message.ID] = fmt.Sprintf("%s in run %d", event.Kind, event.Attempt)
	if len(e.how) == e.n {
		e.all()
	}
}

func TestOnABroker(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	broker, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	topic := cmp.Or(os.Getenv("TOPIC"), "orders")
	got := &ends{n: 3, all: cancel, how: map[string]string{}}
	worker, err := consumer.New(broker, consumer.Config{
		Group:      topic, // of workers on Kafka
		DeadLetter: "*-dead",
		HoldLimit:  settings.None, // each retry waits in the broker, however short
		Observers:  []consumer.Observer{got},
	})
	if err != nil {
		t.Fatal(err)
	}
	worker.Handle(topic, consumer.JSON(charge))

	var publishing sync.WaitGroup
	publishing.Go(func() {
		publish := func() error {
			return broker.Publish(ctx, topic,
				brokers.Message{ID: "fine", Body: []byte(`{"cents":1999}`)},
				brokers.Message{ID: "busy", Body: []byte(`{"cents":50}`)},
				brokers.Message{ID: "free", Body: []byte(`{"cents":0}`)})
		}
		for publish() != nil && ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond) // until the worker has made the queue
		}
	})
	err = worker.Run(ctx)
	cancel()
	publishing.Wait()
	if err := errors.Join(err, broker.Close(context.WithoutCancel(ctx))); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"fine": "succeeded in run 1", "busy": "succeeded in run 2", "free": "dead-lettered in run 1"}
	if !maps.Equal(got.how, want) {
		t.Errorf("the messages end as %v, want %v", got.how, want)
	}
}

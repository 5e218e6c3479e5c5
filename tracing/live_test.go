package tracing_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
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
	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/integration/livetest"
)

// TestMain runs a few scenes beside each other: each has topics to create.
func TestMain(m *testing.M) { os.Exit(livetest.Main(m, 3)) }

func TestTreesOnRabbitMQ(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		live(t, func(t *testing.T, topic string) (brokers.Broker, error) {
			t.Cleanup(func() {
				conn, err := amqp.Dial(target.URL)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				ch, err := conn.Channel()
				if err != nil {
					t.Fatal(err)
				}
				for _, queue := range []string{topic, topic + "-dead", "redrive.retry.v1." + topic} {
					if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
						t.Errorf("delete queue %q: %v", queue, err)
					}
				}
			})
			return rabbitmq.New(rabbitmq.Options{URLs: []string{target.URL}})
		})
	})
}

func TestTreesOnKafka(t *testing.T) {
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		addresses := strings.Split(target.URL, ",")
		admin := &kafkago.Client{Addr: kafkago.TCP(addresses...), Timeout: time.Minute}
		live(t, func(t *testing.T, topic string) (brokers.Broker, error) {
			created, err := admin.CreateTopics(t.Context(), &kafkago.CreateTopicsRequest{
				Topics: []kafkago.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}},
			})
			if err == nil {
				err = created.Errors[topic]
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				delays := "redrive.delay.v1.workers-of-" + topic
				_, err := admin.DeleteTopics(context.WithoutCancel(t.Context()), &kafkago.DeleteTopicsRequest{
					Topics: []string{topic, topic + "-dead", delays + ".1m", delays + ".15m"},
				})
				if err != nil {
					t.Error(err)
				}
			})
			return kafka.New(kafka.Options{Brokers: addresses, CallTimeout: time.Minute})
		})
	})
}

func TestTreesOnSQS(t *testing.T) {
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		config := aws.Config{Region: "us-east-1", Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "any", SecretAccessKey: "any"}, nil
		})}
		client := awssqs.NewFromConfig(config, func(o *awssqs.Options) { o.BaseEndpoint = &target.URL })
		live(t, func(t *testing.T, topic string) (brokers.Broker, error) {
			t.Cleanup(func() {
				for _, queue := range []string{topic, topic + "-dead"} {
					ctx := context.WithoutCancel(t.Context())
					out, err := client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: &queue})
					if err == nil {
						_, err = client.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: out.QueueUrl})
					}
					if err != nil {
						t.Errorf("delete queue %q: %v", queue, err)
					}
				}
			})
			return sqs.New(sqs.Options{Config: config, Endpoint: target.URL, Create: true, PollWait: time.Second})
		})
	})
}

// live plays the scenes on a real broker, each in a topic of its own. Their trees
// are those of the memory broker.
func live(t *testing.T, open func(t *testing.T, topic string) (brokers.Broker, error)) {
	var mu sync.Mutex
	trees := map[string]string{}
	t.Run("scenes", func(t *testing.T) {
		for _, scene := range scenes {
			t.Run(scene.name, func(t *testing.T) {
				t.Parallel()
				topic := "tracing-" + strings.ToLower(rand.Text()[:10])
				broker, err := open(t, topic)
				if err != nil {
					t.Fatal(err)
				}
				defer broker.Close(context.WithoutCancel(t.Context()))
				s := newStage(t, broker, topic)
				scene.play(s)
				mu.Lock()
				defer mu.Unlock()
				trees[scene.name] = s.tree()
			})
		}
	})
	if t.Failed() {
		return
	}
	var all strings.Builder
	for _, scene := range scenes {
		fmt.Fprintf(&all, "== %s\n%s\n", scene.name, trees[scene.name])
	}
	goldentest.File(t, "testdata/trees.txt", all.String())
}

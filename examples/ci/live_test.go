package ci

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/integration/livetest"
)

// topicFor has TestOnABroker run in a topic of its own at the address that is in
// a variable.
func topicFor(t *testing.T, variable, address string) string {
	topic := "ci-" + strings.ToLower(rand.Text()[:10])
	t.Setenv(variable, address)
	t.Setenv("TOPIC", topic)
	return topic
}

func TestOnRabbitMQ(t *testing.T) {
	livetest.RabbitMQ(t, func(t *testing.T, target livetest.Target) {
		topic := topicFor(t, "RABBITMQ_URL", target.URL)
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
		TestOnABroker(t)
	})
}

func TestOnKafka(t *testing.T) {
	livetest.Kafka(t, func(t *testing.T, target livetest.Target) {
		topic := topicFor(t, "KAFKA_BROKERS", target.URL)
		admin := &kafka.Client{Addr: kafka.TCP(strings.Split(target.URL, ",")...), Timeout: time.Minute}
		created, err := admin.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{
			Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}},
		})
		if err == nil {
			err = created.Errors[topic]
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			delays := "redrive.delay.v1." + topic
			names := []string{topic, topic + "-dead", delays + ".1m", delays + ".15m"}
			deleted, err := admin.DeleteTopics(context.WithoutCancel(t.Context()), &kafka.DeleteTopicsRequest{Topics: names})
			if err != nil {
				t.Fatal(err)
			}
			for name, err := range deleted.Errors {
				if err != nil {
					t.Errorf("delete topic %q: %v", name, err)
				}
			}
		})
		TestOnABroker(t)
	})
}

func TestOnSQS(t *testing.T) {
	livetest.SQS(t, func(t *testing.T, target livetest.Target) {
		topic := topicFor(t, "AWS_ENDPOINT_URL", target.URL)
		t.Cleanup(func() {
			client, ctx := awssqs.NewFromConfig(local(target.URL)), context.WithoutCancel(t.Context())
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
		TestOnABroker(t)
	})
}

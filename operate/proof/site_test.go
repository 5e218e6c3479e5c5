package proof

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	amqp "github.com/rabbitmq/amqp091-go"
	kafkago "github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/integration/harness"
)

// site is a real broker, on which all names of a world begin with its tag.
type site struct {
	harness.Broker
	url, tag string
}

// connect is for workers and producers.
func (s *site) connect() (brokers.Broker, error) {
	switch s.Product {
	case harness.Kafka:
		return kafka.New(kafka.Options{Brokers: []string{s.url}, Prefix: s.tag})
	case harness.SQS:
		return sqs.New(sqs.Options{Config: awsConfig(), Endpoint: s.url, Create: true})
	}
	return rabbitmq.New(rabbitmq.Options{URLs: []string{s.url}})
}

func awsConfig() aws.Config {
	return aws.Config{
		Region: "us-east-1", HTTPClient: &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "proof", SecretAccessKey: "proof"}, nil
		}),
	}
}

// entry is the broker in a configuration, for letters that are read with a group.
func (s *site) entry(group string) string {
	switch s.Product {
	case harness.Kafka:
		return fmt.Sprintf("{kind: kafka, addresses: [%q], prefix: %q, group: %q}", s.url, s.tag, group)
	case harness.SQS:
		return fmt.Sprintf("{kind: sqs, region: us-east-1, endpoint: %q}", s.url)
	}
	_, host, _ := strings.Cut(s.url, "@")
	return fmt.Sprintf("{kind: rabbitmq, urls: [%q], user: guest, password: {env: REDRIVE_PROOF_PASSWORD}}", "amqp://"+host)
}

// environment is what the command redrive needs besides.
func (s *site) environment() []string {
	return append(os.Environ(), "REDRIVE_PROOF_PASSWORD=guest", "AWS_ACCESS_KEY_ID=proof", "AWS_SECRET_ACCESS_KEY=proof")
}

// declare makes the topics that workers do not declare.
func (s *site) declare(ctx context.Context, topics ...string) error {
	if s.Product != harness.Kafka {
		return nil
	}
	request := &kafkago.CreateTopicsRequest{}
	for _, topic := range topics {
		request.Topics = append(request.Topics, kafkago.TopicConfig{Topic: topic, NumPartitions: 2, ReplicationFactor: 1})
	}
	made, err := s.kafka().CreateTopics(ctx, request)
	for tries := 0; errors.Is(err, kafkago.BrokerNotAvailable) && tries < 30 && pause(ctx, time.Second); tries++ { // it is busy
		made, err = s.kafka().CreateTopics(ctx, request)
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, err := range made.Errors {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *site) kafka() *kafkago.Client { return &kafkago.Client{Addr: kafkago.TCP(s.url)} }

// remove takes away all that has the tag. Shelves for delays stay on RabbitMQ, which
// are the same for all queues.
func (s *site) remove(ctx context.Context, queues ...string) error {
	switch s.Product {
	case harness.Kafka:
		return s.removeTopics(ctx)
	case harness.SQS:
		return s.removeQueues(ctx)
	}
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	for _, queue := range queues {
		for _, name := range []string{queue, "redrive.retry.v1." + queue} {
			if err == nil {
				_, err = ch.QueueDelete(name, false, false, false)
			}
		}
	}
	return err
}

func (s *site) removeTopics(ctx context.Context) error {
	all, err := s.kafka().Metadata(ctx, &kafkago.MetadataRequest{})
	if err != nil {
		return err
	}
	request := &kafkago.DeleteTopicsRequest{}
	for _, topic := range all.Topics {
		if strings.HasPrefix(topic.Name, s.tag) {
			request.Topics = append(request.Topics, topic.Name)
		}
	}
	_, err = s.kafka().DeleteTopics(ctx, request)
	return err
}

func (s *site) removeQueues(ctx context.Context) error {
	client := awssqs.NewFromConfig(awsConfig(), func(o *awssqs.Options) { o.BaseEndpoint = &s.url })
	all, err := client.ListQueues(ctx, &awssqs.ListQueuesInput{QueueNamePrefix: &s.tag})
	if err != nil {
		return err
	}
	var errs []error
	for _, url := range all.QueueUrls {
		if strings.HasPrefix(path.Base(url), s.tag) {
			_, err := client.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: &url})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

package sqs_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

// TestRetriesInPlaceAreInFlight shows what docs/how-to/scale-workers.md warns of: to
// an autoscaler that counts messages in flight, those that wait for a retry are work.
func TestRetriesInPlaceAreInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 20
		server := sqstest.New(sqstest.Options{})
		defer server.Close()
		broker, err := sqs.New(sqs.Options{Config: server.Config(), Create: true})
		if err != nil {
			t.Fatal(err)
		}
		worker, err := consumer.New(broker, consumer.Config{
			DeadLetter: "*-dead", Logger: slog.New(slog.DiscardHandler),
			Retry: retry.Policy{Backoff: retry.Backoff{Floor: time.Hour, Cap: 2 * time.Hour}},
		})
		if err != nil {
			t.Fatal(err)
		}
		worker.Handle("orders", func(context.Context, *brokers.Message) error { return errors.New("busy") })
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- worker.Run(ctx) }()
		time.Sleep(time.Second) // it has created the queues
		for range messages {
			if err := broker.Publish(ctx, "orders", brokers.Message{Body: []byte("{}")}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Minute)
		client := awssqs.NewFromConfig(server.Config())
		queue, err := client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: new("orders")})
		if err != nil {
			t.Fatal(err)
		}
		length, err := client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: queue.QueueUrl, AttributeNames: []types.QueueAttributeName{"All"}})
		if err != nil {
			t.Fatal(err)
		}
		visible, inFlight := length.Attributes["ApproximateNumberOfMessages"], length.Attributes["ApproximateNumberOfMessagesNotVisible"]
		if visible != "0" || inFlight != "20" {
			t.Errorf("%s messages are visible and %s in flight, want 0 and %d: no handler runs", visible, inFlight, messages)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

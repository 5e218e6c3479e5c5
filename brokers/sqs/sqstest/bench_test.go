package sqstest_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// BenchmarkMessages sends, receives and deletes messages of 256 bytes in
// batches of 10 through the SDK; 100,000 others wait in the queue meanwhile.
func BenchmarkMessages(b *testing.B) {
	b.Run("loopback", func(b *testing.B) {
		server := sqstest.NewServer(sqstest.Options{})
		defer server.Close()
		benchmark(b, server)
	})
	b.Run("transport", func(b *testing.B) {
		server := sqstest.New(sqstest.Options{})
		defer server.Close()
		benchmark(b, server)
	})
}

func benchmark(b *testing.B, server *sqstest.Server) {
	ctx := context.Background()
	client := sqs.NewFromConfig(server.Config())
	created, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: new("load")})
	if err != nil {
		b.Fatal(err)
	}
	send := &sqs.SendMessageBatchInput{QueueUrl: created.QueueUrl, Entries: make([]types.SendMessageBatchRequestEntry, 10)}
	for i := range send.Entries {
		send.Entries[i].Id = new(strconv.Itoa(i))
		send.Entries[i].MessageBody = new(strings.Repeat("x", 256))
	}
	for range 10_000 {
		if _, err := client.SendMessageBatch(ctx, send); err != nil {
			b.Fatal(err)
		}
	}
	receive := receiveInput(*created.QueueUrl, 10, 1, 30)
	remove := &sqs.DeleteMessageBatchInput{QueueUrl: created.QueueUrl, Entries: make([]types.DeleteMessageBatchRequestEntry, 10)}
	b.ReportAllocs()
	for n := 0; b.Loop(); n += 10 {
		if _, err := client.SendMessageBatch(ctx, send); err != nil {
			b.Fatal(err)
		}
		got, err := client.ReceiveMessage(ctx, receive)
		if err != nil || len(got.Messages) != 10 {
			b.Fatalf("received %d messages: %v", len(got.Messages), err)
		}
		for i, m := range got.Messages {
			remove.Entries[i] = types.DeleteMessageBatchRequestEntry{Id: new(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle}
		}
		if _, err := client.DeleteMessageBatch(ctx, remove); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(10*b.N)/b.Elapsed().Seconds(), "msg/s")
}

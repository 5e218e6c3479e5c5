package sqstest_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

func TestCreateQueue(t *testing.T) {
	for name, c := range map[string]struct {
		queue      string
		attributes map[string]string
		want       string
	}{
		"again":                    {"orders", nil, ""},
		"again, same":              {"orders", map[string]string{"VisibilityTimeout": "60"}, ""},
		"again, default":           {"orders", map[string]string{"DelaySeconds": "0"}, ""},
		"again, other":             {"orders", map[string]string{"VisibilityTimeout": "61"}, "QueueAlreadyExists"},
		"standard":                 {"new-Queue_1", nil, ""},
		"long name":                {strings.Repeat("q", 80), nil, ""},
		"too long name":            {strings.Repeat("q", 81), nil, "InvalidParameterValue"},
		"no name":                  {"", nil, "InvalidParameterValue"},
		"bad name":                 {"new queue", nil, "InvalidParameterValue"},
		"fifo":                     {"new.fifo", map[string]string{"FifoQueue": "True"}, ""},
		"fifo without attribute":   {"new.fifo", nil, "InvalidParameterValue"},
		"fifo without suffix":      {"new", map[string]string{"FifoQueue": "true"}, "InvalidParameterValue"},
		"standard that says so":    {"new", map[string]string{"FifoQueue": "false"}, "InvalidAttributeName"},
		"fifo's attribute":         {"new", map[string]string{"ContentBasedDeduplication": "true"}, "InvalidAttributeName"},
		"unknown attribute":        {"new", map[string]string{"Colour": "red"}, "InvalidAttributeName"},
		"no number":                {"new", map[string]string{"DelaySeconds": "soon"}, "InvalidAttributeValue"},
		"longest visibility":       {"new", map[string]string{"VisibilityTimeout": "43200"}, ""},
		"too long visibility":      {"new", map[string]string{"VisibilityTimeout": "43201"}, "InvalidAttributeValue"},
		"too long delay":           {"new", map[string]string{"DelaySeconds": "901"}, "InvalidAttributeValue"},
		"too long wait":            {"new", map[string]string{"ReceiveMessageWaitTimeSeconds": "21"}, "InvalidAttributeValue"},
		"too short retention":      {"new", map[string]string{"MessageRetentionPeriod": "59"}, "InvalidAttributeValue"},
		"too long retention":       {"new", map[string]string{"MessageRetentionPeriod": "1209601"}, "InvalidAttributeValue"},
		"too small messages":       {"new", map[string]string{"MaximumMessageSize": "1023"}, "InvalidAttributeValue"},
		"too large messages":       {"new", map[string]string{"MaximumMessageSize": "1048577"}, "InvalidAttributeValue"},
		"throughput without scope": {"new.fifo", map[string]string{"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId"}, "InvalidParameterValue"},
		"high throughput":          {"new.fifo", map[string]string{"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId", "DeduplicationScope": "messageGroup"}, ""},
		"bad scope":                {"new.fifo", map[string]string{"FifoQueue": "true", "DeduplicationScope": "world"}, "InvalidAttributeValue"},
		"bad switch":               {"new", map[string]string{"SqsManagedSseEnabled": "perhaps"}, "InvalidAttributeValue"},
		"policy":                   {"new", map[string]string{"Policy": "{}", "KmsMasterKeyId": "alias/aws/sqs"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, sqstest.Options{}, func(w *world) {
				w.queue("orders", "VisibilityTimeout", "60")
				out, err := w.client.CreateQueue(w.Context(), &sqs.CreateQueueInput{QueueName: &c.queue, Attributes: c.attributes})
				w.wantCode(err, c.want)
				if c.want != "" {
					return
				}
				found, err := w.client.GetQueueUrl(w.Context(), &sqs.GetQueueUrlInput{QueueName: &c.queue})
				w.wantCode(err, "")
				if *found.QueueUrl != *out.QueueUrl || *out.QueueUrl != w.server.URL+"/123456789012/"+c.queue {
					w.Errorf("created %s, found %s", *out.QueueUrl, *found.QueueUrl)
				}
			})
		})
	}
}

func TestQueueThatDoesNotExist(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url, ctx := w.server.URL+"/123456789012/orders", w.Context()
		m := types.Message{ReceiptHandle: new("x")}
		_, receive := w.client.ReceiveMessage(ctx, receiveInput(url, 1, 20, 0))
		_, send := w.client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: new("a")})
		_, find := w.client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: new("orders")})
		for operation, err := range map[string]error{
			"ReceiveMessage": receive, "SendMessage": send, "GetQueueUrl": find, "DeleteQueue": w.deleteQueue(url),
			"DeleteMessage": w.delete(url, m), "ChangeMessageVisibility": w.change(url, m, 1), "SetQueueAttributes": w.set(url, "DelaySeconds", "1"),
		} {
			if !typed[*types.QueueDoesNotExist](err) {
				w.Errorf("%s: %v, want QueueDoesNotExist", operation, err)
			}
			w.wantCode(err, "AWS.SimpleQueueService.NonExistentQueue")
		}
		if q := w.server.Queue("orders"); q.Name != "" || w.server.Messages("orders") != nil {
			w.Errorf("Queue of a queue that does not exist: %+v", q)
		}
	})
}

func TestQueueURLs(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		w.queue("orders")
		for url, want := range map[string]string{
			w.server.URL + "/123456789012/orders":        "",
			"https://elsewhere/123456789012/orders":      "",
			w.server.URL + "/210987654321/orders":        "AWS.SimpleQueueService.NonExistentQueue",
			"orders":                                     "InvalidAddress",
			w.server.URL + "/123456789012/orders/orders": "InvalidAddress",
			"://": "InvalidAddress",
			"":    "MissingParameter",
		} {
			w.wantCode(w.purge(url), want)
			pass(time.Minute)
		}
		_, err := w.client.GetQueueUrl(w.Context(), &sqs.GetQueueUrlInput{QueueName: new("orders"), QueueOwnerAWSAccountId: new("210987654321")})
		w.wantCode(err, "AWS.SimpleQueueService.NonExistentQueue")
		_, err = w.client.GetQueueUrl(w.Context(), &sqs.GetQueueUrlInput{QueueName: new("")})
		w.wantCode(err, "MissingParameter")
	})
}

func TestQueueAttributes(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		created := time.Now()
		url := w.fifo("orders.fifo", "DelaySeconds", "10")
		w.sendGroup(url, "g", "a", "b")
		pass(10 * time.Second)
		w.one(url)
		w.sendGroup(url, "h", "c")
		w.wantCode(w.set(url, "VisibilityTimeout", "77"), "")
		out, err := w.client.GetQueueAttributes(w.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{"All"}})
		w.wantCode(err, "")
		want := map[string]string{
			"ApproximateNumberOfMessages":           "1",
			"ApproximateNumberOfMessagesNotVisible": "1",
			"ApproximateNumberOfMessagesDelayed":    "1",
			"ContentBasedDeduplication":             "false",
			"CreatedTimestamp":                      fmt.Sprint(created.Unix()),
			"DeduplicationScope":                    "queue",
			"DelaySeconds":                          "10",
			"FifoQueue":                             "true",
			"FifoThroughputLimit":                   "perQueue",
			"LastModifiedTimestamp":                 fmt.Sprint(created.Unix() + 10),
			"MaximumMessageSize":                    "1048576",
			"MessageRetentionPeriod":                "345600",
			"QueueArn":                              arn("orders.fifo"),
			"ReceiveMessageWaitTimeSeconds":         "0",
			"SqsManagedSseEnabled":                  "true",
			"VisibilityTimeout":                     "77",
		}
		if fmt.Sprint(out.Attributes) != fmt.Sprint(want) {
			w.Errorf("attributes\n%v, want\n%v", out.Attributes, want)
		}
		if got := w.attribute(url, "RedrivePolicy"); got != "" {
			w.Errorf("RedrivePolicy = %q, want none", got)
		}
		_, err = w.client.GetQueueAttributes(w.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{"Colour"}})
		w.wantCode(err, "InvalidAttributeName")
		w.wantCode(w.set(url, "FifoQueue", "true"), "InvalidAttributeName")
		w.wantCode(w.set(url, "VisibilityTimeout", "-1"), "InvalidAttributeValue")
	})
}

func TestPurge(t *testing.T) {
	onOrders(t, func(w *world, url string) {
		w.send(url, "a", "b")
		m := w.one(url)
		w.delayed(url, "c", 60)
		w.wantCode(w.purge(url), "")
		w.wantCounts("orders", 0, 0, 0)
		w.wantCode(w.change(url, m, 5), "InvalidParameterValue")
		pass(time.Minute - time.Second)
		w.wantCode(w.purge(url), "AWS.SimpleQueueService.PurgeQueueInProgress")
		pass(time.Second)
		w.wantCode(w.purge(url), "")
	})
}

func TestDeleteQueue(t *testing.T) {
	onOrders(t, func(w *world, url string) {
		w.send(url, "a")
		w.receive(url, 1, 0, 30)
		var poll sync.WaitGroup
		start := time.Now()
		poll.Go(func() {
			_, err := w.client.ReceiveMessage(w.Context(), receiveInput(url, 1, 20, 0))
			if !typed[*types.QueueDoesNotExist](err) || time.Since(start) != time.Second {
				w.Errorf("poll of the deleted queue ended after %v: %v, want QueueDoesNotExist at once", time.Since(start), err)
			}
		})
		pass(time.Second)
		w.wantCode(w.deleteQueue(url), "")
		poll.Wait()
		create := func(want string) {
			w.Helper()
			_, err := w.client.CreateQueue(w.Context(), &sqs.CreateQueueInput{QueueName: new("orders")})
			w.wantCode(err, want)
		}
		pass(time.Minute - time.Second)
		create("AWS.SimpleQueueService.QueueDeletedRecently")
		pass(time.Second)
		create("")
		w.wantCounts("orders", 0, 0, 0)
	})
}

func TestListQueues(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		w.queue("dead")
		var want []string
		for _, name := range numbered("orders", 5) {
			want = append(want, w.queue(name))
		}
		got, err := w.client.ListQueues(w.Context(), &sqs.ListQueuesInput{QueueNamePrefix: new("orders")})
		if err != nil || !slices.Equal(got.QueueUrls, want) {
			w.Errorf("queues %v, error %v, want %q", got, err, want)
		}
	})
}

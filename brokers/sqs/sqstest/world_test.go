package sqstest_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// A world is a server and an SDK client of it, for one test.
type world struct {
	*testing.T
	server *sqstest.Server
	client *sqs.Client
}

// pass lets time pass in a bubble.
func pass(d time.Duration) { time.Sleep(d) }

// bubble runs a test in a bubble, with a server without a socket.
func bubble(t *testing.T, options sqstest.Options, run func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := sqstest.New(options)
		defer server.Close()
		run(newWorld(t, server))
	})
}

// onOrders runs a test in a bubble with a standard queue, "orders".
func onOrders(t *testing.T, run func(w *world, url string)) {
	t.Helper()
	bubble(t, sqstest.Options{}, func(w *world) { run(w, w.queue("orders")) })
}

// onFIFO runs a test in a bubble with a FIFO queue, "orders.fifo".
func onFIFO(t *testing.T, run func(w *world, url string)) {
	t.Helper()
	bubble(t, sqstest.Options{}, func(w *world) { run(w, w.fifo("orders.fifo")) })
}

// loopback runs a test over a socket, on the real clock.
func loopback(t *testing.T, options sqstest.Options) *world {
	server := sqstest.NewServer(options)
	t.Cleanup(server.Close)
	return newWorld(t, server)
}

func newWorld(t *testing.T, server *sqstest.Server) *world {
	return &world{T: t, server: server, client: sqs.NewFromConfig(server.Config(), func(o *sqs.Options) {
		o.Retryer = aws.NopRetryer{}
		o.HTTPClient = queryMode{o.HTTPClient}
	})}
}

// queryMode asks for the codes of the query protocol, as the SDK does by itself
// since the end of 2024.
type queryMode struct{ sqs.HTTPClient }

func (q queryMode) Do(r *http.Request) (*http.Response, error) {
	r.Header.Set("X-Amzn-Query-Mode", "true")
	return q.HTTPClient.Do(r)
}

// queue creates a queue with attributes, given as names and values.
func (w *world) queue(name string, attributes ...string) string {
	w.Helper()
	in := &sqs.CreateQueueInput{QueueName: &name, Attributes: pairs(attributes)}
	out, err := w.client.CreateQueue(w.Context(), in)
	if err != nil {
		w.Fatalf("CreateQueue %s: %v", name, err)
	}
	return *out.QueueUrl
}

func pairs(texts []string) map[string]string {
	out := make(map[string]string)
	for i := 0; i < len(texts); i += 2 {
		out[texts[i]] = texts[i+1]
	}
	return out
}

// send sends bodies to a standard queue.
func (w *world) send(url string, bodies ...string) {
	w.Helper()
	for _, body := range bodies {
		if _, err := w.client.SendMessage(w.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body}); err != nil {
			w.Fatalf("SendMessage %q: %v", body, err)
		}
	}
}

// entries are those of a batch with these IDs.
func entries(ids ...string) []types.SendMessageBatchRequestEntry {
	out := []types.SendMessageBatchRequestEntry{}
	for _, id := range ids {
		out = append(out, types.SendMessageBatchRequestEntry{Id: &id, MessageBody: new("a")})
	}
	return out
}

func (w *world) sendBatch(url string, entries ...types.SendMessageBatchRequestEntry) (*sqs.SendMessageBatchOutput, error) {
	return w.client.SendMessageBatch(w.Context(), &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: entries})
}

// sendGroup sends bodies to a FIFO queue, each of which is its deduplication
// ID too.
func (w *world) sendGroup(url, group string, bodies ...string) {
	w.Helper()
	for _, body := range bodies {
		in := &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body, MessageGroupId: &group, MessageDeduplicationId: &body}
		if _, err := w.client.SendMessage(w.Context(), in); err != nil {
			w.Fatalf("SendMessage %q to group %s: %v", body, group, err)
		}
	}
}

// receive polls once, with all attributes.
func (w *world) receive(url string, most, wait, visibility int32) []types.Message {
	w.Helper()
	out, err := w.client.ReceiveMessage(w.Context(), receiveInput(url, most, wait, visibility))
	if err != nil {
		w.Fatalf("ReceiveMessage: %v", err)
	}
	return out.Messages
}

func receiveInput(url string, most, wait, visibility int32) *sqs.ReceiveMessageInput {
	return &sqs.ReceiveMessageInput{
		QueueUrl: &url, MaxNumberOfMessages: most, WaitTimeSeconds: wait, VisibilityTimeout: visibility,
		MessageAttributeNames:       []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	}
}

// one receives exactly one message, at once.
func (w *world) one(url string) types.Message {
	w.Helper()
	got := w.receive(url, 1, 0, 0)
	if len(got) != 1 {
		w.Fatalf("ReceiveMessage returned %d messages, want 1", len(got))
	}
	return got[0]
}

// pair creates a queue with attributes whose messages SQS moves to another one after
// so many receives.
func (w *world) pair(most int, attributes ...string) (url, dead string) {
	w.Helper()
	dead = w.queue("dead")
	return w.queue("orders", append(attributes, "RedrivePolicy", redrivePolicy(arn("dead"), most))...), dead
}

func (w *world) deleteQueue(url string) error {
	_, err := w.client.DeleteQueue(w.Context(), &sqs.DeleteQueueInput{QueueUrl: &url})
	return err
}

func (w *world) purge(url string) error {
	_, err := w.client.PurgeQueue(w.Context(), &sqs.PurgeQueueInput{QueueUrl: &url})
	return err
}

func (w *world) delete(url string, m types.Message) error {
	_, err := w.client.DeleteMessage(w.Context(), &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: m.ReceiptHandle})
	return err
}

func (w *world) change(url string, m types.Message, seconds int32) error {
	_, err := w.client.ChangeMessageVisibility(w.Context(), &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &url, ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: seconds,
	})
	return err
}

// attribute reads one attribute of a queue.
func (w *world) attribute(url string, name types.QueueAttributeName) string {
	w.Helper()
	out, err := w.client.GetQueueAttributes(w.Context(), &sqs.GetQueueAttributesInput{
		QueueUrl: &url, AttributeNames: []types.QueueAttributeName{name},
	})
	if err != nil {
		w.Fatalf("GetQueueAttributes: %v", err)
	}
	return out.Attributes[string(name)]
}

// set changes one attribute of a queue.
func (w *world) set(url, name, value string) error {
	_, err := w.client.SetQueueAttributes(w.Context(), &sqs.SetQueueAttributesInput{
		QueueUrl: &url, Attributes: map[string]string{name: value},
	})
	return err
}

// wantBodies compares what was received with bodies in order.
func (w *world) wantBodies(got []types.Message, want ...string) {
	w.Helper()
	bodies := make([]string, len(got))
	for i, m := range got {
		bodies[i] = *m.Body
	}
	if !slices.Equal(bodies, want) {
		w.Fatalf("received %q, want %q", bodies, want)
	}
}

// wantAttributes compares attributes of a message with some that it must have.
func (w *world) wantAttributes(m types.Message, want map[string]string) {
	w.Helper()
	for name, value := range want {
		if got := m.Attributes[name]; got != value {
			w.Errorf("%q: %s = %q, want %q", *m.Body, name, got, value)
		}
	}
}

// numbered returns n texts with a prefix.
func numbered(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = prefix + strconv.Itoa(i+1)
	}
	return out
}

// takes checks how long run takes.
func (w *world) takes(want time.Duration, run func()) {
	w.Helper()
	start := time.Now()
	run()
	if got := time.Since(start); got != want {
		w.Errorf("it took %v, want %v", got, want)
	}
}

// wantCode checks the code of an error, in the spelling of the query protocol;
// "" is no error.
func (w *world) wantCode(err error, want string) {
	w.Helper()
	got := ""
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		got = e.ErrorCode()
	} else if err != nil {
		got = err.Error()
	}
	if got != want {
		w.Errorf("error code %q (%v), want %q", got, err, want)
	}
}

// wantCounts compares how many messages of a queue are in each state.
func (w *world) wantCounts(name string, visible, inFlight, delayed int) {
	w.Helper()
	q := w.server.Queue(name)
	if q.Visible != visible || q.InFlight != inFlight || q.Delayed != delayed {
		w.Errorf("queue %s: %d visible, %d in flight, %d delayed; want %d, %d, %d",
			name, q.Visible, q.InFlight, q.Delayed, visible, inFlight, delayed)
	}
}

// redrivePolicy is the text of a RedrivePolicy.
func redrivePolicy(arn string, most int) string {
	return fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"%d"}`, arn, most)
}

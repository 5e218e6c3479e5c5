package sqstest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

func TestClientGoesAwayOverLoopback(t *testing.T) {
	w := loopback(t, sqstest.Options{})
	url := w.queue("orders")
	ctx, cancel := context.WithCancel(w.Context())
	var poll sync.WaitGroup
	poll.Go(func() { _, _ = w.client.ReceiveMessage(ctx, receiveInput(url, 10, 20, 30)) })
	for w.server.Queue("orders").Polls == 0 {
		runtime.Gosched()
	}
	cancel()
	poll.Wait()
	for w.server.Queue("orders").Cancelled == 0 {
		runtime.Gosched()
	}
	w.send(url, "a")
	w.wantCounts("orders", 0, 1, 0)
}

func TestCloseEndsEverything(t *testing.T) {
	w := newWorld(t, sqstest.NewServer(sqstest.Options{}))
	url := w.queue("orders")
	w.send(url, "a")
	w.receive(url, 1, 0, 1)
	w.server.Inject(sqstest.Fault{Operation: "SendMessage", Latency: time.Hour})
	var calls sync.WaitGroup
	for range 3 {
		calls.Go(func() {
			if _, err := w.client.ReceiveMessage(w.Context(), receiveInput(url, 1, 20, 0)); err == nil {
				t.Error("a poll that Close ended returned no error")
			}
		})
	}
	calls.Go(func() {
		if w.trySend(url) == nil {
			t.Error("a slow call that Close ended returned no error")
		}
	})
	for w.server.Queue("orders").Polls < 3 || w.server.Count("SendMessage") < 2 {
		runtime.Gosched()
	}
	w.server.Close()
	w.server.Close()
	calls.Wait()
	if err := w.trySend(url); err == nil {
		t.Error("a call after Close returned no error")
	}
}

func TestCloseInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := sqstest.New(sqstest.Options{})
		w := newWorld(t, server)
		url := w.queue("orders")
		var calls sync.WaitGroup
		calls.Go(func() {
			_, err := w.client.ReceiveMessage(w.Context(), receiveInput(url, 1, 20, 0))
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("poll that Close ended: %v, want connection reset", err)
			}
		})
		synctest.Wait()
		server.Close()
		calls.Wait()
		if err := w.trySend(url); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("call after Close: %v, want connection refused", err)
		}
	})
}

func TestCalls(t *testing.T) {
	onOrders(t, func(w *world, url string) {
		w.send(url, "a")
		time.Sleep(time.Second)
		w.wantCode(w.delete(url, w.one(url)), "")
		_, err := w.client.GetQueueUrl(w.Context(), &sqs.GetQueueUrlInput{QueueName: new("others")})
		w.wantCode(err, "AWS.SimpleQueueService.NonExistentQueue")
		w.server.Inject(sqstest.Fault{Cut: true})
		_ = w.trySend(url)
		var got []string
		for _, c := range w.server.Calls() {
			got = append(got, fmt.Sprintf("%s %s %d %s", c.Operation, c.Queue, c.Status, c.Code))
		}
		want := []string{
			"CreateQueue orders 200 ",
			"SendMessage orders 200 ",
			"ReceiveMessage orders 200 ",
			"DeleteMessage orders 200 ",
			"GetQueueUrl others 400 AWS.SimpleQueueService.NonExistentQueue",
			"SendMessage orders -1 ",
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			w.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		calls := w.server.Calls()
		if got := calls[2].Time.Sub(calls[1].Time); got != time.Second {
			w.Errorf("the receive came %v after the send, want 1s", got)
		}
		var request struct{ MaxNumberOfMessages int }
		if err := json.Unmarshal(calls[2].Request, &request); err != nil || request.MaxNumberOfMessages != 1 {
			w.Errorf("request %s, want MaxNumberOfMessages 1 (%v)", calls[2].Request, err)
		}
		if send, all := w.server.Count("SendMessage"), w.server.Count(""); send != 2 || all != 6 {
			w.Errorf("Count = %d and %d, want 2 and 6", send, all)
		}
	})
}

func TestCallsAreBounded(t *testing.T) {
	server := sqstest.New(sqstest.Options{})
	defer server.Close()
	large := `{"Unknown":"` + strings.Repeat("x", 1<<20) + `"}`
	for range 17 {
		raw(t, server, "AmazonSQS.ListQueues", large)
	}
	if got := len(server.Calls()); got != 15 {
		t.Errorf("%d calls of 1 MiB kept, want 15", got)
	}
	for range 4100 {
		raw(t, server, "AmazonSQS.ListQueues", `{}`)
	}
	if got := len(server.Calls()); got != 4096 {
		t.Errorf("%d small calls kept, want 4096", got)
	}
	if got := server.Count("ListQueues"); got != 4117 {
		t.Errorf("Count = %d, want 4117", got)
	}
}

func TestMessages(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url := w.fifo("orders.fifo", "DelaySeconds", "5")
		w.sendGroup(url, "g", "a")
		time.Sleep(5 * time.Second)
		w.receive(url, 1, 0, 60)
		w.sendGroup(url, "g", "b")
		got := w.server.Messages("orders.fifo")
		if len(got) != 2 {
			w.Fatalf("%d messages, want 2", len(got))
		}
		a, b := got[0], got[1]
		if a.Body != "a" || a.State != sqstest.InFlight || a.Receives != 1 || time.Until(a.Due) != time.Minute || a.Group != "g" || a.DedupID != "a" {
			w.Errorf("first message %+v", a)
		}
		if b.Body != "b" || b.State != sqstest.Delayed || time.Until(b.Due) != 5*time.Second || !b.Sent.Equal(time.Now()) {
			w.Errorf("second message %+v", b)
		}
		time.Sleep(5 * time.Second)
		if b := w.server.Messages("orders.fifo")[1]; b.State != sqstest.Visible || !b.Due.IsZero() {
			w.Errorf("second message after its delay %+v", b)
		}
		for state, want := range map[sqstest.State]string{sqstest.Visible: "visible", sqstest.InFlight: "in flight", sqstest.Delayed: "delayed", 9: "unknown"} {
			if got := state.String(); got != want {
				w.Errorf("State %d is %q, want %q", int(state), got, want)
			}
		}
	})
}

// raw sends a request that the SDK would not.
func raw(t *testing.T, server *sqstest.Server, target, body string) (status int, query, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Amz-Target", target)
	r.Header.Set("X-Amzn-Query-Mode", "true")
	response, err := server.Transport().RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header.Get("X-Amzn-Query-Error"), string(data)
}

func TestRequestsThatTheSDKWouldNotSend(t *testing.T) {
	server := sqstest.New(sqstest.Options{})
	defer server.Close()
	for name, c := range map[string]struct{ target, body, want string }{
		"unknown operation": {"AmazonSQS.TagQueue", "{}", "InvalidAction;Sender"},
		"other service":     {"AmazonSNS.Publish", "{}", "InvalidAction;Sender"},
		"no JSON":           {"AmazonSQS.ListQueues", "{", "SerializationException;Sender"},
		"wrong type":        {"AmazonSQS.ListQueues", `{"QueueNamePrefix":2}`, "SerializationException;Sender"},
		"not UTF-8":         {"AmazonSQS.ListQueues", "{\"QueueNamePrefix\":\"\xff\"}", "SerializationException;Sender"},
		"no visibility":     {"AmazonSQS.ChangeMessageVisibility", `{"QueueUrl":"http://h/123456789012/orders","ReceiptHandle":"x"}`, "MissingParameter;Sender"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "no visibility" {
				raw(t, server, "AmazonSQS.CreateQueue", `{"QueueName":"orders"}`)
			}
			status, query, answer := raw(t, server, c.target, c.body)
			if status != 400 || query != c.want || !strings.Contains(answer, "__type") {
				t.Errorf("HTTP %d, %s, %s; want 400 and %s", status, query, answer, c.want)
			}
		})
	}
}

func TestTransportReturnsTheErrorOfTheBody(t *testing.T) {
	server := sqstest.New(sqstest.Options{})
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, iotest.ErrReader(io.ErrUnexpectedEOF))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Transport().RoundTrip(r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v, want that of the body", err)
	}
	r.Body = nil
	response, err := server.Transport().RoundTrip(r)
	if err != nil || response.StatusCode != 400 {
		t.Errorf("request without a body: %v, %v; want HTTP 400", response, err)
	}
}

// FuzzRequest sends any body to every operation: the answer is JSON, and what
// was stored before is still there.
func FuzzRequest(f *testing.F) {
	operations := []string{
		"CreateQueue", "GetQueueUrl", "GetQueueAttributes", "SetQueueAttributes", "ListQueues",
		"SendMessage", "SendMessageBatch", "DeleteMessage", "DeleteMessageBatch",
		"ChangeMessageVisibility", "ChangeMessageVisibilityBatch", "ReceiveMessage",
	}
	const url = `"QueueUrl":"http://h/123456789012/orders"`
	for i, body := range []string{
		`{}`, `{"QueueName":"q","Attributes":{"DelaySeconds":"1"}}`,
		`{` + url + `,"AttributeNames":["All"]}`,
		`{` + url + `,"Attributes":{"RedrivePolicy":"{\"deadLetterTargetArn\":\"a\",\"maxReceiveCount\":1}"}}`,
		`{` + url + `,"MessageBody":"a","MessageAttributes":{"a":{"DataType":"Number","StringValue":"1e5"}}}`,
		`{` + url + `,"Entries":[{"Id":"1","MessageBody":"a"},{"Id":"2"}]}`,
		`{` + url + `,"ReceiptHandle":"sqstest-1-2-1"}`,
		`{` + url + `,"Entries":[{"Id":"1","ReceiptHandle":"x","VisibilityTimeout":5}]}`,
		`{` + url + `,"VisibilityTimeout":0}`,
	} {
		f.Add(i, body)
	}
	f.Fuzz(func(t *testing.T, n int, body string) {
		if strings.Contains(body, "WaitTimeSeconds") {
			t.Skip("it may wait")
		}
		server := sqstest.New(sqstest.Options{})
		defer server.Close()
		raw(t, server, "AmazonSQS.CreateQueue", `{"QueueName":"orders"}`)
		raw(t, server, "AmazonSQS.SendMessage", `{`+url+`,"MessageBody":"kept"}`)
		operation := operations[uint(n)%uint(len(operations))]
		status, _, answer := raw(t, server, "AmazonSQS."+operation, body)
		if !json.Valid([]byte(answer)) || status != 200 && status != 400 && status != 404 {
			t.Errorf("%s %q: HTTP %d, %s", operation, body, status, answer)
		}
		kept := server.Messages("orders")
		if len(kept) == 0 || kept[0].Body != "kept" {
			t.Errorf("%s %q lost a message", operation, body)
		}
	})
}

// ExampleServer retries a message by its visibility timeout.
func ExampleServer() {
	server := sqstest.NewServer(sqstest.Options{})
	defer server.Close()
	ctx, client := context.Background(), sqs.NewFromConfig(server.Config())

	queue, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: new("orders")})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: queue.QueueUrl, MessageBody: new("42")})
	if err != nil {
		fmt.Println(err)
		return
	}
	receive := &sqs.ReceiveMessageInput{QueueUrl: queue.QueueUrl, VisibilityTimeout: 30}
	for range 3 {
		got, err := client.ReceiveMessage(ctx, receive)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(len(got.Messages), "received,", server.Queue("orders").InFlight, "in flight")
		server.Advance(15 * time.Second)
	}
	// Output:
	// 1 received, 1 in flight
	// 0 received, 1 in flight
	// 1 received, 1 in flight
}

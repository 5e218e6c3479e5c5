package sqstest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// trySend sends one message.
func (w *world) trySend(url string) error {
	_, err := w.client.SendMessage(w.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: new("a")})
	return err
}

func TestFaultsHitTheCallsThatTheyName(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		orders, others := w.queue("orders"), w.queue("others")
		remove := w.server.Inject(sqstest.Fault{Operation: "SendMessage", Queue: "orders", After: 1, Times: 2, Code: "RequestThrottled"})
		for i, c := range []struct{ url, want string }{
			{orders, ""}, {others, ""}, {orders, "RequestThrottled"}, {others, ""}, {orders, "RequestThrottled"}, {orders, ""},
		} {
			err := w.trySend(c.url)
			w.wantCode(err, c.want)
			if w.Failed() {
				w.Fatalf("at call %d", i+1)
			}
		}
		remove()
		remove = w.server.Inject(sqstest.Fault{Code: "RequestThrottled"})
		w.wantCode(w.trySend(others), "RequestThrottled")
		_, err := w.client.ListQueues(w.Context(), &sqs.ListQueuesInput{})
		w.wantCode(err, "RequestThrottled")
		remove()
		w.wantCode(w.trySend(others), "")
	})
}

// typed reports whether an error is of that type.
func typed[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func TestErrorsAreTypedInEitherSpelling(t *testing.T) {
	const legacy = "AWS.SimpleQueueService."
	for _, c := range []struct {
		codes  []string
		query  string
		status int
		typed  func(error) bool // nil: the oldest SDK has no type for it in SendMessage
	}{
		{[]string{"QueueDoesNotExist", legacy + "NonExistentQueue", "com.amazonaws.sqs#QueueDoesNotExist"}, legacy + "NonExistentQueue", 400, typed[*types.QueueDoesNotExist]},
		{[]string{"OverLimit"}, "OverLimit", 400, nil},
		{[]string{"MessageNotInflight", legacy + "MessageNotInflight"}, legacy + "MessageNotInflight", 400, nil},
		{[]string{"KmsAccessDenied", "KMS.AccessDeniedException"}, "KMS.AccessDeniedException", 400, typed[*types.KmsAccessDenied]},
		{[]string{"KmsThrottled", "KMS.ThrottlingException"}, "KMS.ThrottlingException", 400, typed[*types.KmsThrottled]},
		{[]string{"KmsOptInRequired", "KMS.OptInRequired"}, "KMS.OptInRequired", 400, typed[*types.KmsOptInRequired]},
		{[]string{"InvalidSecurity"}, "InvalidSecurity", 400, typed[*types.InvalidSecurity]},
		{[]string{"QueueNameExists", "QueueAlreadyExists"}, "QueueAlreadyExists", 400, nil},
		{[]string{"PurgeQueueInProgress", legacy + "PurgeQueueInProgress"}, legacy + "PurgeQueueInProgress", 403, nil},
		{[]string{"AccessDenied", "AccessDeniedException"}, "AccessDenied", 400, typed[*smithy.GenericAPIError]},
		{[]string{"ExpiredToken"}, "ExpiredToken", 400, typed[*smithy.GenericAPIError]},
		{[]string{"UnrecognizedClientException", "InvalidClientTokenId"}, "InvalidClientTokenId", 403, typed[*smithy.GenericAPIError]},
		{[]string{"ThrottlingException", "Throttling"}, "Throttling", 400, typed[*smithy.GenericAPIError]},
		{[]string{"ServiceUnavailable"}, "ServiceUnavailable", 503, typed[*smithy.GenericAPIError]},
		{[]string{"InternalFailure"}, "InternalFailure", 500, typed[*smithy.GenericAPIError]},
		{[]string{"OfMyOwn"}, "OfMyOwn", 400, typed[*smithy.GenericAPIError]},
	} {
		for _, code := range c.codes {
			t.Run(code, func(t *testing.T) {
				onOrders(t, func(w *world, url string) {
					w.server.Inject(sqstest.Fault{Code: code, Message: "as told"})
					err := w.trySend(url)
					w.wantCode(err, c.query)
					if c.typed != nil && !c.typed(err) {
						w.Errorf("type of the error is not as expected: %#v", err)
					}
					response, ok := errors.AsType[*awshttp.ResponseError](err)
					untold := strings.HasSuffix(code, "MessageNotInflight") // the SDK has no text for it
					if !ok || response.HTTPStatusCode() != c.status || !untold && !strings.Contains(err.Error(), "as told") {
						w.Errorf("error %v, want status %d and the text", err, c.status)
					}
				})
			})
		}
	}
}

func TestFaultsBeforeAndAfterTheEffect(t *testing.T) {
	for name, c := range map[string]struct {
		fault  sqstest.Fault
		effect bool
		want   error // nil: an error of the API
	}{
		"cut before":   {sqstest.Fault{Cut: true}, false, syscall.ECONNRESET},
		"cut after":    {sqstest.Fault{Cut: true, AfterEffect: true}, true, syscall.ECONNRESET},
		"error before": {sqstest.Fault{Code: "InternalFailure"}, false, nil},
		"error after":  {sqstest.Fault{Status: 503, AfterEffect: true}, true, nil},
		"slow before":  {sqstest.Fault{Latency: time.Minute}, false, context.DeadlineExceeded},
		"slow after":   {sqstest.Fault{Latency: time.Minute, AfterEffect: true}, true, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			onOrders(t, func(w *world, url string) {
				w.send(url, "a")
				m := w.one(url)
				c.fault.Operation = "DeleteMessage"
				w.server.Inject(c.fault)
				ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
				defer cancel()
				_, err := w.client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: m.ReceiptHandle})
				if err == nil || c.want != nil && !errors.Is(err, c.want) {
					w.Errorf("error %v, want %v", err, c.want)
				}
				response, ok := errors.AsType[*awshttp.ResponseError](err)
				if status := c.fault.Status; status != 0 && (!ok || response.HTTPStatusCode() != status) {
					w.Errorf("error %v, want HTTP %d", err, status)
				}
				time.Sleep(time.Minute)
				if got := w.server.Queue("orders").Deleted == 1; got != c.effect {
					w.Errorf("deleted: %t, want %t", got, c.effect)
				}
			})
		})
	}
}

func TestLatencyIsOnTheServersClock(t *testing.T) {
	onOrders(t, func(w *world, url string) {
		w.server.Inject(sqstest.Fault{Operation: "SendMessage", Latency: time.Minute})
		w.takes(time.Minute, func() { w.send(url, "a") })
		var call sync.WaitGroup
		call.Go(func() { w.send(url, "b") })
		synctest.Wait()
		w.takes(time.Second, func() {
			w.server.Advance(59 * time.Second)
			call.Wait()
		})
	})
}

func TestEntriesOfABatchFail(t *testing.T) {
	for _, after := range []bool{false, true} {
		onOrders(t, func(w *world, url string) {
			w.server.Inject(sqstest.Fault{Operation: "SendMessageBatch", Entries: []int{1, 2, 7}, AfterEffect: after})
			out, err := w.sendBatch(url, entries("a", "b", "c")...)
			w.wantCode(err, "")
			if len(out.Successful) != 1 || len(out.Failed) != 2 || *out.Failed[0].Code != "InternalError" || out.Failed[0].SenderFault {
				w.Errorf("%d entries sent, failed %v; want 1 and two with InternalError, the receiver's fault", len(out.Successful), out.Failed)
			}
			want := 1
			if after {
				want = 3
			}
			w.wantCounts("orders", want, 0, 0)
			calls := w.server.Calls()
			if got := calls[len(calls)-1].Failed; got != 2 {
				w.Errorf("Failed = %d, want 2", got)
			}
		})
	}
}

func TestCorruptBodiesFailTheChecksOfTheSDK(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url := w.queue("orders", "VisibilityTimeout", "0")
		remove := w.server.Inject(sqstest.Fault{Operation: "SendMessage", Corrupt: true})
		wantDamage := func(what string, err error) {
			w.Helper()
			if err == nil || !strings.Contains(err.Error(), "checksum") {
				w.Errorf("corrupt %s: %v, want an error about the checksum", what, err)
			}
		}
		wantDamage("send", w.trySend(url))
		w.wantCounts("orders", 1, 0, 0)
		remove()
		remove = w.server.Inject(sqstest.Fault{Operation: "SendMessageBatch", Corrupt: true, Entries: []int{1}})
		_, err := w.sendBatch(url, entries("a", "b")...)
		wantDamage("batch", err)
		remove()
		w.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Corrupt: true, Entries: []int{1}})
		_, err = w.client.ReceiveMessage(w.Context(), receiveInput(url, 10, 0, 0))
		wantDamage("receive", err)
		w.receive(url, 1, 0, 0)
	})
}

func TestCutConnectionOverLoopback(t *testing.T) {
	w := loopback(t, sqstest.Options{})
	url := w.queue("orders")
	w.server.Inject(sqstest.Fault{Operation: "SendMessage", Times: 1, Cut: true, AfterEffect: true})
	err := w.trySend(url)
	if _, ok := errors.AsType[smithy.APIError](err); err == nil || ok {
		t.Errorf("cut connection: %v, want an error that is none of the API", err)
	}
	w.wantCounts("orders", 1, 0, 0)
	w.wantCode(w.trySend(url), "")
}

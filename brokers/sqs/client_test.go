package sqs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	smithyendpoints "github.com/aws/smithy-go/endpoints"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// bench is a client and the server that it talks to.
type bench struct {
	*testing.T
	*client
	server *sqstest.Server
	queue  queue
}

// inBubble runs a test with a queue, orders, or orders.fifo with content-based
// deduplication off.
func inBubble(t *testing.T, fifo bool, run func(*testing.T, *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := sqstest.New(sqstest.Options{})
		defer server.Close()
		b := &bench{T: t, server: server, queue: *orders(fifo), client: newClient(clientOptions{config: server.Config(), timeout: 10 * time.Second, pollWait: 20 * time.Second})}
		defer b.close()
		attrs := map[string]string{"VisibilityTimeout": "30"}
		if fifo {
			attrs["FifoQueue"] = "true"
		}
		url, err := b.create(t.Context(), b.queue.topic, attrs)
		if err != nil {
			t.Fatal(err)
		}
		b.queue.url = url
		run(t, b)
	})
}

func (b *bench) publish(n int) {
	b.Helper()
	var out []outgoing
	for i := range n {
		one, err := compose(brokers.Message{ID: fmt.Sprintf("id-%03d", i), Body: fmt.Appendf(nil, "body %d", i), PublishedAt: time.Now(), Key: fmt.Sprint("k", i/10)}, nil, b.queue.fifo, 0, 0)
		if err != nil {
			b.Fatal(err)
		}
		out = append(out, one)
	}
	if errs := b.send(b.Context(), b.queue.url, out); errs != nil {
		b.Fatalf("send: %v", errs)
	}
}

func (b *bench) receive(n int) []record {
	b.Helper()
	var all []record
	for len(all) < n {
		records, err := b.poll(b.Context(), &b.queue, rand.Text(), n-len(all), time.Second, 30*time.Second)
		if err != nil || len(records) == 0 {
			b.Fatalf("poll: %d of %d records, %v", len(all), n, err)
		}
		for _, r := range records {
			if r.err != nil {
				b.Fatal(r.err)
			}
		}
		all = append(all, records...)
	}
	return all
}

func handles(records []record) []string {
	var out []string
	for _, r := range records {
		out = append(out, r.handle)
	}
	return out
}

func TestSendPollRemove(t *testing.T) {
	for _, fifo := range []bool{false, true} {
		t.Run(fmt.Sprintf("fifo=%t", fifo), func(t *testing.T) {
			inBubble(t, fifo, func(t *testing.T, b *bench) {
				b.publish(25)
				records := b.receive(25)
				last := make(map[string]string)
				for _, r := range records {
					if before := last[r.message.Key]; fifo && r.message.ID < before {
						t.Errorf("%s comes after %s: FIFO order is lost", r.message.ID, before)
					}
					last[r.message.Key] = r.message.ID
					if r.receives != 1 || r.stored || r.sent.IsZero() {
						t.Errorf("record = %+v", r)
					}
				}
				if len(last) != 3 {
					t.Errorf("the keys are %v, want three", last)
				}
				if errs := b.remove(t.Context(), b.queue.url, handles(records)); errs != nil {
					t.Errorf("remove: %v", errs)
				}
				if q := b.server.Queue(b.queue.topic); q.Deleted != 25 || q.InFlight != 0 {
					t.Errorf("the queue has %+v, want 25 deleted", q)
				}
				if got := b.server.Count("SendMessageBatch") + b.server.Count("DeleteMessageBatch"); got != 6 {
					t.Errorf("%d calls with batches, want 3 and 3", got)
				}
			})
		})
	}
}

func TestPollAsksForWhatIsNeeded(t *testing.T) {
	inBubble(t, true, func(t *testing.T, b *bench) {
		begun := time.Now()
		records, err := b.poll(t.Context(), &b.queue, "attempt", 100, 3*time.Second, 42_500*time.Millisecond)
		if err != nil || len(records) != 0 || time.Since(begun) != 3*time.Second {
			t.Errorf("an empty poll: %v, %v after %v", records, err, time.Since(begun))
		}
		if _, err := b.poll(t.Context(), &b.queue, "attempt", 1, 0, 0); err != nil {
			t.Error(err)
		}
		calls := b.server.Calls()
		first, second := string(calls[len(calls)-2].Request), string(calls[len(calls)-1].Request)
		for _, want := range []string{
			`"MaxNumberOfMessages":10`, `"WaitTimeSeconds":3`, `"VisibilityTimeout":43`, `"MessageAttributeNames":["All"]`, `"ReceiveRequestAttemptId":"`,
			`"MessageSystemAttributeNames":["ApproximateReceiveCount","SentTimestamp","MessageGroupId","AWSTraceHeader"]`,
		} {
			if !strings.Contains(first, want) {
				t.Errorf("the request lacks %s: %s", want, first)
			}
		}
		for _, want := range []string{`"WaitTimeSeconds":1`, `"VisibilityTimeout":1`} {
			if !strings.Contains(second, want) {
				t.Errorf("zero is left to the queue's default: no %s in %s", want, second)
			}
		}
	})
}

func TestFIFOPollAnswerLost(t *testing.T) {
	inBubble(t, true, func(t *testing.T, b *bench) {
		b.publish(3)
		b.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", AfterEffect: true, Cut: true, Times: 1})
		poll := func(attempt string) ([]record, error) {
			return b.poll(t.Context(), &b.queue, attempt, 10, time.Second, time.Minute)
		}
		if _, err := poll("first"); !mayBeDone(err) {
			t.Fatalf("err = %v, want one that leaves open what was received", err)
		}
		if got, err := poll("second"); err != nil || len(got) > 0 {
			t.Errorf("another attempt: %v, %v; want nothing, since the group is in flight", got, err)
		}
		if got, err := poll("first"); err != nil || len(got) != 3 || got[0].message.ID != "id-000" {
			t.Errorf("the same attempt: %v, %v; want the three messages", got, err)
		}
	})
}

func TestPollDamagedBodyCostsNoOther(t *testing.T) {
	inBubble(t, false, func(t *testing.T, b *bench) {
		b.publish(5)
		b.server.Inject(sqstest.Fault{Operation: "ReceiveMessage", Corrupt: true, Entries: []int{2}})
		records, err := b.poll(t.Context(), &b.queue, "attempt", 5, time.Second, time.Minute)
		if err != nil || len(records) != 5 {
			t.Fatalf("%d records, %v, want all", len(records), err)
		}
		bad := 0
		for _, r := range records {
			if r.err != nil {
				bad++
				if !errors.Is(r.err, errChecksum) || r.handle == "" {
					t.Errorf("record = %+v", r)
				}
			}
		}
		if bad != 1 {
			t.Errorf("%d records are damaged, want 1", bad)
		}
	})
}

func TestPollErrors(t *testing.T) {
	for _, test := range []struct {
		fault sqstest.Fault
		want  error
		check func(error) bool
	}{
		{sqstest.Fault{Code: "AWS.SimpleQueueService.NonExistentQueue"}, brokers.ErrMisconfigured, isGone},
		{sqstest.Fault{Code: "AccessDenied"}, brokers.ErrMisconfigured, nil},
		{sqstest.Fault{Code: "OverLimit"}, nil, isOverLimit},
		{sqstest.Fault{Code: "KMS.ThrottlingException"}, nil, nil},
		{sqstest.Fault{Code: "RequestThrottled"}, nil, nil},
		{sqstest.Fault{Status: 503}, nil, nil},
		{sqstest.Fault{Cut: true}, nil, nil},
		{sqstest.Fault{Code: "ExpiredToken"}, nil, nil},
		{sqstest.Fault{Latency: time.Hour}, nil, func(err error) bool {
			return errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "no answer within 12s")
		}},
	} {
		t.Run(fmt.Sprintf("%+v", test.fault), func(t *testing.T) {
			inBubble(t, false, func(t *testing.T, b *bench) {
				b.server.Inject(test.fault)
				begun := time.Now()
				records, err := b.poll(t.Context(), &b.queue, "attempt", 10, 2*time.Second, time.Minute)
				if err == nil || records != nil || !strings.HasPrefix(err.Error(), `receive from the queue "orders": `) {
					t.Fatalf("poll = %v, %v", records, err)
				}
				if errors.Is(err, brokers.ErrMisconfigured) != (test.want != nil) || test.check != nil && !test.check(err) {
					t.Errorf("err = %v", err)
				}
				if got := b.server.Count("ReceiveMessage"); got != 1 {
					t.Errorf("%d calls, want one: the queue is to rest", got)
				}
				if took := time.Since(begun); took > 12*time.Second {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	inBubble(t, false, func(t *testing.T, b *bench) {
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		b.server.Inject(sqstest.Fault{Latency: time.Hour})
		time.AfterFunc(time.Second, func() { cancel(cause) })
		begun := time.Now()
		errs := b.remove(ctx, b.queue.url, []string{"x"})
		if len(errs) != 1 || !errors.Is(errs[0], cause) || time.Since(begun) != time.Second {
			t.Errorf("remove = %v after %v, want the cause after a second", errs, time.Since(begun))
		}
	})
}

func TestResolve(t *testing.T) {
	inBubble(t, false, func(t *testing.T, b *bench) {
		if url, err := b.resolve(t.Context(), "orders"); err != nil || url != b.queue.url {
			t.Errorf("resolve = %q, %v, want %q", url, err, b.queue.url)
		}
		const other = "https://sqs.eu-west-1.amazonaws.com/210987654321/orders"
		if url, err := b.resolve(t.Context(), other); err != nil || url != other || b.server.Count("GetQueueUrl") != 1 {
			t.Errorf("a URL: %q, %v after %d calls, want itself", url, err, b.server.Count("GetQueueUrl"))
		}
		if _, err := b.resolve(t.Context(), "nothing"); !errors.Is(err, brokers.ErrMisconfigured) || !isGone(err) || !strings.Contains(err.Error(), "create the queue") {
			t.Errorf("a queue that is not there: %v", err)
		}
		if _, err := b.resolve(t.Context(), "no such name"); !errors.Is(err, brokers.ErrMisconfigured) {
			t.Errorf("a bad name: %v", err)
		}
	})
}

func TestCreateAndInspect(t *testing.T) {
	inBubble(t, true, func(t *testing.T, b *bench) {
		ctx := t.Context()
		dead, err := b.create(ctx, "dead.fifo", map[string]string{"FifoQueue": "true", "MessageRetentionPeriod": "1209600"})
		if err != nil {
			t.Fatal(err)
		}
		deadAttributes, err := b.inspect(ctx, dead)
		if err != nil {
			t.Fatal(err)
		}
		url, err := b.create(ctx, "new.fifo", map[string]string{
			"FifoQueue": "true", "DelaySeconds": "7", "MaximumMessageSize": "2048", "VisibilityTimeout": "45",
			"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":40}`, deadAttributes.arn),
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.inspect(ctx, url)
		want := attributes{
			arn: got.arn, fifo: true, retention: 96 * time.Hour, visibility: 45 * time.Second, delay: 7 * time.Second, limit: 2048,
			deadLetter: deadAttributes.arn, maxReceives: 40,
		}
		if err != nil || got != want || !strings.HasSuffix(got.arn, ":new.fifo") {
			t.Errorf("inspect = %+v, %v, want %+v", got, err, want)
		}
		if deadAttributes.retention != 14*24*time.Hour {
			t.Errorf("the retention is %v", deadAttributes.retention)
		}
		// Another worker, with other settings, was first.
		if again, err := b.create(ctx, "new.fifo", map[string]string{"FifoQueue": "true", "DelaySeconds": "8"}); err != nil || again != url {
			t.Errorf("create of what is there = %q, %v, want %q", again, err, url)
		}
		if _, err := b.create(ctx, "bad", map[string]string{"VisibilityTimeout": "a while"}); !errors.Is(err, brokers.ErrMisconfigured) {
			t.Errorf("create with a bad attribute: %v", err)
		}
		if _, err := b.inspect(ctx, url+"x"); !errors.Is(err, brokers.ErrMisconfigured) {
			t.Errorf("inspect of what is not there: %v", err)
		}
	})
}

func TestClientsHaveRetryersOfTheirOwn(t *testing.T) {
	inBubble(t, false, func(t *testing.T, b *bench) {
		remove := b.server.Inject(sqstest.Fault{Operation: "GetQueueAttributes", Code: "RequestThrottled"})
		for range 60 { // uses up what one client may spend on retries
			_, _ = b.inspect(t.Context(), b.queue.url)
		}
		calls := b.server.Count("GetQueueAttributes")
		if _, err := b.inspect(t.Context(), b.queue.url); err == nil || b.server.Count("GetQueueAttributes")-calls != 1 {
			t.Errorf("the bucket is not empty: %v after %d calls", err, b.server.Count("GetQueueAttributes")-calls)
		}
		remove()
		b.publish(1)
		b.server.Inject(sqstest.Fault{Operation: "DeleteMessageBatch", Code: "RequestThrottled", Times: 1})
		if errs := b.remove(t.Context(), b.queue.url, handles(b.receive(1))); errs != nil {
			t.Errorf("a deletion suffers from other calls that failed: %v", errs)
		}
	})
}

// counted counts how often it is asked for an endpoint.
type counted struct {
	awssqs.EndpointResolverV2
	asked int
}

func (c *counted) ResolveEndpoint(ctx context.Context, params awssqs.EndpointParameters) (smithyendpoints.Endpoint, error) {
	c.asked++
	return c.EndpointResolverV2.ResolveEndpoint(ctx, params)
}

func TestEndpointIsFoundOnce(t *testing.T) {
	inBubble(t, false, func(t *testing.T, b *bench) {
		e := b.polls.Options().EndpointResolverV2.(*endpoint)
		resolver := &counted{EndpointResolverV2: e.resolver}
		e.resolver = resolver
		b.publish(20)
		b.receive(20)
		if polls := b.server.Count("ReceiveMessage"); polls < 2 || resolver.asked != 1 {
			t.Errorf("%d polls asked for their endpoint %d times, want once", polls, resolver.asked)
		}
	})
}

func TestConfiguredRetryerAndEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := sqstest.New(sqstest.Options{})
		defer server.Close()
		config := server.Config()
		config.BaseEndpoint = aws.String("http://overridden.invalid")
		made := 0
		config.Retryer = func() aws.Retryer { made++; return retry.AddWithMaxAttempts(retry.NewStandard(), 2) }
		var hosts []string
		config.HTTPClient = doer(func(r *http.Request) (*http.Response, error) {
			hosts = append(hosts, r.URL.Host)
			return server.Transport().RoundTrip(r)
		})
		c := newClient(clientOptions{config: config, endpoint: "http://mine.invalid", timeout: time.Minute})
		server.Inject(sqstest.Fault{Status: 500})
		if _, err := c.resolve(t.Context(), "orders"); err == nil {
			t.Error("no error")
		}
		if made != 3 || !reflect.DeepEqual(hosts, []string{"mine.invalid", "mine.invalid"}) {
			t.Errorf("%d retryers, calls to %q, want 3 and two to mine", made, hosts)
		}
	})
}

package sqs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	smithyendpoints "github.com/aws/smithy-go/endpoints"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

// failed returns the indices of errs that are of a kind; nil is any error.
func failed(errs []error, kind error) []int {
	var out []int
	for i, err := range errs {
		if err != nil && (kind == nil || errors.Is(err, kind)) {
			out = append(out, i)
		}
	}
	return out
}

// TestSendFailures publishes five messages unless it says otherwise.
func TestSendFailures(t *testing.T) {
	const all = -1
	for name, tt := range map[string]struct {
		messages int
		size     int // of each
		fault    sqstest.Fault
		want     error
		failed   []int // all for each
		calls    int   // 0 for any number
		took     time.Duration
	}{
		"tens":                        {messages: 21, calls: 3},
		"two in a batch":              {size: 500_000, calls: 3},
		"many at once":                {messages: 1000, fault: sqstest.Fault{Latency: time.Second}, calls: 100, took: (1 + 4) * time.Second}, // 32 after the first
		"some entries":                {fault: sqstest.Fault{Entries: []int{0, 4}}, want: brokers.ErrUnknownOutcome, failed: []int{0, 4}},
		"contents":                    {fault: sqstest.Fault{Entries: []int{3}, Code: "InvalidMessageContents"}, want: brokers.ErrRefused, failed: []int{3}},
		"throttled":                   {fault: sqstest.Fault{Code: "RequestThrottled"}, failed: []int{all}},
		"denied":                      {messages: 25, fault: sqstest.Fault{Code: "AccessDenied"}, want: brokers.ErrMisconfigured, failed: []int{all}, calls: 1},
		"gone":                        {messages: 25, fault: sqstest.Fault{Code: "AWS.SimpleQueueService.NonExistentQueue"}, want: brokers.ErrMisconfigured, failed: []int{all}, calls: 1},
		"maybe one is bad":            {messages: 25, fault: sqstest.Fault{Code: "InvalidMessageContents"}, want: brokers.ErrRefused, failed: []int{all}, calls: 2*25 - 3},
		"cut":                         {fault: sqstest.Fault{Cut: true, AfterEffect: true}, want: brokers.ErrUnknownOutcome, failed: []int{all}},
		"500":                         {fault: sqstest.Fault{Status: 500}, want: brokers.ErrUnknownOutcome, failed: []int{all}},
		"slow":                        {fault: sqstest.Fault{Latency: time.Hour}, want: brokers.ErrUnknownOutcome, failed: []int{all}},
		"answered by nothing":         {fault: sqstest.Fault{Status: 200}, want: brokers.ErrUnknownOutcome, failed: []int{all}},
		"damaged":                     {fault: sqstest.Fault{Corrupt: true, Entries: []int{2}}, want: errChecksum, failed: []int{2}},
		"once too much for the batch": {fault: sqstest.Fault{Code: "BatchRequestTooLong", Times: 2}},
		"too much":                    {fault: sqstest.Fault{Code: "BatchRequestTooLong"}, want: brokers.ErrRefused, failed: []int{all}},
	} {
		playAs(t, name, "jobs", Options{}, func(s *scene) {
			s.create("jobs", nil)
			msgs := make([]brokers.Message, max(tt.messages, 5))
			for i := range msgs {
				msgs[i].Body = bytes.Repeat([]byte("x"), max(tt.size, 4))
			}
			tt.fault.Operation = sendBatch
			s.server.Inject(tt.fault)
			begun := time.Now()
			err := s.broker.Publish(s.Context(), "jobs", msgs...)
			if tt.took > 0 {
				s.took(begun, tt.took)
			}
			if tt.fault.Latency > time.Minute && !strings.Contains(err.Error(), "no answer within 10s") {
				s.Errorf("Publish returned %v, which does not say that there was no answer", err)
			}
			errs := make([]error, len(msgs))
			if perr, ok := errors.AsType[*brokers.PublishError](err); ok {
				for i, err := range perr.Failed {
					errs[i] = err
				}
			}
			want := tt.failed
			if slices.Contains(want, all) {
				want = failed([]error(slices.Repeat([]error{errSilent}, len(msgs))), nil)
			}
			if got := failed(errs, tt.want); !slices.Equal(got, want) || len(failed(errs, nil)) != len(want) {
				s.Errorf("%v fail with %v, want %v: %v", got, tt.want, want, err)
			}
			if tt.calls > 0 {
				s.demand(sendBatch, tt.calls)
			}
		})
	}
}

func TestOneBadEntryDoesNotSpoilTheBatch(t *testing.T) {
	for _, kind := range []error{brokers.ErrRefused, brokers.ErrLeaseLost, errPastTotal} {
		var calls [][]int
		errs := make([]error, 10)
		attempt([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, errs, func(part []int, _ []error) error {
			calls = append(calls, part)
			if slices.Contains(part, 6) {
				return fmt.Errorf("the whole batch: %w", kind)
			}
			return nil
		})
		if !reflect.DeepEqual(failed(errs, kind), []int{6}) || len(calls) > 9 {
			t.Errorf("%v: %v fail after the calls %v, want 6 alone", kind, failed(errs, nil), calls)
		}
	}
}

// TestClientsHaveRetryersOfTheirOwn uses up what publishing may spend on retries:
// a deletion is repeated all the same.
func TestClientsHaveRetryersOfTheirOwn(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		src := s.open()
		s.publish("a")
		s.server.Inject(sqstest.Fault{Operation: sendBatch, Code: "RequestThrottled"})
		last := 0
		for range 60 {
			last = s.count(sendBatch, func() { _ = s.broker.Publish(s.Context(), "jobs", brokers.Message{}) })
		}
		if last != 1 {
			s.Errorf("the last Publish made %d calls: its bucket is not empty", last)
		}
		s.server.Inject(sqstest.Fault{Operation: deleteBatch, Code: "RequestThrottled", Times: 1})
		s.drain(src, 1)
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
	play(t, "jobs", Options{}, func(s *scene) {
		e := s.broker.client.polls.Options().EndpointResolverV2.(*endpoint)
		resolver := &counted{EndpointResolverV2: e.resolver}
		e.resolver = resolver
		src := s.open()
		s.nothing(src, time.Minute)
		if polls := s.server.Count("ReceiveMessage"); polls < 2 || resolver.asked != 1 {
			s.Errorf("%d polls asked for their endpoint %d times, want once", polls, resolver.asked)
		}
	})
}

// TestConfigOfTheSDK is used for what Options do not say: here one retry, and an
// endpoint that Options.Endpoint overrides.
func TestConfigOfTheSDK(t *testing.T) {
	play(t, "jobs", Options{}, func(s *scene) {
		config := s.server.Config()
		config.BaseEndpoint = aws.String("http://overridden.invalid")
		config.Retryer = func() aws.Retryer { return retry.AddWithMaxAttempts(retry.NewStandard(), 2) }
		var hosts []string
		next := config.HTTPClient
		config.HTTPClient = doer(func(r *http.Request) (*http.Response, error) {
			hosts = append(hosts, r.URL.Host)
			return next.Do(r)
		})
		b, err := New(Options{Config: config, Endpoint: "http://mine.invalid"})
		if err != nil {
			s.Fatal(err)
		}
		s.server.Inject(sqstest.Fault{Status: 500})
		if err := b.Publish(s.Context(), "jobs", brokers.Message{}); err == nil {
			s.Error("Publish returned no error")
		}
		if !reflect.DeepEqual(hosts, []string{"mine.invalid", "mine.invalid"}) {
			s.Errorf("calls went to %q, want two to mine", hosts)
		}
	})
}

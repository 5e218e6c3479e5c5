package sqstest_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers/sqs/sqstest"
)

func TestLongPoll(t *testing.T) {
	for _, c := range []struct {
		name  string
		event func(w *world, url string)
		want  time.Duration
		ends  int // messages
	}{
		{"nothing", func(*world, string) {}, 20 * time.Second, 0},
		{"send", func(w *world, url string) { time.Sleep(3 * time.Second); w.send(url, "a") }, 3 * time.Second, 1},
		{"delay", func(w *world, url string) { w.delayed(url, "a", 4) }, 4 * time.Second, 1},
		{"delay at the very end", func(w *world, url string) { w.delayed(url, "a", 20) }, 20 * time.Second, 1},
		{"delay too long", func(w *world, url string) { w.delayed(url, "a", 21) }, 20 * time.Second, 0},
		{"advance", func(w *world, url string) {
			w.delayed(url, "a", 15)
			synctest.Wait()
			w.server.Advance(14 * time.Second)
		}, time.Second, 1},
		{"advance beyond the end", func(w *world, url string) {
			w.delayed(url, "a", 30)
			synctest.Wait()
			w.server.Advance(40 * time.Second)
		}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			onOrders(t, func(w *world, url string) {
				start := time.Now()
				var events sync.WaitGroup
				events.Go(func() { c.event(w, url) })
				got := w.receive(url, 10, 20, 0)
				if took := time.Since(start); took != c.want || len(got) != c.ends {
					w.Errorf("poll ended after %v with %d messages, want %v and %d", took, len(got), c.want, c.ends)
				}
				events.Wait()
			})
		})
	}
}

// delayed sends a message with a delay in seconds.
func (w *world) delayed(url, body string, delay int32) {
	w.Helper()
	_, err := w.client.SendMessage(w.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body, DelaySeconds: delay})
	if err != nil {
		w.Fatalf("SendMessage with delay: %v", err)
	}
}

func TestReceiveWaitsAsLongAsTheQueueSays(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url := w.queue("orders", "ReceiveMessageWaitTimeSeconds", "9")
		w.takes(9*time.Second, func() { w.receive(url, 1, 0, 0) }) // the SDK leaves the 0 out
	})
}

func TestDelays(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url := w.queue("orders", "DelaySeconds", "5")
		w.send(url, "queue's")
		w.delayed(url, "own", 900)
		w.wantCounts("orders", 0, 0, 2)
		w.wantCode(w.set(url, "DelaySeconds", "0"), "")
		w.wantCounts("orders", 0, 0, 2) // a change is for later messages
		time.Sleep(5 * time.Second)
		w.wantBodies(w.receive(url, 10, 0, 0), "queue's")
		time.Sleep(895*time.Second - 1)
		w.wantBodies(w.receive(url, 1, 0, 3600), "queue's")
		time.Sleep(time.Nanosecond)
		w.wantBodies(w.receive(url, 1, 0, 0), "own")
	})
}

// A client that goes away does not end its poll: what it receives is in flight
// for its whole timeout.
func TestCancelledPollStillReceives(t *testing.T) {
	onOrders(t, func(w *world, url string) {
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		_, err := w.client.ReceiveMessage(ctx, receiveInput(url, 10, 20, 60))
		if !errors.Is(err, context.DeadlineExceeded) {
			w.Fatalf("cancelled poll: %v, want DeadlineExceeded", err)
		}
		w.delayed(url, "a", 7) // due 12 s after the poll began
		time.Sleep(10 * time.Second)
		w.wantCounts("orders", 0, 1, 0)
		q := w.server.Queue("orders")
		if q.Cancelled != 1 || q.Polls != 0 {
			w.Errorf("Cancelled = %d, Polls = %d, want 1 and 0", q.Cancelled, q.Polls)
		}
		start := time.Now()
		var back []types.Message
		for len(back) == 0 {
			back = w.receive(url, 1, 20, 0)
		}
		if got := time.Since(start); got != 57*time.Second {
			w.Errorf("the message came back after %v, want 57s: 60 s from second 12", got)
		}
		w.wantAttributes(back[0], map[string]string{"ApproximateReceiveCount": "2"})
	})
}

func TestCancelledPollEndsWithItsTime(t *testing.T) {
	onOrders(t, func(w *world, url string) {
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if _, err := w.client.ReceiveMessage(ctx, receiveInput(url, 10, 20, 60)); err == nil {
			w.Fatal("cancelled poll returned no error")
		}
		time.Sleep(20 * time.Second)
		w.send(url, "a")
		w.one(url)
	})
}

func TestLimitOfMessagesInFlight(t *testing.T) {
	const limit = 5
	fill := func(w *world, name string, attributes ...string) string {
		url := w.queue(name, attributes...)
		for _, body := range numbered("m", 8) {
			if len(attributes) > 0 {
				w.sendGroup(url, body, body)
			} else {
				w.send(url, body)
			}
		}
		w.wantBodies(w.receive(url, 10, 0, 30), numbered("m", limit)...)
		return url
	}
	t.Run("standard", func(t *testing.T) {
		bubble(t, sqstest.Options{InFlightLimit: limit}, func(w *world) {
			url := fill(w, "orders")
			_, err := w.client.ReceiveMessage(w.Context(), receiveInput(url, 1, 0, 0))
			if !typed[*types.OverLimit](err) {
				w.Errorf("short poll at the limit: %v, want OverLimit", err)
			}
			w.takes(20*time.Second, func() { w.wantBodies(w.receive(url, 10, 20, 0)) })
			w.wantBodies(w.receive(url, 1, 20, 0), "m6") // 10 s later five come back, behind those not received yet
		})
	})
	t.Run("fifo", func(t *testing.T) {
		bubble(t, sqstest.Options{InFlightLimit: limit}, func(w *world) {
			url := fill(w, "orders.fifo", "FifoQueue", "true")
			w.wantBodies(w.receive(url, 10, 0, 0))
		})
	})
	t.Run("a deletion makes room for a poll", func(t *testing.T) {
		bubble(t, sqstest.Options{InFlightLimit: 1}, func(w *world) {
			url := w.queue("orders")
			w.send(url, "a", "b")
			m := w.one(url)
			var poll sync.WaitGroup
			poll.Go(func() { w.wantBodies(w.receive(url, 1, 20, 0), "b") })
			time.Sleep(time.Second)
			w.wantCode(w.delete(url, m), "")
			w.takes(0, func() { poll.Wait() })
		})
	})
}

func TestSystemAttributes(t *testing.T) {
	onOrders(t, func(w *world, url string) {
		sent := time.Now()
		_, err := w.client.SendMessage(w.Context(), &sqs.SendMessageInput{
			QueueUrl: &url, MessageBody: new("a"), MessageGroupId: new("tenant"),
			MessageSystemAttributes: map[string]types.MessageSystemAttributeValue{
				"AWSTraceHeader": {DataType: new("String"), StringValue: new("Root=1-5759e988-bd862e3fe1be46a994272793")},
			},
		})
		w.wantCode(err, "")
		time.Sleep(time.Minute)
		first := time.Now()
		w.receive(url, 1, 0, 1)
		time.Sleep(time.Minute)
		want := map[string]string{
			"SentTimestamp":                    milliseconds(sent),
			"ApproximateFirstReceiveTimestamp": milliseconds(first),
			"ApproximateReceiveCount":          "2",
			"MessageGroupId":                   "tenant",
			"AWSTraceHeader":                   "Root=1-5759e988-bd862e3fe1be46a994272793",
			"SenderId":                         "AIDASQSTESTSQSTESTSQS",
		}
		if got := w.one(url).Attributes; !maps.Equal(got, want) {
			w.Errorf("attributes %v, want %v", got, want)
		}
	})
}

func TestSystemAttributesThatAreAskedFor(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url := w.queue("orders", "VisibilityTimeout", "0")
		w.send(url, "a")
		for name, in := range map[string]*sqs.ReceiveMessageInput{
			"none": {},
			"new":  {MessageSystemAttributeNames: []types.MessageSystemAttributeName{"SentTimestamp"}},
			"old":  {AttributeNames: []types.QueueAttributeName{"SentTimestamp"}},
		} {
			in.QueueUrl = &url
			out, err := w.client.ReceiveMessage(w.Context(), in)
			if err != nil {
				w.Fatal(err)
			}
			got := out.Messages[0].Attributes
			if _, ok := got["SentTimestamp"]; ok != (name != "none") || len(got) > 1 {
				w.Errorf("%s: attributes %v", name, got)
			}
		}
	})
}

func TestMessageAttributesThatAreAskedFor(t *testing.T) {
	bubble(t, sqstest.Options{}, func(w *world) {
		url := w.queue("orders", "VisibilityTimeout", "0")
		_, err := w.client.SendMessage(w.Context(), &sqs.SendMessageInput{
			QueueUrl: &url, MessageBody: new("a"),
			MessageAttributes: map[string]types.MessageAttributeValue{
				"Foo": stringAttribute("Bar"), "trace.id": stringAttribute("1"), "trace.span": stringAttribute("2"),
			},
		})
		w.wantCode(err, "")
		for _, c := range []struct {
			names []string
			want  int
			sum   string
		}{
			{nil, 0, ""},
			{[]string{"All"}, 3, ""},
			{[]string{".*"}, 3, ""},
			{[]string{"trace.*"}, 2, ""},
			{[]string{"Foo"}, 1, "ae7155c6026991b6d54b11589678bf9c"},
			{[]string{"foo", "trac"}, 0, ""},
			{[]string{"Foo", "trace.*"}, 3, ""},
		} {
			out, err := w.client.ReceiveMessage(w.Context(), &sqs.ReceiveMessageInput{QueueUrl: &url, MessageAttributeNames: c.names})
			if err != nil {
				w.Fatal(err)
			}
			m := out.Messages[0]
			if len(m.MessageAttributes) != c.want {
				w.Errorf("asked for %q: %d attributes, want %d", c.names, len(m.MessageAttributes), c.want)
			}
			if (m.MD5OfMessageAttributes == nil) != (c.want == 0) {
				w.Errorf("asked for %q: MD5OfMessageAttributes %v", c.names, m.MD5OfMessageAttributes)
			}
			if c.sum != "" && *m.MD5OfMessageAttributes != c.sum {
				w.Errorf("asked for %q: MD5 %s, want %s, that of what is returned", c.names, *m.MD5OfMessageAttributes, c.sum)
			}
		}
	})
}

package memory_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

func TestIDsOfTwoBrokersDiffer(t *testing.T) {
	one, two := make([]brokers.Message, 1), make([]brokers.Message, 1)
	for _, msgs := range [][]brokers.Message{one, two} {
		if err := memory.New(memory.Options{}).Publish(t.Context(), "in", msgs...); err != nil {
			t.Fatal(err)
		}
	}
	if one[0].ID == two[0].ID {
		t.Errorf("two brokers made the same id, %q", one[0].ID)
	}
}

func TestAppendedHeadersReachNobody(t *testing.T) {
	for n := range 40 {
		run(t, memory.Options{}, func(w *world) {
			w.send("in", brokers.Message{Headers: make(brokers.Headers, n)})
			first := w.one(w.source)
			first.Message.Headers = append(first.Message.Headers, brokers.Header{Name: "first"})
			w.release(w.source, first)
			second := w.one(w.source)
			_ = append(second.Message.Headers, brokers.Header{Name: "second"})
			if got := first.Message.Headers[n].Name; got != "first" {
				w.Errorf("a receiver's own header, after %d published ones, became %q", n, got)
			}
		})
	}
}

func TestIdentityHeaders(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		headers := brokers.Headers{
			{Name: "redrive-id", Value: "first-hop"}, {Name: "redrive-idempotency-key", Value: "key"},
			{Name: "redrive-count", Value: "2"}, {Name: "redrive-published-at", Value: "1000"}, {Name: "user", Value: "u"},
		}
		w.send("in", brokers.Message{Headers: headers})
		w.send("in", brokers.Message{ID: "explicit", Headers: headers})
		for _, d := range w.expect(w.source, "first-hop", "explicit") {
			if d.Meta().IdempotencyKey != "key" || d.Meta().RedriveCount != 2 || d.Meta().Origin.Get("topic") != "in" {
				w.Errorf("Meta = %+v, want the identity of the headers and an origin", d.Meta())
			}
			if want := time.UnixMilli(1000); !d.Message.PublishedAt.Equal(want) {
				w.Errorf("PublishedAt = %v, want that of the header, %v", d.Message.PublishedAt, want)
			}
			if !reflect.DeepEqual(d.Message.Headers, headers) {
				w.Errorf("Headers = %v, want them as published", d.Message.Headers)
			}
		}
	})
}

func TestPublishRefuses(t *testing.T) {
	run(t, memory.Options{MessageLimit: 100, HeaderLimit: 40}, func(w *world) {
		c := w.source.Capabilities()
		if c.MessageLimit != 100 || c.HeaderLimit != 40 {
			w.Errorf("Capabilities = %+v, want the limits of the options", c)
		}
		header := func(name string, n int) brokers.Headers {
			return brokers.Headers{{Name: name, Value: strings.Repeat("x", n-len(name))}}
		}
		msgs := []brokers.Message{
			{Body: make([]byte, 100)},
			{Body: make([]byte, 101)},
			{Body: make([]byte, 60), Headers: header("user", 40)},
			{Body: make([]byte, 60), Headers: header("user", 41)},
			{Headers: header("redrive-class", 40)},
			{Headers: header("redrive-class", 41)},
			{Headers: header("redrive-of-the-user", 90)},
		}
		err := w.broker.Publish(w.Context(), "in", msgs...)
		failed, ok := errors.AsType[*brokers.PublishError](err)
		if !ok || failed.Topic != "in" || len(failed.Failed) != 3 {
			w.Fatalf("Publish = %v, want a *PublishError for 3 messages", err)
		}
		for _, i := range []int{1, 3, 5} {
			if !errors.Is(failed.Failed[i], brokers.ErrRefused) {
				w.Errorf("message %d: %v, want ErrRefused", i, failed.Failed[i])
			}
		}
		w.stats("in", memory.Stats{Ready: 4})
	})
}

func TestPublishFails(t *testing.T) {
	tests := []struct {
		name  string
		topic string
		ready func(w *world) context.Context
		want  error
	}{
		{"no topic", "", func(w *world) context.Context { return w.Context() }, brokers.ErrMisconfigured},
		{"ended context", "in", func(w *world) context.Context {
			ctx, cancel := context.WithCancel(w.Context())
			cancel()
			return ctx
		}, context.Canceled},
		{"closed", "in", func(w *world) context.Context {
			w.broker.Close(w.Context())
			return w.Context()
		}, brokers.ErrClosed},
	}
	for _, tt := range tests {
		run(t, memory.Options{}, func(w *world) {
			err := w.broker.Publish(tt.ready(w), tt.topic, brokers.Message{}, brokers.Message{})
			failed, ok := errors.AsType[*brokers.PublishError](err)
			if !ok || len(failed.Failed) != 2 || !errors.Is(err, tt.want) {
				w.Errorf("%s: Publish = %v, want a *PublishError for both: %v", tt.name, err, tt.want)
			}
			w.stats("in", memory.Stats{})
		})
	}
	run(t, memory.Options{}, func(w *world) {
		if err := w.broker.Publish(w.Context(), "in"); err != nil {
			w.Errorf("Publish of nothing = %v", err)
		}
	})
}

// wantAll checks how some Publishes ended.
func (w *world) wantAll(want error, outs ...<-chan error) {
	w.Helper()
	for i, out := range outs {
		if err := <-out; !errors.Is(err, want) {
			w.Errorf("Publish %d = %v, want %v", i, err, want)
		}
	}
}

// blocked starts a Publish and returns where its error will be.
func (w *world) blocked(ctx context.Context, ids ...string) <-chan error {
	out := make(chan error, 1)
	msgs := make([]brokers.Message, len(ids))
	for i, id := range ids {
		msgs[i].ID = id
	}
	go func() { out <- w.broker.Publish(ctx, "in", msgs...) }()
	synctest.Wait()
	return out
}

func TestFullTopicBlocksPublish(t *testing.T) {
	run(t, memory.Options{Limit: 3}, func(w *world) {
		w.publish("in", "a", "b", "c")
		ds := w.expect(w.source, "a", "b", "c")
		w.retry(w.source, ds[0], time.Hour)
		w.release(w.source, ds[1])
		first, second := w.blocked(w.Context(), "d", "e"), w.blocked(w.Context(), "f")
		w.publish("elsewhere", "other topics have their own room")
		time.Sleep(10 * time.Second)
		w.ack(w.source, ds[2])
		synctest.Wait()
		w.stats("in", memory.Stats{Ready: 2, Delayed: 1})
		w.ack(w.source, w.expect(w.source, "b", "d")...)
		w.wantAll(nil, first, second)
		got := ids(w.broker.Messages("in"))
		slices.Sort(got)
		if want := []string{"a", "e", "f"}; !slices.Equal(got, want) {
			w.Errorf("the topic holds %v, want %v", got, want)
		}
	})
}

func TestFullTopicAndEndedContext(t *testing.T) {
	run(t, memory.Options{Limit: 2}, func(w *world) {
		w.publish("in", "a")
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		err := <-w.blocked(ctx, "b", "c", "d")
		failed, ok := errors.AsType[*brokers.PublishError](err)
		if !ok || len(failed.Failed) != 2 || failed.Failed[0] != nil || !errors.Is(err, context.DeadlineExceeded) {
			w.Fatalf("Publish = %v, want a *PublishError for the last two and the cause of the context", err)
		}
		if want := "raise Options.Limit"; !strings.Contains(err.Error(), want) {
			w.Errorf("error %q does not say how to fix it: %q", err, want)
		}
		w.expect(w.source, "a", "b")
		w.stats("in", memory.Stats{InFlight: 2})
	})
}

// Room that was promised to a publisher that gives up goes to the next.
func TestRoomIsPassedOn(t *testing.T) {
	for range 20 {
		run(t, memory.Options{Limit: 1}, func(w *world) {
			w.publish("in", "a")
			ctx, cancel := context.WithCancel(w.Context())
			first, second := w.blocked(ctx, "b"), w.blocked(w.Context(), "c")
			w.ack(w.source, w.one(w.source))
			cancel()
			if err := <-first; err == nil {
				w.ack(w.source, w.expect(w.source, "b")...)
			}
			w.wantAll(nil, second)
			w.expect(w.source, "c")
		})
	}
}

// A publisher that was let in keeps its turn if another one takes the room first.
func TestPublishersKeepTheirTurn(t *testing.T) {
	for range 20 {
		run(t, memory.Options{Limit: 1}, func(w *world) {
			w.publish("in", "a")
			first, second := w.blocked(w.Context(), "b"), w.blocked(w.Context(), "c")
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			w.ack(w.source, w.one(w.source))
			want := []string{"b", "c"}
			if w.broker.Publish(ctx, "in", brokers.Message{ID: "quick"}) == nil {
				want = []string{"quick", "b", "c"}
			}
			synctest.Wait()
			for _, id := range want {
				w.ack(w.source, w.expect(w.source, id)...)
			}
			w.wantAll(nil, first, second)
		})
	}
}

func TestFullTopicAndClose(t *testing.T) {
	run(t, memory.Options{Limit: 1}, func(w *world) {
		w.publish("in", "a")
		first, second := w.blocked(w.Context(), "b"), w.blocked(w.Context(), "c")
		w.broker.Close(w.Context())
		w.wantAll(brokers.ErrClosed, first, second)
		w.stats("in", memory.Stats{Ready: 1})
	})
}

func TestManyPublishersGetTheirTurn(t *testing.T) {
	run(t, memory.Options{Limit: 2}, func(w *world) {
		var outs []<-chan error
		for i := range 50 {
			outs = append(outs, w.blocked(w.Context(), fmt.Sprint(i, "a"), fmt.Sprint(i, "b")))
		}
		seen := map[string]bool{}
		for len(seen) < 100 {
			for _, d := range w.receive(w.source, 2) {
				seen[d.Message.ID] = true
				w.ack(w.source, d)
			}
		}
		w.wantAll(nil, outs...)
		w.stats("in", memory.Stats{})
	})
}

func ids(msgs []brokers.Message) []string {
	out := make([]string, len(msgs))
	for i, m := range msgs {
		out[i] = m.ID
	}
	return out
}

// TestNothingIsShared edits what was passed, and what came back.
func TestNothingIsShared(t *testing.T) {
	run(t, memory.Options{}, func(w *world) {
		body, headers := []byte("body"), brokers.Headers{{Name: "a", Value: "1"}}
		w.send("in", brokers.Message{Body: body, Headers: headers})
		body[0], headers[0].Value = 'x', "edited"
		d := w.one(w.source)
		if string(d.Message.Body) != "body" || d.Message.Headers[0].Value != "1" {
			w.Errorf("the producer edited what it had published: %+v", d.Message)
		}
		meta := brokers.Meta{History: []brokers.Failure{{Class: "transient"}}}
		w.settle(w.source, brokers.Settlement{Delivery: d, Action: brokers.Retry, Meta: meta}, nil)
		for _, editor := range []string{"the settler", "a receiver"} {
			meta.History[0].Class = "edited"
			d = w.one(w.source)
			if d.Meta().History[0].Class != "transient" {
				w.Errorf("%s edited the history of the message", editor)
			}
			meta = d.Meta()
			w.release(w.source, d)
		}
		w.one(w.source)
	})
}

package adapter

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

func TestTurn(t *testing.T) {
	var turn Turn
	queues := []int{10, 0, 1, 10}
	serve := func(most int) []int {
		taken := make([]int, len(queues))
		turn.Take(most, len(queues), func(i int) int { return queues[i] }, func(i, most int) int {
			n := min(most, queues[i])
			queues[i] -= n
			taken[i] += n
			return n
		})
		return taken
	}
	for _, call := range []struct {
		most int
		want []int
	}{
		{9, []int{5, 0, 1, 3}}, // what one lacks, the others may have
		{1, []int{0, 0, 0, 1}}, // the turn goes on where it ended
		{1, []int{1, 0, 0, 0}},
		{6, []int{3, 0, 0, 3}},
		{9, []int{1, 0, 0, 3}},
		{9, []int{0, 0, 0, 0}},
	} {
		if got := serve(call.most); !slices.Equal(got, call.want) {
			t.Errorf("of at most %d, the queues gave %v, want %v", call.most, got, call.want)
		}
	}
}

func TestWaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWaker()
		begin := time.Now()
		waited := func(ctx context.Context, until time.Time) time.Duration {
			began := time.Now()
			w.Wait(ctx, until)
			return time.Since(began)
		}
		w.Wake()
		w.Wake()
		if d := waited(t.Context(), time.Time{}); d != 0 {
			t.Errorf("waited %v although woken before", d)
		}
		if d := waited(t.Context(), begin.Add(time.Minute)); d != time.Minute {
			t.Errorf("waited %v, want a minute: two wakes are one", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if d := waited(ctx, time.Time{}); d != time.Second {
			t.Errorf("waited %v, want until the context ended", d)
		}
	})
}

type fakeSource struct{ err error }

func (s *fakeSource) Close(context.Context) error { return s.err }

func TestSources(t *testing.T) {
	var sources Sources[*fakeSource]
	bad, gone, late := &fakeSource{errors.New("stuck")}, &fakeSource{errors.New("closed twice")}, &fakeSource{}
	if !sources.Add(bad) || !sources.Add(gone) || sources.Closed() {
		t.Fatal("sources are refused before Close")
	}
	sources.Remove(gone)
	if err := sources.Close(t.Context()); !errors.Is(err, bad.err) || errors.Is(err, gone.err) {
		t.Errorf("Close = %v, want what the open one says", err)
	}
	if sources.Add(late) || !sources.Closed() || len(sources.Open()) != 1 {
		t.Errorf("after Close %d are open, and another one may come", len(sources.Open()))
	}
}

func TestPublish(t *testing.T) {
	compose := func(m brokers.Message) (string, error) {
		if m.Key == "bad" {
			return "", brokers.ErrRefused
		}
		return m.Key, nil
	}
	errLost := errors.New("lost")
	send := func(out []string) []error {
		errs := make([]error, len(out))
		errs[slices.Index(out, "lost")] = errLost
		return errs
	}
	msgs := []brokers.Message{{Key: "bad"}, {Key: "good", ID: "mine"}, {Key: "lost"}}
	failed, ok := errors.AsType[*brokers.PublishError](Publish("orders", msgs, compose, send))
	if !ok || failed.Topic != "orders" || len(failed.Failed) != 2 || failed.Failed[0] != brokers.ErrRefused || failed.Failed[2] != errLost {
		t.Errorf("Publish = %+v", failed)
	}
	if msgs[1].ID != "mine" || msgs[2].ID == "" || msgs[0].PublishedAt.IsZero() {
		t.Errorf("the messages are not identified: %+v", msgs)
	}
	if err := Publish("orders", msgs[1:2], compose, func([]string) []error { return nil }); err != nil {
		t.Errorf("Publish of what is stored = %v", err)
	}
}

func TestFailures(t *testing.T) {
	f := Failures{Broker: "fake", Entries: 3}
	f.Add(0, "ack", nil, nil)
	if f.List != nil {
		t.Error("there are errors where nothing failed")
	}
	f.Add(1, "ack", nil, ErrNotHeld)
	f.Add(2, "retry", &brokers.Delivery{Message: brokers.Message{ID: "7", Topic: "orders"}}, brokers.ErrSettled)
	if len(f.List) != 3 || f.List[0] != nil || !errors.Is(f.List[1], brokers.ErrLeaseLost) {
		t.Errorf("List = %v", f.List)
	}
	if got, want := f.List[2].Error(), `fake: retry message "7" of "orders": `+brokers.ErrSettled.Error(); got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}

package retries

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/service"
)

// desk is a service that calls nobody: the test says what becomes of tasks.
type desk struct {
	*testing.T
	server *Server
	runner *service.Service
	broker *memory.Broker
}

func newDesk(t *testing.T) *desk {
	d := &desk{T: t, broker: memory.New(memory.Options{})}
	store, err := service.Open(t.Context(), filepath.Join(t.TempDir(), "tasks.db"))
	d.must(err)
	t.Cleanup(func() { d.must(store.Close()) })
	quiet := slog.New(slog.DiscardHandler)
	d.server = &Server{Store: store, Logger: quiet, Letters: &Letters{Broker: d.broker, Topic: "dead", Origin: "retry-tasks", Worker: "desk"}}
	d.server.Guard, err = service.NewGuard(service.Targets{})
	d.must(err)
	d.runner, err = service.New(service.Config{Store: store, Guard: d.server.Guard, Logger: quiet})
	d.must(err)
	return d
}

func (d *desk) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

// create stores a task.
func (d *desk) create() service.Task {
	d.Helper()
	_, err := d.server.Store.PutPolicy(d.Context(), service.Policy{Tenant: "shop", ID: "standard"}.WithDefaults())
	d.must(err)
	task, _, err := d.server.Store.Create(d.Context(), service.Task{
		ID: "11111111-1111-4111-8111-111111111111", Tenant: "shop", IdempotencyKey: "k", TargetURL: "https://api.example.com", Method: "POST",
		PolicyID: "standard", PolicyVersion: 1, VisibilityTimeout: time.Minute, NextAttemptAt: time.Now(),
	})
	d.must(err)
	return task
}

// die has the only task be exhausted, and returns its letter, published as often as
// that is not confirmed.
func (d *desk) die() dlq.Entry {
	d.Helper()
	store, now := d.server.Store, time.Now()
	claimed, err := store.Claim(d.Context(), []int64{1}, now, 0)
	if err != nil || len(claimed) != 1 {
		d.Fatalf("Claim = %v, %v", claimed, err)
	}
	over := claimed[0]
	over.Status, over.UpdatedAt, over.LastError, over.LastStatus = service.Exhausted, now, "poison: http status 422", 422
	d.must(store.Settle(d.Context(), []service.Outcome{{Task: over}}))
	var letters []dlq.Entry
	for n := range 2 { // not confirmed in time, and so once more
		then := now.Add(time.Duration(n) * time.Hour)
		dead, err := store.Dead(d.Context(), then, then.Add(time.Minute), 10)
		if err != nil || len(dead) != 1 {
			d.Fatalf("Dead = %v, %v", dead, err)
		}
		letter, err := d.server.Letters.Letter(dead[0])
		d.must(err)
		letters = append(letters, letter)
		if n == 1 {
			d.must(store.Buried(d.Context(), dead))
		}
	}
	if first, second := letters[0].Message, letters[1].Message; string(first.Body) != string(second.Body) {
		d.Errorf("two letters of one death: %s and %s", first.Body, second.Body)
	}
	return letters[0]
}

// sendBack sends messages back, and waits until they are settled.
func (d *desk) sendBack(messages ...brokers.Message) {
	d.Helper()
	for _, m := range messages {
		d.must(d.broker.SendBack(d.Context(), "", "retry-tasks", brokers.Item{Message: &m}))
	}
	time.Sleep(time.Minute)
	if n := d.broker.Len("retry-tasks"); n > 0 {
		d.Errorf("%d letters are not settled", n)
	}
}

// is fails unless the task is in a state, and so many letters became letters again.
func (d *desk) is(task service.Task, want service.Status, dead int) {
	d.Helper()
	got, err := d.server.Store.Task(d.Context(), task.Tenant, task.ID)
	if err != nil || got.Status != want || d.broker.Len("dead") != dead {
		d.Errorf("the task is %s with %d letters, error %v, want %s with %d", got.Status, d.broker.Len("dead"), err, want, dead)
	}
}

// TestLetterIsOfOneDeath sends back what belongs to an earlier death of a task, and
// what is no letter at all.
func TestLetterIsOfOneDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			d.server.Letters.Receive(ctx, d.server.Logger, d.server.revive(d.runner))
		}()
		defer func() { stop(); <-ended }()
		task := d.create()
		first := d.die()
		d.sendBack(first.Message)
		d.is(task, service.Pending, 0)
		d.sendBack(first.Message) // while it waits
		d.is(task, service.Pending, 0)
		second := d.die()
		d.sendBack(first.Message, first.Message)
		d.is(task, service.Exhausted, 0)
		d.sendBack(second.Message, second.Message)
		d.is(task, service.Pending, 0)
		third := d.die()
		for n, body := range []string{"", "[]", `{"taskVersion": "1"}`, `{"taskVersion": 0}`, `{"taskVersion": 1e99}`} {
			forged := third.Message
			forged.Body = []byte(body)
			d.sendBack(forged)
			d.is(task, service.Exhausted, n+1)
		}
		stranger := third.Message
		stranger.ID = "none"
		d.sendBack(stranger)
		d.is(task, service.Exhausted, 6)
	})
}

// TestMetricsAreOfThisMachine asks as a web page does whose name means this machine by
// now.
func TestMetricsAreOfThisMachine(t *testing.T) {
	const secret = "the token of metrics"
	for _, tt := range []struct {
		path, host, tokens, metrics string
		want                        int
		says                        string
	}{
		{"/metrics", "localhost:7430", "", "", http.StatusOK, "redrive_store_up 1"},
		{"/metrics", "[::1]:7430", "", "", http.StatusOK, "redrive_store_up 1"},
		{"/metrics", "evil.example:7430", "", "", http.StatusForbidden, "#untrusted-host"},
		{"/metrics", "10.0.0.1", "", "", http.StatusForbidden, "#untrusted-host"},
		{"/metrics", "retries.example.com", "", secret, http.StatusOK, "redrive_store_up 1"},
		{"/metrics", "retries.example.com", "tokens", secret, http.StatusOK, "redrive_store_up 1"},
		{"/metrics", "localhost", "tokens", "", http.StatusForbidden, "service.metrics_token"},
		{"/healthz", "10.0.0.1", "", "", http.StatusOK, "ok"},
	} {
		d := newDesk(t)
		d.server.MetricsToken = tt.metrics
		if tt.tokens != "" {
			d.server.Tokens = []service.Token{{Tenant: "shop", Secret: "the token of the shop"}}
		}
		r := httptest.NewRequest(http.MethodGet, tt.path, nil)
		r.Host = tt.host
		r.Header.Set("Authorization", "Bearer "+secret)
		w := httptest.NewRecorder()
		d.server.front(d.runner, service.NewMetrics()).Handler().ServeHTTP(w, r)
		if w.Code != tt.want || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%+v: %d %s", tt, w.Code, w.Body)
		}
	}
}

// TestLetterKeepsTrace has the letter of a task lead to the request that created it, and
// to its last call.
func TestLetterKeepsTrace(t *testing.T) {
	const caller, call = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-53995c3f42cd8ad8-01"
	for sent, want := range map[string]string{caller: caller, "": "", strings.Repeat("0", 20_000): ""} {
		task := service.Task{ID: "1", LastError: "poison: http status 422", LastSpan: call, Headers: map[string]string{"Traceparent": sent, "Authorization": "Bearer hunter2"}}
		letter, err := (&Letters{}).Letter(task)
		if err != nil {
			t.Fatal(err)
		}
		letter, err = dlq.Decode(letter.Encode(0))
		if err != nil || letter.Message.Headers.Get("traceparent") != want || letter.Meta.Trace != call || letter.Message.Headers.Get("authorization") != "" {
			t.Errorf("headers %v, trace %q, error %v, want traceparent %q and %q", letter.Message.Headers, letter.Meta.Trace, err, want, call)
		}
	}
}

package serve_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/serve"
	"github.com/redrive-go/redrive/operate/job"
	"github.com/redrive-go/redrive/operate/store"
)

const text = `
brokers:
  shop: {kind: rabbitmq, urls: [amqp://localhost]}
  events: {kind: kafka, addresses: ["localhost:9092"]}
topics:
  - {name: orders, broker: shop, dead: [orders-dead], receipts: receipts, collect: true}
  - {name: refunds, broker: shop, dead: [refunds-dead], collect: true, retention: {discarded: 1h}}
  - {name: payments, broker: events, dead: [payments-dead], groups: [billing], collect: true}
store: {url: letters.db}
retention: {discarded: 2h}
`

// world is a Server on brokers in memory.
type world struct {
	*testing.T
	server  *serve.Server
	store   *store.Store
	file    string // the file of the store
	brokers map[string]*memory.Broker
	mu      sync.Mutex
	down    map[string]error
	running sync.WaitGroup
	cancel  context.CancelFunc
}

// pass lets so much of the virtual time pass.
func (w *world) pass(d time.Duration) { time.Sleep(d) }

// inWorld runs a test in virtual time. What it started is stopped in the end.
func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, down: map[string]error{}, brokers: map[string]*memory.Broker{"shop": memory.New(memory.Options{}), "events": memory.New(memory.Options{})}}
		c, err := config.Parse("redrive.yaml", []byte(text))
		w.must(err)
		w.file = filepath.Join(t.TempDir(), "letters.db")
		w.store, err = store.Open(t.Context(), w.file)
		w.must(err)
		w.server = &serve.Server{
			Config: c, Store: w.store, Owner: "serve@host", Logger: slog.New(slog.DiscardHandler),
			Brokers: serve.NewBrokers(func(_ context.Context, name string) (brokers.Broker, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.brokers[name], w.down[name]
			}),
		}
		defer func() {
			w.stop()
			w.must(errors.Join(w.server.Brokers.Close(context.Background()), w.store.Close()))
		}()
		test(w)
	})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// run starts the server.
func (w *world) run() {
	ctx, cancel := context.WithCancel(w.Context())
	w.cancel = cancel
	w.running.Go(func() { w.server.Run(ctx) })
}

func (w *world) stop() {
	if w.cancel != nil {
		w.cancel()
		w.running.Wait()
	}
}

func (w *world) publish(broker, topic string, n int) {
	w.Helper()
	for i := range n {
		e := dlq.Entry{Message: brokers.Message{ID: fmt.Sprintf("%s-%d", topic, i), Topic: strings.TrimSuffix(topic, "-dead"), Body: []byte("{}")}, Reason: "poison", DeadAt: time.Now().Add(-time.Hour)}
		w.must(w.brokers[broker].Publish(w.Context(), topic, e.Encode(0)))
	}
}

// letters counts those of a topic in the store.
func (w *world) letters(topic string) (n int64) {
	w.Helper()
	stats, err := w.store.Stats(w.Context(), time.Now())
	w.must(err)
	for _, t := range stats.Topics {
		if t.Topic == topic {
			n += t.Counts.Open()
		}
	}
	return n
}

// get calls the handler.
func (w *world) get(path, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer := httptest.NewRecorder()
	w.server.Front("").Handler().ServeHTTP(answer, r)
	return answer
}

// metric returns a sample.
func (w *world) metric(sample string) string {
	w.Helper()
	body := w.get("/metrics", "").Body.String()
	found := regexp.MustCompile("(?m)^" + regexp.QuoteMeta(sample) + " (.*)$").FindStringSubmatch(body)
	if found == nil {
		w.Fatalf("there is no %s in\n%s", sample, body)
	}
	return found[1]
}

func (w *world) wants(sample, value string) {
	w.Helper()
	if got := w.metric(sample); got != value {
		w.Errorf("%s is %s, want %s", sample, got, value)
	}
}

// TestOthersGoOn has neither a broker that is down nor a topic that is missing stop
// others, and goes on with them when they are there.
func TestOthersGoOn(t *testing.T) {
	inWorld(t, func(w *world) {
		w.down["events"] = errors.New("connection refused")
		w.publish("shop", "orders-dead", 3) // and nobody has made refunds-dead
		w.run()
		time.Sleep(10 * time.Second)
		if n := w.letters("orders"); n != 3 {
			w.Errorf("%d letters of orders, want 3", n)
		}
		w.wants(`redrive_collect_paused{broker="shop",topic="orders-dead"}`, "0")
		w.wants(`redrive_collect_paused{broker="shop",topic="refunds-dead"}`, "1")
		w.wants(`redrive_collect_paused{broker="events",topic="payments-dead"}`, "1")
		w.publish("shop", "refunds-dead", 2)
		w.publish("events", "payments-dead", 1)
		w.mu.Lock()
		delete(w.down, "events")
		w.mu.Unlock()
		time.Sleep(5 * time.Minute)
		if n, m := w.letters("refunds"), w.letters("payments"); n != 2 || m != 1 {
			w.Errorf("%d letters of refunds and %d of payments, want 2 and 1", n, m)
		}
		w.wants(`redrive_collect_paused{broker="shop",topic="refunds-dead"}`, "0")
		w.wants(`redrive_collect_paused{broker="events",topic="payments-dead"}`, "0")
		w.wants(`redrive_collected_letters_total{broker="shop",result="new"}`, "5")
		if lag := w.metric(`redrive_collect_lag_seconds{broker="events"}`); !strings.HasPrefix(lag, "36") { // an hour and some seconds
			w.Errorf("the lag is %s", lag)
		}
	})
}

// TestStops leaves each letter in the broker or in the store.
func TestStops(t *testing.T) {
	inWorld(t, func(w *world) {
		w.publish("shop", "orders-dead", 2000)
		w.run()
		time.Sleep(time.Millisecond)
		w.stop()
		stored, left := w.letters("orders"), w.brokers["shop"].Stats("orders-dead")
		if int(stored)+left.Ready != 2000 || left.InFlight != 0 {
			w.Errorf("%d letters in the store, and %+v in the broker, want 2000 in all", stored, left)
		}
	})
}

// TestJobs works on a job, and reads the receipts of its letters.
func TestJobs(t *testing.T) {
	inWorld(t, func(w *world) {
		worker, err := consumer.New(w.brokers["shop"], consumer.Config{DeadLetter: "*-dead", Receipts: "receipts", Logger: slog.New(slog.DiscardHandler)})
		w.must(err)
		worker.Handle("orders", func(context.Context, *brokers.Message) error { return nil })
		w.run()
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		w.running.Go(func() { _ = worker.Run(ctx) })
		w.publish("shop", "orders-dead", 3)
		time.Sleep(time.Minute)
		plan, err := job.NewPlan(w.Context(), w.store, time.Now(), serve.Targets(w.server.Config), job.Spec{}, store.Filter{})
		w.must(err)
		j, err := plan.Create(w.Context(), w.store, time.Now(), store.Actor{Who: "anna"})
		w.must(err)
		time.Sleep(time.Minute)
		if j, err = w.store.Job(w.Context(), j.ID); err != nil || j.State != store.JobDone || j.Tally.Confirmed != 3 {
			w.Errorf("the job is %s, %+v, %v", j.State, j.Tally, err)
		}
		w.wants(`redrive_receipts_total{broker="shop",result="believed"}`, "3")
		w.wants(`redrive_letters{broker="shop",state="confirmed",topic="orders"}`, "3")
		cancel()
	})
}

// TestRetention deletes what was discarded, by the topic.
func TestRetention(t *testing.T) {
	inWorld(t, func(w *world) {
		w.publish("shop", "orders-dead", 1)
		w.publish("shop", "refunds-dead", 1)
		w.run()
		time.Sleep(time.Minute)
		_, err := w.store.Discard(w.Context(), time.Now(), store.Actor{Who: "anna"}, store.Filter{})
		w.must(err)
		for _, step := range []struct {
			wait            time.Duration
			orders, refunds string
		}{{50 * time.Minute, "1", "1"}, {80 * time.Minute, "1", "0"}, {time.Hour, "0", "0"}} {
			time.Sleep(step.wait)
			w.wants(`redrive_letters{broker="shop",state="discarded",topic="orders"}`, step.orders)
			w.wants(`redrive_letters{broker="shop",state="discarded",topic="refunds"}`, step.refunds)
		}
	})
}

// TestMetrics holds what the store says, whatever letters claim.
func TestMetrics(t *testing.T) {
	inWorld(t, func(w *world) {
		var letters []store.Collected
		for i, topic := range []string{"orders", "orders", "a\x1b[2J\xff", "b"} {
			e := dlq.Entry{Message: brokers.Message{ID: fmt.Sprint(i), Topic: topic}, Reason: "poison", DeadAt: time.Now().Add(-time.Duration(i+1) * time.Hour)}
			letters = append(letters, store.Collected{Broker: "shop", Source: "orders-dead", Format: "redrive", Raw: e.Encode(0), Entry: e})
		}
		letters[3].Broker = "gone"
		_, err := w.store.Collect(w.Context(), time.Now(), letters)
		w.must(err)
		for _, state := range []store.JobState{store.JobPaused, store.JobDone, store.JobRunning} {
			j, err := w.store.CreateJob(w.Context(), time.Now(), store.Actor{}, store.Filter{}, nil)
			w.must(err)
			if state != store.JobRunning {
				w.must(w.store.SetJob(w.Context(), time.Now(), store.Actor{}, j.ID, state, ""))
			}
		}
		time.Sleep(10 * time.Minute)
		for sample, want := range map[string]string{
			`redrive_letters{broker="shop",state="collected",topic="orders"}`:     "2",
			`redrive_letters{broker="shop",state="sent",topic="orders"}`:          "0",
			`redrive_letters{broker="events",state="collected",topic="payments"}`: "0",
			`redrive_letters{broker="shop",state="collected",topic="other"}`:      "1",
			`redrive_letters{broker="other",state="collected",topic="other"}`:     "1",
			`redrive_letters_oldest_seconds{broker="shop",topic="orders"}`:        "7800",
			`redrive_letters_oldest_seconds{broker="shop",topic="refunds"}`:       "0",
			`redrive_letter_groups_new`:                                           "3",
			`redrive_jobs{state="running"}`:                                       "1",
			`redrive_jobs{state="paused"}`:                                        "1",
			`redrive_jobs_paused_seconds`:                                         "600",
			`redrive_store_up`:                                                    "1",
		} {
			w.wants(sample, want)
		}
	})
}

// TestTopicsThatNobodyHas lets letters claim so many topics, with more letters than
// a real one, that not all can be told apart: those of the configuration are, and no
// letter is missing.
func TestTopicsThatNobodyHas(t *testing.T) {
	inWorld(t, func(w *world) {
		const claimed = 1100
		var letters []store.Collected
		for n := range 2*claimed + 1 {
			e := dlq.Entry{Message: brokers.Message{ID: fmt.Sprint(n), Topic: fmt.Sprintf("claimed-%d", n/2)}, Reason: "poison", DeadAt: time.Now()}
			if n == 2*claimed {
				e.Message.Topic = "orders"
			}
			letters = append(letters, store.Collected{Broker: "shop", Source: "orders-dead", Format: "redrive", Raw: e.Encode(0), Entry: e})
		}
		_, err := w.store.Collect(w.Context(), time.Now(), letters)
		w.must(err)
		w.wants(`redrive_letters{broker="shop",state="collected",topic="orders"}`, "1")
		w.wants(`redrive_letters{broker="shop",state="collected",topic="other"}`, "1998")
		w.wants(`redrive_letters{broker="other",state="collected",topic="other"}`, "202")
	})
}

// TestStoreIsGone still answers, and says so.
func TestStoreIsGone(t *testing.T) {
	inWorld(t, func(w *world) {
		if got := w.get("/healthz", ""); got.Code != http.StatusOK || got.Body.String() != "ok\n" {
			w.Errorf("healthy: %d %q", got.Code, got.Body)
		}
		w.must(w.store.Close())
		if got := w.get("/healthz", ""); got.Code != http.StatusServiceUnavailable || strings.Contains(got.Body.String(), "letters.db") {
			w.Errorf("without a store: %d %q", got.Code, got.Body)
		}
		w.wants("redrive_store_up", "0")
	})
}

func TestToken(t *testing.T) {
	inWorld(t, func(w *world) {
		h := w.server.Front("correct horse battery staple").Handler()
		for _, tt := range []struct {
			path, authorization string
			want                int
		}{
			{"/metrics", "", http.StatusUnauthorized},
			{"/metrics", "Bearer correct", http.StatusUnauthorized},
			{"/metrics", "correct horse battery staple", http.StatusUnauthorized},
			{"/metrics", "Bearer correct horse battery staple", http.StatusOK},
			{"/healthz", "", http.StatusOK},
			{"/", "Bearer correct horse battery staple", http.StatusNotFound},
		} {
			r := httptest.NewRequest(http.MethodGet, tt.path, nil)
			r.Header.Set("Authorization", tt.authorization)
			answer := httptest.NewRecorder()
			if h.ServeHTTP(answer, r); answer.Code != tt.want {
				w.Errorf("%s with %q: %d, want %d", tt.path, tt.authorization, answer.Code, tt.want)
			}
		}
	})
}

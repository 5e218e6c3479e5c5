package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/health"
)

const token = "a token of the worker"

// controls starts a worker, and returns it with the handler that controls it.
func controls(t *testing.T, broker brokers.Broker, cfg consumer.Config, register func(*consumer.Consumer)) (*worker, *consumer.Consumer, http.Handler) {
	t.Helper()
	var c *consumer.Consumer
	w := start(t, broker, cfg, func(made *consumer.Consumer) {
		c = made
		register(c)
	})
	synctest.Wait()
	return w, c, health.HandlerFor(c, health.Options{Token: token})
}

// act sends an action, which takes no time.
func act(t *testing.T, h http.Handler, path string) (code int, body string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil)
	r.Header.Set("Authorization", "Bearer "+token)
	w, began := httptest.NewRecorder(), time.Now()
	h.ServeHTTP(w, r)
	if took := time.Since(began); took > 0 {
		t.Errorf("%s took %v", path, took)
	}
	return w.Code, w.Body.String()
}

// does fails the test unless the answer has the status and the texts.
func does(t *testing.T, h http.Handler, path string, want int, texts ...string) {
	t.Helper()
	code, body := act(t, h, path)
	for _, text := range texts {
		if !strings.Contains(body, text) {
			t.Errorf("%s: %d %q, want %q in it", path, code, body, text)
		}
	}
	if code != want {
		t.Errorf("%s: %d %q, want %d", path, code, body, want)
	}
}

// traffic publishes a message to each topic every 100 ms, for d.
func traffic(t *testing.T, broker brokers.Broker, d time.Duration, topics ...string) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, topic := range topics {
			publish(t, broker, topic, fmt.Sprint(topic, time.Now().UnixMilli()))
		}
	}
}

// callsSince counts the calls of the source for messages of a topic.
func callsSince(b *tap, topic string, at time.Duration) (n int) {
	for _, c := range b.of("ack", "retry", "release", "reject", "extend") {
		if c.topic == topic && c.at >= at {
			n++
		}
	}
	return n
}

// The bank asks to stop payments for two hours, and mails go on. The broker hears
// nothing of payments meanwhile; then they come back in a ramp.
func TestPaymentsArePausedAndMailsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, bank, mail := newTap(memory.Options{}), &dependency{takes: 10 * time.Millisecond}, &dependency{takes: 10 * time.Millisecond}
		cfg := guarded()
		seen := record(&cfg, consumer.EventFailed, consumer.EventByHand)
		w, c, h := controls(t, broker, cfg, func(c *consumer.Consumer) {
			bank.register("payments")(c)
			mail.register("mails")(c)
		})
		traffic(t, broker.Broker, 30*time.Second, "payments", "mails")
		flood(t, broker.Broker, "payments", 50) // some of it is in the process
		does(t, h, "/pause?topic=payments&for=2h&by=ada&why=the+bank+asks", 200, "paused by hand: topic payments, since", "by ada: the bank asks")
		time.Sleep(time.Second)
		before := bank.done()
		at := time.Since(broker.born) + 10*time.Second
		traffic(t, broker.Broker, 5*time.Minute, "payments", "mails")
		time.Sleep(time.Hour + 54*time.Minute + 58*time.Second)
		if bank.done() != before || broker.paused() != "payments" {
			t.Errorf("%d payments ran in the pause, paused %q", bank.done()-before, broker.paused())
		}
		if n := callsSince(broker, "payments", at); n > 0 {
			t.Errorf("the broker was called %d times for payments in 2 h, want 0 after 10 s", n)
		}
		if s := broker.Stats("payments"); s.Ready != 3000+50+300-before {
			t.Errorf("payments: %+v, and %d served before: want all others ready, none held", s, before)
		}
		if mail.done() != 3300 {
			t.Errorf("%d mails served of 3,300", mail.done())
		}
		pause := c.Status().Topics[0].Pause
		if pause == nil || !pause.ByHand || pause.Next.Sub(pause.Since) != 2*time.Hour || !strings.Contains(pause.Cause, "the bank asks") {
			t.Errorf("status %+v, want a pause by hand of 2 h", pause)
		}
		time.Sleep(4 * time.Second) // 3 s after its end
		if n := bank.done() - before; n < 3 || n > 60 {
			t.Errorf("%d served in the first 3 s after the pause, want at most twice the 10 a second before", n)
		}
		if s := c.Status(); s.ByHand != nil || s.Topics[0].Pause != nil && s.Topics[0].Pause.ByHand {
			t.Errorf("still paused: %v", s)
		}
		w.stopAfter(10 * time.Minute)
		empty(t, broker.Broker, "payments", "payments.dead", "mails")
		if n := len(seen.of(consumer.EventFailed)); n > 0 {
			t.Errorf("%d runs failed", n)
		}
		if told := seen.of(consumer.EventByHand); len(told) < 241 || len(told) > 243 || len(told[len(told)-1].ByHand) != 0 {
			t.Errorf("told %d times, want every 30 s, and at the end that nothing is paused", len(told))
		}
	})
}

// One of two topics of a dependency is paused: the other one is not slower. When both
// are, it is the dependency, and comes back in a ramp.
func TestPauseOfATopicOfASharedDependency(t *testing.T) {
	for _, guard := range []string{"own", "off"} {
		bubble(t, guard, func(t *testing.T) {
			broker, bank := newTap(memory.Options{}), &dependency{takes: 10 * time.Millisecond}
			cfg := guarded()
			cfg.Guard.Off = guard == "off"
			shared := consumer.TopicConfig{Dependency: "bank"}
			w, c, h := controls(t, broker, cfg, func(c *consumer.Consumer) {
				bank.register("payments", shared)(c)
				bank.register("refunds", shared)(c)
			})
			traffic(t, broker.Broker, 10*time.Second, "payments", "refunds")
			does(t, h, "/pause?topic=payments&forever=true", 200, "without an end")
			before := bank.done()
			traffic(t, broker.Broker, time.Minute, "payments", "refunds")
			if n := bank.done() - before; n != 600 {
				t.Errorf("%d of 600 refunds served while payments are paused", n)
			}
			does(t, h, "/pause?dependency=bank&for=1h", 200, "topic payments", "dependency bank")
			before = bank.done()
			publish(t, broker.Broker, "refunds", "one more")
			does(t, h, "/resume?topic=payments", 200, "dependency bank")
			time.Sleep(30 * time.Minute)
			if bank.done() != before || broker.paused() != "payments+refunds" {
				t.Errorf("%d ran, paused %q: the pause of the dependency holds", bank.done()-before, broker.paused())
			}
			does(t, h, "/resume?dependency=bank", 200)
			if s := c.Status(); s.ByHand != nil {
				t.Errorf("still paused: %v", s.ByHand)
			}
			w.stopAfter(5 * time.Minute)
			empty(t, broker.Broker, "payments", "refunds", "payments.dead", "refunds.dead")
		})
	}
}

// A tenant is paused, and others go on. Its messages are not tried, and come when the
// pause ends.
func TestPauseOfATenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, d := newTap(memory.Options{}), &dependency{takes: 10 * time.Millisecond}
		broker.deliver = func(m *brokers.Delivery) {
			if strings.HasSuffix(string(m.Message.Body), "sent back") {
				m.Carried = &brokers.Meta{RedriveCount: 1}
			}
		}
		cfg := guarded()
		seen := record(&cfg, consumer.EventFailed, consumer.EventDeferred)
		w, _, h := controls(t, broker, cfg, d.register("orders", consumer.TopicConfig{DependencyOf: func(m *brokers.Message) string { return m.Key }}))
		does(t, h, "/pause?tenant=acme&for=1h", 200, "tenant acme")
		for range 100 {
			send(t, broker.Broker, "orders", brokers.Message{Key: "acme", Body: []byte("acme")}, brokers.Message{Key: "other", Body: []byte("other")},
				brokers.Message{Key: "acme", Body: []byte("acme, sent back")})
			time.Sleep(time.Second)
		}
		time.Sleep(55 * time.Minute)
		d.mu.Lock()
		acme, other := 0, 0
		for _, v := range d.calls {
			if strings.HasPrefix(v.body, "acme") {
				acme++
			} else {
				other++
			}
		}
		d.mu.Unlock()
		if acme != 0 || other != 100 {
			t.Errorf("%d of the paused tenant and %d of 100 others ran", acme, other)
		}
		for _, e := range seen.of(consumer.EventDeferred) {
			if e.Decision.Reason != "paused" || !strings.Contains(e.Err.Error(), "by hand") {
				t.Errorf("put off: %+v", e.Decision)
				break
			}
		}
		if n := len(seen.of(consumer.EventDeferred)); n > 200*25 {
			t.Errorf("put off %d times, want each at most 25 times in an hour", n)
		}
		w.stopAfter(20 * time.Minute)
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

// What waits for a limit in the process goes back to the broker at once, even if it
// was sent back from the dead letters.
func TestWaitingMessagesOfAPausedTopicAreGivenBack(t *testing.T) {
	for _, sentBack := range []int{0, 1} {
		bubble(t, fmt.Sprint("sent back ", sentBack), func(t *testing.T) {
			broker, d := newTap(memory.Options{}), &dependency{takes: time.Minute}
			broker.deliver = func(m *brokers.Delivery) {
				if sentBack > 0 {
					m.Carried = &brokers.Meta{RedriveCount: sentBack}
				}
			}
			shared := consumer.TopicConfig{Dependency: "bank", Concurrency: 20}
			w, c, h := controls(t, broker, guarded(), func(c *consumer.Consumer) {
				d.register("orders", shared)(c)
				d.register("refunds", shared)(c)
			})
			flood(t, broker.Broker, "refunds", 10)
			time.Sleep(time.Second)
			flood(t, broker.Broker, "orders", 40) // the limit is 20 at first
			time.Sleep(time.Second)
			if s := c.Status().Topics[0]; s.Waiting == 0 {
				t.Errorf("nothing waits: %+v", s)
			}
			does(t, h, "/pause?topic=orders&for=1h", 200)
			time.Sleep(10 * time.Second)
			if s := c.Status().Topics[0]; s.Waiting != 0 || s.InFlight != s.Running || s.Running == 0 {
				t.Errorf("in the process: %+v, want only what runs", s)
			}
			w.stopAfter(2 * time.Hour)
			empty(t, broker.Broker, "orders", "orders.dead")
		})
	}
}

// The dependency is down, and its limiter has paused it, when a person pauses it, too.
// It serves again long before the pause ends.
func TestPauseDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, bank, mail := newTap(memory.Options{}), &dependency{takes: 10 * time.Millisecond}, &dependency{takes: 10 * time.Millisecond}
		w, c, h := controls(t, broker, guarded(), func(c *consumer.Consumer) {
			bank.register("payments")(c)
			mail.register("mails")(c)
		})
		traffic(t, broker.Broker, 10*time.Second, "payments", "mails")
		bank.set(unavailable)
		traffic(t, broker.Broker, 5*time.Minute, "payments", "mails")
		if p := c.Status().Topics[0].Pause; p == nil || p.ByHand {
			t.Fatalf("pause %+v, want one by the limiter", p)
		}
		does(t, h, "/pause?topic=payments&for=30m", 200, "topic payments")
		bank.set(nil)
		time.Sleep(time.Second)
		from := time.Now()
		time.Sleep(29 * time.Minute)
		if n := len(bank.since(from)); n > 0 {
			t.Errorf("%d runs in the pause", n)
		}
		w.stopAfter(20 * time.Minute)
		empty(t, broker.Broker, "payments", "payments.dead", "mails")
	})
}

// Partitions move while a topic is paused: its new ones are not received, either.
func TestPauseDuringARebalance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, end := context.WithCancelCause(context.Background())
		var session atomic.Pointer[context.Context]
		session.Store(&first)
		broker, d := newTap(memory.Options{}), &dependency{takes: time.Second}
		broker.deliver = func(m *brokers.Delivery) { m.Session = *session.Load() }
		w, _, h := controls(t, broker, guarded(), func(c *consumer.Consumer) {
			d.register("payments")(c)
			d.register("mails", consumer.TopicConfig{})(c)
		})
		flood(t, broker.Broker, "payments", 20)
		time.Sleep(500 * time.Millisecond)
		does(t, h, "/pause?topic=payments&for=10m", 200)
		end(errors.New("the group rebalances"))
		time.Sleep(time.Second)
		session.Store(new(context.Background()))
		before := d.done()
		for i := range 20 {
			publish(t, broker.Broker, "mails", fmt.Sprint("mail ", i))
		}
		time.Sleep(9 * time.Minute)
		if n := d.done() - before; n != 20 {
			t.Errorf("%d served in the pause, want the 20 mails", n)
		}
		w.stopAfter(5 * time.Minute)
		empty(t, broker.Broker, "payments", "payments.dead", "mails")
	})
}

// A pause that was forgotten is in the log twice a minute, as a warning.
func TestForgottenPauseIsVisible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, d := newTap(memory.Options{}), &dependency{}
		var log bytes.Buffer
		cfg := guarded()
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		w, _, h := controls(t, broker, cfg, d.register("orders"))
		does(t, h, "/pause?topic=orders&forever=true&by=ada", 200)
		time.Sleep(time.Hour)
		if code, body := probed(t, h, "/statusz"); code != 200 || !strings.Contains(body, "paused by hand: topic orders, since") || !strings.Contains(body, "without an end, by ada") || !strings.Contains(body, "paused for 1h0m0s") {
			t.Errorf("/statusz: %s", body)
		}
		if code, body := probed(t, h, "/livez"); code != 200 {
			t.Errorf("/livez: %d %s", code, body)
		}
		w.mustShutdown()
		if n := strings.Count(log.String(), `level=WARN msg="paused by hand" pauses=1 paused="topic orders, since`); n < 120 || n > 122 {
			t.Errorf("%d lines in an hour, want one every 30 s:\n%.2000s", n, log.String())
		}
	})
}

// A worker drains, by hand, while a topic is paused: what it holds goes back.
func TestDrainWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, d := newTap(memory.Options{}), &dependency{takes: time.Second}
		w, c, h := controls(t, broker, guarded(), d.register("orders"))
		flood(t, broker.Broker, "orders", 30)
		time.Sleep(500 * time.Millisecond)
		does(t, h, "/pause?topic=orders&for=1h", 200)
		does(t, h, "/drain", 200)
		synctest.Wait()
		if p := c.Status().ByHand; p != nil {
			t.Errorf("a worker that drains has paused %v", p)
		}
		for _, path := range []string{"/pause?topic=orders&for=1h", "/resume?topic=orders", "/skip?topic=orders&id=1"} {
			does(t, h, path, 409, "the worker is draining")
		}
		if err := <-w.done; err != nil {
			t.Errorf("Run = %v", err)
		}
		does(t, h, "/pause?topic=orders&for=1h", 409, "the worker is stopped")
		does(t, h, "/drain", 200, "stopped")
		if s := broker.Stats("orders"); s.Ready+s.Delayed+d.done() != 30 || s.InFlight != 0 {
			t.Errorf("%+v, and %d served: want all 30", s, d.done())
		}
		w.stop()
		if s := c.Status(); s.State != health.Stopped {
			t.Errorf("state %s", s.State)
		}
	})
}

func TestControlRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, d := newTap(memory.Options{}), &dependency{}
		c := must(consumer.New(broker, guarded()))
		d.register("orders")(c)
		h := health.HandlerFor(c, health.Options{Token: token})
		does(t, h, "/pause?topic=orders&for=1h", 409, "Run was not called")
		does(t, h, "/drain", 409, "Run was not called")
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		anHourAgo := time.Now().Add(-time.Hour).Format("2006-01-02T15:04:05Z")
		for path, want := range map[string]struct {
			code int
			text string
		}{
			"/pause?topic=payments&for=1h":           {404, `topic "payments" is not known to this worker: it has ["orders"]`},
			"/pause?dependency=bank&for=1h":          {404, `it has ["orders"]`},
			"/pause?tenant=acme&for=1h":              {404, "DependencyOf"},
			"/resume?topic=payments":                 {404, `["orders"]`},
			"/skip?topic=payments&id=1":              {404, `["orders"]`},
			"/skip?topic=orders&id=1":                {404, `message "1" of topic "orders" is not known to this worker`},
			"/resume?topic=orders":                   {200, ""},
			"/pause?topic=orders&until=" + anHourAgo: {400, "it is " + time.Now().UTC().Format(time.RFC3339) + " at this worker"},
		} {
			does(t, h, path, want.code, want.text)
		}
		for _, p := range []health.ByHand{{}, {Topic: "orders", Tenant: "acme"}, {Topic: "orders", Until: time.Now()}} {
			if err := c.Pause(p); err == nil || errors.Is(err, health.ErrUnknown) {
				t.Errorf("Pause(%+v) = %v", p, err)
			}
		}
		until := time.Now().Add(time.Hour)
		for i := range 2 { // the second call changes the end
			if err := c.Pause(health.ByHand{Topic: "orders", Until: until.Add(time.Duration(i) * time.Hour)}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
		}
		if got := c.Status().ByHand; len(got) != 1 || !got[0].Until.Equal(until.Add(time.Hour)) || !got[0].Since.Equal(until.Add(-time.Hour)) {
			t.Errorf("paused %v, want once, to the second end, since the first call", got)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A message is skipped, wherever it is in the worker. Others go on, in their order.
func TestSkip(t *testing.T) {
	const deaf = time.Hour
	tests := []struct {
		name   string
		run    func(ctx context.Context) error // of the message "stuck"
		behind bool                            // it waits behind another one of its key
		dies   time.Duration                   // after it is skipped
		text   string
	}{
		{name: "runs and listens", dies: 0, text: "its handler returned: context canceled", run: func(ctx context.Context) error {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), consumer.ErrSkipped) {
				return fmt.Errorf("cause %w", context.Cause(ctx))
			}
			return ctx.Err()
		}},
		{name: "runs and is deaf", dies: 10 * time.Second, text: "ignores that its context has ended", run: func(context.Context) error { time.Sleep(deaf); return nil }},
		{name: "waits for its retry", run: func(context.Context) error { return errBusy }},
		{name: "waits behind its key", behind: true, run: func(context.Context) error { return nil }},
	}
	for _, tt := range tests {
		bubble(t, tt.name, func(t *testing.T) {
			broker, cfg, log := newTap(memory.Options{}), guarded(), newDiary()
			cfg.OrderByKey, cfg.HandlerTimeout, cfg.HoldLimit, cfg.Retry = true, 24*time.Hour, 2*deaf, every(deaf, 5)
			seen := record(&cfg)
			w, c, h := controls(t, broker, cfg, orders(func(ctx context.Context, m *brokers.Message) error {
				log.write("%s", m.ID)
				switch m.ID {
				case "stuck":
					return tt.run(ctx)
				case "first":
					time.Sleep(2 * time.Minute)
				}
				return nil
			}))
			if tt.behind {
				send(t, broker.Broker, "orders", brokers.Message{ID: "first", Key: "k"})
			}
			send(t, broker.Broker, "orders", brokers.Message{ID: "stuck", Key: "k"}, brokers.Message{ID: "second", Key: "k"}, brokers.Message{ID: "third", Key: "k"}, brokers.Message{ID: "other"})
			time.Sleep(time.Minute)
			does(t, h, "/skip?topic=orders&id=stuck&by=ada&why=it+hangs", 200)
			if code, body := act(t, h, "/skip?topic=orders&id=stuck"); code != 200 && code != 404 { // it may have ended already
				t.Errorf("the second time: %d %s", code, body)
			}
			began := time.Now()
			time.Sleep(time.Minute + time.Second)
			letter := oneDeadLetterOf(t, broker, "stuck")
			if letter.Reason != "skipped-by-hand" || !strings.Contains(letter.ErrorText, "the message is skipped by hand: ada: it hangs") || !strings.Contains(letter.ErrorText, tt.text) {
				t.Errorf("dead letter %q: %q", letter.Reason, letter.ErrorText)
			}
			if after := letter.DeadAt.Sub(began); after != tt.dies {
				t.Errorf("dead after %v, want %v", after, tt.dies)
			}
			want := []string{"1m0s second", "1m0s third"}
			if tt.dies > 0 {
				want = []string{"1m10s second", "1m10s third"}
			}
			if tt.behind {
				want = []string{"2m0s second", "2m0s third"}
			}
			log.mu.Lock()
			if got := log.lines[len(log.lines)-2:]; !slices.Equal(got, want) {
				t.Errorf("the last runs are %q, want %q", got, want)
			}
			log.mu.Unlock()
			does(t, h, "/skip?topic=orders&id=stuck", 404, "has ended")
			if s := c.Status().Topics[0]; s.InFlight != 0 || s.Stuck != min(1, int(tt.dies)) || s.DeadLetters10m != 1 {
				t.Errorf("status %+v", s)
			}
			w.stopAfter(deaf)
			empty(t, broker.Broker, "orders")
			if s := c.Status().Topics[0]; s.InFlight != 0 || s.Stuck != 0 || s.Running != 0 {
				t.Errorf("status at the end %+v", s)
			}
			publishes := broker.of("publish", "ack")
			dead := slices.IndexFunc(publishes, func(c call) bool { return c.topic == "orders.dead" })
			acked := slices.IndexFunc(publishes, func(c call) bool { return c.what == "ack" && c.id == "stuck" })
			if dead < 0 || acked < dead {
				t.Errorf("the dead letter is call %d, the ack call %d", dead, acked)
			}
			if n := len(seen.of(consumer.EventStuck)); n != min(1, int(tt.dies)) || len(seen.of(consumer.EventUnstuck)) != 0 {
				t.Errorf("stuck %d times", n)
			}
		})
	}
}

// The dead letter of a message behind its key is not durable yet when its turn comes.
func TestSkippedMessageHasNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		born, log, cfg := time.Now(), newDiary(), guarded()
		broker := newTap(with(memory.Fault{Err: errBusy}, func(op memory.Op) bool { return deadLettering(op) && time.Since(born) < 5*time.Minute }))
		cfg.OrderByKey = true
		w, _, h := controls(t, broker, cfg, orders(func(_ context.Context, m *brokers.Message) error {
			log.write("%s", m.ID)
			time.Sleep(time.Minute)
			return nil
		}))
		send(t, broker.Broker, "orders", brokers.Message{ID: "first", Key: "k"}, brokers.Message{ID: "skipped", Key: "k"}, brokers.Message{ID: "second", Key: "k"})
		time.Sleep(time.Second)
		does(t, h, "/skip?topic=orders&id=skipped", 200)
		w.stopAfter(10 * time.Minute)
		log.expect(t, "0s first", "1m0s second")
		oneDeadLetterOf(t, broker, "skipped")
		empty(t, broker.Broker, "orders")
	})
}

// A handler that succeeds although its message is skipped has done its work.
func TestSkipOfAMessageThatSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := newTap(memory.Options{})
		w, _, h := controls(t, broker, guarded(), orders(func(ctx context.Context, m *brokers.Message) error {
			<-ctx.Done()
			return nil
		}))
		send(t, broker.Broker, "orders", brokers.Message{ID: "one"})
		time.Sleep(time.Second)
		does(t, h, "/skip?topic=orders&id=one", 200)
		w.stopAfter(time.Second)
		empty(t, broker.Broker, "orders", "orders.dead")
	})
}

// One message of a batch is skipped. The others are given back, uncounted, and run again.
func TestSkipOfOneOfABatch(t *testing.T) {
	for _, listens := range []bool{true, false} {
		bubble(t, fmt.Sprint("listens ", listens), func(t *testing.T) {
			broker, cfg := newTap(memory.Options{}), quiet() // every failure counts
			cfg.HandlerTimeout = 24 * time.Hour
			attempts := 0
			w, c, h := controls(t, broker, cfg, func(c *consumer.Consumer) {
				c.HandleBatch("orders", func(ctx context.Context, batch []brokers.Item) []error {
					results := make([]error, len(batch))
					for _, item := range batch {
						attempts = max(attempts, item.Meta.Attempt)
						if item.Message.ID != "stuck" {
							continue
						}
						if !listens {
							time.Sleep(time.Hour)
							return results
						}
						<-ctx.Done()
						for j := range results {
							results[j] = fmt.Errorf("row %d: %w", j, ctx.Err())
						}
						return results
					}
					return results
				}, consumer.TopicConfig{BatchSize: 3})
			})
			send(t, broker.Broker, "orders", brokers.Message{ID: "one"}, brokers.Message{ID: "stuck"}, brokers.Message{ID: "two"})
			time.Sleep(time.Minute)
			does(t, h, "/skip?topic=orders&id=stuck", 200)
			time.Sleep(time.Minute)
			if letter := oneDeadLetterOf(t, broker, "stuck"); letter.Reason != "skipped-by-hand" {
				t.Errorf("reason %q", letter.Reason)
			}
			w.stopAfter(2 * time.Hour)
			empty(t, broker.Broker, "orders")
			if s := c.Status().Topics[0]; attempts != 1 || s.InFlight != 0 || s.Stuck != 0 || s.DeadLetters10m > 1 {
				t.Errorf("attempt %d, status %+v", attempts, s)
			}
		})
	}
}

// A message is skipped whose batch hangs, and which fails as a whole in the end. That does
// not count against the only other one.
func TestSkipOfOneOfABatchThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, cfg := newTap(memory.Options{}), quiet() // every failure counts
		cfg.HandlerTimeout = time.Minute
		var attempts []int
		w, _, h := controls(t, broker, cfg, func(c *consumer.Consumer) {
			c.HandleBatch("orders", func(_ context.Context, batch []brokers.Item) []error {
				if len(batch) > 1 {
					time.Sleep(time.Hour)
					return slices.Repeat([]error{errBusy}, len(batch))
				}
				attempts = append(attempts, batch[0].Meta.Attempt)
				return nil
			}, consumer.TopicConfig{BatchSize: 2})
		})
		send(t, broker.Broker, "orders", brokers.Message{ID: "one"}, brokers.Message{ID: "stuck"})
		time.Sleep(2 * time.Minute)
		does(t, h, "/skip?topic=orders&id=stuck", 200)
		w.stopAfter(2 * time.Hour)
		oneDeadLetterOf(t, broker, "stuck")
		if !slices.Equal(attempts, []int{1}) {
			t.Errorf("the other message ran as attempts %v, want 1: it is not to blame", attempts)
		}
	})
}

// oneDeadLetterOf returns the only dead letter, which must be of that message.
func oneDeadLetterOf(t *testing.T, broker *tap, id string) dlq.Entry {
	t.Helper()
	letters := deadLetters(t, broker.Broker, "orders")
	if len(letters) != 1 || letters[0].Message.ID != id {
		t.Errorf("dead letters %+v, want one, of %q", letters, id)
		return dlq.Entry{}
	}
	return letters[0]
}

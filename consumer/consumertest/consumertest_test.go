package consumertest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/consumer/consumertest"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/retry"
)

// returns is a handler that returns err.
func returns(err error) consumer.Handler {
	return func(context.Context, *brokers.Message) error { return err }
}

func TestSuccess(t *testing.T) {
	handled := 0
	got := consumertest.Run(t, func(_ context.Context, m *brokers.Message) error {
		handled++
		if string(m.Body) != "body" || m.Topic != "orders" || m.ID != "m-1" {
			t.Errorf("message %+v", m)
		}
		return nil
	}, brokers.Message{ID: "m-1", Topic: "orders", Body: []byte("body")}, consumer.Config{})
	if handled != 1 || got.Settlement.Action != brokers.Ack || got.Settlement.Delivery == nil {
		t.Errorf("handled %d times, %+v; want once and acked", handled, got)
	}
	if got.Err != nil || got.Verdict != (classify.Verdict{}) || got.DeadLetter != nil {
		t.Errorf("%+v, want no trace of a failure", got)
	}
}

func TestFailuresOfEachClass(t *testing.T) {
	var (
		odd      = errors.New("odd")
		shutdown = func(err error) error {
			return classify.With(err, classify.Verdict{Class: classify.ClassShutdown})
		}
	)
	for _, tt := range []struct {
		name   string
		err    error
		rule   classify.Rule
		class  string
		want   retry.Decision // Delay is checked by bounds
		settle brokers.Action
		dead   string
	}{
		{name: "poison", err: classify.Permanent(odd), class: classify.ClassPoison,
			want: retry.Decision{DeadLetter: true, Reason: "poison", Counted: true}, settle: brokers.Ack, dead: "poison"},
		{name: "skip", err: classify.Skip(odd), class: classify.ClassSkipped,
			want: retry.Decision{Reason: "skipped"}, settle: brokers.Ack},
		{name: "transient", err: classify.Transient(odd), class: classify.ClassTransient,
			want: retry.Decision{Retry: true, Reason: "transient", Counted: true}, settle: brokers.Retry},
		{name: "throttled", err: classify.Throttled(odd, time.Minute), class: classify.ClassThrottled,
			want: retry.Decision{Retry: true, Reason: "throttled", Delay: time.Minute}, settle: brokers.Retry},
		{name: "unknown", err: odd, class: classify.ClassUnknown,
			want: retry.Decision{Retry: true, Reason: "unknown", Counted: true}, settle: brokers.Retry},
		{name: "environment", err: &classify.HTTPError{Status: 401}, class: classify.ClassEnvironment,
			want: retry.Decision{Retry: true, Reason: "environment"}, settle: brokers.Retry},
		{name: "a rule that says shutdown", err: odd, rule: shutdown, class: classify.ClassUnknown,
			want: retry.Decision{Retry: true, Reason: "unknown", Counted: true}, settle: brokers.Retry},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := consumer.Config{}
			if tt.rule != nil {
				cfg.Rules = []classify.Rule{tt.rule}
			}
			got := consumertest.Run(t, returns(tt.err), brokers.Message{}, cfg)
			if got.Err != tt.err || got.Verdict.Class != tt.class {
				t.Errorf("error %v of class %q, want %v of %q", got.Err, got.Verdict.Class, tt.err, tt.class)
			}
			delay := got.Decision.Delay
			if got.Decision.Delay = tt.want.Delay; got.Decision != tt.want || delay < tt.want.Delay {
				t.Errorf("decision %+v after %v, want %+v", got.Decision, delay, tt.want)
			}
			if got.Settlement.Action != tt.settle {
				t.Errorf("settled with %v, want %v", got.Settlement.Action, tt.settle)
			}
			if tt.settle == brokers.Retry {
				meta := got.Settlement.Meta
				counted := map[bool]int{true: 1}[tt.want.Counted]
				if meta.Attempt != counted || meta.Class != tt.class || meta.Delay != delay || len(meta.History) != 1 {
					t.Errorf("the next run gets %+v, want attempt %d and delay %v", meta, counted, delay)
				}
			}
			if reason := reasonOf(got.DeadLetter); reason != tt.dead {
				t.Errorf("dead letter %q, want %q", reason, tt.dead)
			}
		})
	}
}

func reasonOf(entry *dlq.Entry) string {
	if entry == nil {
		return ""
	}
	return entry.Reason
}

func TestDeadLetterIsAsItWillBeRead(t *testing.T) {
	m := brokers.Message{
		Topic: "orders", Key: "k", Body: []byte("{"),
		Headers: brokers.Headers{{Name: "trace", Value: "1"}},
	}
	handler := consumer.JSON(func(context.Context, struct{}) error { return nil })
	entry := consumertest.Run(t, handler, m, consumer.Config{Instance: "worker-7"}).DeadLetter
	if entry == nil {
		t.Fatal("no dead letter")
	}
	if entry.Reason != "undecodable" || string(entry.Message.Body) != "{" || entry.Message.Topic != "orders" ||
		entry.Message.ID != "message-1" || entry.Message.Headers.Get("trace") != "1" || entry.Meta.Attempt != 1 ||
		entry.DeadBy != "worker-7" || !strings.Contains(entry.ErrorText, "unexpected EOF") || entry.DeadAt.IsZero() {
		t.Errorf("dead letter %+v", entry)
	}
}

func TestDiscardLeavesNoDeadLetter(t *testing.T) {
	got := consumertest.Run(t, returns(classify.Permanent(errors.New("no"))), brokers.Message{}, consumer.Config{DeadLetter: dlq.Discard})
	if !got.Decision.DeadLetter || got.Settlement.Action != brokers.Ack || got.DeadLetter != nil {
		t.Errorf("%+v, want a dead letter decided on and none written", got)
	}
}

func TestLastAttempt(t *testing.T) {
	busy := returns(classify.Transient(errors.New("busy")))
	for attempt, want := range map[int]bool{8: false, 9: true} {
		d := brokers.Delivery{Carried: &brokers.Meta{Attempt: attempt, FirstFailedAt: time.Now().Add(-time.Hour)}}
		got := consumertest.Deliver(t, busy, d, consumer.Config{})
		if got.Decision.DeadLetter != want || got.Decision.Retry == want {
			t.Errorf("run %d: %+v, want %v", attempt+1, got.Decision, want)
		}
		if want && (reasonOf(got.DeadLetter) != "exhausted" || got.DeadLetter.Meta.Attempt != 10) {
			t.Errorf("dead letter %+v, want exhausted after 10", got.DeadLetter)
		}
	}
}

func TestSettingsOfTheTopicApply(t *testing.T) {
	got := consumertest.DeliverWith(t, returns(errors.New("odd")), brokers.Delivery{}, consumer.Config{}, consumer.TopicConfig{MaxAttempts: 1})
	if !got.Decision.DeadLetter || got.DeadLetter == nil {
		t.Errorf("%+v, want a dead letter after the only attempt", got)
	}
}

func TestPanic(t *testing.T) {
	boom := func(context.Context, *brokers.Message) error { panic("boom") }
	got := consumertest.Run(t, boom, brokers.Message{}, consumer.Config{})
	if p, ok := errors.AsType[*classify.PanicError](got.Err); !ok || p.Value != "boom" || !got.Decision.Retry {
		t.Errorf("%v, %+v; want the panic and another try", got.Err, got.Decision)
	}
	sixth := brokers.Delivery{Carried: &brokers.Meta{Attempt: 5}}
	got = consumertest.Deliver(t, boom, sixth, consumer.Config{Stacks: true})
	if reasonOf(got.DeadLetter) != "panic" || !strings.Contains(got.DeadLetter.Stack, "consumertest_test.go") {
		t.Errorf("dead letter %+v, want reason panic with the stack", got.DeadLetter)
	}
}

func TestGoexit(t *testing.T) {
	got := consumertest.Run(t, func(context.Context, *brokers.Message) error { runtime.Goexit(); return nil }, brokers.Message{}, consumer.Config{})
	if got.Verdict.Class != classify.ClassUnknown || got.Settlement.Action != brokers.Retry {
		t.Errorf("%+v, want a failure of class unknown", got)
	}
}

func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		got := consumertest.Run(t, func(ctx context.Context, _ *brokers.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}, brokers.Message{}, consumer.Config{HandlerTimeout: time.Minute})
		if took := time.Since(began); took != time.Minute {
			t.Errorf("took %v, want no more than the timeout", took)
		}
		if got.Verdict.Class != classify.ClassTransient || got.Verdict.Reason != "timeout" || !got.Decision.Retry {
			t.Errorf("%+v, want a transient timeout", got)
		}
	})
}

func TestContext(t *testing.T) {
	d := brokers.Delivery{
		Message: brokers.Message{ID: "m-1"},
		Carried: &brokers.Meta{Attempt: 2, RedriveCount: 1, IdempotencyKey: "key"},
	}
	consumertest.Deliver(t, func(ctx context.Context, m *brokers.Message) error {
		meta := consumer.MetaFrom(ctx)
		if meta.Attempt != 3 || meta.RedriveCount != 1 || meta.IdempotencyKey != "key" || consumer.MessageFrom(ctx) != m || m.Topic != "test" {
			t.Errorf("meta %+v of %+v", meta, m)
		}
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 5*time.Minute {
			t.Errorf("deadline %v, want the default of 5m", deadline)
		}
		return nil
	}, d, consumer.Config{})
}

func TestWhatIsNotRun(t *testing.T) {
	for _, tt := range []struct {
		name   string
		d      brokers.Delivery
		cfg    consumer.Config
		reason string
		settle brokers.Action
	}{
		{"oversize", brokers.Delivery{Message: brokers.Message{Body: []byte("0123456789")}}, consumer.Config{MaxBody: 9}, "oversize", brokers.Ack},
		{"suspect", brokers.Delivery{Abandoned: 3}, consumer.Config{}, "", brokers.Retry},
		{"crash loop", brokers.Delivery{Abandoned: 3, Carried: &brokers.Meta{Crashes: 2}}, consumer.Config{}, "crash-loop", brokers.Ack},
		{"crash loop of earlier copies", brokers.Delivery{Carried: &brokers.Meta{Crashes: 4}}, consumer.Config{}, "crash-loop", brokers.Ack},
		{"not due", brokers.Delivery{Carried: &brokers.Meta{DueAt: time.Now().Add(time.Hour)}}, consumer.Config{}, "", brokers.Retry},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := consumertest.Deliver(t, func(context.Context, *brokers.Message) error { t.Error("run"); return nil }, tt.d, tt.cfg)
			want := retry.Decision{DeadLetter: tt.reason != "", Reason: tt.reason}
			if got.Decision != want || reasonOf(got.DeadLetter) != tt.reason || got.Settlement.Action != tt.settle {
				t.Errorf("%+v, want %+v", got, want)
			}
			if got.Err != nil {
				t.Errorf("error %v of a handler that did not run", got.Err)
			}
		})
	}
}

// A delivery whose session has ended, or ends while the handler runs, belongs
// to somebody else: nothing is settled.
func TestLostLease(t *testing.T) {
	ended, end := context.WithCancelCause(t.Context())
	end(errors.New("the channel is closed"))
	got := consumertest.Deliver(t, func(context.Context, *brokers.Message) error { t.Error("run"); return nil },
		brokers.Delivery{Session: ended}, consumer.Config{})
	checkLost(t, "before the run", got)

	session, end := context.WithCancelCause(t.Context())
	got = consumertest.Deliver(t, func(ctx context.Context, _ *brokers.Message) error {
		end(errors.New("the channel is closed"))
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, brokers.ErrLeaseLost) {
			t.Errorf("cause %v, want ErrLeaseLost", cause)
		}
		return classify.Permanent(errors.New("no"))
	}, brokers.Delivery{Session: session}, consumer.Config{})
	checkLost(t, "during the run", got)
}

func checkLost(t *testing.T, when string, got consumertest.Result) {
	t.Helper()
	if got.Decision != (retry.Decision{Reason: "lost"}) || got.Settlement.Delivery != nil || got.DeadLetter != nil {
		t.Errorf("%s: %+v, want that nothing is touched", when, got)
	}
}

type kinds []string

func (k *kinds) Observe(_ context.Context, e consumer.Event) { *k = append(*k, e.Kind) }

func TestObserversSeeTheRun(t *testing.T) {
	var seen kinds
	observers := make([]consumer.Observer, 1, 2) // room that Run must not write into
	observers[0] = &seen
	consumertest.Run(t, returns(nil), brokers.Message{}, consumer.Config{Observers: observers})
	if got := fmt.Sprint(seen); got != "[received started succeeded settled]" {
		t.Errorf("events %s", got)
	}
	if extra := observers[:2][1]; extra != nil {
		t.Errorf("%T was written behind the caller's observers", extra)
	}
}

// fake is a testing.TB that keeps what fails it.
type fake struct {
	testing.TB
	fatal []any
}

func (f *fake) Helper()                  {}
func (f *fake) Context() context.Context { return context.Background() }
func (f *fake) Fatal(args ...any) {
	f.fatal = append(f.fatal, args...)
	runtime.Goexit()
}

func TestFaultsFailTheTest(t *testing.T) {
	for _, tt := range []struct {
		name     string
		handler  consumer.Handler
		cfg      consumer.Config
		settings consumer.TopicConfig
		want     string
	}{
		{"Config", returns(nil), consumer.Config{Concurrency: -1}, consumer.TopicConfig{}, "Config.Concurrency: -1 is out of range"},
		{"Topic", returns(nil), consumer.Config{}, consumer.TopicConfig{MaxBody: -1}, `Topic("test").MaxBody: -1 is out of range`},
		{"handler", nil, consumer.Config{}, consumer.TopicConfig{}, "the handler is nil"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &fake{}
			finished := make(chan struct{})
			go func() {
				defer close(finished)
				got := consumertest.DeliverWith(f, tt.handler, brokers.Delivery{}, tt.cfg, tt.settings)
				t.Errorf("returned %+v, want the test ended", got)
			}()
			<-finished
			if text := fmt.Sprint(f.fatal...); !strings.Contains(text, tt.want) {
				t.Errorf("failed with %q, want %q", text, tt.want)
			}
		})
	}
}

package snippets

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/consumer/consumertest"
	"github.com/redrive-go/redrive/integration/goldentest"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/flow"
)

// kind of failure: a row of the table. All its causes have the same.
type kind struct {
	name   string
	causes []consumer.Handler
}

// with returns handlers that fail with errs.
func with(errs ...error) (handlers []consumer.Handler) {
	for _, err := range errs {
		handlers = append(handlers, func(context.Context, *brokers.Message) error { return err })
	}
	return handlers
}

func status(code int) error { return &classify.HTTPError{Status: code} }

const hint = 90 * time.Second

var kinds = []kind{
	{"undecodable body, status 400 or 422, `classify.Permanent`", append(
		with(status(400), status(422), classify.Permanent(errAny)),
		consumer.JSON(func(context.Context, struct{ ID int }) error { return nil }))},
	{"a panic", []consumer.Handler{func(context.Context, *brokers.Message) error { panic("any") }}},
	{"connection refused or reset, status 500 or 503, deadlock, `classify.Transient`", with(syscall.ECONNREFUSED, syscall.ECONNRESET,
		status(500), status(503), stateError("40P01"), classify.Transient(errAny))},
	{"the handler's timeout", []consumer.Handler{func(ctx context.Context, _ *brokers.Message) error { <-ctx.Done(); return ctx.Err() }}},
	{"`classify.RetryAfter`", with(classify.RetryAfter(errAny, hint))},
	{"status 429, 503 with Retry-After, `classify.Throttled`", with(&classify.HTTPError{Status: 429, Wait: hint}, &classify.HTTPError{Status: 503, Wait: hint}, classify.Throttled(errAny, hint))},
	{"status 401, expired certificate, full disk", with(status(401), x509.CertificateInvalidError{Reason: x509.Expired}, syscall.ENOSPC)},
	{"anything that no rule knows", with(errAny)},
	{"`classify.Defer`", with(classify.Defer(errAny, hint))},
	{"`classify.Skip`", with(classify.Skip(errAny))},
}

// TestFailures compares the table of failures with what becomes
// of messages that fail so, on the default Config.
func TestFailures(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("| The error | Class | Runs again | Counted as an attempt? | Dead letter? | When practically all fail so |\n|---|---|---|---|---|---|\n")
	for _, k := range kinds {
		var row string
		for i, cause := range k.causes {
			got := cellsOf(t, cause)
			if i > 0 && got != row {
				t.Errorf("cause %d of %q: %s, others: %s", i, k.name, got, row)
			}
			row = got
		}
		fmt.Fprintf(&b, "| %s | %s |\n", k.name, row)
	}
	b.WriteString(others)
	goldentest.Parts(t, "../../docs/reference/failures.md", map[string]string{"failures": b.String()})
}

// others are rows that the tests of the consumer hold: TestBadRowOfABatchEndsAlone,
// TestAgeInAnOutage, TestInterruptedHandlerIsReleasedUncounted and
// TestLostLeaseEndsTheHandlerAndItsResult.
const others = "" +
	"| a whole batch, with one error | as the error says | at once, in halves, down to alone | alone | as the error says | as the error says |\n" +
	"| any of these, while no other message succeeds | as the error says | within 1 s, doubling to 9 min | never " +
	"| unknown after 24 h, an outage after 7 days, poison as above | as above |\n" +
	"| work cut off because the worker stops | shutdown | given back at once | never | never | |\n" +
	"| the lease is gone | lost | not touched: the broker delivers it again | never | never | |\n"

// run is a failed run of a message.
type run struct {
	decision retry.Decision
	class    string
	at       time.Time
}

// cellsOf describes the life of a message whose handler is h, and of a topic.
func cellsOf(t *testing.T, h consumer.Handler) string {
	shortest, longest := lifeOf(t, h, 0.000_001), lifeOf(t, h, 0.999_999)
	return strings.Join([]string{string(longest[0].class), again(shortest, longest), counted(longest), end(longest), slows(t, h)}, " | ")
}

// lifeOf runs a message again and again, each delay drawn with random, until it
// ends.
func lifeOf(t *testing.T, h consumer.Handler, random float64) (life []run) {
	synctest.Test(t, func(t *testing.T) {
		cfg := consumer.Config{Random: func() float64 { return random }}
		d := brokers.Delivery{Message: brokers.Message{Body: []byte("{")}}
		for {
			got := consumertest.Deliver(t, h, d, cfg)
			life = append(life, run{got.Decision, got.Verdict.Class, time.Now()})
			if !got.Decision.Retry {
				return
			}
			time.Sleep(got.Decision.Delay)
			d.Carried = &got.Settlement.Meta
		}
	})
	return life
}

// again says when a message runs again.
func again(shortest, longest []run) string {
	first, last := longest[0].decision.Delay, time.Duration(0)
	doubles, hinted := true, true
	for i, r := range longest[:len(longest)-1] {
		doubles = doubles && (i == 0 || ratio(r.decision.Delay, last) == 2)
		last = r.decision.Delay
	}
	for _, r := range shortest[:len(shortest)-1] {
		hinted = hinted && r.decision.Delay >= hint
	}
	switch {
	case len(longest) == 1:
		return "no"
	case hinted:
		return fmt.Sprintf("not before the time that it names, %s at most", words(retry.Policy{}.HintLimit()))
	case shortest[0].decision.Delay > time.Second:
		return fmt.Sprintf("every %s to %s", words(shortest[0].decision.Delay), words(first))
	case len(longest) == 2:
		return fmt.Sprintf("once, within %s", words(first))
	case doubles:
		return fmt.Sprintf("within %s, doubling to %s", words(first), words(last))
	}
	return fmt.Sprintf("within %s to %s", words(first), words(last))
}

func ratio(a, b time.Duration) float64 {
	return a.Round(time.Millisecond).Seconds() / b.Round(time.Millisecond).Seconds()
}

// words writes a duration in units that people use.
func words(d time.Duration) string {
	d = d.Round(time.Millisecond)
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d < time.Minute:
		return fmt.Sprintf("%v s", d.Seconds())
	case d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
}

func counted(life []run) string {
	free := slices.IndexFunc(life, func(r run) bool { return r.decision.Counted })
	switch {
	case free < 0 && len(life) > 1:
		return "never"
	case free < 0:
		return "no"
	case slices.ContainsFunc(life[free:], func(r run) bool { return !r.decision.Counted }):
		return fmt.Sprint(life)
	case free == 0:
		return "yes"
	}
	return fmt.Sprintf("not the first %d", free)
}

func end(life []run) string {
	last := life[len(life)-1]
	switch {
	case last.decision.Reason == classify.ClassSkipped:
		return "never: acked and forgotten"
	case !last.decision.DeadLetter:
		return "never"
	case last.decision.Reason == "expired":
		return fmt.Sprintf("after %s", words(last.at.Sub(life[0].at).Round(time.Hour)))
	case len(life) == 1:
		return "at once"
	}
	return fmt.Sprintf("after %d runs", len(life))
}

// aside reports whether a message was put aside.
type aside struct{ atomic.Bool }

func (a *aside) Observe(_ context.Context, e consumer.Event) {
	if e.Kind == consumer.EventDeferred && e.Decision.Reason == "poison" {
		a.Store(true)
	}
}

// slows says what becomes of a topic within an hour in which h is called for 200
// messages. It must slow nothing down for five that fail beside others that succeed.
func slows(t *testing.T, h consumer.Handler) (what string) {
	synctest.Test(t, func(t *testing.T) {
		if limit, _ := work(t, h, 5, 360); limit < 1 {
			t.Errorf("a topic has the limit %v for five messages that fail beside others that succeed", limit)
		}
		switch limit, putAside := work(t, h, 200, 0); {
		case putAside:
			what = "they are put aside, and run again for an hour"
		case limit < 1:
			what = "single runs try it out"
		case limit <= 2:
			what = "one or two runs at a time"
		default:
			what = "the others go on"
		}
	})
	return what
}

// work has a worker call h for some messages for an hour, while others, which
// succeed, come in all the time. It returns the limit of runs at the end.
func work(t *testing.T, h consumer.Handler, some, others int) (limit float64, putAside bool) {
	broker, seen, limiter := memory.New(memory.Options{}), &aside{}, flow.New(10, rand.Float64)
	publish := func(body string) {
		if err := broker.Publish(t.Context(), "orders", brokers.Message{Body: []byte(body)}); err != nil {
			t.Error(err)
		}
	}
	for range some {
		publish("{")
	}
	var producer sync.WaitGroup
	producer.Go(func() {
		for range others {
			publish("good")
			time.Sleep(time.Hour / time.Duration(others))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	c, err := consumer.New(broker, consumer.Config{
		DeadLetter: "*-dead", Observers: []consumer.Observer{seen}, Logger: slog.New(slog.DiscardHandler), DrainTimeout: -1,
		Guards: map[string]consumer.Guard{"orders": {Limiter: limiter}},
	})
	must(t, err)
	c.Handle("orders", func(ctx context.Context, m *brokers.Message) error {
		if string(m.Body) == "good" {
			return nil
		}
		return h(ctx, m)
	})
	must(t, c.Run(ctx))
	producer.Wait()
	return limiter.Adjust(time.Now(), flow.Change{}).Limit, seen.Load()
}

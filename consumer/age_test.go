package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
)

// When messages end that fail for days, while one arrives every six hours.
func TestAgeInAnOutage(t *testing.T) {
	const day = 24 * time.Hour
	unknown := errors.New("no such column")
	for name, test := range map[string]struct {
		err       error
		maxAge    time.Duration
		retention time.Duration // of the broker
		outage    time.Duration
		dead      time.Duration // of the first message; 0 if it is served
		reason    string
	}{
		"an outage does not count":           {err: unavailable(), outage: 6 * day},
		"but for a week":                     {err: unavailable(), outage: 9 * day, dead: 7 * day, reason: "outage"},
		"or most of the retention":           {err: unavailable(), retention: 4 * day, outage: 9 * day, dead: 16 * day / 5, reason: "outage"},
		"a short retention leaves MaxAge":    {err: unavailable(), retention: 26 * time.Hour, outage: 9 * day, dead: day, reason: "outage"},
		"rejected credentials are an outage": {err: status401, outage: 3 * day},
		"throttling is an outage":            {err: classify.Throttled(errBusy, time.Minute), outage: 3 * day},
		"unknown errors have the age":        {err: unknown, outage: 3 * day, dead: day, reason: "expired"},
		"a MaxAge that is set is wall-clock": {err: unavailable(), maxAge: 5 * time.Hour, outage: day, dead: 5 * time.Hour, reason: "expired"},
		"also if it is that of the default":  {err: unavailable(), maxAge: day, outage: 3 * day, dead: day, reason: "expired"},
	} {
		bubble(t, name, func(t *testing.T) {
			broker := newTap(memory.Options{})
			broker.retention = test.retention
			began := time.Now()
			cfg := quiet()
			cfg.Guard, cfg.Retry.MaxAge = consumer.Guard{}, test.maxAge
			var served atomic.Int32
			w := start(t, broker, cfg, orders(func(context.Context, *brokers.Message) error {
				if time.Since(began) < test.outage {
					return test.err
				}
				served.Add(1)
				return nil
			}))
			sent := int32(test.outage/(6*time.Hour)) + 2
			for range sent {
				publish(t, broker.Broker, "orders", "one")
				sleep(6 * time.Hour)
			}
			w.mustShutdown()
			letters := deadLetters(t, broker.Broker, "orders")
			if int(served.Load())+len(letters) != int(sent) || (len(letters) > 0) != (test.dead > 0) {
				t.Fatalf("%d of %d served, %d dead", served.Load(), sent, len(letters))
			}
			if test.dead == 0 {
				return
			}
			first := letters[0]
			if after := first.DeadAt.Sub(began); first.Reason != test.reason || after < test.dead-20*time.Minute || after > test.dead+31*time.Minute {
				t.Errorf("dead by %q after %v with %d attempts, want %q after %v", first.Reason, after, first.Meta.Attempt, test.reason, test.dead)
			}
		})
	}
}

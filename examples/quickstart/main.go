// Quickstart is redrive at work on a bad day: a worker charges 1,000 orders at
// a payment server that fails in five ways, and the report at the end accounts
// for every one of them.
//
//	go run ./examples/quickstart [-json] [-log] [-metrics ADDRESS] [-orders FILE]
//
// The worker is in this file; the other files are the stage around it. Its guard
// is the default one: it lowers the number of orders that run at once while the
// server fails, down to single orders that find out when that is over.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first Ctrl-C drains, the second one kills
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// order is the body of a message.
type order struct {
	ID       string            `json:"id"`
	Customer string            `json:"customer"`
	Cents    int64             `json:"cents"`
	Currency string            `json:"currency"`
	Card     string            `json:"card"` // a token, never the number
	Coupon   string            `json:"coupon,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
}

// concurrency is how many orders run at once, at most.
const concurrency = 10

// newWorker returns a consumer that charges the orders of the topic "orders".
func newWorker(broker brokers.Broker, pay payments, watch stage) (*consumer.Consumer, error) {
	worker, err := consumer.New(broker, consumer.Config{
		DeadLetter:   deadTopic,
		Retry:        watch.policy,
		Concurrency:  concurrency,
		DrainTimeout: 5 * time.Second,
		MaxBody:      maxBody,
		Middleware:   []func(consumer.Handler) consumer.Handler{watch.ledger.watch},
		Observers:    watch.observers,
		Guard:        watch.guard,
		Logger:       watch.logger,
	})
	if err != nil {
		return nil, err
	}
	worker.Handle(topic, consumer.JSON(pay.charge))
	return worker, nil
}

// demoPolicy is made for a short day. The zero Policy suits a real one.
func demoPolicy() retry.Policy {
	return retry.Policy{MaxAttempts: 12, MaxAge: 2 * time.Minute, Backoff: retry.Backoff{Base: 300 * time.Millisecond, Cap: 4 * time.Second}}
}

// payments is the client of the payment server.
type payments struct {
	client *http.Client
	url    string
}

// charge is the handler. It returns errors as it gets them: package classify
// knows which of them are worth another run.
func (p payments) charge(ctx context.Context, o order) error {
	if o.Coupon != "" {
		o.Labels["coupon"] = o.Coupon // the bug of the day: some orders have no labels
	}
	body, err := json.Marshal(o)
	if err != nil {
		return classify.Permanent(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/charges", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", consumer.MetaFrom(ctx).IdempotencyKey) // the same in every run
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	err = classify.FromResponse(resp)
	if resp.StatusCode == http.StatusPaymentRequired {
		return classify.Permanent(err) // declined: the next run would hear the same
	}
	return err
}

package httpretry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/httpretry"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
)

// A worker and the calls of its handlers spare one dependency together: the guard
// of its topics and the policy of its calls have the same budget. The bank fails
// once, and the client repeats the call within the same run of the handler.
func Example() {
	calls := 0
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		body, _ := io.ReadAll(r.Body)
		if calls == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		fmt.Printf("bank: call %d charges %s under the key %q\n", calls, body, r.Header.Get("Idempotency-Key"))
	}))
	defer bank.Close()

	retries, err := budget.New(budget.Queue())
	if err != nil {
		log.Fatal(err)
	}
	transport, err := httpretry.New(httpretry.Config{
		Policies:   map[string]httpretry.Policy{"payments": {Budget: retries}},
		Dependency: func(*http.Request) string { return "payments" }, // usually the host of the bank
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	broker := memory.New(memory.Options{})
	worker, err := consumer.New(broker, consumer.Config{
		DeadLetter: "*-dead",
		Guards:     map[string]consumer.Guard{"payments": {Budget: retries}},
		Logger:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	worker.HandleWith("orders", func(ctx context.Context, m *brokers.Message) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, bank.URL, strings.NewReader(string(m.Body)))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if err := httpretry.Check(resp); err != nil {
			return err
		}
		fmt.Println("handled at attempt", consumer.MetaFrom(ctx).Attempt)
		stop() // usually the end of signal.NotifyContext
		return nil
	}, consumer.TopicConfig{Dependency: "payments"})
	if err := broker.Publish(ctx, "orders", brokers.Message{ID: "order-17", Body: []byte("1999 cents")}); err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// bank: call 2 charges 1999 cents under the key "order-17"
	// handled at attempt 1
}

// A call that the breaker refuses is not sent, and the error says when to try
// again.
func ExampleOpenError() {
	gate := breaker.New(breaker.Config{})
	gate.Isolate("the bank moves its database")
	transport, err := httpretry.New(httpretry.Config{
		Policies: map[string]httpretry.Policy{"bank.example": {Breaker: gate}},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	_, err = client.Get("https://bank.example/accounts")
	open, ok := errors.AsType[*httpretry.OpenError](err)
	fmt.Println(ok, open.State, open.Dependency)
	fmt.Println(classify.Of(err).Class, classify.Of(err).Deferred)
	fmt.Println(err)
	// Output:
	// true isolated bank.example
	// transient true
	// Get "https://bank.example/accounts": httpretry: not sent: the breaker of "bank.example" is isolated (the bank moves its database), until it is restored
}

// A failing status is a response, as in net/http, until Check makes an error of
// it.
func ExampleCheck() {
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"type":"https://shop.example/sold-out","title":"Sold out"}`)
	}))
	defer shop.Close()
	transport, err := httpretry.New(httpretry.Config{})
	if err != nil {
		log.Fatal(err)
	}
	resp, err := (&http.Client{Transport: transport}).Get(shop.URL)
	if err != nil {
		log.Fatal(err)
	}
	err = httpretry.Check(resp)
	failed, _ := errors.AsType[*classify.HTTPError](err)
	fmt.Println(failed.Status, failed.Type)
	fmt.Println(classify.Of(err).Class)
	// Output:
	// 422 https://shop.example/sold-out
	// poison
}

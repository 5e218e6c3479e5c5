package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/idempotency"
)

// A handler that failed runs again; one that succeeded does not.
func ExampleOnce() {
	once, err := idempotency.Once(idempotency.NewMemory(0), idempotency.Options{
		Retention: 7 * 24 * time.Hour,  // the broker keeps messages for a week
		Redrive:   14 * 24 * time.Hour, // and dead letters are looked at within two
	})
	if err != nil {
		log.Fatal(err)
	}
	failed := false
	charge := func(_ context.Context, m *brokers.Message) error {
		if !failed {
			failed = true
			return errors.New("the bank is busy")
		}
		fmt.Println("charged", m.ID)
		return nil
	}
	handler := once(charge) // or Config.Middleware: []func(consumer.Handler) consumer.Handler{once}
	for range 3 {
		fmt.Println(handler(context.Background(), &brokers.Message{ID: "order-7", Topic: "orders"}))
	}
	// Output:
	// the bank is busy
	// charged order-7
	// <nil>
	// <nil>
}

// A key that comes again with another payload is a fault of the producer.
func ExampleOnce_mismatch() {
	once, err := idempotency.Once(idempotency.NewMemory(0), idempotency.Options{Retention: 7 * 24 * time.Hour, Redrive: -1})
	if err != nil {
		log.Fatal(err)
	}
	handler := once(consumer.JSON(func(_ context.Context, o struct{ Cents int }) error {
		fmt.Println("charged", o.Cents)
		return nil
	}))
	for _, body := range []string{`{"cents": 10}`, `{"cents": 1000}`} {
		err := handler(context.Background(), &brokers.Message{ID: "order-7", Topic: "orders", Body: []byte(body)})
		fmt.Println(errors.Is(err, idempotency.ErrMismatch))
	}
	// Output:
	// charged 10
	// false
	// true
}

func ExampleKey() {
	m, meta := &brokers.Message{ID: "order-7"}, brokers.Meta{} // of consumer.MetaFrom
	fmt.Println(idempotency.Key(m, meta))
	m.Headers = brokers.Headers{{Name: "Idempotency-Key", Value: "charge-7"}}
	fmt.Println(idempotency.Key(m, meta))
	m.Headers = brokers.Headers{{Name: "Idempotency-Key", Value: "charge-7\r\nX-Admin: 1"}}
	fmt.Println(idempotency.Key(m, meta)[:16] + "…")
	// Output:
	// order-7
	// charge-7
	// sha256-677360367…
}

// Faults are reported all at once.
func ExampleOptions() {
	_, err := idempotency.Once(idempotency.NewMemory(0), idempotency.Options{Retention: 7 * 24 * time.Hour, Redrive: 14 * 24 * time.Hour, TTL: 24 * time.Hour})
	fmt.Println(err)
	// Output:
	// idempotency: Options.TTL: is 24h0m0s: use at least Retention plus Redrive (504h0m0s), or a message that comes after that is handled again
}

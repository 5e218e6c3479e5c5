package memory_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

func Example() {
	ctx := context.Background()
	broker := memory.New(memory.Options{})
	defer broker.Close(ctx)

	source, err := broker.Open(ctx, brokers.Subscription{Topics: []string{"orders"}, MaxAttempts: 10})
	if err != nil {
		log.Fatal(err)
	}
	order := brokers.Message{Key: "customer-7", Body: []byte(`{"order": 1}`)}
	if err := broker.Publish(ctx, "orders", order); err != nil {
		log.Fatal(err)
	}
	deliveries, err := source.Receive(ctx, 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range deliveries {
		fmt.Printf("%s for %s\n", d.Message.Body, d.Message.Key)
		source.Settle(ctx, []brokers.Settlement{{Delivery: d, Action: brokers.Ack}})
	}
	fmt.Println(broker.Len("orders"), "left")
	// Output:
	// {"order": 1} for customer-7
	// 0 left
}

func ExampleOptions_fault() {
	ctx := context.Background()
	broker := memory.New(memory.Options{
		// The confirmation of the first ack of every message gets lost.
		Fault: func(op memory.Op) memory.Fault {
			if op.Operation == memory.Settle && op.Action == brokers.Ack && op.Nth == 1 {
				return memory.Fault{Err: brokers.ErrUnknownOutcome, Done: true}
			}
			return memory.Fault{}
		},
	})
	defer broker.Close(ctx)

	source, _ := broker.Open(ctx, brokers.Subscription{Topics: []string{"orders"}, MaxAttempts: 10})
	broker.Publish(ctx, "orders", brokers.Message{ID: "order-1"})
	deliveries, _ := source.Receive(ctx, 1)
	ack := []brokers.Settlement{{Delivery: deliveries[0], Action: brokers.Ack}}
	fmt.Println(errors.Is(source.Settle(ctx, ack)[0], brokers.ErrUnknownOutcome))
	fmt.Println(errors.Is(source.Settle(ctx, ack)[0], brokers.ErrSettled))
	// Output:
	// true
	// true
}

func ExampleBroker_Records() {
	ctx := context.Background()
	broker := memory.New(memory.Options{})
	defer broker.Close(ctx)

	source, _ := broker.Open(ctx, brokers.Subscription{Topics: []string{"orders"}, MaxAttempts: 10})
	broker.Publish(ctx, "orders", brokers.Message{ID: "order-1"})
	deliveries, _ := source.Receive(ctx, 1)
	source.Settle(ctx, []brokers.Settlement{{
		Delivery: deliveries[0],
		Action:   brokers.Retry,
		Delay:    time.Hour,
		Meta:     brokers.Meta{Attempt: 1},
	}})
	for _, r := range broker.Records("orders") {
		wait := time.Until(r.DueAt).Round(time.Minute)
		fmt.Printf("%s after attempt %d, due in %v\n", r.Message.ID, r.Meta.Attempt, wait)
	}
	// Output:
	// order-1 after attempt 1, due in 1h0m0s
}

package consumertest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/consumer/consumertest"
)

type order struct{ Amount int }

func charge(_ context.Context, o order) error {
	if o.Amount > 1000 {
		return classify.Permanent(errors.New("over the limit of the card"))
	}
	return nil
}

// A test of the handler charge: what becomes of an order that no retry helps?
func ExampleRun() {
	// In a _test.go file this is: func TestDeclinedOrder(t *testing.T) {
	test := func(t testing.TB) {
		got := consumertest.Run(t, consumer.JSON(charge), brokers.Message{Body: []byte(`{"Amount": 5000}`)}, consumer.Config{})
		if !got.Decision.DeadLetter {
			t.Errorf("%+v, want no retry", got.Decision)
		}
		t.Log(got.DeadLetter.Reason)
		t.Log(got.DeadLetter.ErrorText)
		t.Log(string(got.DeadLetter.Message.Body))
	}
	test(printer{})
	// Output:
	// poison
	// over the limit of the card
	// {"Amount": 5000}
}

// The tenth and last attempt of a message.
func ExampleDeliver() {
	test := func(t testing.TB) {
		busy := func(context.Context, *brokers.Message) error { return classify.Transient(errors.New("busy")) }
		last := brokers.Delivery{Carried: &brokers.Meta{Attempt: 9}}
		t.Log(consumertest.Deliver(t, busy, last, consumer.Config{}).DeadLetter.Reason)
	}
	test(printer{})
	// Output: exhausted
}

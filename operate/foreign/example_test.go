package foreign_test

import (
	"fmt"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/foreign"
)

// A message from the poison queue of a router of Watermill.
func ExampleDecode() {
	d := &brokers.Delivery{Message: brokers.Message{
		ID: "poison/0/4", Topic: "poison", Body: []byte(`{"order":4711}`),
		Headers: brokers.Headers{
			{Name: "tenant", Value: "acme"},
			{Name: "reason_poisoned", Value: "login as app: password=hunter2 is wrong"},
			{Name: "topic_poisoned", Value: "orders"},
			{Name: "handler_poisoned", Value: "charge"},
			{Name: "subscriber_poisoned", Value: "kafka.Subscriber"},
		},
	}}
	letter, format := foreign.Decode(d)
	fmt.Println(format, letter.Message.Topic, letter.DeadBy)
	fmt.Println(letter.ErrorText)
	fmt.Println(letter.Message.Headers)
	// Output:
	// watermill orders charge
	// login as app: password=[redacted] is wrong
	// [{tenant acme }]
}

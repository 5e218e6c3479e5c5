package dlq_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
)

// Equal faults have equal fingerprints.
func ExampleEntry_DescribeError() {
	for _, text := range []string{
		"dial tcp 10.0.0.7:5432: connect: connection refused",
		"dial tcp 10.0.0.9:5432: connect: connection refused",
		"order 8471 declined",
		"order 8472 declined",
	} {
		var entry dlq.Entry
		entry.DescribeError("*errors.errorString", "", text, "", nil)
		fmt.Println(entry.Fingerprint, text)
	}
	// Output:
	// b2a83b073e3fc2cb dial tcp 10.0.0.7:5432: connect: connection refused
	// b2a83b073e3fc2cb dial tcp 10.0.0.9:5432: connect: connection refused
	// 643c7529a8deddc9 order 8471 declined
	// 643c7529a8deddc9 order 8472 declined
}

func ExampleRedact() {
	fmt.Println(dlq.Redact("dial postgres://app:hunter2@db/orders: token=s3cr3t refused"))
	// Output: dial postgres://[redacted]@db/orders: token=[redacted] refused
}

// An error goes into an entry, the entry into the headers of the dead letter.
func ExampleEntry_Encode() {
	entry := dlq.Entry{
		Message: brokers.Message{ID: "7f3a", Topic: "orders", Body: []byte(`{"order":8471}`), Headers: brokers.Headers{{Name: "tenant", Value: "acme"}}},
		Meta:    brokers.Meta{Attempt: 10, Class: "transient"},
		Reason:  "exhausted",
		DeadAt:  time.UnixMilli(1767225600000),
	}
	entry.DescribeError("*errors.errorString", "402", "order 8471 declined, password=hunter2", "", nil)

	for _, h := range entry.Encode(0).Headers {
		fmt.Printf("%s: %s\n", h.Name, h.Value)
	}
	// Output:
	// tenant: acme
	// redrive-dlq-v: 1
	// redrive-dlq-reason: exhausted
	// redrive-dlq-topic: orders
	// redrive-error-type: *errors.errorString
	// redrive-error-code: 402
	// redrive-error-fingerprint: 98236cd2d2fdc17c
	// redrive-error-message: order 8471 declined, password=[redacted]
	// redrive-dlq-at: 1767225600000
	// redrive-dlq-attempt: 10
	// redrive-dlq-class: transient
}

// What cannot be read as a dead letter is still shown.
func ExampleDecode() {
	dead := dlq.Entry{
		Message: brokers.Message{ID: "7f3a", Topic: "orders", Body: []byte(`{"order":8471}`)},
		Meta:    brokers.Meta{Attempt: 10},
		Reason:  "exhausted",
	}
	received := []brokers.Message{dead.Encode(0), {ID: "9c1b", Body: []byte("moved here by hand")}}

	for _, message := range received {
		entry, err := dlq.Decode(message)
		if err != nil {
			fmt.Printf("%s has no story: %s\n", entry.Message.ID, entry.Message.Body)
			continue
		}
		fmt.Printf("%s from %s is %s after %d attempts\n", entry.Message.ID, entry.Message.Topic, strings.ToUpper(entry.Reason), entry.Meta.Attempt)
	}
	// Output:
	// 7f3a from orders is EXHAUSTED after 10 attempts
	// 9c1b has no story: moved here by hand
}

package wire_test

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
)

// An adapter publishes a message, hands it out, stores its retry in a queue to
// which only workers write, and hands that out.
func Example() {
	now := time.UnixMilli(1767225600000)

	// Publish. This broker has a place for the ID.
	m := brokers.Message{Headers: brokers.Headers{{Name: "tenant", Value: "acme"}, {Name: "redrive-attempt", Value: "9"}}}
	wire.Identify(&m, now, func() string { return "7f3a" })
	plain := m
	plain.ID = ""
	stored := wire.EncodeIdentity(plain)
	fmt.Println("published:", stored)

	// Receive. Anyone may write to the queue, so no progress is read.
	received, meta := wire.Decode(stored, wire.Limits{Now: now})
	fmt.Println("received:", received.Headers, meta.Attempt)

	// Settle, with a retry.
	meta.Attempt, meta.DueAt = 1, now.Add(30*time.Second)
	user, packed := wire.EncodePacked(nil, received, meta)
	fmt.Println("copy:", user, string(packed))
	fmt.Printf("due at %s\n", wire.Lookup(packed, "redrive-due-at"))

	// Receive the copy.
	stored = append(user, brokers.Header{Name: wire.Packed, Value: string(packed)})
	received, meta = wire.Decode(stored, wire.Limits{Now: now, MaxDelay: time.Hour, Trusted: true})
	fmt.Println("received:", received.Headers, meta.Attempt, meta.DueAt.Sub(now))

	// Output:
	// published: [{tenant acme } {redrive-published-at 1767225600000 }]
	// received: [{tenant acme }] 0
	// copy: [{tenant acme }] {"published-at":"1767225600000","attempt":"1","due-at":"1767225630000"}
	// due at 1767225630000
	// received: [{tenant acme }] 1 30s
}

// Where room is scarce, metadata is shed until it fits.
func ExampleFit() {
	record := brokers.Headers{
		{Name: "redrive-dlq-v", Value: "1"},
		{Name: "redrive-dlq-reason", Value: "exhausted"},
		{Name: "redrive-dlq-history", Value: "9,1767225600000,transient,9f86d081884c7d65,1000"},
	}
	for _, h := range wire.Fit(record, 100) {
		fmt.Println(h.Name, h.Value)
	}
	// Output:
	// redrive-dlq-v 1
	// redrive-dlq-reason exhausted
	// redrive-dlq-truncated history
}

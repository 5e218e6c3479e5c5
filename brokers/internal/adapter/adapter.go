// Package adapter is what the adapters for brokers have in common.
package adapter

import "github.com/redrive-go/redrive/brokers"

// Size is the bytes of the names and values of h.
func Size(h brokers.Headers) int {
	n := 0
	for _, header := range h {
		n += len(header.Name) + len(header.Value)
	}
	return n
}

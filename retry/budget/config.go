package budget

import (
	"errors"
	"fmt"
)

// maxFloor is more than any dependency bears, and keeps the arithmetic exact.
const maxFloor = 1e6

// Config says how many retries a dependency is to bear. [Queue] and [Mesh]
// return the usual ones.
type Config struct {
	// Share is the part of a token that a delivery earns, above 0 and at most
	// 1: 0.1 allows one retry for ten deliveries. Required.
	Share float64
	// Floor is how many tokens a second are earned besides, above 0 and at most
	// 1,000,000, so that retries do not stop when traffic does. Required.
	Floor float64
}

// Queue is the preset for retries that wait in a broker: a share of 10 % and 1
// retry a second.
func Queue() Config { return Config{Share: 0.1, Floor: 1} }

// Mesh is the preset for calls between services: a share of 20 % and 10 retries
// a second, the defaults of Finagle and Linkerd.
func Mesh() Config { return Config{Share: 0.2, Floor: 10} }

// ConfigError is one fault of a Config.
type ConfigError struct {
	Field   string // such as "Share"
	Problem string
	Fix     string
}

// Error says what is wrong and what to write instead.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("budget: Config.%s %s: %s", e.Field, e.Problem, e.Fix)
}

// faults returns every fault of c at once.
func (c Config) faults() error {
	var faults []error
	refuse := func(field string, value float64, fix string) {
		faults = append(faults, &ConfigError{Field: field, Problem: fmt.Sprintf("is %v", value), Fix: fix})
	}
	if !(c.Share > 0 && c.Share <= 1) {
		refuse("Share", c.Share, "use a number above 0 and at most 1, such as 0.1 for 10 %")
	}
	if !(c.Floor > 0 && c.Floor <= maxFloor) {
		refuse("Floor", c.Floor, "use a number of retries a second above 0 and at most 1000000, such as 1; without it, no retry could start once traffic stops")
	}
	return errors.Join(faults...)
}

package budget

import (
	"errors"
	"fmt"

	"github.com/redrive-go/redrive/settings"
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

// faults returns every fault of c at once.
func (c Config) faults() error {
	return errors.Join(
		refuse(c.Share > 0 && c.Share <= 1, "Share", c.Share, "use a number above 0 and at most %v, such as 0.1 for 10 %%", 1),
		refuse(c.Floor > 0 && c.Floor <= maxFloor, "Floor", c.Floor, "use a number of retries a second above 0 and at most %d, such as 1; without it, no retry could start once traffic stops", int(maxFloor)),
	)
}

func refuse(ok bool, field string, value float64, fix string, limit any) error {
	if ok {
		return nil
	}
	return &settings.Error{Package: "budget", Field: "Config." + field, Problem: fmt.Sprintf("is %v", value), Fix: fmt.Sprintf(fix, limit)}
}

package budget

import (
	"errors"
	"fmt"
	"math"
	"time"
)

const (
	defaultWindow = 10 * time.Second
	minWindow     = time.Second
	maxWindow     = 24 * time.Hour
)

// Config says how many retries a dependency is to bear. [Queue] and [Mesh]
// return the usual ones.
type Config struct {
	// Share is how many retries there may be for each delivery, above 0 and at
	// most 1. Required.
	Share float64
	// Floor is how many retries there may be in each second besides, so that
	// they do not stop when traffic does. It must give a Window room for 7
	// retries, one in each slot that it touches. Required.
	Floor float64
	// Window is the time over which deliveries are counted, and over which the
	// promise holds: 1 s to 24 h. Zero means 10 s. A longer one remembers a
	// peak for longer, and a change of traffic takes longer to be seen.
	Window time.Duration
}

// Queue is the preset for retries that wait in a broker: a share of 10 % and 1
// retry per second, over 10 s.
func Queue() Config { return Config{Share: 0.1, Floor: 1, Window: defaultWindow} }

// Mesh is the preset for calls between services, as service meshes have it: a
// share of 20 % and 10 retries per second, over 10 s.
func Mesh() Config { return Config{Share: 0.2, Floor: 10, Window: defaultWindow} }

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

// faults returns every fault of c at once. Floor and Window are compared with
// each other only if each is right by itself, so that one mistake is reported
// once.
func (c Config) faults() error {
	var faults []error
	refuse := func(field string, value any, fix string) {
		faults = append(faults, &ConfigError{Field: field, Problem: fmt.Sprintf("is %v", value), Fix: fix})
	}
	if !(c.Share > 0 && c.Share <= 1) {
		refuse("Share", c.Share, "use a number above 0 and at most 1, such as 0.1 for 10 %")
	}
	floorOK := c.Floor > 0 && !math.IsInf(c.Floor, 1)
	if !floorOK {
		refuse("Floor", c.Floor, "use a finite number of retries per second above 0, such as 1; without it, no retry could start once traffic stops")
	}
	windowOK := c.Window >= minWindow && c.Window <= maxWindow
	if !windowOK {
		refuse("Window", c.Window, fmt.Sprintf("use %v to %v, or 0 for the default of %v", minWindow, maxWindow, defaultWindow))
	}
	if floorOK && windowOK && c.Floor*c.Window.Seconds() < touched {
		refuse("Window", c.Window, fmt.Sprintf("too short for a Floor of %v per second: use a Window of at least %v/Floor, or a Floor of at least %.3g", c.Floor, touched*time.Second, touched/c.Window.Seconds()))
	}
	return errors.Join(faults...)
}

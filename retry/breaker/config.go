package breaker

import (
	"errors"
	"fmt"
	"time"
)

const (
	defaultMinRuns    = 20
	defaultRatio      = 0.5
	defaultWindow     = 30 * time.Second
	defaultMinOpen    = 5 * time.Second
	defaultMaxOpen    = 5 * time.Minute
	defaultProbes     = 1
	defaultSuccesses  = 5
	defaultFetchLease = 5 * time.Second
	defaultLease      = time.Minute

	minWindow = time.Millisecond
	maxProbes = 16
)

// Config says when a [Breaker] opens and how it closes again. The zero Config
// suits a queue.
type Config struct {
	// MinRuns is how many runs the window must hold before their failures can
	// trip the breaker. Zero means 20.
	MinRuns int
	// Ratio of failures to runs in the window that trips it, above 0 and at
	// most 1. Zero means 0.5.
	Ratio float64
	// Window is the time over which runs are counted, in six steps. Zero means
	// 30 s.
	Window time.Duration

	// MinOpen is the shortest time that the breaker stays open. The longest is
	// twice that at first, and doubles from one opening to the next. Zero means
	// 5 s.
	MinOpen time.Duration
	// MaxOpen is the longest time that it stays open, at least twice MinOpen.
	// Zero means 5 minutes.
	MaxOpen time.Duration

	// Probes is how many runs may be under way when the breaker becomes
	// half-open, 1 to 16. Each success allows one more, up to 16. Zero means 1.
	Probes int
	// Successes is how many probes must succeed, with none failing, to close
	// the breaker. Zero means 5.
	Successes int

	// FetchLease is how long a probe may wait for the delivery that it was
	// fetched for, before another source may have it. Zero means 5 s.
	FetchLease time.Duration
	// Lease is how long a probe may run before another may start besides it. It
	// should exceed the time that a run is given. Zero means 1 minute.
	Lease time.Duration
}

// ConfigError is one fault of a Config.
type ConfigError struct {
	Field   string // such as "Ratio"
	Problem string
	Fix     string
}

// Error says what is wrong and what to write instead.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("breaker: Config.%s %s: %s", e.Field, e.Problem, e.Fix)
}

// withDefaults fills what is unset.
func (c Config) withDefaults() Config {
	set(&c.MinRuns, defaultMinRuns)
	set(&c.Ratio, defaultRatio)
	set(&c.Window, defaultWindow)
	set(&c.MinOpen, defaultMinOpen)
	set(&c.MaxOpen, defaultMaxOpen)
	set(&c.Probes, defaultProbes)
	set(&c.Successes, defaultSuccesses)
	set(&c.FetchLease, defaultFetchLease)
	set(&c.Lease, defaultLease)
	return c
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// faults returns every fault of c, whose unset fields are filled.
func (c Config) faults() error {
	const positive = "use a positive duration, or 0 for the default of %v"
	return errors.Join(
		refuse(c.MinRuns < 1, "MinRuns", c.MinRuns, "use 1 or more, or 0 for the default of %v", defaultMinRuns),
		refuse(!(c.Ratio > 0 && c.Ratio <= 1), "Ratio", c.Ratio, "use a number above 0 and at most 1, or 0 for the default of %v", defaultRatio),
		refuse(c.Window < minWindow, "Window", c.Window, "use at least 1ms, or 0 for the default of %v", defaultWindow),
		refuse(c.MinOpen < 0, "MinOpen", c.MinOpen, positive, defaultMinOpen),
		refuse(c.MaxOpen < 0, "MaxOpen", c.MaxOpen, positive, defaultMaxOpen),
		refuse(c.MinOpen > 0 && c.MaxOpen > 0 && c.MaxOpen/2 < c.MinOpen, "MaxOpen", c.MaxOpen, "use at least twice MinOpen (%v), or the workers of a fleet would all probe at once", c.MinOpen),
		refuse(c.Probes < 1 || c.Probes > maxProbes, "Probes", c.Probes, "use 1 to %v, or 0 for the default of 1", maxProbes),
		refuse(c.Successes < 1, "Successes", c.Successes, "use 1 or more, or 0 for the default of %v", defaultSuccesses),
		refuse(c.FetchLease < 0, "FetchLease", c.FetchLease, positive, defaultFetchLease),
		refuse(c.Lease < 0, "Lease", c.Lease, positive, defaultLease),
	)
}

func refuse(bad bool, field string, value any, fix string, limit any) error {
	if !bad {
		return nil
	}
	return &ConfigError{Field: field, Problem: fmt.Sprintf("is %v", value), Fix: fmt.Sprintf(fix, limit)}
}

package breaker

import (
	"errors"
	"math"
	"time"

	"github.com/redrive-go/redrive/internal/fault"
)

const (
	defaultWindow    = 50
	defaultMinRuns   = 20
	defaultRatio     = 0.9
	defaultStreak    = 20
	defaultMinOpen   = 5 * time.Second
	defaultMaxOpen   = 30 * time.Second
	defaultProbes    = 1
	defaultSuccesses = 1
	defaultLease     = time.Minute

	maxWindow      = 1000
	maxProbes      = 16
	streakMessages = 10 // of which a streak must be while a success is known
)

// Config says when a [Breaker] opens and how it closes again. The zero Config
// suits a queue.
type Config struct {
	// Window is how many messages are looked at: the last different ones, each
	// with its latest outcome. 1 to 1000. Zero means 50.
	Window int
	// MinRuns is how many messages, all of which failed, open it before the
	// window is full, at most Window. Zero means 20, or Window if that is less.
	MinRuns int
	// Ratio of failures in a full window that opens it, above 0 and at most 1. Zero
	// means 0.9.
	Ratio float64
	// Streak is how many failed runs in a row open it, Severe ones counted
	// twice, if they are of 10 different messages at least, or if no success is
	// among the messages looked at. Zero means 20; -1 means that none does.
	Streak int

	// MinOpen is the shortest time that the breaker stays open. The longest is
	// twice that at first, and doubles from one opening to the next. Zero means
	// 5 s.
	MinOpen time.Duration
	// MaxOpen is the longest time that it stays open, at least twice MinOpen.
	// Zero means 30 s, or twice MinOpen if that is more.
	MaxOpen time.Duration

	// Probes is how many runs may be under way when the breaker becomes
	// half-open, 1 to 16. Each success allows one more, up to 16. Zero means 1.
	Probes int
	// Successes is how many probes must succeed, with none failing, to close
	// the breaker. Zero means 1.
	Successes int

	// Lease is how long a probe may run before another may start besides it. It
	// should exceed the time that a run is given. Zero means 1 minute.
	Lease time.Duration
}

// withDefaults fills what is unset.
func (c Config) withDefaults() Config {
	set(&c.Window, defaultWindow)
	set(&c.MinRuns, max(min(defaultMinRuns, c.Window), 1))
	set(&c.Ratio, defaultRatio)
	set(&c.Streak, defaultStreak)
	set(&c.MinOpen, defaultMinOpen)
	set(&c.MaxOpen, max(defaultMaxOpen, 2*min(c.MinOpen, math.MaxInt64/2)))
	set(&c.Probes, defaultProbes)
	set(&c.Successes, defaultSuccesses)
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
		refuse(c.Window < 1 || c.Window > maxWindow, "Window", c.Window, "use 1 to %v, or 0 for the default of 50", maxWindow),
		refuse(c.MinRuns < 1, "MinRuns", c.MinRuns, "use 1 or more, or 0 for the default of %v", defaultMinRuns),
		refuse(c.Window > 0 && c.MinRuns > c.Window, "MinRuns", c.MinRuns, "use at most Window (%v), or so many messages are never known", c.Window),
		refuse(!(c.Ratio > 0 && c.Ratio <= 1), "Ratio", c.Ratio, "use a number above 0 and at most 1, or 0 for the default of %v", defaultRatio),
		refuse(c.Streak < -1, "Streak", c.Streak, "use 1 or more, -1 for none, or 0 for the default of %v", defaultStreak),
		refuse(c.MinOpen < 0, "MinOpen", c.MinOpen, positive, defaultMinOpen),
		refuse(c.MaxOpen < 0, "MaxOpen", c.MaxOpen, positive, defaultMaxOpen),
		refuse(c.MinOpen > 0 && c.MaxOpen > 0 && c.MaxOpen/2 < c.MinOpen, "MaxOpen", c.MaxOpen, "use at least twice MinOpen (%v), or the workers of a fleet would all probe at once", c.MinOpen),
		refuse(c.Probes < 1 || c.Probes > maxProbes, "Probes", c.Probes, "use 1 to %v, or 0 for the default of 1", maxProbes),
		refuse(c.Successes < 1, "Successes", c.Successes, "use 1 or more, or 0 for the default of %v", defaultSuccesses),
		refuse(c.Lease < 0, "Lease", c.Lease, positive, defaultLease),
	)
}

func refuse(bad bool, field string, value any, fix string, limit any) error {
	if !bad {
		return nil
	}
	return fault.Of("breaker", "Config."+field, value, fix, limit)
}

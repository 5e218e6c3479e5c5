package redisbudget

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/settings"
)

const (
	maxName    = 256
	maxWorkers = 10_000
	keyPrefix  = "redrive:budget:"
)

// Config says what dependency a fleet retries against, and how many retries
// that is to bear. All workers of the fleet need the same.
type Config struct {
	// Name is the dependency's, such as "payments": workers with the same Name
	// share a budget. The key in Redis is redrive:budget:{Name}, whose braces
	// make a Redis Cluster place it by the Name. 1 to 256 bytes without braces
	// and control characters. Required.
	Name string
	// Budget is that of the whole fleet: Share of all its deliveries, and Floor
	// for all workers together, not for each. budget.Queue and budget.Mesh
	// return the usual ones. Required.
	Budget budget.Config
	// Workers is how many workers, that is Budgets, the fleet has at most. Each
	// has 1/Workers of Floor while Redis is away. 1 to 10000. Required.
	Workers int
	// OnError is told when Redis stops lending, and why, and when something is
	// wrong with the fleet: see the errors of this package. It is called once
	// for each change, outside of Reserve, and may be called at the same time.
	// Nil means that only Status says.
	OnError func(error)
}

// faults returns every fault of c at once.
func (c Config) faults() error {
	_, err := budget.New(c.Budget)
	faults := []error{err}
	refuse := func(field, problem, fix string) {
		faults = append(faults, &settings.Error{Package: "redisbudget", Field: "Config." + field, Problem: problem, Fix: fix})
	}
	control := func(r rune) bool { return r < ' ' || r == 0x7f || r == '{' || r == '}' }
	switch {
	case c.Name == "":
		refuse("Name", "is empty", `name the dependency that the workers share, such as "payments"`)
	case len(c.Name) > maxName:
		refuse("Name", fmt.Sprintf("has %d bytes", len(c.Name)), fmt.Sprintf("use at most %d", maxName))
	case strings.ContainsFunc(c.Name, control):
		refuse("Name", fmt.Sprintf("is %q", c.Name), "use a name without braces and control characters")
	}
	if c.Workers < 1 || c.Workers > maxWorkers {
		refuse("Workers", fmt.Sprintf("is %d", c.Workers), fmt.Sprintf("say how many workers the fleet has at most, 1 to %d", maxWorkers))
	}
	return errors.Join(faults...)
}

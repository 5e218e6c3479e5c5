package main

import (
	"time"

	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
)

// guard is what spares the payment server.
type guard struct {
	budget  *budget.Budget
	breaker *breaker.Breaker
}

// newGuard is made for a short day, whose seconds may be shorter still. The
// zero Restraint suits a real one.
func newGuard(second time.Duration) (g guard, err error) {
	g.budget, err = budget.New(budget.Config{Share: 0.5, Floor: 40 * float64(time.Second) / float64(second)})
	if err != nil {
		return g, err
	}
	g.breaker, err = breaker.New(breaker.Config{
		MinOpen: second / 4,
		MaxOpen: second,
	})
	return g, err
}

// restraint does not stop on mass poison: a file of another format is to end
// soon, as dead letters.
func (g guard) restraint() consumer.Restraint {
	return consumer.Restraint{Budget: g.budget, Breaker: g.breaker, NoPoisonStop: true}
}

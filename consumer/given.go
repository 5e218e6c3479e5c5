package consumer

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/retry/budget"
)

// given is a budget of the user's, from whose faults messages are kept: local
// stands in for it when it panics, and waits are what they have to be.
type given struct {
	budget.Pacer
	local  budget.Pacer
	report func(error)
}

// Deposit implements budget.Pacer.
func (g *given) Deposit(now time.Time, n int) {
	defer g.rescue("Deposit", func() { g.local.Deposit(now, n) })
	g.Pacer.Deposit(now, n)
}

// Withdraw implements budget.Pacer.
func (g *given) Withdraw(now time.Time, most time.Duration, random float64) (wait time.Duration, ok bool) {
	defer g.rescue("Withdraw", func() { wait, ok = g.local.Withdraw(now, most, random) })
	wait, ok = g.Pacer.Withdraw(now, most, random)
	return min(max(wait, resumeEvery), most), ok
}

// Refund implements budget.Pacer.
func (g *given) Refund(now time.Time) {
	defer g.rescue("Refund", func() { g.local.Refund(now) })
	g.Pacer.Refund(now)
}

// rescue is to be deferred. It does instead what a method could not.
func (g *given) rescue(method string, instead func()) {
	if v := recover(); v != nil {
		g.report(fmt.Errorf("Guard.Budget: %s panicked: %v; a budget of the process stands in", method, v))
		instead()
	}
}

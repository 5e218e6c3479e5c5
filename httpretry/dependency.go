package httpretry

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/internal/handling"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
)

// dependency is what a Transport keeps for the calls of one name.
type dependency struct {
	Policy       // its defaults filled in; Breaker and Budget are nil only if switched off
	name         string
	sharesBudget bool // Budget may be that of a consumer
}

func newDependency(name string, p Policy) *dependency {
	d := &dependency{
		Policy:       p.withDefaults(),
		name:         name,
		sharesBudget: p.Budget != nil,
	}
	d.Rules = slices.Clone(p.Rules)
	if d.Breaker == nil && !d.NoBreaker {
		d.Breaker = breaker.New(breaker.Config{})
	}
	if !d.sharesBudget && !d.NoBudget {
		d.Budget = must(budget.New(budget.Mesh()))
	}
	return d
}

// must returns what a preset makes, which is valid.
func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("httpretry: a preset is not valid: %v", err))
	}
	return v
}

// hostOf is the default of Config.Dependency.
func hostOf(req *http.Request) string {
	if req.URL == nil {
		return ""
	}
	host, port := strings.ToLower(req.URL.Hostname()), req.URL.Port()
	if port == "" || port == usualPort(req.URL) {
		return host
	}
	return net.JoinHostPort(host, port)
}

func usualPort(u *url.URL) string {
	switch u.Scheme {
	case "http":
		return "80"
	case "https":
		return "443"
	}
	return ""
}

// paced reports whether a consumer paces a call with ctx: it runs the handler that
// makes the call, and shares the budget.
func (d *dependency) paced(ctx context.Context) bool {
	return d.sharesBudget && handling.Shares(ctx, d.Budget)
}

// closed says why the breaker refuses a call.
func (d *dependency) closed(now time.Time) *OpenError {
	s := d.Breaker.Snapshot(now)
	return &OpenError{Dependency: d.name, State: s.State, Reason: s.Reason, Wait: max(s.Wait, shortestWait)}
}

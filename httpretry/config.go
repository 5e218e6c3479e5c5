package httpretry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/retry/breaker"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/settings"
)

const (
	defaultRetries = 1
	defaultTimeout = 30 * time.Second
	defaultDelay   = 100 * time.Millisecond
	defaultMaxWait = 2 * time.Second
	defaultMaxBody = 64 << 10

	maxDependencies = 100 // with state of their own, besides those of Config.Policies
)

// Config says what a [Transport] calls. The zero Config protects every host by
// itself.
type Config struct {
	// Base sends the requests. Nil means http.DefaultTransport.
	Base http.RoundTripper

	// Policies holds the policies of the dependencies that need one of their
	// own, by name.
	Policies map[string]Policy

	// Default is the policy of all other dependencies. If it has a Breaker or
	// a Budget, they share that; otherwise each has its own, up to 100
	// dependencies. Any more share one of each.
	Default Policy

	// Dependency names what a request depends on. Keep the names few: they
	// come from your configuration, not from messages. Nil means the host of
	// the URL in lower case, with its port if that is not the usual one of the
	// scheme: "bank.example", "localhost:8080".
	Dependency func(*http.Request) string
}

// Policy says how the calls to one dependency are made.
type Policy struct {
	// Retries is how often a request may be sent again: once, or with
	// settings.None never.
	// Zero means once. More patience is the queue's part.
	Retries int

	// Timeout is how long one attempt may take, the reading of the response
	// body included. Zero means 30 s; settings.None means as long as the
	// request's context allows.
	Timeout time.Duration

	// Delay is the longest wait before a retry that nobody asked to wait for.
	// The wait is random, between nothing and this. Zero means 100 ms.
	Delay time.Duration

	// MaxWait is the longest wait before a retry altogether, the server's
	// Retry-After included. A retry that would have to wait longer is not made.
	// Zero means 2 s.
	MaxWait time.Duration

	// MaxBody is how many bytes of a request body without GetBody are kept to
	// send it again. A longer body, or one that the first attempt did not send
	// to its end, is not sent again. Zero means 64 KiB; settings.None keeps
	// nothing.
	MaxBody int64

	// Breaker keeps calls from a dependency that is down. Nil means one of the
	// Transport's own with the zero breaker.Config. A call that a consumer paces
	// neither asks it nor reports to it, see Budget.
	Breaker *breaker.Breaker

	// NoBreaker goes on calling whatever fails.
	NoBreaker bool

	// Budget bounds the retries: one without a token is not made. Nil means one
	// of the Transport's own with budget.Mesh: 20 % of the calls and 10/s. If
	// handlers call what their topic depends on, set the Budget of its
	// consumer.Guard: then the consumer paces their calls, and counts them.
	Budget budget.Pacer

	// NoBudget retries however many calls fail.
	NoBudget bool

	// Rules judge failures before the default rules of package classify do,
	// as consumer.Config.Rules do. With rules, up to 64 KiB of a problem
	// (RFC 9457) are read before the response is returned; the caller can read
	// them again.
	Rules []classify.Rule

	// Key returns the Idempotency-Key of a request that has none, and whose
	// method is not idempotent by itself. It must be the same in every run of
	// the message, and differ between requests of one message that are to have
	// an effect each. An empty key sets no header. A key of more than 200 bytes
	// or with anything but visible ASCII is replaced by "sha256-" and its hash
	// in hex. Nil means consumer.MetaFrom(ctx).IdempotencyKey, which the producer
	// of the message may have chosen, so that one producer could use up the keys
	// of another: where they are not to be trusted, make it from what the handler
	// has verified.
	Key func(*http.Request) string

	// Propagate sets the headers of a trace, such as traceparent and
	// tracestate, from the request's context. It is called for each attempt
	// with headers that are that attempt's own. Nil means none.
	Propagate func(ctx context.Context, h http.Header)
}

// faults returns every fault of c, joined.
func (c Config) faults() error {
	all := []error{c.Default.faults("Default")}
	for _, name := range slices.Sorted(maps.Keys(c.Policies)) {
		field := fmt.Sprintf("Policies[%q]", name)
		if c.Dependency == nil && (name == "" || name != strings.ToLower(name) || strings.ContainsAny(name, "/@?# ")) {
			all = append(all, &settings.Error{Package: "httpretry", Field: "Config." + field, Problem: "is not named like a host", Fix: `use the host in lower case, with the port if it is unusual, such as "bank.example" or "localhost:8080", or set Dependency`})
		}
		all = append(all, c.Policies[name].faults(field))
	}
	return errors.Join(all...)
}

func (p Policy) faults(of string) error {
	const (
		positive = "use a positive duration, or 0 for the default of %v"
		orNone   = "use a positive one, 0 for the default of %v, or settings.None"
	)
	q := p.withDefaults()
	return errors.Join(
		refuse(p.Retries < settings.None || p.Retries > 1, of, "Retries", p.Retries, "use 0 or 1 for one retry, or settings.None: what needs more than %v belongs back into the queue", defaultRetries),
		refuse(p.Timeout < settings.None, of, "Timeout", p.Timeout, orNone, defaultTimeout),
		refuse(p.Delay < 0, of, "Delay", p.Delay, positive, defaultDelay),
		refuse(p.MaxWait < 0, of, "MaxWait", p.MaxWait, positive, defaultMaxWait),
		refuse(p.Delay >= 0 && p.MaxWait >= 0 && q.Delay > q.MaxWait, of, "Delay", q.Delay, "use at most MaxWait (%v)", q.MaxWait),
		refuse(p.MaxBody < settings.None, of, "MaxBody", p.MaxBody, orNone, defaultMaxBody),
		refuse(p.NoBreaker && p.Breaker != nil, of, "NoBreaker", p.NoBreaker, "set %v or Breaker, not both", "NoBreaker"),
		refuse(p.NoBudget && p.Budget != nil, of, "NoBudget", p.NoBudget, "set %v or Budget, not both", "NoBudget"),
	)
}

func refuse(bad bool, of, field string, value any, fix string, limit any) error {
	if !bad {
		return nil
	}
	return &settings.Error{Package: "httpretry", Field: "Config." + of + "." + field, Problem: fmt.Sprintf("is %v", value), Fix: fmt.Sprintf(fix, limit)}
}

// withDefaults fills what is unset, but for breaker and budget.
func (p Policy) withDefaults() Policy {
	set(&p.Retries, defaultRetries)
	set(&p.Timeout, defaultTimeout)
	set(&p.Delay, defaultDelay)
	set(&p.MaxWait, defaultMaxWait)
	set(&p.MaxBody, defaultMaxBody)
	if p.Key == nil {
		p.Key = keyOfMessage
	}
	return p
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

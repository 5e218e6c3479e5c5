package gallery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// Call is a call of the dependency by a handler.
type Call struct {
	On     bool          // the incident lasts
	Since  time.Duration // its beginning
	Left   time.Duration // until its end
	Draw   float64       // in [0, 1), by chance, but always the same for this run of the message
	Worker int           // which one calls, from 0
	Kill   func()        // kills the worker, as the kernel does when memory is short
}

// Dependency is what handlers call: nil is an answer, anything else a failure.
type Dependency func(ctx context.Context, c Call) error

// fine is a dependency that answers.
var fine = takes(10 * time.Millisecond)

// takes answers after d.
func takes(d time.Duration) Dependency {
	return func(ctx context.Context, _ Call) error { return wait(ctx, d) }
}

// fails answers every call with err, after a few milliseconds.
func fails(err error) Dependency {
	return func(ctx context.Context, _ Call) error {
		return errors.Join(wait(ctx, 3*time.Millisecond), err)
	}
}

// hangs never answers: only the handler's timeout ends a call.
func hangs(ctx context.Context, _ Call) error {
	<-ctx.Done()
	return ctx.Err()
}

// panics is a handler with a bug.
func panics(context.Context, Call) error { panic("assignment to entry in nil map") }

// when is bad in the calls that are so, and otherwise good.
func when(so func(Call) bool, bad, good Dependency) Dependency {
	return func(ctx context.Context, c Call) error {
		if so(c) {
			return bad(ctx, c)
		}
		return good(ctx, c)
	}
}

func inIncident(c Call) bool { return c.On }

// meanwhile is bad as long as the incident lasts, and otherwise fine.
func meanwhile(bad Dependency) Dependency { return when(inIncident, bad, fine) }

// flapping is up for a while, then bad for a while, and so on.
func flapping(up, down time.Duration, bad Dependency) Dependency {
	return when(func(c Call) bool { return c.Since%(up+down) >= up }, bad, fine)
}

// some is bad in a share of the calls.
func some(share float64, bad Dependency) Dependency {
	return when(func(c Call) bool { return c.Draw < share }, bad, fine)
}

// onOneWorker is bad for the first worker.
func onOneWorker(bad Dependency) Dependency {
	return when(func(c Call) bool { return c.Worker == 0 }, bad, fine)
}

// between answers after a time between low and high, by chance.
func between(low, high time.Duration) Dependency {
	return func(ctx context.Context, c Call) error {
		return wait(ctx, low+time.Duration(c.Draw*float64(high-low)))
	}
}

// quota answers with status 429, and Retry-After says when the incident ends.
func quota(ctx context.Context, c Call) error { return fails(throttled(c.Left))(ctx, c) }

// kills is a call that kills its worker.
func kills(ctx context.Context, c Call) error {
	c.Kill()
	return hangs(ctx, c)
}

var (
	errRefused     = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	errPoison      = classify.Permanent(errors.New("the order has no items"))
	errPlain       = errors.New("no such account")
	errBulk        = errors.New("bulk insert: value too long for column name")
	errCertificate = &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
)

// status is an answer with a status of HTTP.
func status(code int) error { return &classify.HTTPError{Status: code} }

// throttled is an answer with status 429 that says when to come back.
func throttled(after time.Duration) error {
	return &classify.HTTPError{Status: 429, Wait: after}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

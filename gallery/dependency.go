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
	On    bool          // the incident lasts
	Since time.Duration // its beginning
	Draw  float64       // in [0, 1), by chance, but always the same for this run of the message
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

// meanwhile is bad as long as the incident lasts, and otherwise fine.
func meanwhile(bad Dependency) Dependency {
	return func(ctx context.Context, c Call) error {
		if c.On {
			return bad(ctx, c)
		}
		return fine(ctx, c)
	}
}

// flapping is up for a while, then bad for a while, and so on.
func flapping(each time.Duration, bad Dependency) Dependency {
	return func(ctx context.Context, c Call) error {
		if c.Since/each%2 == 1 {
			return bad(ctx, c)
		}
		return fine(ctx, c)
	}
}

// some is bad in a share of the calls.
func some(share float64, bad Dependency) Dependency {
	return func(ctx context.Context, c Call) error {
		if c.Draw < share {
			return bad(ctx, c)
		}
		return fine(ctx, c)
	}
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

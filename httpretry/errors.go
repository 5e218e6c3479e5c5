package httpretry

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/retry/breaker"
)

// shortestWait is the least hint of a breaker.
const shortestWait = time.Second

// OpenError says that a request was not sent, because the breaker of its
// dependency refused it. That is no failure of the message, nor of what
// else its handler depends on: package classify takes it for deferred, so that
// the message is run again after Wait, and the run is not counted.
type OpenError struct {
	Dependency string
	State      breaker.State
	Reason     string        // why the breaker refuses calls
	Wait       time.Duration // for how long to wait before the next request, at least 1 s
}

// Error says why the request was not sent, and when to try again.
func (e *OpenError) Error() string {
	text := fmt.Sprintf("httpretry: not sent: the breaker of %q is %v", e.Dependency, e.State)
	if e.Reason != "" {
		text += " (" + e.Reason + ")"
	}
	if e.State == breaker.Isolated {
		return text + ", until it is restored"
	}
	return text + fmt.Sprintf("; try again in %v", e.Wait.Round(time.Millisecond))
}

// Deferred returns true, which package classify looks for.
func (e *OpenError) Deferred() bool { return true }

// RetryAfter returns Wait.
func (e *OpenError) RetryAfter() time.Duration { return e.Wait }

// timeoutError is the error of an attempt that took too long.
type timeoutError struct {
	limit time.Duration
	err   error // what the cancellation came back as
}

func (e *timeoutError) Error() string {
	return fmt.Sprintf("httpretry: the attempt took longer than Policy.Timeout (%v): %v", e.limit, e.err)
}

func (e *timeoutError) Unwrap() error { return e.err }

func (e *timeoutError) Timeout() bool { return true }

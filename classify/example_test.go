package classify_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/classify"
)

var errNoSuchItem = errors.New("no such item")

// A mark keeps its cause, and is found through any number of %w.
func ExamplePermanent() {
	err := classify.Permanent(fmt.Errorf("item 42: %w", errNoSuchItem))
	err = fmt.Errorf("ship order 7: %w", err)

	fmt.Println(err)
	fmt.Println(errors.Is(err, errNoSuchItem))
	fmt.Println(classify.Of(err).Class)
	// Output:
	// ship order 7: item 42: no such item
	// true
	// poison
}

func ExampleRetryAfter() {
	err := classify.RetryAfter(errors.New("the shop opens at nine"), 20*time.Minute)

	v := classify.Of(err)
	fmt.Println(v.Class, v.RetryAfter)
	// Output: transient 20m0s
}

func ExampleThrottled() {
	err := classify.Throttled(errors.New("quota of the account used up"), time.Minute)

	v := classify.Of(err)
	fmt.Println(v.Class, v.RetryAfter)
	// Output: throttled 1m0s
}

// To change one thing, start with the verdict that the error has anyway.
func ExampleWith() {
	err := error(&classify.HTTPError{Status: http.StatusServiceUnavailable})
	v := classify.Of(err)
	v.MaxAttempts, v.Reason = 3, "bank-offline"
	err = classify.With(err, v)

	fmt.Println(classify.Of(err).Class, classify.Of(err).MaxAttempts, classify.Of(err).Reason)
	// Output: transient 3 bank-offline
}

func ExampleSkip() {
	err := classify.Skip(errors.New("the order was cancelled meanwhile"))

	fmt.Println(classify.Of(err).Class)
	// Output: skipped
}

// A rule of the application knows its own errors better.
func ExampleOf() {
	closed := errors.New("the warehouse is closed")
	warehouse := func(err error) error {
		if !errors.Is(err, closed) {
			return nil
		}
		return classify.With(err, classify.Verdict{Class: classify.ClassEnvironment, Rule: "warehouse"})
	}

	for _, err := range []error{
		fmt.Errorf("ship: %w", closed),
		fmt.Errorf("ship: %w", syscall.ECONNRESET),
		errors.New("strange"),
	} {
		v := classify.Of(err, warehouse)
		fmt.Printf("%s, ambiguous %t, rule %q\n", v.Class, v.Ambiguous, v.Rule)
	}
	// Output:
	// environment, ambiguous false, rule "warehouse"
	// transient, ambiguous true, rule "errno ECONNRESET"
	// unknown, ambiguous false, rule ""
}

func ExampleExplain() {
	call := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.EMFILE)}
	err := fmt.Errorf("charge: %w", errors.Join(call, classify.Permanent(errNoSuchItem)))

	fmt.Println(classify.Explain(err))
	// Output:
	// *fmt.wrapError: charge: dial tcp: connect: too many open files no such item
	//   *errors.joinError: dial tcp: connect: too many open files no such item
	//     *net.OpError: dial tcp: connect: too many open files
	//       *os.SyscallError: connect: too many open files
	//         syscall.Errno: too many open files => environment by "errno EMFILE"
	//     classify.Permanent: no such item => poison by "mark: permanent"
	//       *errors.errorString: no such item => no rule
	//   => joined: poison by "mark: permanent"
	// verdict: poison by "mark: permanent", runs at most 1
}

func ExampleFromResponse() {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer srv.Close()

	charge := func() error {
		resp, err := http.Get(srv.URL)
		if err != nil {
			return fmt.Errorf("charge: %w", err)
		}
		defer resp.Body.Close()
		if err := classify.FromResponse(resp); err != nil {
			return fmt.Errorf("charge: %w", err)
		}
		return nil
	}
	v := classify.Of(charge())
	fmt.Println(v.Class, v.Code, v.RetryAfter)
	// Output: throttled 503 30s
}

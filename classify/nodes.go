package classify

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The types of errors.New and of fmt.Errorf with one %w. They have no method
// worth looking for, and most chains consist of them.
var (
	plainType   = reflect.TypeOf(errors.New(""))
	wrapperType = reflect.TypeOf(fmt.Errorf("%w", os.ErrClosed))
)

// The findings on types of the standard library.
var (
	malformedURL   = system(poison, "url parse")
	badAddress     = system(environment, "network address")
	bodyTooLarge   = system(poison, "http body too large")
	dnsTimeout     = system(transient, "dns timeout")
	dnsTemporary   = system(transient, "dns temporary")
	dnsNotFound    = system(transientUpTo(runsNotFound), "dns not found")
	dnsFailure     = system(transient, "dns failure")
	dialFailed     = finding{rankNamed, named(transient, "net dial")} // unless anything else is known
	cutReply       = system(ambiguous, "http connection cut before the reply")
	killed         = system(transient, "process ended by a signal")
	exited         = system(unknown, "process exit status")
	x509Authority  = system(environment, "x509 unknown authority")
	x509Host       = system(environment, "x509 wrong host name")
	x509Time       = system(environment, "x509 expired or not yet valid")
	x509Other      = system(environment, "x509 verification")
	tlsPlaintext   = system(environment, "tls record header")
	tlsECH         = system(environment, "tls ech rejected")
	tlsCertificate = finding{rankHint, named(environment, "tls certificate verification")}
)

// The findings on methods that libraries agree on.
var (
	saysRetryable  = finding{rankLibrary, named(transient, "RetryableError method")}
	saysRetriable  = finding{rankProtocol, named(transient, "IsRetriable method")}
	saysInvalid    = finding{rankProtocol, Verdict{Class: ClassPoison, Reason: "validation", Rule: "Validation method"}}
	saysTimeout    = finding{rankHint, named(ambiguous, "Timeout method")}
	saysTemporary  = finding{rankHint, named(transient, "Temporary method")}
	saysRetryAfter = finding{rankLibrary, named(throttled, "RetryAfter method")}
	saysDeferred   = finding{rankLibrary, Verdict{Class: ClassTransient, Deferred: true, Rule: "Deferred method"}}
)

// nodeFinding judges err by its own type and methods, not by what it wraps. It
// returns nil if no rule hits.
func nodeFinding(err error) *finding {
	switch reflect.TypeOf(err) {
	case plainType, wrapperType:
		return nil
	}
	switch e := err.(type) {
	case *mark:
		return &e.found
	case *PanicError:
		return e.finding()
	}
	if f, known := standardFinding(err); known {
		return f
	}
	for _, rule := range methodRules {
		if f := rule(err); f != nil {
			return f
		}
	}
	return nil
}

// standardFinding judges the types of the standard library. Those that only
// wrap are known, but without a finding: their Timeout and Temporary methods
// repeat what lies below, and are there for more than the network.
func standardFinding(err error) (f *finding, known bool) {
	switch e := err.(type) {
	case *url.Error:
		if e.Op == "parse" {
			return &malformedURL, true
		}
		return nil, true
	case *os.PathError, *os.LinkError, *os.SyscallError, *exec.Error:
		return nil, true
	case *net.OpError:
		return opFinding(e), true
	case *net.DNSError:
		return dnsFinding(e), true
	case syscall.Errno:
		f := errnos[e]
		return f, f != nil
	case *net.AddrError, *net.ParseError, net.UnknownNetworkError, net.InvalidAddrError:
		return &badAddress, true
	case *http.MaxBytesError:
		return &bodyTooLarge, true
	case *exec.ExitError:
		return exitFinding(e), true
	}
	f = tlsFinding(err)
	return f, f != nil
}

func tlsFinding(err error) *finding {
	switch e := err.(type) {
	case x509.UnknownAuthorityError:
		return &x509Authority
	case x509.HostnameError:
		return &x509Host
	case x509.CertificateInvalidError:
		if e.Reason == x509.Expired {
			return &x509Time
		}
		return &x509Other
	case x509.SystemRootsError, x509.InsecureAlgorithmError, x509.ConstraintViolationError, x509.UnhandledCriticalExtension:
		return &x509Other
	case *tls.CertificateVerificationError:
		return &tlsCertificate
	case *tls.ECHRejectionError:
		return &tlsECH
	case tls.RecordHeaderError:
		return &tlsPlaintext
	case tls.AlertError:
		return alertsByText[e.Error()]
	}
	return nil
}

// opFinding looks for a TLS alert, whose type the standard library does not
// export.
func opFinding(e *net.OpError) *finding {
	if e.Op != "remote error" && e.Op != "local error" || e.Err == nil {
		return nil
	}
	return alertsByText[e.Err.Error()]
}

func dnsFinding(e *net.DNSError) *finding {
	switch {
	case errors.Is(e.UnwrapErr, context.Canceled):
		return nil
	case e.IsTimeout:
		return &dnsTimeout
	case e.IsTemporary:
		return &dnsTemporary
	case e.IsNotFound:
		return &dnsNotFound
	}
	return &dnsFailure
}

func exitFinding(e *exec.ExitError) *finding {
	code := e.ExitCode()
	if code < 0 {
		return &killed
	}
	return exited.coded(strconv.Itoa(code))
}

// coded returns f with another code.
func (f *finding) coded(code string) *finding {
	if f == nil || f.Code == code {
		return f
	}
	g := *f
	g.Code = code
	return &g
}

// hinted returns f with a hint.
func (f *finding) hinted(d time.Duration) *finding {
	if f == nil || d <= 0 {
		return f
	}
	g := *f
	g.RetryAfter = d
	return &g
}

// methodRules judge errors by methods that libraries agree on. The first one
// that hits decides for the node.
var methodRules = []func(error) *finding{
	libraryDefer, libraryHint, libraryRetry,
	serviceCode, sqlState, redisReply, httpStatus, retriable, validation,
	sentinelByIs, timeout, temporary,
	unlistedCode,
}

// libraryDefer finds that a call was not even tried, as a breaker does. Such an
// error is evidence against nothing.
func libraryDefer(err error) *finding {
	if e, ok := err.(interface{ Deferred() bool }); ok && e.Deferred() {
		return saysDeferred.hinted(hintOf(err))
	}
	return nil
}

func libraryHint(err error) *finding {
	if _, ok := err.(interface{ HTTPStatusCode() int }); ok {
		return nil // the hint belongs to the status
	}
	if d := hintOf(err); d > 0 {
		return saysRetryAfter.hinted(d)
	}
	return nil
}

func hintOf(err error) time.Duration {
	if e, ok := err.(interface{ RetryAfter() time.Duration }); ok {
		return e.RetryAfter()
	}
	return 0
}

func libraryRetry(err error) *finding {
	if e, ok := err.(interface{ RetryableError() bool }); ok && e.RetryableError() {
		return &saysRetryable
	}
	return nil
}

func serviceCode(err error) *finding {
	if e, ok := err.(interface{ ErrorCode() string }); ok {
		code := e.ErrorCode()
		return serviceCodes[bareCode(code)].coded(code)
	}
	return nil
}

// bareCode strips what differs between the protocols of one service: the
// namespace in front and the word Exception at the end.
func bareCode(code string) string {
	code = code[strings.LastIndexAny(code, ".#")+1:]
	return strings.TrimSuffix(code, "Exception")
}

func sqlState(err error) *finding {
	e, ok := err.(interface{ SQLState() string })
	if !ok {
		return nil
	}
	state := e.SQLState()
	if len(state) != 5 {
		return nil
	}
	if f := sqlStates[state]; f != nil {
		return f
	}
	return sqlClasses[state[:2]].coded(state)
}

func redisReply(err error) *finding {
	e, ok := err.(interface {
		error
		RedisError()
	})
	if !ok {
		return nil
	}
	text := e.Error()
	for i := range redisTexts {
		if strings.HasPrefix(text, redisTexts[i].prefix) {
			return &redisTexts[i].finding
		}
	}
	word, rest, _ := strings.Cut(text, " ")
	if word == "ERR" && strings.Contains(rest, "READONLY ") {
		word = "READONLY" // inside the error of a script
	}
	return redisWords[word]
}

func httpStatus(err error) *finding {
	e, ok := err.(interface{ HTTPStatusCode() int })
	if !ok {
		return nil
	}
	status, hint := e.HTTPStatusCode(), hintOf(err)
	if f := statusesWithHint[status]; f != nil && hint > 0 {
		return f.hinted(hint)
	}
	return statuses[status].hinted(hint)
}

func retriable(err error) *finding {
	if e, ok := err.(interface{ IsRetriable() bool }); ok && e.IsRetriable() {
		return &saysRetriable
	}
	return nil
}

func validation(err error) *finding {
	if e, ok := err.(interface{ Validation() bool }); ok && e.Validation() {
		return &saysInvalid
	}
	return nil
}

func sentinelByIs(err error) *finding {
	e, ok := err.(interface{ Is(error) bool })
	if !ok {
		return nil
	}
	for i := range sentinels {
		if e.Is(sentinels[i].err) {
			return &sentinels[i].finding
		}
	}
	return nil
}

func timeout(err error) *finding {
	if e, ok := err.(interface{ Timeout() bool }); ok && e.Timeout() {
		return &saysTimeout
	}
	return nil
}

// temporary is a hint only if it is true: most errors that pass by themselves
// report false.
func temporary(err error) *finding {
	if e, ok := err.(interface{ Temporary() bool }); ok && e.Temporary() {
		return &saysTemporary
	}
	return nil
}

// unlistedCode keeps a code that no table lists.
func unlistedCode(err error) *finding {
	switch e := err.(type) {
	case interface{ ErrorCode() string }:
		return noRule.coded(e.ErrorCode())
	case interface{ SQLState() string }:
		return noRule.coded(e.SQLState())
	}
	return nil
}

// leafFinding judges an error that wraps nothing by its identity and, for the
// few that show nothing else, by its text.
func leafFinding(err error, p place) *finding {
	for i := range sentinels {
		if err == sentinels[i].err {
			if p.request && sentinels[i].cut {
				return &cutReply
			}
			return &sentinels[i].finding
		}
	}
	if p.request || reflect.TypeOf(err) == plainType {
		text := err.Error()
		for i := range texts {
			if (p.request || !texts[i].request) && strings.HasPrefix(text, texts[i].prefix) {
				return &texts[i].finding
			}
		}
	}
	if p.dial {
		return &dialFailed
	}
	return nil
}

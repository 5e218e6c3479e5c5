package classify_test

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// The types below carry the methods that drivers and clients put on theirs.

type statusError struct {
	status int
	hint   time.Duration
	cause  error
}

func (e *statusError) Error() string             { return "status " + strconv.Itoa(e.status) }
func (e *statusError) Unwrap() error             { return e.cause }
func (e *statusError) HTTPStatusCode() int       { return e.status }
func (e *statusError) RetryAfter() time.Duration { return e.hint }

type serviceError struct {
	code  string
	cause error
}

func (e *serviceError) Error() string     { return "service says " + e.code }
func (e *serviceError) Unwrap() error     { return e.cause }
func (e *serviceError) ErrorCode() string { return e.code }

type sqlError struct{ state string }

func (e *sqlError) Error() string    { return "SQLSTATE " + e.state }
func (e *sqlError) SQLState() string { return e.state }

type safeError struct {
	cause error
	not   bool
}

func (e *safeError) Error() string     { return "not sent: " + e.cause.Error() }
func (e *safeError) Unwrap() error     { return e.cause }
func (e *safeError) SafeToRetry() bool { return !e.not }

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

type libraryError struct {
	retryable, retriable, temporary, timeout, invalid bool
	hint                                              time.Duration
	cause                                             error
}

func (e *libraryError) Error() string             { return "library" }
func (e *libraryError) Unwrap() error             { return e.cause }
func (e *libraryError) RetryableError() bool      { return e.retryable }
func (e *libraryError) IsRetriable() bool         { return e.retriable }
func (e *libraryError) Temporary() bool           { return e.temporary }
func (e *libraryError) Timeout() bool             { return e.timeout }
func (e *libraryError) Validation() bool          { return e.invalid }
func (e *libraryError) RetryAfter() time.Duration { return e.hint }

type isError struct{ is error }

func (e isError) Error() string        { return "like " + e.is.Error() }
func (e isError) Is(target error) bool { return target == e.is }

// Package snippets compares the tables of this package with
// docs/reference/classification.md, row by row. The tests here are about how an error
// comes to its row.

func TestHTTPStatus(t *testing.T) {
	for code, want := range map[int]func(rule, code string) classify.Verdict{
		404: poison, 499: poison, 500: ambiguous, 502: transient, 401: environment, 555: ambiguous,
	} {
		check(t, &statusError{status: code}, want("http status "+strconv.Itoa(code), strconv.Itoa(code)))
	}
	check(t, &statusError{status: 409}, upTo(3, "http status 409", "409"))
	for _, status := range []int{-1, 0, 200, 302, 399, 600, 999} {
		check(t, &statusError{status: status}, unknown("", ""))
	}
}

func TestHTTPStatusWithHint(t *testing.T) {
	const hint = 7 * time.Second
	for _, status := range []int{403, 413, 503} {
		code := strconv.Itoa(status)
		check(t, &statusError{status: status, hint: hint}, throttled("Retry-After with http status "+code, code, hint))
	}
	check(t, &statusError{status: 429, hint: hint}, throttled("http status 429", "429", hint))
	check(t, &statusError{status: 400, hint: hint}, poison("http status 400", "400"))
	check(t, &statusError{status: 503, hint: -hint}, transient("http status 503", "503"))

	check(t, &statusError{status: 409, hint: hint}, withHint(upTo(3, "http status 409", "409"), hint))
}

func TestSQLState(t *testing.T) {
	check(t, &sqlError{"08006"}, ambiguous("sqlstate class 08", "08006"))
	check(t, &sqlError{"08001"}, transient("sqlstate 08001", "08001")) // a row of its own
	check(t, &sqlError{"23503"}, upTo(3, "sqlstate 23503", "23503"))
	check(t, &sqlError{"53300"}, throttled("sqlstate 53300", "53300", 0))
	check(t, &sqlError{"XX000"}, unknown("sqlstate class XX", "XX000"))
	check(t, &sqlError{"HY000"}, unknown("", "HY000"))
	check(t, &sqlError{"123456"}, unknown("", "123456"))
	check(t, &sqlError{""}, unknown("", ""))
}

// SafeToRetry says that nothing was sent, not that a retry would help.
func TestSafeToRetry(t *testing.T) {
	check(t, &safeError{cause: &sqlError{"08006"}}, transient("sqlstate class 08", "08006"))
	check(t, &safeError{cause: syscall.ECONNRESET}, transient("errno ECONNRESET", "ECONNRESET"))
	check(t, &safeError{cause: syscall.ECONNRESET, not: true}, ambiguous("errno ECONNRESET", "ECONNRESET"))
	check(t, &safeError{cause: &safeError{cause: syscall.ECONNRESET, not: true}}, transient("errno ECONNRESET", "ECONNRESET"))
	check(t, &safeError{cause: errors.Join(syscall.EPIPE, syscall.EPIPE)}, transient("errno EPIPE", "EPIPE"))
	check(t, &safeError{cause: errors.New("bad state")}, unknown("", ""))
	check(t, classify.Transient(&safeError{cause: syscall.EPIPE}), transient("mark: transient", "EPIPE"))
}

func TestServiceCodes(t *testing.T) {
	for _, code := range []string{"Throttled", "ThrottledException", "KMS.ThrottledException", "com.amazonaws.sqs#Throttled"} {
		check(t, &serviceError{code: code}, throttled("service code Throttled", code, 0))
	}
	const lost = "AWS.SimpleQueueService.MessageNotInflight"
	check(t, &serviceError{code: lost}, classify.Verdict{Class: classify.ClassLost, Rule: "service code MessageNotInflight", Code: lost})
	for _, code := range []string{"TeapotException", "", "Exception"} {
		check(t, &serviceError{code: code}, unknown("", code))
	}
}

// A code says more than the status around it, unless no table lists it.
func TestServiceCodeUnderStatus(t *testing.T) {
	const hint = 3 * time.Second
	throttling := &serviceError{code: "ThrottlingException"}
	check(t, &statusError{status: 400, cause: throttling}, throttled("service code Throttling", "ThrottlingException", 0))
	check(t, &statusError{status: 400, hint: hint, cause: throttling}, throttled("service code Throttling", "ThrottlingException", hint))
	check(t, &statusError{status: 503, cause: &serviceError{code: "Odd"}}, transient("http status 503", "503"))
}

// The first word of a reply decides. The table of the words is compared with
// docs/reference/classification.md by package snippets.
func TestRedis(t *testing.T) {
	for text, want := range map[string]classify.Verdict{
		"LOADING Redis is loading the dataset in memory":                                                  transient("redis LOADING", "LOADING"),
		"ERR Error running script: @user_script:1: READONLY You can't write against a read only replica.": transient("redis READONLY", "READONLY"),
		"OOM command not allowed when used memory > 'maxmemory'.":                                         environment("redis OOM", "OOM"),
		"WRONGTYPE Operation against a key holding the wrong kind of value":                               poison("redis WRONGTYPE", "WRONGTYPE"),
		"ERR unknown command 'FOO'":                                                                       poison("redis ERR", "ERR"),
		"ERR max number of clients reached":                                                               throttled("redis max clients", "", 0),
		"BUSYGROUP Consumer Group name already exists":                                                    unknown("", ""),
		"redis: nil":                unknown("redis nil", ""),
		"redis: transaction failed": transient("redis transaction failed", ""),
		"":                          unknown("", ""),
	} {
		check(t, redisError(text), want)
	}
	check(t, errors.New("redis: connection pool timeout"), transient("redis pool timeout", ""))
	check(t, errors.New("LOADING without the marker"), unknown("", ""))
}

func TestLibraryMethods(t *testing.T) {
	invalid := poison("Validation method", "")
	invalid.Reason = "validation"
	check(t, &libraryError{}, unknown("", ""))
	check(t, &libraryError{retryable: true}, transient("RetryableError method", ""))
	check(t, &libraryError{retriable: true}, transient("IsRetriable method", ""))
	check(t, &libraryError{temporary: true}, transient("Temporary method", ""))
	check(t, &libraryError{timeout: true, temporary: true}, ambiguous("Timeout method", ""))
	check(t, &libraryError{invalid: true}, invalid)
	check(t, &libraryError{hint: time.Second}, throttled("RetryAfter method", "", time.Second))
	check(t, &libraryError{hint: -time.Second}, unknown("", ""))

	// A method of an outer error outranks or yields to what lies below.
	check(t, &libraryError{retryable: true, cause: &statusError{status: 400}}, transient("RetryableError method", "400"))
	check(t, &libraryError{temporary: true, cause: &statusError{status: 400}}, poison("http status 400", "400"))
	check(t, &libraryError{timeout: true, cause: syscall.EACCES}, environment("errno EACCES", "EACCES"))
	check(t, &libraryError{timeout: true, cause: fs.ErrNotExist}, ambiguous("Timeout method", ""))
	check(t, &libraryError{hint: time.Second, cause: &statusError{status: 503}}, throttled("RetryAfter method", "503", time.Second))
}

func TestSentinels(t *testing.T) {
	for err, want := range map[error]classify.Verdict{
		driver.ErrBadConn:    transient("driver.ErrBadConn", ""),
		sql.ErrConnDone:      transient("sql.ErrConnDone", ""),
		sql.ErrTxDone:        unknown("sql.ErrTxDone", ""),
		sql.ErrNoRows:        unknown("sql.ErrNoRows", ""),
		fs.ErrPermission:     environment("fs.ErrPermission", ""),
		fs.ErrNotExist:       unknown("fs.ErrNotExist", ""),
		fs.ErrExist:          unknown("fs.ErrExist", ""),
		http.ErrAbortHandler: unknown("http.ErrAbortHandler", ""),
	} {
		check(t, err, want)
		check(t, isError{err}, want)
	}
	check(t, os.NewSyscallError("call", syscall.ENOTEMPTY), unknown("fs.ErrExist", ""))
	check(t, os.NewSyscallError("call", syscall.EDOM), unknown("", ""))
	if fmt.Sprint(classify.ErrAttemptTimeout) != "the handler did not finish within its timeout" {
		t.Errorf("ErrAttemptTimeout reads %q", classify.ErrAttemptTimeout)
	}
}

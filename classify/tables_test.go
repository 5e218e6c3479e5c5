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
	"strings"
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

func TestHTTPStatus(t *testing.T) {
	type build = func(rule, code string) classify.Verdict
	upTo3 := func(rule, code string) classify.Verdict { return upTo(3, rule, code) }
	noHint := func(rule, code string) classify.Verdict { return throttled(rule, code, 0) }
	tests := []struct {
		build    build
		statuses []int
	}{
		{transient, []int{408, 421, 423, 425, 502, 503, 507}},
		{ambiguous, []int{500, 504, 520, 521, 522, 523, 524, 598, 599, 506, 555}},
		{upTo3, []int{409, 412, 424}},
		{noHint, []int{429, 529}},
		{environment, []int{401, 407, 426, 501, 505, 511, 525, 526}},
		{poison, []int{400, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 416, 417, 422, 428, 431, 451, 508, 418, 499}},
	}
	for _, tt := range tests {
		for _, status := range tt.statuses {
			code := strconv.Itoa(status)
			check(t, &statusError{status: status}, tt.build("http status "+code, code))
			check(t, &classify.HTTPError{Status: status}, tt.build("http status "+code, code))
		}
	}
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

	conflict := upTo(3, "http status 409", "409")
	conflict.RetryAfter = hint
	check(t, &statusError{status: 409, hint: hint}, conflict)
}

func TestSQLState(t *testing.T) {
	type build = func(rule, code string) classify.Verdict
	upTo3 := func(rule, code string) classify.Verdict { return upTo(3, rule, code) }
	noHint := func(rule, code string) classify.Verdict { return throttled(rule, code, 0) }
	exact := func(state string) string { return "sqlstate " + state }
	class := func(state string) string { return "sqlstate class " + state[:2] }
	tests := []struct {
		build  build
		rule   func(state string) string
		states string
	}{
		{ambiguous, class, "08000 08003 08006 08007"},
		{transient, exact, "08001 08004 25006 25P03 25P04 40001 40P01 55P03 55006"},
		{environment, exact, "08P01 53100 57P04 58P01 58P02 XX001 XX002"},
		{poison, class, "20000 21000 22001 22P02 23502 23505 23514 27000 44000 54001 P0001 P0004"},
		{upTo3, exact, "23503"},
		{unknown, class, "25001 25P02 55000 HV000 HV00N XX000"},
		{environment, class, "28000 28P01 3D000 3F000 F0000 42601 42501 42P01 0A000 0Z000 2B000 2D000 2F000 34000 38000 39000 3B001 26000 24000"},
		{poison, exact, "40002"},
		{ambiguous, exact, "40003"},
		{transient, class, "40000 53000 53200 53400 57000 57014 57P01 57P02 57P03 57P05 58000 58030"},
		{noHint, exact, "53300"},
	}
	for _, tt := range tests {
		for state := range strings.FieldsSeq(tt.states) {
			check(t, &sqlError{state}, tt.build(tt.rule(state), state))
		}
	}
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
	type build = func(rule, code string) classify.Verdict
	noHint := func(rule, code string) classify.Verdict { return throttled(rule, code, 0) }
	lost := func(rule, code string) classify.Verdict {
		return classify.Verdict{Class: classify.ClassLost, Rule: rule, Code: code}
	}
	tests := []struct {
		build build
		codes string
	}{
		{noHint, `Throttling ThrottlingException ThrottledException RequestThrottledException TooManyRequestsException
			ProvisionedThroughputExceededException TransactionInProgressException RequestLimitExceeded BandwidthLimitExceeded
			LimitExceededException RequestThrottled SlowDown PriorRequestNotComplete EC2ThrottledException OverLimit
			KmsThrottled KMS.ThrottlingException com.amazonaws.sqs#RequestThrottled`},
		{transient, "ServiceUnavailable ServiceUnavailableException"},
		{ambiguous, "RequestTimeout RequestTimeoutException InternalError InternalFailure InternalServerError InternalServerException"},
		{environment, `ExpiredToken ExpiredTokenException AccessDenied AccessDeniedException UnrecognizedClientException
			InvalidSecurity InvalidClientTokenId QueueDoesNotExist AWS.SimpleQueueService.NonExistentQueue
			KmsDisabled KmsNotFound KmsAccessDenied KmsInvalidState`},
		{lost, "ReceiptHandleIsInvalid MessageNotInflight AWS.SimpleQueueService.MessageNotInflight"},
		{poison, "ValidationException ValidationError InvalidMessageContents BatchRequestTooLong AWS.SimpleQueueService.BatchRequestTooLong"},
	}
	for _, tt := range tests {
		for code := range strings.FieldsSeq(tt.codes) {
			bare := strings.TrimSuffix(code[strings.LastIndexAny(code, ".#")+1:], "Exception")
			check(t, &serviceError{code: code}, tt.build("service code "+bare, code))
		}
	}
	check(t, &serviceError{code: "TeapotException"}, unknown("", "TeapotException"))
	check(t, &serviceError{}, unknown("", ""))
	check(t, &serviceError{code: "Exception"}, unknown("", "Exception"))
}

// A code says more than the status around it, unless no table lists it.
func TestServiceCodeUnderStatus(t *testing.T) {
	const hint = 3 * time.Second
	throttling := &serviceError{code: "ThrottlingException"}
	check(t, &statusError{status: 400, cause: throttling}, throttled("service code Throttling", "ThrottlingException", 0))
	check(t, &statusError{status: 400, hint: hint, cause: throttling}, throttled("service code Throttling", "ThrottlingException", hint))
	check(t, &statusError{status: 503, cause: &serviceError{code: "Odd"}}, transient("http status 503", "503"))
}

func TestRedis(t *testing.T) {
	tests := []struct {
		text string
		want classify.Verdict
	}{
		{"LOADING Redis is loading the dataset in memory", transient("redis LOADING", "LOADING")},
		{"BUSY Redis is busy running a script", transient("redis BUSY", "BUSY")},
		{"READONLY You can't write against a read only replica.", transient("redis READONLY", "READONLY")},
		{"ERR Error running script: @user_script:1: READONLY You can't write against a read only replica.", transient("redis READONLY", "READONLY")},
		{"CLUSTERDOWN The cluster is down", transient("redis CLUSTERDOWN", "CLUSTERDOWN")},
		{"MASTERDOWN Link with MASTER is down", transient("redis MASTERDOWN", "MASTERDOWN")},
		{"TRYAGAIN Multiple keys request during rehashing of slot", transient("redis TRYAGAIN", "TRYAGAIN")},
		{"NOREPLICAS Not enough good replicas to write.", transient("redis NOREPLICAS", "NOREPLICAS")},
		{"MOVED 3999 127.0.0.1:6381", transient("redis MOVED", "MOVED")},
		{"ASK 3999 127.0.0.1:6381", transient("redis ASK", "ASK")},
		{"ERR max number of clients reached", throttled("redis max clients", "", 0)},
		{"OOM command not allowed when used memory > 'maxmemory'.", environment("redis OOM", "OOM")},
		{"MISCONF Redis is configured to save RDB snapshots", environment("redis MISCONF", "MISCONF")},
		{"NOAUTH Authentication required.", environment("redis NOAUTH", "NOAUTH")},
		{"WRONGPASS invalid username-password pair", environment("redis WRONGPASS", "WRONGPASS")},
		{"NOPERM this user has no permissions", environment("redis NOPERM", "NOPERM")},
		{"WRONGTYPE Operation against a key holding the wrong kind of value", poison("redis WRONGTYPE", "WRONGTYPE")},
		{"CROSSSLOT Keys in request don't hash to the same slot", poison("redis CROSSSLOT", "CROSSSLOT")},
		{"EXECABORT Transaction discarded because of previous errors.", poison("redis EXECABORT", "EXECABORT")},
		{"ERR unknown command 'FOO'", poison("redis ERR", "ERR")},
		{"BUSYGROUP Consumer Group name already exists", unknown("", "")},
		{"redis: nil", unknown("redis nil", "")},
		{"redis: transaction failed", transient("redis transaction failed", "")},
		{"", unknown("", "")},
	}
	for _, tt := range tests {
		check(t, redisError(tt.text), tt.want)
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

func TestErrnos(t *testing.T) {
	tests := []struct {
		errno syscall.Errno
		want  classify.Verdict
	}{
		{syscall.ECONNREFUSED, transient("errno ECONNREFUSED", "ECONNREFUSED")},
		{syscall.ECONNABORTED, transient("errno ECONNABORTED", "ECONNABORTED")},
		{syscall.EHOSTUNREACH, transient("errno EHOSTUNREACH", "EHOSTUNREACH")},
		{syscall.EHOSTDOWN, transient("errno EHOSTDOWN", "EHOSTDOWN")},
		{syscall.ENETUNREACH, transient("errno ENETUNREACH", "ENETUNREACH")},
		{syscall.ENETDOWN, transient("errno ENETDOWN", "ENETDOWN")},
		{syscall.EAGAIN, transient("errno EAGAIN", "EAGAIN")},
		{syscall.EINTR, transient("errno EINTR", "EINTR")},
		{syscall.EBUSY, transient("errno EBUSY", "EBUSY")},
		{syscall.ESTALE, transient("errno ESTALE", "ESTALE")},
		{syscall.ECONNRESET, ambiguous("errno ECONNRESET", "ECONNRESET")},
		{syscall.ENETRESET, ambiguous("errno ENETRESET", "ENETRESET")},
		{syscall.EPIPE, ambiguous("errno EPIPE", "EPIPE")},
		{syscall.ETIMEDOUT, ambiguous("errno ETIMEDOUT", "ETIMEDOUT")},
		{syscall.EMFILE, environment("errno EMFILE", "EMFILE")},
		{syscall.ENFILE, environment("errno ENFILE", "ENFILE")},
		{syscall.ENOMEM, environment("errno ENOMEM", "ENOMEM")},
		{syscall.ENOBUFS, environment("errno ENOBUFS", "ENOBUFS")},
		{syscall.EADDRNOTAVAIL, environment("errno EADDRNOTAVAIL", "EADDRNOTAVAIL")},
		{syscall.ENOSPC, environment("errno ENOSPC", "ENOSPC")},
		{syscall.EDQUOT, environment("errno EDQUOT", "EDQUOT")},
		{syscall.EROFS, environment("errno EROFS", "EROFS")},
		{syscall.EIO, environment("errno EIO", "EIO")},
		{syscall.EACCES, environment("errno EACCES", "EACCES")},
		{syscall.EPERM, environment("errno EPERM", "EPERM")},
		{syscall.ENOENT, unknown("errno ENOENT", "ENOENT")},
		{syscall.EEXIST, unknown("errno EEXIST", "EEXIST")},
		{syscall.ENOTEMPTY, unknown("fs.ErrExist", "")},
		{syscall.EDOM, unknown("", "")},
	}
	for _, tt := range tests {
		check(t, os.NewSyscallError("call", tt.errno), tt.want)
	}
}

func TestSentinels(t *testing.T) {
	tests := []struct {
		err  error
		want classify.Verdict
	}{
		{driver.ErrBadConn, transient("driver.ErrBadConn", "")},
		{sql.ErrConnDone, transient("sql.ErrConnDone", "")},
		{sql.ErrTxDone, unknown("sql.ErrTxDone", "")},
		{sql.ErrNoRows, unknown("sql.ErrNoRows", "")},
		{fs.ErrPermission, environment("fs.ErrPermission", "")},
		{fs.ErrNotExist, unknown("fs.ErrNotExist", "")},
		{fs.ErrExist, unknown("fs.ErrExist", "")},
		{http.ErrAbortHandler, unknown("http.ErrAbortHandler", "")},
	}
	for _, tt := range tests {
		check(t, tt.err, tt.want)
		check(t, isError{tt.err}, tt.want)
	}
	if fmt.Sprint(classify.ErrAttemptTimeout) != "the handler did not finish within its timeout" {
		t.Errorf("ErrAttemptTimeout reads %q", classify.ErrAttemptTimeout)
	}
}

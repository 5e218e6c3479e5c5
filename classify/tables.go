package classify

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
)

// The verdicts that the tables are made of.
var (
	poison      = Verdict{Class: ClassPoison}
	transient   = Verdict{Class: ClassTransient}
	ambiguous   = Verdict{Class: ClassTransient, Ambiguous: true}
	throttled   = Verdict{Class: ClassThrottled}
	environment = Verdict{Class: ClassEnvironment}
	lost        = Verdict{Class: ClassLost}
	unknown     = Verdict{Class: ClassUnknown}
)

func transientUpTo(runs int) Verdict {
	return Verdict{Class: ClassTransient, MaxAttempts: runs}
}

func named(v Verdict, rule string) Verdict {
	v.Rule = rule
	return v
}

func system(v Verdict, rule string) finding { return ranked(rankSystem, v, rule) }

func protocol(v Verdict, rule string) finding { return ranked(rankProtocol, v, rule) }

// ranked lowers the rank of what is known and yet tells nothing, so that a hint
// of an outer error still counts.
func ranked(r rank, v Verdict, rule string) finding {
	if v.Class == ClassUnknown {
		r = rankNamed
	}
	return finding{r, named(v, rule)}
}

// row is a line of a table: all its keys get the verdict.
type row[K comparable] struct {
	verdict Verdict
	keys    []K
}

// index turns the rows into findings by key. The text of a key is its code.
func index[K comparable](r rank, rule string, text func(K) string, rows []row[K]) map[K]*finding {
	m := make(map[K]*finding)
	for _, row := range rows {
		for _, key := range row.keys {
			f := ranked(r, row.verdict, rule+" "+text(key))
			f.Code = text(key)
			m[key] = &f
		}
	}
	return m
}

func itself(s string) string { return s }

// statuses are the HTTP status codes from 400 on. Those that the table does not
// list stand for their class, as RFC 9110 section 15 wants it.
var statuses = func() map[int]*finding {
	rows := []row[int]{
		{ambiguous, span(500, 599)},
		{poison, span(400, 499)},

		{transient, []int{408, 421, 423, 425, 502, 503, 507}},
		{ambiguous, []int{500, 504, 520, 521, 522, 523, 524, 598, 599}},
		{transientUpTo(runsConflict), []int{409, 412, 424}}, // the next run reads the state anew
		{throttled, []int{429, 529}},
		{environment, []int{401, 407, 426, 501, 505, 511, 525, 526}}, // credentials, protocol, proxy
		{poison, []int{400, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 416, 417, 422, 428, 431, 451, 508}},
	}
	return index(rankStatus, "http status", strconv.Itoa, rows)
}()

// statusesWithHint are those whose meaning a Retry-After changes: 413 and 503
// by RFC 9110, 403 because GitHub answers so to a client that is too fast.
var statusesWithHint = index(rankStatus, "Retry-After with http status", strconv.Itoa, []row[int]{
	{throttled, []int{403, 413, 503}},
})

func span(from, to int) []int {
	s := make([]int, 0, to-from+1)
	for i := from; i <= to; i++ {
		s = append(s, i)
	}
	return s
}

// sqlStates are the SQLSTATE values that differ from their class.
var sqlStates = index(rankProtocol, "sqlstate", itself, []row[string]{
	{transient, []string{
		"08001", "08004", // no connection was made
		"25006",          // read only: a failover
		"25P03", "25P04", // session and transaction timeouts
		"40001", "40P01", // serialisation, deadlock
		"55P03", "55006", // locked, in use
	}},
	{transientUpTo(runsConflict), []string{"23503"}}, // the row referred to may be on its way
	{ambiguous, []string{"40003"}},
	{throttled, []string{"53300"}},                                                         // too many connections
	{environment, []string{"08P01", "53100", "57P04", "58P01", "58P02", "XX001", "XX002"}}, // protocol, disk, dropped database, corruption
	{poison, []string{"40002"}},
})

// sqlClasses are the first two characters of a SQLSTATE.
var sqlClasses = index(rankProtocol, "sqlstate class", itself, []row[string]{
	{ambiguous, []string{"08"}},
	{transient, []string{"40", "53", "57", "58"}},
	{poison, []string{"20", "21", "22", "23", "27", "44", "54", "P0"}},
	{environment, []string{
		"0A", "0Z", "28", "3D", "3F", "42", "F0", // rights, names, syntax: the order of a deployment
		"24", "26", "2B", "2D", "2F", "34", "38", "39", "3B",
	}},
	{unknown, []string{"25", "55", "HV", "XX"}},
})

// serviceCodes are error codes as AWS and its likes send them, without the
// namespace in front and without a trailing Exception.
var serviceCodes = index(rankProtocol, "service code", itself, []row[string]{
	{throttled, []string{
		"Throttling", "Throttled", "RequestThrottled", "TooManyRequests", "ProvisionedThroughputExceeded",
		"TransactionInProgress", "RequestLimitExceeded", "BandwidthLimitExceeded", "LimitExceeded",
		"SlowDown", "PriorRequestNotComplete", "EC2Throttled", "OverLimit", "KmsThrottled",
	}},
	{transient, []string{"ServiceUnavailable"}},
	{ambiguous, []string{"RequestTimeout", "InternalError", "InternalFailure", "InternalServerError", "InternalServer"}},
	{environment, []string{
		"ExpiredToken", "AccessDenied", "UnrecognizedClient", "InvalidSecurity", "InvalidClientTokenId",
		"QueueDoesNotExist", "NonExistentQueue", "KmsDisabled", "KmsNotFound", "KmsAccessDenied", "KmsInvalidState",
	}},
	{lost, []string{"ReceiptHandleIsInvalid", "MessageNotInflight"}},
	{poison, []string{"Validation", "ValidationError", "InvalidMessageContents", "BatchRequestTooLong"}},
})

// redisWords are the first words of a Redis error reply.
var redisWords = index(rankProtocol, "redis", itself, []row[string]{
	{transient, []string{
		"LOADING", "BUSY", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "NOREPLICAS", "MOVED", "ASK",
	}},
	{environment, []string{"OOM", "MISCONF", "NOAUTH", "WRONGPASS", "NOPERM"}},
	{poison, []string{"WRONGTYPE", "CROSSSLOT", "EXECABORT", "ERR"}},
})

// textRow is an error that can be told by nothing but the start of its text.
type textRow struct {
	prefix  string
	request bool // only below a *url.Error
	finding finding
}

var redisTexts = []textRow{
	{prefix: "redis: nil", finding: protocol(unknown, "redis nil")},
	{prefix: "redis: transaction failed", finding: protocol(transient, "redis transaction failed")},
	{prefix: "ERR max number of clients", finding: protocol(throttled, "redis max clients")},
}

var texts = []textRow{
	{prefix: "http: server closed idle connection", finding: system(transient, "http idle connection closed")},
	{prefix: "redis: connection pool timeout", finding: system(transient, "redis pool timeout")},
	{prefix: "unsupported protocol scheme", finding: system(environment, "http unsupported scheme")},
	{prefix: "http: no Host in request URL", finding: system(environment, "http no host")},
	{prefix: "net/http: TLS handshake timeout", request: true, finding: system(transient, "tls handshake timeout")},
	{prefix: "stopped after ", request: true, finding: system(environment, "http too many redirects")},
	{prefix: "http2: server sent GOAWAY", request: true, finding: system(ambiguous, "http2 goaway")},
	{prefix: "http2: client connection lost", request: true, finding: system(ambiguous, "http2 connection lost")},
	{prefix: "stream error: ", request: true, finding: system(ambiguous, "http2 stream error")},
}

// sentinels are the errors that are told by identity.
var sentinels = []struct {
	err     error
	cut     bool // in an HTTP call it means that no reply came
	finding finding
}{
	{err: context.DeadlineExceeded, finding: system(ambiguous, "context deadline exceeded")},
	{err: os.ErrDeadlineExceeded, finding: system(ambiguous, "i/o deadline exceeded")},
	{err: ErrAttemptTimeout, finding: finding{rankTimeout, Verdict{
		Class: ClassTransient, Ambiguous: true, MaxAttempts: runsTimeout, Reason: "timeout", Rule: "attempt timeout",
	}}},
	{err: context.Canceled, finding: system(unknown, "context canceled")},
	{err: io.EOF, cut: true, finding: system(unknown, "io.EOF")},
	{err: io.ErrUnexpectedEOF, cut: true, finding: system(unknown, "io.ErrUnexpectedEOF")},
	{err: net.ErrClosed, finding: system(transient, "net.ErrClosed")},
	{err: driver.ErrBadConn, finding: system(transient, "driver.ErrBadConn")}, // by contract nothing was executed
	{err: sql.ErrConnDone, finding: system(transient, "sql.ErrConnDone")},
	{err: sql.ErrTxDone, finding: system(unknown, "sql.ErrTxDone")},
	{err: sql.ErrNoRows, finding: system(unknown, "sql.ErrNoRows")},
	{err: fs.ErrPermission, finding: system(environment, "fs.ErrPermission")},
	{err: fs.ErrNotExist, finding: system(unknown, "fs.ErrNotExist")},
	{err: fs.ErrExist, finding: system(unknown, "fs.ErrExist")},
	{err: exec.ErrNotFound, finding: system(environment, "exec.ErrNotFound")},
	{err: http.ErrSchemeMismatch, finding: system(environment, "http.ErrSchemeMismatch")},
	{err: http.ErrAbortHandler, finding: system(unknown, "http.ErrAbortHandler")},
}

// tlsAlerts are the alerts, by their numbers in RFC 8446, that only a change of
// configuration or a new certificate ends.
var tlsAlerts = []tls.AlertError{
	40,                     // handshake failure
	42, 43, 44, 45, 46, 48, // bad, unsupported, revoked, expired, unknown certificate; unknown authority
	49, 51, // access denied, decrypt error
	70, 71, // protocol version, insufficient security
	109, 110, 112, // missing and unsupported extension, unrecognised name
	115, 116, 120, // unknown key identity, certificate required, no application protocol
}

// alertsByText has all the alerts, because those that a connection returns are
// not tls.AlertErrors but have the same text.
var alertsByText = func() map[string]*finding {
	passing, lasting := system(ambiguous, "tls alert"), system(environment, "tls alert of a misconfiguration")
	m := make(map[string]*finding)
	for a := range 256 {
		m[tls.AlertError(a).Error()] = &passing
	}
	for _, a := range tlsAlerts {
		m[a.Error()] = &lasting
	}
	return m
}()

// errno is a row of the table of system errors.
type errno struct {
	code syscall.Errno
	name string
}

// errnos are listed because their Temporary method is false for nearly all of
// them.
var errnos = func() map[syscall.Errno]*finding {
	m := make(map[syscall.Errno]*finding)
	for _, row := range slices.Concat(commonErrnos, systemErrnos) {
		for _, e := range row.errnos {
			f := system(row.verdict, "errno "+e.name)
			f.Code = e.name
			m[e.code] = &f
		}
	}
	return m
}()

type errnoRow struct {
	verdict Verdict
	errnos  []errno
}

var commonErrnos = []errnoRow{
	{transient, []errno{
		{syscall.ECONNREFUSED, "ECONNREFUSED"},
		{syscall.ECONNABORTED, "ECONNABORTED"},
		{syscall.EHOSTUNREACH, "EHOSTUNREACH"},
		{syscall.EHOSTDOWN, "EHOSTDOWN"},
		{syscall.ENETUNREACH, "ENETUNREACH"},
		{syscall.ENETDOWN, "ENETDOWN"},
		{syscall.EAGAIN, "EAGAIN"},
		{syscall.EINTR, "EINTR"},
		{syscall.EBUSY, "EBUSY"},
		{syscall.ESTALE, "ESTALE"},
	}},
	{ambiguous, []errno{
		{syscall.ECONNRESET, "ECONNRESET"},
		{syscall.ENETRESET, "ENETRESET"},
		{syscall.EPIPE, "EPIPE"},
		{syscall.ETIMEDOUT, "ETIMEDOUT"},
	}},
	{environment, []errno{
		{syscall.EMFILE, "EMFILE"},
		{syscall.ENFILE, "ENFILE"},
		{syscall.ENOMEM, "ENOMEM"},
		{syscall.ENOBUFS, "ENOBUFS"},
		{syscall.EADDRNOTAVAIL, "EADDRNOTAVAIL"},
		{syscall.ENOSPC, "ENOSPC"},
		{syscall.EDQUOT, "EDQUOT"},
		{syscall.EROFS, "EROFS"},
		{syscall.EIO, "EIO"},
		{syscall.EACCES, "EACCES"},
		{syscall.EPERM, "EPERM"},
	}},
	{unknown, []errno{
		{syscall.ENOENT, "ENOENT"},
		{syscall.EEXIST, "EEXIST"},
	}},
}

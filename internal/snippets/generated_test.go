package snippets

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/integration/goldentest"
)

// TestClassification compares the tables with what classify.Of says of errors
// with the codes in its tables.
func TestClassification(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the numbers of system errors differ")
	}
	tables := map[string]string{
		"marks":     named(marks),
		"http":      grouped("Status", statuses()),
		"http-hint": grouped("Status", hinted()),
		"codes":     grouped("Code", keyed(t, "serviceCodes", func(s string) error { return codeError(s) })),
		"sqlstate":  grouped("SQLSTATE", sqlStates(t)),
		"redis":     grouped("Reply", redis(t)),
		"errno":     grouped("errno", errnos()),
		"methods":   named(methods),
		"standard":  named(standard),
	}
	goldentest.Parts(t, "../../docs/reference/classification.md", tables)
}

// sample is an error of which a table speaks.
type sample struct {
	name string // as Markdown
	err  error
}

func named(samples []sample) string {
	var b strings.Builder
	b.WriteString("| Error | Class | Effect? | Runs |\n|---|---|---|---|\n")
	for _, s := range samples {
		fmt.Fprintf(&b, "| %s | %s |\n", s.name, cells(classify.Of(s.err)))
	}
	return b.String()
}

func cells(v classify.Verdict) string {
	effect, runs := "", ""
	if v.Ambiguous {
		effect = "maybe"
	}
	if v.MaxAttempts > 0 {
		runs = strconv.Itoa(v.MaxAttempts)
	}
	return fmt.Sprintf("%s | %s | %s", v.Class, effect, runs)
}

// order of the classes in a table.
var order = []string{classify.ClassTransient, classify.ClassThrottled, classify.ClassEnvironment,
	classify.ClassPoison, classify.ClassLost, classify.ClassUnknown}

// grouped has one row for each verdict.
func grouped(title string, samples []sample) string {
	names, verdicts := map[string][]string{}, map[string]classify.Verdict{}
	for _, s := range samples {
		v := classify.Of(s.err)
		key := cells(v)
		names[key], verdicts[key] = append(names[key], s.name), v
	}
	keys := slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		x, y := verdicts[a], verdicts[b]
		return cmp.Or(cmp.Compare(slices.Index(order, x.Class), slices.Index(order, y.Class)), strings.Compare(a, b))
	})
	var b strings.Builder
	fmt.Fprintf(&b, "| Class | Effect? | Runs | %s |\n|---|---|---|---|\n", title)
	for _, key := range keys {
		fmt.Fprintf(&b, "| %s | %s |\n", key, strings.Join(ranges(names[key]), ", "))
	}
	return b.String()
}

// ranges sorts names, and joins numbers that follow each other.
func ranges(names []string) []string {
	slices.Sort(names)
	names = slices.Compact(names)
	var out []string
	for i := 0; i < len(names); i++ {
		number, _ := strconv.Atoi(names[i])
		last := i
		for number > 99 && number < 1000 && last+1 < len(names) && names[last+1] == strconv.Itoa(number+last+1-i) {
			last++
		}
		if last < i+2 {
			out = append(out, names[i])
			continue
		}
		out = append(out, names[i]+" to "+names[last])
		i = last
	}
	return out
}

// statuses are named by their number.
func statuses() (all []sample) {
	for status := 400; status < 600; status++ {
		all = append(all, sample{strconv.Itoa(status), &classify.HTTPError{Status: status}})
	}
	return all
}

// hinted are the statuses whose class a Retry-After changes.
func hinted() (all []sample) {
	for _, plain := range statuses() {
		status, _ := strconv.Atoi(plain.name)
		hinted := &classify.HTTPError{Status: status, Wait: time.Second}
		if classify.Of(hinted).Class != classify.Of(plain.err).Class {
			all = append(all, sample{plain.name, hinted})
		}
	}
	return all
}

type codeError string

func (e codeError) Error() string     { return string(e) }
func (e codeError) ErrorCode() string { return string(e) }

type redisError string

func (e redisError) Error() string { return string(e) }
func (e redisError) RedisError()   {}

type stateError string

func (e stateError) Error() string    { return string(e) }
func (e stateError) SQLState() string { return string(e) }

func sqlStates(t *testing.T) []sample {
	all := keyed(t, "sqlStates", func(s string) error { return stateError(s) })
	for _, class := range keyed(t, "sqlClasses", func(s string) error { return stateError(s + "ZZZ") }) {
		all = append(all, sample{class.name + "\\*", class.err})
	}
	return all
}

func redis(t *testing.T) []sample {
	all := keyed(t, "redisWords", func(s string) error { return redisError(s) })
	for _, text := range []string{"ERR max number of clients", "redis: nil", "redis: transaction failed"} {
		all = append(all, sample{text, redisError(text)})
	}
	return all
}

// keyed makes an error for each key of one of classify's tables.
func keyed(t *testing.T, table string, make func(key string) error) (all []sample) {
	t.Helper()
	_, rows, _ := strings.Cut(readFile(t, "classify/tables.go"), "\nvar "+table+" = ")
	rows, _, _ = strings.Cut(rows, "\n})")
	_, rows, _ = strings.Cut(rows, "{\n") // below the line that names it
	for _, match := range key.FindAllStringSubmatch(rows, -1) {
		all = append(all, sample{match[1], make(match[1])})
	}
	if len(all) == 0 {
		t.Fatalf("classify's table %s has no keys", table)
	}
	return all
}

// key is one in the rows of a table.
var key = regexp.MustCompile(`[{\s]"([^"]+)"`)

// errnos are the system errors that classify knows by name.
func errnos() (all []sample) {
	for n := range syscall.Errno(4096) {
		if v := classify.Of(n); strings.HasPrefix(v.Rule, "errno ") {
			all = append(all, sample{v.Code, n})
		}
	}
	return all
}

var errAny = errors.New("any")

var marks = []sample{
	{"`classify.Permanent`", classify.Permanent(errAny)},
	{"`classify.Transient`", classify.Transient(errAny)},
	{"`classify.RetryAfter`", classify.RetryAfter(errAny, time.Second)},
	{"`classify.Throttled`", classify.Throttled(errAny, time.Second)},
	{"`classify.Defer`: never counted", classify.Defer(errAny, time.Second)},
	{"`classify.Skip`: acked and forgotten", classify.Skip(errAny)},
	{"`classify.Undecodable`, and a body that `consumer.JSON` cannot decode", classify.Undecodable(errAny)},
	{"`*classify.PanicError`", &classify.PanicError{Value: "any"}},
	{"`classify.ErrAttemptTimeout`", classify.ErrAttemptTimeout},
	{"anything that no rule knows", errAny},
}

// Each has one method that libraries agree on.
type (
	retryable  struct{ error }
	retriable  struct{ error }
	validation struct{ error }
	timeout    struct{ error }
	temporary  struct{ error }
	after      struct{ error }
	deferred   struct{ error }
	safe       struct{ error }
)

func (retryable) RetryableError() bool  { return true }
func (retriable) IsRetriable() bool     { return true }
func (validation) Validation() bool     { return true }
func (timeout) Timeout() bool           { return true }
func (temporary) Temporary() bool       { return true }
func (after) RetryAfter() time.Duration { return time.Second }
func (deferred) Deferred() bool         { return true }
func (safe) SafeToRetry() bool          { return true }
func (e safe) Unwrap() error            { return e.error }

var methods = []sample{
	{"`RetryableError() bool`, true", retryable{errAny}},
	{"`Deferred() bool`, true: never counted", deferred{errAny}},
	{"`RetryAfter() time.Duration`, positive, without `HTTPStatusCode`", after{errAny}},
	{"`IsRetriable() bool`, true", retriable{errAny}},
	{"`Validation() bool`, true", validation{errAny}},
	{"`Timeout() bool`, true", timeout{errAny}},
	{"`Temporary() bool`, true", temporary{errAny}},
	{"`SafeToRetry() bool`, true, around `syscall.ECONNRESET`: it says that the call had no effect", safe{syscall.ECONNRESET}},
}

var standard = []sample{
	{"`context.DeadlineExceeded`", context.DeadlineExceeded},
	{"`os.ErrDeadlineExceeded`", os.ErrDeadlineExceeded},
	{"`context.Canceled`", context.Canceled},
	{"`io.EOF`", io.EOF},
	{"`io.ErrUnexpectedEOF`", io.ErrUnexpectedEOF},
	{"one of these two below a `*url.Error`: the reply did not come", &url.Error{Op: "Post", Err: io.EOF}},
	{"`*net.OpError` of a dial that nothing else explains", &net.OpError{Op: "dial", Err: errAny}},
	{"`net.ErrClosed`", net.ErrClosed},
	{"`*net.DNSError`, timeout", &net.DNSError{IsTimeout: true}},
	{"`*net.DNSError`, temporary", &net.DNSError{IsTemporary: true}},
	{"`*net.DNSError`, no such host", &net.DNSError{IsNotFound: true}},
	{"`*net.DNSError`, other", &net.DNSError{}},
	{"`*net.AddrError`, `*net.ParseError`, `net.UnknownNetworkError`, `net.InvalidAddrError`", &net.AddrError{}},
	{"`*url.Error` of parsing", &url.Error{Op: "parse", Err: errAny}},
	{"`http.ErrSchemeMismatch`", http.ErrSchemeMismatch},
	{"`http.ErrAbortHandler`", http.ErrAbortHandler},
	{"`*http.MaxBytesError`", &http.MaxBytesError{}},
	{"an idle connection that the server closed", errors.New("http: server closed idle connection")},
	{"a TLS handshake timeout", &url.Error{Op: "Get", Err: errors.New("net/http: TLS handshake timeout")}},
	{"HTTP/2 GOAWAY, stream error, lost connection", &url.Error{Op: "Get", Err: errors.New("http2: server sent GOAWAY")}},
	{"too many redirects", &url.Error{Op: "Get", Err: errors.New("stopped after 10 redirects")}},
	{"an unsupported scheme, or no host", errors.New("unsupported protocol scheme")},
	{"`x509.UnknownAuthorityError`, `x509.HostnameError`", x509.UnknownAuthorityError{}},
	{"`x509.CertificateInvalidError`, expired and others", x509.CertificateInvalidError{Reason: x509.Expired}},
	{"`tls.RecordHeaderError`", tls.RecordHeaderError{}},
	{"`*tls.ECHRejectionError`", &tls.ECHRejectionError{}},
	{"`tls.AlertError` of a misconfiguration, such as 42 (bad certificate)", tls.AlertError(42)},
	{"`tls.AlertError`, other", tls.AlertError(80)},
	{"`driver.ErrBadConn`", driver.ErrBadConn},
	{"`sql.ErrConnDone`", sql.ErrConnDone},
	{"`sql.ErrTxDone`", sql.ErrTxDone},
	{"`sql.ErrNoRows`", sql.ErrNoRows},
	{"`fs.ErrPermission`", fs.ErrPermission},
	{"`fs.ErrNotExist`", fs.ErrNotExist},
	{"`fs.ErrExist`", fs.ErrExist},
	{"`exec.ErrNotFound`", exec.ErrNotFound},
	{"`*exec.ExitError` of a program that a signal ended", &exec.ExitError{}},
}

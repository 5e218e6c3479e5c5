package service

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/operate/service/bodies"
)

// A tenant sees only the cause of a failure. The rest of an error may contain
// the address of a name, its name server, or text of a response. The service
// stores the rest behind the cause, for dead letters, and logs it.
const (
	causeTarget      = "the target must not be called"
	causeName        = "the name of the target cannot be resolved"
	causeUnreachable = "the target cannot be reached"
	causeRefused     = "the connection was refused"
	causeBroken      = "the connection broke"
	causeLate        = "no answer in time"
	causeCertificate = "the certificate of the target is not trusted"
	causeTLS         = "the TLS handshake failed"
	causeNoHTTP      = "the answer is not valid HTTP"
	causeRedirect    = "a redirect that is not followed"
	causeBodyBroke   = "its body could not be read to its end"
	causeBodyLarge   = "its body is too large"
	causeCut         = "cut off as the service stops"
	causeLease       = "lease over: the worker did not finish in time, or died, and the call may have had its effect"
	causeLacks       = "the service lacks files, ports or memory"
	causeOther       = "the call failed"

	deferred        = "not called"
	reasonNoBodies  = "the service has no store of bodies"
	reasonBody      = "its body cannot be read"
	reasonBusy      = "the limit of calls to the target is reached"
	reasonTokens    = "too many retries fail at the target"
	reasonDown      = "the target is down"
	reasonNoWorker  = "no worker was free in time"
	reasonBudget    = "its budget is over"
	reasonNoTarget  = "the service cannot prepare the call"
	separatesDetail = ": "
)

// causes returns all causes. If several match a text, the first one is its
// cause.
func causes() []string {
	all := []string{
		causeTarget, causeName, causeUnreachable, causeRefused, causeBroken, causeLate, causeCertificate, causeTLS, causeNoHTTP, causeRedirect,
		causeBodyBroke, causeBodyLarge, causeCut, causeLease, causeLacks, causeOther,
	}
	for _, reason := range []string{reasonNoBodies, reasonBody, reasonBusy, reasonTokens, reasonDown, reasonNoWorker, reasonBudget, reasonNoTarget} {
		all = append(all, deferred+separatesDetail+reason)
	}
	return append(all, deferred) // earlier versions stored other reasons
}

// causeIn returns the cause at the start of a text; empty if there is none.
func causeIn(text string) string {
	for _, cause := range causes() {
		if rest, ok := strings.CutPrefix(text, cause); ok && (rest == "" || strings.ContainsRune(":;,", rune(rest[0]))) {
			return cause
		}
	}
	return ""
}

// told returns the text of the error to store. It begins with a cause if the
// call had no response.
func (r result) told() string {
	text := r.err.Error()
	if target, ok := errors.AsType[*TargetError](r.err); ok {
		text = target.Target + separatesDetail + target.Reason
	}
	if r.status != 0 || causeIn(text) != "" {
		return text
	}
	return causeOf(r.err) + separatesDetail + text
}

// causeOf returns the cause of a call that got no response.
func causeOf(err error) string {
	is := func(errnos ...error) bool {
		return slices.ContainsFunc(errnos, func(errno error) bool { return errors.Is(err, errno) })
	}
	has := func(part string) bool { return strings.Contains(err.Error(), part) }
	_, target := errors.AsType[*TargetError](err)
	_, name := errors.AsType[*net.DNSError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	timeout, _ := errors.AsType[net.Error](err)
	op, _ := errors.AsType[*net.OpError](err)
	switch {
	case target:
		return causeTarget
	case name:
		return causeName
	case certificate:
		return causeCertificate
	case exhausted(err):
		return causeLacks
	case is(bodies.ErrTooLarge):
		return causeBodyLarge
	case is(syscall.ECONNREFUSED):
		return causeRefused
	case is(context.DeadlineExceeded), timeout != nil && timeout.Timeout():
		return causeLate
	case has("tls: "), has("HTTPS client"):
		return causeTLS
	case is(syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed):
		return causeBroken
	case op != nil:
		return causeUnreachable
	case has("net/http: "), has("malformed HTTP"):
		return causeNoHTTP
	}
	return causeOther
}

// visible returns the part of a stored error that a tenant may see. Status is
// that of the response, or 0.
func visible(text string, status int) string {
	if text == "" {
		return ""
	}
	before := ""
	if reason, rest, ok := strings.Cut(text, separatesDetail); ok && slices.Contains([]string{"exhausted", "expired", "poison"}, reason) { // see dlq.Entry
		before, text = reason+separatesDetail, rest
	}
	cause := causeIn(text)
	if cause == "" && status != 0 {
		cause = strings.TrimSpace(fmt.Sprintf("http status %d %s", status, http.StatusText(status)))
	}
	return before + cmp.Or(cause, causeOther)
}

// failures logs the whole errors of failed calls, because tenants do not see
// them. It logs one a minute for each tenant, target and cause.
type failures struct {
	log *slog.Logger

	mu   sync.Mutex
	said map[failedCall]time.Time
}

type failedCall struct{ tenant, target, cause string }

const (
	mostFailures = 10_000
	remindEvery  = time.Minute
)

func (f *failures) note(sp *span, t Task, r result, now time.Time) {
	if r.err == nil || isDeferral(r.err) {
		return
	}
	told, target := cut(r.told()), ""
	if u, err := url.Parse(t.TargetURL); err == nil {
		target = hostPort(u)
	}
	about := failedCall{t.Tenant, target, visible(told, r.status)}
	f.mu.Lock()
	last, known := f.said[about]
	again := known && now.Sub(last) < remindEvery && !now.Before(last)
	if !again {
		if f.said == nil || len(f.said) >= mostFailures {
			f.said = map[failedCall]time.Time{}
		}
		f.said[about] = now
	}
	f.mu.Unlock()
	if !again {
		ctx, more := sp.logged(t)
		f.log.InfoContext(ctx, "retry service: a call failed", append([]any{"tenant", t.Tenant, "target", target, "task", t.ID, "error", told}, more...)...)
	}
}

package service

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/operate/service/bodies"
)

// TestAttackErrorsTellNothing calls targets whose errors contain internal
// addresses or text. A tenant sees only the cause, and the log has the whole
// error.
func TestAttackErrorsTellNothing(t *testing.T) {
	resolver := fakeResolver(func(name string) net.IP {
		if name == "none.internal.example" {
			return nil
		}
		return net.IPv4(127, 0, 0, 1)
	})
	broken := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "udp", Addr: &net.UDPAddr{IP: net.IPv4(10, 0, 0, 53), Port: 53}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}}
	closed := httptest.NewServer(nil)
	closed.Close()
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(closed.URL, "http://"))
	banner := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		hijack(w, func(c net.Conn) { _, _ = io.WriteString(c, "220 mail.internal.example ESMTP\r\n\r\n") })
	})
	redirects := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://10.9.8.7/internal", http.StatusFound)
	})
	fails := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, `{"title": "no answer of 10.9.8.7", "detail": "internal.example"}`)
	})
	encrypted := httptest.NewTLSServer(nil)
	encrypted.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	t.Cleanup(encrypted.Close)
	for _, tt := range []struct {
		name     string
		targets  Targets
		resolver *net.Resolver
		url      string
		method   string
		told     string // to the tenant
		logged   string // a part of it
	}{
		{"a name with a forbidden address", Targets{}, resolver, "http://db.internal.example.:" + port, "POST", causeTarget, "127.0.0.1: it is not public"},
		{"a name whose server refuses", thisMachine, resolver, "http://db.internal.example.:" + port, "POST", causeRefused, "127.0.0.1:" + port},
		{"a name whose resolver is down", thisMachine, broken, "http://db.internal.example.", "POST", causeName, "10.0.0.53:53"},
		{"another protocol", thisMachine, nil, banner, "POST", causeNoHTTP, "mail.internal.example"},
		{"a redirect", thisMachine, nil, redirects, "POST", causeRedirect, "10.9.8.7"},
		{"a redirect to a forbidden address", thisMachine, nil, redirects, "GET", causeTarget, "10.9.8.7"},
		{"a problem", thisMachine, nil, fails, "POST", "http status 502 Bad Gateway", "internal.example"},
		{"an unknown certificate", thisMachine, nil, encrypted.URL, "POST", causeCertificate, "x509"},
		{"TLS to a server that speaks HTTP", thisMachine, nil, strings.Replace(fails, "http:", "https:", 1), "POST", causeTLS, "server gave HTTP response"},
	} {
		task := post(tt.url)
		task.Method = tt.method
		status, err := callOnce(t, tt.targets, tt.resolver, task, time.Minute)
		if err == nil {
			t.Errorf("%s: no error", tt.name)
			continue
		}
		r := result{status: status, err: err}
		for _, stored := range []string{r.told(), "exhausted: " + r.told()} {
			want := tt.told
			if strings.HasPrefix(stored, "exhausted") {
				want = "exhausted: " + want
			}
			if got := visible(stored, status); got != want {
				t.Errorf("%s: the tenant is told %q of %q, want %q", tt.name, got, stored, want)
			}
		}
		var log bytes.Buffer
		told := failures{log: slog.New(slog.NewTextHandler(&log, nil))}
		for second := range 60 {
			told.note(nil, task, r, time.Unix(int64(second), 0))
		}
		if !strings.Contains(log.String(), tt.logged) || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%s: the log has %q, want one line with %q", tt.name, log.String(), tt.logged)
		}
	}
}

// TestCauses tests that each cause has an error, and that each cause is listed.
func TestCauses(t *testing.T) {
	op := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	wrapped := func(format string, err error) error { return fmt.Errorf(format, err) }
	for want, errs := range map[string][]error{
		causeTarget:      {classify.Permanent(&TargetError{"10.0.0.1", "it is not public"}), op(&TargetError{"10.0.0.1", "it is not public"})},
		causeName:        {op(&net.DNSError{Err: "i/o timeout", IsTimeout: true, Server: "10.0.0.53:53"})},
		causeUnreachable: {op(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), op(os.NewSyscallError("connect", syscall.ENETUNREACH))},
		causeRefused:     {op(os.NewSyscallError("connect", syscall.ECONNREFUSED))},
		causeBroken:      {io.EOF, io.ErrUnexpectedEOF, op(os.NewSyscallError("read", syscall.ECONNRESET)), wrapped("write: %w", syscall.EPIPE)},
		causeLate:        {wrapped(causeLate+", within 5s: %w", context.DeadlineExceeded), op(os.ErrDeadlineExceeded), context.DeadlineExceeded},
		causeCertificate: {&tls.CertificateVerificationError{Err: errors.New("x509: certificate is valid for db.internal.example")}},
		causeTLS:         {errors.New("remote error: tls: handshake failure")},
		causeNoHTTP:      {errors.New(`net/http: HTTP/1.x transport connection broken: malformed HTTP response "SSH-2.0"`)},
		causeRedirect:    {wrapped(causeRedirect+", to \"10.0.0.1:443\": %w", io.EOF)},
		causeBodyBroke:   {wrapped(causeBodyBroke+": %w", io.EOF)},
		causeBodyLarge:   {classify.Permanent(bodies.ErrTooLarge)},
		causeCut:         {wrapped(causeCut+": %w", context.Canceled)},
		causeLease:       {errLeaseOver},
		causeLacks:       {op(os.NewSyscallError("socket", syscall.EMFILE))},
		causeOther:       {errors.New("lookup db.internal.example on 10.0.0.53:53"), errors.New(causeLate + "ness")},

		"not called: " + reasonNoBodies: {&deferral{reasonNoBodies, "", time.Second}},
		"not called: " + reasonBody:     {&deferral{reasonBody, "https://bucket.internal", time.Second}},
		"not called: " + reasonBusy:     {&deferral{reasonBusy, "a:443", time.Second}},
		"not called: " + reasonTokens:   {&deferral{reasonTokens, "a:443", time.Second}},
		"not called: " + reasonDown:     {&deferral{reasonDown, "a:443 (5 of 5 failed)", time.Second}},
		"not called: " + reasonNoWorker: {errNoWorker},
		"not called: " + reasonBudget:   {errBudgetOver},
		"not called: " + reasonNoTarget: {&deferral{reasonNoTarget, "a bug", time.Second}},
		deferred:                        {&deferral{"the reason of an earlier version: 10.0.0.1", "", time.Second}},
	} {
		if !slices.Contains(causes(), want) {
			t.Errorf("%q is not listed", want)
		}
		for _, err := range errs {
			r := result{err: err}
			if got := visible(r.told(), 0); got != want || !strings.Contains(r.told(), strings.TrimPrefix(want, deferred+separatesDetail)) {
				t.Errorf("%v is kept as %q, and told as %q, want %q", err, r.told(), got, want)
			}
		}
	}
}

// TestOlderErrorsTellNothing reads errors that earlier versions have stored.
func TestOlderErrorsTellNothing(t *testing.T) {
	for _, tt := range []struct {
		stored string
		status int
		want   string
	}{
		{"", 200, ""},
		{"dial tcp: lookup db.internal.example on 10.0.0.53:53: no such host", 0, causeOther},
		{"exhausted: dial tcp 10.0.0.7:443: connect: connection refused", 0, "exhausted: " + causeOther},
		{"poison: POST https://10.0.0.7/: http status 422 Unprocessable Entity: of 10.0.0.8", 422, "poison: http status 422 Unprocessable Entity"},
		{"http status 599", 599, "http status 599"},
		{"not called: a.example:443 is down (10.0.0.7); again in about 3s", 503, deferred},
		{"x509: certificate is valid for db.internal.example", 0, causeOther},
	} {
		if got := visible(tt.stored, tt.status); got != tt.want {
			t.Errorf("%q is told as %q, want %q", tt.stored, got, tt.want)
		}
	}
	o := newOffice(t)
	const id, leak = "00000000-0000-7000-8000-000000000001", "dial tcp: lookup db.internal.example on 10.0.0.53:53: no such host"
	claimed, err := o.store.Claim(t.Context(), []int64{o.put(Task{ID: id, Tenant: "default", IdempotencyKey: "key-1"}).Row}, noon, 0)
	must(t, err)
	older := ended(claimed[0], Pending, 0)
	older.Task.LastError, older.Attempt.Error = leak, causeName+": "+leak
	must(t, o.store.Settle(t.Context(), []Outcome{older}))
	task, _ := o.do(exchange{method: "GET", path: "/retry-tasks/" + id, status: http.StatusOK})
	log, _ := o.do(exchange{method: "GET", path: "/retry-tasks/" + id + "/attempts", status: http.StatusOK})
	if attempt := log["attempts"].([]any)[0].(map[string]any); task["lastError"] != causeOther || attempt["errorMessage"] != causeName {
		t.Errorf("the task %v, its attempt %v", task, attempt)
	}
}

// TestAttackSecretHeaders tests that answers mask headers with secrets, and
// that calls send them. A task with the same key and headers is the same task.
func TestAttackSecretHeaders(t *testing.T) {
	o := newOffice(t)
	o.policy()
	const headers = `"headers": {"Authorization": "Bearer hunter2", "Cookie": "a=hunter2", "X-Api-Key": "hunter2", "Ocp-Apim-Subscription-Key": "hunter2", "X-Auth-Token": "hunter2", "X-Hub-Signature": "hunter2", "X-Shop": "seven"}`
	first, _ := o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(headers), status: http.StatusAccepted})
	id := first["taskId"].(string)
	again, _ := o.do(exchange{method: "POST", path: "/retry-tasks", body: taskBody(headers), status: http.StatusOK})
	shown, _ := o.do(exchange{method: "GET", path: "/retry-tasks/" + id, status: http.StatusOK})
	cancelled, _ := o.do(exchange{method: "DELETE", path: "/retry-tasks/" + id, status: http.StatusOK})
	for _, doc := range []map[string]any{first, again, shown, cancelled} {
		got := doc["headers"].(map[string]any)
		if strings.Contains(fmt.Sprint(got), "hunter2") || got["Authorization"] != mask || got["X-Shop"] != "seven" || len(got) != 7 {
			t.Errorf("the headers are shown as %v", got)
		}
	}
	task := o.task("default", first)
	r, err := newRequest(t.Context(), task, nil)
	if err != nil || r.Header.Get("Authorization") != "Bearer hunter2" || r.Header.Get("X-Api-Key") != "hunter2" {
		t.Errorf("the call has %v, %v", r, err)
	}
	for name, secret := range map[string]bool{
		"Authorization": true, "Proxy-Authorization": true, "Cookie": true, "Set-Cookie": true, "X-Api-Key": true, "Apikey": true, "X-Amz-Security-Token": true,
		"Private-Token": true, "X-Csrf-Token": true, "X-Goog-Api-Key": true, "X-Functions-Key": true, "Stripe-Signature": true, "X-Session-Id": true, "X-Password": true,
		"Content-Type": false, "Accept": false, "X-Request-Id": false, "Traceparent": false, "User-Agent": false, "Keyboard": false,
	} {
		if carriesSecret(name) != secret {
			t.Errorf("%s carries a secret: %v, want %v", name, !secret, secret)
		}
	}
}

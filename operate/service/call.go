package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/httpretry"
)

// Limits of a call.
const (
	longestCall    = 30 * time.Second
	connectTimeout = 5 * time.Second // and as long again for TLS
	drainTimeout   = time.Second     // for the body of an answer whose headers are there
	mostAnswer     = 64 << 10        // bytes of it that are read
	mostRedirects  = 5
)

const keyHeader = "Idempotency-Key"

// callTime is how long a call may take: a lease has room for the margin before it, too,
// and the one after it.
func (t Task) callTime() time.Duration { return min(t.VisibilityTimeout-2*t.margin(), longestCall) }

// margin is the least that a lease leaves for what comes before the call, such as
// waiting for a worker, and for storing what became of it.
func (t Task) margin() time.Duration { return min(t.VisibilityTimeout/4, mostMargin) }

// newTransport returns what connects to targets. It has no proxy: that would resolve
// names where the guard does not see it.
func newTransport(g *Guard, resolver *net.Resolver, perHost int) *http.Transport {
	dialer := &net.Dialer{Timeout: connectTimeout, Control: g.control, Resolver: resolver}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    connectTimeout,
		MaxIdleConns:           512,
		MaxIdleConnsPerHost:    perHost,
		IdleConnTimeout:        15 * time.Second, // many servers close theirs after that
		DisableCompression:     true,
		MaxResponseHeaderBytes: mostAnswer,
		ForceAttemptHTTP2:      true,
	}
}

// once sends each request once. A mere transport repeats what it takes for harmless,
// as often as it has idle connections that break, and nobody would count that.
type once struct{ *http.Transport }

// RoundTrip implements [http.RoundTripper].
func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		again := *r
		again.GetBody = nil // what can be read once is not repeated
		if r.Body == nil || r.Body == http.NoBody {
			again.Body = io.NopCloser(strings.NewReader(""))
		}
		r = &again
	}
	return o.Transport.RoundTrip(r)
}

// newClient returns a client that follows redirects of GET and HEAD, to where the
// guard allows it. All others are answers: repeated elsewhere, a call would be another.
func newClient(t http.RoundTripper, g *Guard) *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		first := via[0]
		if first.Method != http.MethodGet && first.Method != http.MethodHead || len(via) > mostRedirects {
			return http.ErrUseLastResponse
		}
		if err := g.Allowed(req.URL); err != nil {
			return err
		}
		if via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https" {
			return &TargetError{Target: req.URL.Host, Reason: "the redirect leads from https to http"}
		}
		req.Header.Del("Referer")
		if hostPort(req.URL) != hostPort(first.URL) {
			keepHarmless(req.Header)
		}
		return nil
	}}
}

// keepHarmless removes the headers that may be meant for the target alone, such as
// its credentials and the idempotency key.
func keepHarmless(h http.Header) {
	for name := range h {
		switch name {
		case "Accept", "Accept-Language", "User-Agent":
		default:
			delete(h, name)
		}
	}
}

// hostPort names what is called: the host in lower case and without a dot at its end,
// which means the same, and the port.
func hostPort(u *url.URL) string {
	return net.JoinHostPort(strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), cmp.Or(u.Port(), usualPorts[u.Scheme]))
}

// reserved are the headers that the service, or each hop, sets itself.
var reserved = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Expect": true,
	"Host": true, "Content-Length": true, keyHeader: true,
}

// setUnseen sets a header. Those of keys are in lower case, which is the same to
// servers: net/http would take them for leave to send the request twice, and nobody
// would count that.
func setUnseen(h http.Header, name, value string) {
	if strings.HasSuffix(http.CanonicalHeaderKey(name), keyHeader) {
		h[strings.ToLower(name)] = []string{value}
		return
	}
	h.Set(name, value)
}

// newRequest makes the request of a task, with its body in the row, or elsewhere. That
// cannot be had again: such a request follows no redirect that would repeat the body,
// and net/http never sends it twice.
func newRequest(ctx context.Context, t Task, elsewhere *stream) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, t.Method, t.TargetURL, bytes.NewReader(t.Body))
	if err != nil {
		return nil, &TargetError{Target: fmt.Sprintf("%.300q", t.TargetURL), Reason: "it makes no request: " + inner(err).Error()}
	}
	if elsewhere != nil && elsewhere.size > 0 {
		req.Body, req.ContentLength, req.GetBody = elsewhere, elsewhere.size, nil
	}
	req.Header.Set("User-Agent", "redrive-service")
	for name, value := range t.Headers {
		if reserved[http.CanonicalHeaderKey(name)] {
			return nil, &TargetError{Target: hostPort(req.URL), Reason: "the header " + name + " is not the task's to set"}
		}
		setUnseen(req.Header, name, value)
	}
	setUnseen(req.Header, keyHeader, t.IdempotencyKey)
	return req, nil
}

// inner is err without the URL around it, which may have secrets in its query.
func inner(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// call makes one request of a task, body included, and takes at most the given time.
// The answer counts as soon as its headers are there.
func call(ctx context.Context, client *http.Client, t Task, elsewhere *stream, limit time.Duration) (status int, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := newRequest(ctx, t, elsewhere)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	resp, err := client.Do(req)
	took = time.Since(began)
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return 0, took, fmt.Errorf("%s, within %v: %w", causeLate, limit, inner(err))
		}
		if broken := elsewhere.broken(); broken != nil {
			return 0, took, broken
		}
		return 0, took, inner(err)
	}
	hurry := time.AfterFunc(drainTimeout, cancel)
	defer hurry.Stop()
	return resp.StatusCode, took, check(resp)
}

// check returns nil if the response is a success, and closes it.
func check(resp *http.Response) error {
	defer resp.Body.Close()
	if resp.StatusCode >= 400 {
		return httpretry.Check(resp)
	}
	_, _ = io.CopyN(io.Discard, resp.Body, mostAnswer)
	if resp.StatusCode < 300 {
		return nil
	}
	where := ""
	if u, err := resp.Location(); err == nil {
		where = fmt.Sprintf(", to %.100q", hostPort(u))
	}
	return fmt.Errorf("%s%s: %w", causeRedirect, where, &classify.HTTPError{Method: resp.Request.Method, Status: resp.StatusCode})
}

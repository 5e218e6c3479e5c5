package sqs

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	"github.com/redrive-go/redrive/lab/bench/internal/meter"
)

// Calls counts the requests of SQS clients, each operation by itself.
type Calls struct {
	meter.Meter
	base http.RoundTripper
}

// newCalls returns a counter with connections of its own, enough of them that
// none is opened twice.
func newCalls() *Calls {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	c := &Calls{base: transport}
	transport.DialContext = c.Dial(meter.Frames{})
	return c
}

// RoundTrip implements http.RoundTripper.
func (c *Calls) RoundTrip(r *http.Request) (*http.Response, error) {
	c.Count(strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS."))
	return c.base.RoundTrip(r)
}

// spared hands on bodies that cannot be closed early: the SDK does so when the
// answer begins, and on a fast server net/http may then end the connection, with
// messages in the answer that nobody sees until their visibility timeout. The
// adapter sees to that by itself; the other contenders are spared it by this.
type spared struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s spared) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		return s.next.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if err := r.Body.Close(); err != nil {
		return nil, err
	}
	r = r.WithContext(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return s.next.RoundTrip(r)
}

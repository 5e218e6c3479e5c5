package sqs

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
)

// Calls counts the requests of SQS clients, by operation.
type Calls struct {
	base http.RoundTripper

	mu sync.Mutex
	by map[string]int
}

// NewCalls returns a counter with connections of its own, enough of them that
// none is opened twice.
func NewCalls() *Calls {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	return &Calls{base: transport, by: map[string]int{}}
}

// RoundTrip implements http.RoundTripper.
func (c *Calls) RoundTrip(r *http.Request) (*http.Response, error) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	c.mu.Lock()
	c.by[operation]++
	c.mu.Unlock()
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

// Take returns the calls since the last time, by operation, and their number.
func (c *Calls) Take() (by map[string]int, sum int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	by, c.by = c.by, map[string]int{}
	for n := range maps.Values(by) {
		sum += n
	}
	return by, sum
}

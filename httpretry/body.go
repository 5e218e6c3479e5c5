package httpretry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/redrive-go/redrive/classify"
)

// recorder keeps what the first attempt reads of a request body that cannot be
// had again otherwise.
type recorder struct {
	io.ReadCloser
	length int64 // of the whole body; 0 or less if it is not known
	limit  int64

	mu       sync.Mutex // the base may read on after RoundTrip has returned
	kept     []byte
	complete bool
	overflow bool
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overflow = r.overflow || int64(len(r.kept)+n) > r.limit; r.overflow {
		r.kept = nil
		return n, err
	}
	r.kept = append(r.kept, p[:n]...)
	r.complete = r.complete || err == io.EOF || r.length > 0 && int64(len(r.kept)) == r.length
	return n, err
}

// again returns the body anew; false if not all of it was kept.
func (r *recorder) again() (io.ReadCloser, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overflow || !r.complete {
		return nil, false
	}
	return io.NopCloser(bytes.NewReader(r.kept)), true
}

// responseBody ends the context of its attempt when nobody reads it any more,
// and says so if the attempt was too slow.
type responseBody struct {
	io.ReadCloser
	attempt *attempt
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.attempt.cancel()
	case err != nil:
		err = b.attempt.late(err)
	}
	return n, err
}

func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	b.attempt.cancel()
	return err
}

// attempt is the time that one request has.
type attempt struct {
	parent, ctx context.Context
	cancel      context.CancelFunc
	limit       time.Duration
}

func (d *dependency) attempt(ctx context.Context) *attempt {
	a := &attempt{parent: ctx, limit: d.Timeout}
	if d.Timeout < 0 {
		a.ctx, a.cancel = context.WithCancel(a.parent)
	} else {
		a.ctx, a.cancel = context.WithTimeout(a.parent, d.Timeout)
	}
	return a
}

// late returns err, or if the attempt was too slow, that.
func (a *attempt) late(err error) error {
	if !errors.Is(a.ctx.Err(), context.DeadlineExceeded) || a.parent.Err() != nil {
		return err
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		err = context.DeadlineExceeded
	}
	return &timeoutError{limit: a.limit, err: err}
}

// drainTime is how long it may take to save a connection.
const drainTime = 100 * time.Millisecond

// discard closes a response that a retry replaces, and reads a short rest of it
// first, so that its connection can be used again.
func (a *attempt) discard(resp *http.Response) {
	if resp == nil {
		return
	}
	hurry := time.AfterFunc(drainTime, a.cancel)
	_, _ = io.CopyN(io.Discard, resp.Body, maxRead)
	hurry.Stop()
	_ = resp.Body.Close()
}

// problemOf returns what classify makes of a failing response, and leaves the
// body as it was. The body is looked at only if asked for.
func problemOf(resp *http.Response, look bool) error {
	shallow := *resp
	shallow.Body = nil
	if look && resp.Body != nil {
		start, _ := io.ReadAll(io.LimitReader(resp.Body, maxRead)) // an error comes again, to the caller
		shallow.Body = io.NopCloser(bytes.NewReader(start))
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(start), resp.Body), resp.Body}
	}
	return classify.FromResponse(&shallow)
}

package web

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	healthTime = 5 * time.Second // how long a check may take
	healthKept = time.Second     // how long the result of a check is used
)

// Health answers GET /healthz with 200 while check returns nil, and with 503
// otherwise. Check is a cheap query of the store. Health calls it at most once
// a second, and never twice at the same time, so that callers without a token
// cannot overload the store.
func Health(check func(context.Context) error) http.Handler {
	return &health{check: check}
}

type health struct {
	check func(context.Context) error
	calls singleflight.Group // one at a time uses at and err
	at    time.Time          // when the latest check ended
	err   error
}

// ServeHTTP implements http.Handler.
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-r.Context().Done():
	case latest := <-h.calls.DoChan("", func() (any, error) { return nil, h.latest() }):
		if latest.Err != nil {
			http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	}
}

// latest returns the result of the latest check, and checks first if that is
// too old. The check goes on if the caller hangs up: other callers use its
// result, too.
func (h *health) latest() error {
	if !h.at.IsZero() && time.Since(h.at) < healthKept {
		return h.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), healthTime)
	defer cancel()
	h.err = h.check(ctx)
	h.at = time.Now()
	return h.err
}

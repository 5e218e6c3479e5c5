package web

import (
	"context"
	"net/http"
	"time"
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
	h := &health{check: check, turn: make(chan struct{}, 1)}
	h.turn <- struct{}{}
	return h
}

type health struct {
	check func(context.Context) error
	turn  chan struct{} // has one value; a request takes it to use at and err
	at    time.Time     // when the latest check ended
	err   error
}

// ServeHTTP implements http.Handler.
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-h.turn:
	case <-r.Context().Done():
		return
	}
	err := h.latest()
	h.turn <- struct{}{}
	if err != nil {
		http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
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

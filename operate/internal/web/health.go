package web

import (
	"context"
	"net/http"
	"time"
)

const (
	healthTime = 5 * time.Second // for a check
	healthKept = time.Second     // that its answer is good for
)

// Health answers GET /healthz: with 200 while check, a cheap query of the store,
// returns nil. It checks once a second at most, and once at a time, so callers without
// a token cannot wear the store out.
func Health(check func(context.Context) error) http.Handler {
	h := &health{check: check, turn: make(chan struct{}, 1)}
	h.turn <- struct{}{}
	return h
}

type health struct {
	check func(context.Context) error
	turn  chan struct{} // whoever has it may use the rest
	at    time.Time     // of the latest check
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

// latest checks if the latest answer is too old. Whoever asks may go away: the answer
// is for others, too.
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

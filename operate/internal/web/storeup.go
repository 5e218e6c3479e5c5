package web

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// StoreUp is the metric redrive_store_up. Its zero value is ready.
type StoreUp struct {
	mu    sync.Mutex
	tried time.Time
	err   error // of the latest write
}

const (
	writeEvery = 30 * time.Second
	writeTime  = time.Second
)

// Send sends 1 if the store can be read and written, otherwise 0. Reading is the error
// of a read. Write is a tiny write. Send calls it at most every 30 s, and logs the
// first error of several.
func (u *StoreUp) Send(ctx context.Context, to Sink, reading error, write func(context.Context) error, log *slog.Logger) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if reading == nil && (u.tried.IsZero() || time.Since(u.tried) >= writeEvery) {
		ctx, cancel := context.WithTimeout(ctx, writeTime)
		defer cancel()
		before := u.err
		u.tried, u.err = time.Now(), write(ctx)
		if u.err != nil && before == nil {
			log.Error("the store answers, but cannot be written", "error", u.err)
		}
	}
	up := 1.0
	if reading != nil || u.err != nil {
		up = 0
	}
	to.Gauge("store_up", "1 if the store answers and can be written; otherwise 0. What it would say is missing if it does not answer.", up)
}

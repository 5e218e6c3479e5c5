package web

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestHealthAsksOnce tests that a hundred callers cost the store one query,
// also if some of them hang up during the query.
func TestHealthAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		var down atomic.Bool
		h := Health(func(ctx context.Context) error {
			asked.Add(1)
			time.Sleep(3 * time.Second)
			if down.Load() {
				return errors.New("down")
			}
			return ctx.Err()
		})
		ask := func(ctx context.Context) int {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/healthz", nil))
			return w.Code
		}
		all := func(want int) {
			t.Helper()
			gone, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			var asking sync.WaitGroup
			asking.Go(func() { ask(gone) })
			synctest.Wait()
			for range 100 {
				asking.Go(func() {
					if code := ask(t.Context()); code != want {
						t.Errorf("answered with %d, want %d", code, want)
					}
				})
				asking.Go(func() { ask(gone) })
			}
			asking.Wait()
		}
		all(http.StatusOK)
		all(http.StatusOK) // by the result of the first check
		if n := asked.Load(); n != 1 {
			t.Errorf("the store was asked %d times for 402 callers", n)
		}
		time.Sleep(healthKept)
		down.Store(true)
		all(http.StatusServiceUnavailable)
		if n := asked.Load(); n != 2 {
			t.Errorf("the store was asked %d times, want 2", n)
		}
	})
}

// TestHealthGivesUp tests that Health answers if the store never does.
func TestHealthGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Health(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		w := httptest.NewRecorder()
		start := time.Now()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		if took := time.Since(start); w.Code != http.StatusServiceUnavailable || took != healthTime {
			t.Errorf("%d after %v", w.Code, took)
		}
	})
}

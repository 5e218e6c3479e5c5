package web

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestStoreUp scrapes each 15 s. The store is written at most every 30 s, and the log
// has one line about each time in which it cannot be.
func TestStoreUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up StoreUp
		var log strings.Builder
		var reading, writing error
		writes := 0
		write := func(ctx context.Context) error {
			if end, ok := ctx.Deadline(); !ok || time.Until(end) > writeTime {
				t.Errorf("a write may last until %v", end)
			}
			writes++
			return writing
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(Metrics(func(to Sink) {
			up.Send(t.Context(), to, reading, write, slog.New(slog.NewTextHandler(&log, nil)))
		}))
		for i, scrape := range []struct {
			reading, writing error
			want             float64
			writes           int
		}{
			{nil, nil, 1, 1},
			{nil, errors.New("full"), 1, 1},
			{nil, errors.New("full"), 0, 2},
			{nil, nil, 0, 2},
			{nil, errors.New("full"), 0, 3},
			{nil, nil, 0, 3},
			{nil, nil, 1, 4},
			{errors.New("gone"), nil, 0, 4},
			{errors.New("gone"), nil, 0, 4},
			{nil, nil, 1, 5},
		} {
			reading, writing = scrape.reading, scrape.writing
			families, err := registry.Gather()
			if err != nil || len(families) != 1 || families[0].GetName() != "redrive_store_up" {
				t.Fatalf("scrape %d: %v, %v", i, families, err)
			}
			if got := families[0].GetMetric()[0].GetGauge().GetValue(); got != scrape.want || writes != scrape.writes {
				t.Errorf("scrape %d: %v after %d writes, want %v after %d", i, got, writes, scrape.want, scrape.writes)
			}
			time.Sleep(writeEvery / 2)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d lines of the log, want 1: %s", n, log.String())
		}
	})
}

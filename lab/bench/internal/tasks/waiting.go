package tasks

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/lab/bench/internal/figure"
	"github.com/redrive-go/redrive/operate/service"
)

const (
	pace  = 10 * time.Millisecond // between tasks that wait
	taken = 64                    // at once
)

// Wheel is a schedule in which always so many tasks wait: what is taken is added
// again behind all others.
type Wheel struct {
	schedule service.Schedule
	around   time.Duration
	now      time.Time
}

// NewWheel fills a schedule with n tasks, thousands of them, of four tenants.
func NewWheel(ctx context.Context, s service.Schedule, n int) (*Wheel, error) {
	w := &Wheel{s, time.Duration(n) * pace, time.Now().Truncate(time.Millisecond)}
	page := make([]service.Due, 1000)
	for first := 1; first <= n; first += len(page) {
		for i := range page {
			page[i] = service.Due{Row: int64(first + i), Tenant: fmt.Sprint("tenant-", i%4), At: w.now.Add(time.Duration(first+i) * pace)}
		}
		if err := s.Add(ctx, page...); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Turn takes what is due next, so many times, and returns the median of how many
// seconds a Take took. To add it again is not in that.
func (w *Wheel) Turn(ctx context.Context, times int) (float64, error) {
	took := make([]float64, times)
	for i := range took {
		w.now = w.now.Add(taken * pace)
		began := time.Now()
		due, _, err := w.schedule.Take(ctx, w.now, taken)
		took[i] = time.Since(began).Seconds()
		if err := few("taken", len(due), taken, err); err != nil {
			return 0, err
		}
		for i := range due {
			due[i].At = due[i].At.Add(w.around)
		}
		if err := w.schedule.Add(ctx, due...); err != nil {
			return 0, err
		}
	}
	return figure.Median(took), nil
}

// counted is a schedule that says when it was given all that was missing.
type counted struct {
	service.Schedule
	missing atomic.Int64
	full    chan struct{}
}

func (c *counted) Add(ctx context.Context, tasks ...service.Due) error {
	err := c.Schedule.Add(ctx, tasks...)
	if err == nil && c.missing.Add(-int64(len(tasks))) == 0 {
		close(c.full)
	}
	return err
}

// Rebuild stores n tasks that wait for an hour, starts a service beside a schedule
// that has none of them, and returns how long it takes until that has all.
func Rebuild(ctx context.Context, url string, empty service.Schedule, n int) (time.Duration, error) {
	store, err := open(ctx, url)
	if err != nil {
		return 0, err
	}
	defer store.Close()
	if _, err := fill(ctx, store, 0, n, time.Now().Add(time.Hour)); err != nil {
		return 0, err
	}
	c := &counted{Schedule: empty, full: make(chan struct{})}
	c.missing.Store(int64(n))
	runner, err := service.New(service.Config{Store: store, Schedule: c, Logger: quiet})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	defer run(ctx, runner)()
	select {
	case <-c.full:
		return time.Since(began), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%d of %d tasks are not in the schedule: %w", c.missing.Load(), n, context.Cause(ctx))
	}
}

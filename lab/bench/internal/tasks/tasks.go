// Package tasks measures a retry service: by the clock, beside what somebody would
// write by hand, and with many tasks that wait.
package tasks

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redrive-go/redrive/operate/service"
)

const (
	policy = "figures"
	target = "https://bank.example/transfers"
)

var body = strings.Repeat("x", 1<<10)

// open opens a store that has the policy.
func open(ctx context.Context, url string) (*service.Store, error) {
	s, err := service.Open(ctx, url)
	if err == nil {
		_, err = s.PutPolicy(ctx, service.Policy{Tenant: service.DefaultTenant, ID: policy}.WithDefaults())
	}
	return s, err
}

// fill stores n tasks of 1 KiB, from the first-th on. One is due at a time, and each
// of the others a millisecond after the one before. It returns their rows.
func fill(ctx context.Context, s *service.Store, first, n int, at time.Time) ([]int64, error) {
	rows := make([]int64, n)
	err := atOnce(ctx, 1000, n, func(ctx context.Context, i int) error {
		stored, _, err := s.Create(ctx, service.Task{
			ID: fmt.Sprintf("00000000-0000-7000-8000-%012x", first+i), Tenant: service.DefaultTenant, IdempotencyKey: key(first + i),
			TargetURL: target, Method: "POST", Body: []byte(body), PolicyID: policy, PolicyVersion: 1,
			CreatedAt: time.Now(), VisibilityTimeout: time.Minute, NextAttemptAt: at.Add(time.Duration(i) * time.Millisecond),
		})
		rows[i] = stored.Row
		return err
	})
	return rows, err
}

func key(n int) string { return fmt.Sprint("order-", n) }

// atOnce does f n times, by so many callers at a time.
func atOnce(ctx context.Context, callers, n int, f func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(callers)
	for i := range n {
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}

// few says that fewer than n tasks were done, or why; nil if all were.
func few(done string, got, n int, err error) error {
	if err == nil && got != n {
		err = fmt.Errorf("%d of %d tasks were %s", got, n, done)
	}
	return err
}

package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redrive-go/redrive/operate/service"
)

var quiet = slog.New(slog.DiscardHandler)

// served is a retry service with a heap, and its API on this machine.
type served struct {
	client http.Client
	url    string
	stop   func()
}

func serve(ctx context.Context, store *service.Store) (*served, error) {
	guard, err := service.NewGuard(service.Targets{Networks: []string{"127.0.0.0/8"}})
	if err != nil {
		return nil, err
	}
	runner, err := service.New(service.Config{Store: store, Guard: guard, Logger: quiet})
	if err != nil {
		return nil, err
	}
	api := &service.API{Store: store, Scheduled: runner.Scheduled, Allowed: guard.Allowed, Logger: quiet}
	server := httptest.NewServer(api.Handler())
	end := run(ctx, runner)
	s := &served{url: server.URL, client: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}}
	s.stop = func() {
		s.client.CloseIdleConnections()
		server.Close()
		end()
	}
	return s, nil
}

// run has a service work until it is stopped.
func run(ctx context.Context, runner *service.Service) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runner.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// request is a task for the API.
type request struct {
	Key     string            `json:"idempotencyKey"`
	Target  string            `json:"targetUrl"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	Policy  string            `json:"policyId"`
	At      int64             `json:"nextAttemptAt"`
}

func (s *served) post(ctx context.Context, r request) error {
	r.Policy, r.Body = policy, body
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/retry-tasks", bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusAccepted {
		err = fmt.Errorf("POST /retry-tasks: %s: %s", resp.Status, answer)
	}
	return err
}

// Lateness has a service on a new SQLite file call n tasks, one of which is due in
// each interval. They are posted two seconds before, at the same pace. It returns how
// long after its due time each call was at its target.
func Lateness(ctx context.Context, file string, n int, interval time.Duration) (late []time.Duration, err error) {
	store, err := open(ctx, file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	arrived := make(chan time.Duration, 2*n) // nobody waits for who is called twice
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		now := time.Now()
		due, _ := strconv.ParseInt(r.Header.Get("Due"), 10, 64) // as it was posted
		arrived <- now.Sub(time.UnixMilli(due))
	}))
	defer target.Close()
	s, err := serve(ctx, store)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		begin := time.Now()
		return atOnce(ctx, callers, n, func(ctx context.Context, i int) error {
			now := begin.Add(time.Duration(i) * interval)
			time.Sleep(time.Until(now))
			due := now.Add(2 * time.Second).UnixMilli()
			return s.post(ctx, request{Key: key(i), Target: target.URL, Headers: map[string]string{"Due": strconv.FormatInt(due, 10)}, At: due})
		})
	})
	g.Go(func() error {
		for range n {
			select {
			case d := <-arrived:
				late = append(late, d)
			case <-ctx.Done():
				return fmt.Errorf("%d of %d tasks were called: %w", len(late), n, context.Cause(ctx))
			}
		}
		return nil
	})
	err = g.Wait()
	return late, err
}

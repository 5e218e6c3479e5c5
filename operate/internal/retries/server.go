// Package retries is what goes on while a retry service runs: the API, the calls, the
// metrics, and the sweep of bodies that no task needs. The command redrive service is
// made of it.
package retries

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/operate/internal/web"
	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/operate/service/bodies"
)

// Server is a retry service with its API.
type Server struct {
	Store        *service.Store
	Schedule     service.Schedule // nil is a heap
	Bodies       bodies.Store     // nil keeps none
	Guard        *service.Guard
	Tokens       []service.Token
	MetricsToken string   // empty opens /metrics to this machine where there are no Tokens, and closes it where there are
	Letters      *Letters // nil leaves exhausted tasks in the store
	Workers      int
	Quotas       service.Quotas
	Retention    time.Duration
	Web          web.Options
	Logger       *slog.Logger

	storeUp web.StoreUp
}

const (
	sweepEvery  = time.Hour
	bodiesKept  = 24 * time.Hour // without a task that needs them
	scrapeLimit = 10 * time.Second
)

// ServeOn serves the API on a listener, and makes calls, until ctx ends. It closes the
// listener. An error is why it could not be served; then it has stopped.
func (s *Server) ServeOn(ctx context.Context, listener net.Listener) error {
	metrics := service.NewMetrics()
	cfg := service.Config{
		Store: s.Store, Schedule: s.Schedule, Guard: s.Guard, Bodies: s.Bodies, Metrics: metrics, Logger: s.Logger, Workers: s.Workers, Retention: s.Retention,
	}
	if s.Letters != nil {
		cfg.Bury = s.Letters.Bury
	}
	runner, err := service.New(cfg)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	front := s.front(runner, metrics)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { // it takes no new tasks while calls end
		err = front.Serve(ctx, listener)
		stop()
	})
	running.Go(func() { s.sweep(ctx) })
	if s.Letters != nil {
		running.Go(func() { s.Letters.Receive(ctx, s.Logger, s.revive(runner)) })
	}
	runner.Run(ctx)
	running.Wait()
	return err
}

// front returns the server of the API, with its metrics.
func (s *Server) front(runner *service.Service, metrics prometheus.Collector) *web.Server {
	api := &service.API{
		Store: s.Store, Bodies: s.Bodies, Scheduled: runner.Scheduled, Allowed: s.Guard.Allowed, Tokens: s.Tokens, Quotas: s.Quotas, Logger: s.Logger,
	}
	return &web.Server{
		Options: s.Web, Metrics: []prometheus.Collector{metrics, web.Metrics(s.taskMetrics)}, Check: s.answers, API: api.Handler(), Logger: s.Logger,
		Token: s.MetricsToken, Setting: "service.metrics_token", Open: s.open,
	}
}

// open guards metrics without a token of their own: they tell about all tenants.
func (s *Server) open(h http.Handler) http.Handler {
	if len(s.Tokens) == 0 {
		return service.Local(h)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there are no metrics without service.metrics_token", http.StatusForbidden)
	})
}

// answers returns nil if the store answers a cheap query.
func (s *Server) answers(ctx context.Context) error {
	if _, err := s.Store.Policy(ctx, service.DefaultTenant, "health", 0); !errors.Is(err, service.ErrNotFound) {
		return err
	}
	return nil
}

// sweep deletes bodies that no task needs any more.
func (s *Server) sweep(ctx context.Context) {
	if s.Bodies == nil {
		return
	}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		n, err := s.Bodies.Sweep(ctx, time.Now().Add(-bodiesKept), s.Store.NeededBodies)
		switch {
		case err != nil && ctx.Err() == nil:
			s.Logger.Warn("bodies that no task needs could not be deleted: it is tried again in an hour", "error", err)
		case n > 0:
			s.Logger.Info("bodies deleted that no task needs", "bodies", n)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

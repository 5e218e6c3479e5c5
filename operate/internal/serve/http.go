package serve

import (
	"context"
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/operate/internal/web"
)

// ServeOn runs, and serves metrics and health on a listener, until ctx ends. It
// closes the listener. Unless token is empty, readers of the metrics must show
// it. An error is why they could not be served; the rest goes on.
func (s *Server) ServeOn(ctx context.Context, listener net.Listener, token string) (err error) {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() {
		if err = s.Front(token).Serve(serving, listener); err != nil {
			s.log().Error("metrics cannot be served, the rest goes on", "error", err)
		}
	})
	s.Run(ctx)
	stop()
	running.Wait()
	return err
}

// Front returns the server of metrics and health.
func (s *Server) Front(token string) *web.Server {
	return &web.Server{
		Options: s.Web, Metrics: []prometheus.Collector{web.Metrics(s.metrics)}, Token: token, Setting: "serve.token", Logger: s.log(),
		Check: func(ctx context.Context) error {
			_, err := s.Store.Last(ctx)
			return err
		},
	}
}

package serve

import (
	"context"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/redrive-go/redrive/operate/internal/web"
)

// Handler serves GET /metrics, for Prometheus, and GET /healthz, which is 200
// while the store answers. Unless token is empty, callers of /metrics must show
// it, as "Authorization: Bearer". /metrics has the metrics of more, too.
func (s *Server) Handler(token string, more ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(append(more, newMetrics(s))...)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", guarded(token, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})))
	mux.Handle("GET /healthz", web.Health(s.answers))
	return mux
}

// answers returns nil if the store answers a cheap query.
func (s *Server) answers(ctx context.Context) error {
	_, err := s.Store.Last(ctx)
	return err
}

func guarded(token string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token != "" && (!ok || subtle.ConstantTimeCompare([]byte(shown), []byte(token)) != 1) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "show the token of serve.token", http.StatusUnauthorized)
			return
		}
		web.Admit(r)
		h.ServeHTTP(w, r)
	})
}

// answering is how long requests that are under way may take when ServeOn ends.
const answering = 10 * time.Second

// ServeOn runs, and serves Handler on a listener, until ctx ends. It closes the
// listener. An error is why that could not be served; the rest goes on.
func (s *Server) ServeOn(ctx context.Context, listener net.Listener, token string) (err error) {
	connections := web.New(s.Web, s.log())
	server := &http.Server{
		Handler: s.Handler(token, connections), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(s.log().Handler(), slog.LevelDebug), // bad requests are not worth a warning
	}
	var running sync.WaitGroup
	running.Go(func() {
		if fault := connections.Serve(server, listener); !errors.Is(fault, http.ErrServerClosed) {
			err = fault
			s.log().Error("metrics cannot be served, the rest goes on", "error", fault)
		}
	})
	s.Run(ctx)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), answering)
	defer cancel()
	_ = server.Shutdown(last) // who still reads then is cut off
	running.Wait()
	return err
}

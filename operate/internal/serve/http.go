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
)

// Handler serves GET /metrics, for Prometheus, and GET /healthz, which is 200 while
// the store answers. Unless token is empty, callers of /metrics must show it, as
// "Authorization: Bearer".
func (s *Server) Handler(token string) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newMetrics(s))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", guarded(token, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})))
	mux.HandleFunc("GET /healthz", s.health)
	return mux
}

func guarded(token string, h http.Handler) http.Handler {
	if token == "" {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(shown), []byte(token)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "show the token of serve.token", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
	defer cancel()
	if _, err := s.Store.Stats(ctx, time.Now()); err != nil {
		http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// answering is how long callers may take whose requests are under way in the end.
const answering = 10 * time.Second

// ServeOn runs, and serves Handler on a listener, until ctx ends. It closes the
// listener. An error is why that could not be served; the rest goes on.
func (s *Server) ServeOn(ctx context.Context, listener net.Listener, token string) (err error) {
	server := &http.Server{
		Handler: s.Handler(token), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		ErrorLog: slog.NewLogLogger(s.log().Handler(), slog.LevelWarn),
	}
	var running sync.WaitGroup
	running.Go(func() {
		if fault := server.Serve(listener); !errors.Is(fault, http.ErrServerClosed) {
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

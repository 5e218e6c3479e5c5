package web

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Server serves GET /metrics, for Prometheus, and GET /healthz.
type Server struct {
	Options

	// Metrics are at /metrics, beside those of the connections. Readers must show
	// Token, as "Authorization: Bearer". Setting is its key in the configuration.
	// Without a token Open guards them; nil lets every caller read them.
	Metrics        []prometheus.Collector
	Token, Setting string
	Open           func(http.Handler) http.Handler

	Check  func(context.Context) error // a cheap query of the store; see [Health]
	API    http.Handler                // for all other paths; nil for none
	Logger *slog.Logger
}

// ReadTimeout is how long a whole request may take: 16 MiB at 300 KiB a second.
const ReadTimeout = time.Minute

// closing is how long requests that are under way may take when Serve ends.
const closing = 10 * time.Second

// HTTP returns an HTTP server for a handler, with limits against callers who are
// slow and requests that are large.
func HTTP(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: ReadTimeout, WriteTimeout: ReadTimeout + 30*time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // a bad request is no warning
	}
}

// Serve serves Handler on a listener until ctx ends, and closes the listener. An
// error says why it ended earlier.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	connections := New(s.Options, s.Logger)
	server := HTTP(s.Handler(connections), s.Logger)
	ended := make(chan error, 1)
	go func() { ended <- connections.Serve(server, l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	_ = server.Shutdown(last)
	_ = server.Close() // cuts off the requests that are still under way
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler returns the routes of the server, with more metrics.
func (s *Server) Handler(more ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(append(more, s.Metrics...)...)
	mux := http.NewServeMux()
	if s.API != nil {
		mux.Handle("/", s.API)
	}
	mux.Handle("GET /metrics", s.guarded(promhttp.HandlerFor(registry, promhttp.HandlerOpts{})))
	mux.Handle("GET /healthz", Health(s.Check))
	return mux
}

func (s *Server) guarded(h http.Handler) http.Handler {
	if s.Token == "" && s.Open != nil {
		return s.Open(h)
	}
	readers := Tokens{}.With("", s.Token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := readers.Holder(r); !ok && s.Token != "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "show the token of "+s.Setting, http.StatusUnauthorized)
			return
		}
		Admit(r)
		h.ServeHTTP(w, r)
	})
}

// Metrics is a prometheus.Collector that sends what a function says.
type Metrics func(send Sink)

// Describe implements prometheus.Collector. It names no metric, because some have
// no value before the first event.
func (m Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m Metrics) Collect(out chan<- prometheus.Metric) { m(out) }

// Sink takes values of metrics. Labels are names and values in turn.
type Sink chan<- prometheus.Metric

// Gauge sends a value that may fall.
func (s Sink) Gauge(name, help string, value float64, labels ...string) {
	s.send(prometheus.GaugeValue, name, help, value, labels)
}

// Counter sends a value that only rises.
func (s Sink) Counter(name, help string, value int64, labels ...string) {
	s.send(prometheus.CounterValue, name, help, float64(value), labels)
}

func (s Sink) send(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	var names, values []string
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc("redrive_"+name, help, names, nil), kind, value, values...)
}

// Age returns how many seconds before now t was; 0 for no time.
func Age(t, now time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(0, now.Sub(t).Seconds())
}

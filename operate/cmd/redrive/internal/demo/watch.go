package demo

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/redrive-go/redrive/health"
)

type metric = prometheus.Collector

// watched is where the worker can be watched.
type watched struct {
	url    string
	server *http.Server
	served sync.WaitGroup
}

// watch serves the probes, the status and the metrics of the worker.
func watch(address string, worker health.Worker, all ...metric) (*watched, error) {
	registry := prometheus.NewRegistry()
	for _, m := range all {
		if err := registry.Register(m); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("the worker needs %s to be watched: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", health.Handler(worker))
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true})) // for exemplars
	w := &watched{
		url:    "http://" + listener.Addr().String(),
		server: &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second},
	}
	w.served.Go(func() { _ = w.server.Serve(listener) })
	return w, nil
}

func (w *watched) close() error {
	err := w.server.Close()
	w.served.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

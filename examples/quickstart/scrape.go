package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/metrics"
	"github.com/redrive-go/redrive/retry/budget"
)

// scraped is where Prometheus can watch the worker, while it works.
type scraped struct {
	*metrics.Metrics
	url    string
	server *http.Server
}

// scrape serves /metrics at an address of this machine. It gives the guard the
// default budget, made here so that the metrics can show it.
func scrape(address string, guard *consumer.Guard) (*scraped, error) {
	if !loopback(address) {
		return nil, fmt.Errorf("%q is not an address of this machine alone: use one like 127.0.0.1:9090", address)
	}
	watch, err := metrics.New(metrics.Topic{Name: topic, Policy: "demo"})
	if err != nil {
		return nil, err
	}
	retries, err := budget.New(budget.Queue())
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(watch, metrics.NewBudget("bank", retries), metrics.NewLimiter("bank", guard.Limiter))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s := &scraped{
		Metrics: watch,
		url:     "http://" + listener.Addr().String() + "/metrics",
		server:  &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second},
	}
	go func() { _ = s.server.Serve(listener) }()
	guard.Budget = retries
	return s, nil
}

// loopback reports whether only this machine can reach an address.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func (s *scraped) close() { _ = s.server.Close() }

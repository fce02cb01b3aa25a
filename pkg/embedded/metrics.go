package embedded

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metricsServer serves what c collects under /metrics, and nothing else.
func metricsServer(c prometheus.Collector) *http.Server {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	const bound = 10 * time.Second
	return &http.Server{Handler: mux, ReadHeaderTimeout: bound, WriteTimeout: bound, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
}

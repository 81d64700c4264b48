package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metricsAtOnce bounds the readers of a worker's metrics, and metricsTimeout how long one may take.
const (
	metricsAtOnce  = 4
	metricsTimeout = 10 * time.Second
)

// serveMetrics shows the metrics of the worker and of this process until run ends, to whoever reaches the address.
func (a *Agent) serveMetrics(run context.Context, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for the worker's metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(workerMetrics(a.worker.agent), promhttp.HandlerOpts{MaxRequestsInFlight: metricsAtOnce}))
	s := &http.Server{Handler: mux, ReadTimeout: metricsTimeout, WriteTimeout: metricsTimeout, IdleTimeout: metricsTimeout, MaxHeaderBytes: 8 << 10}
	a.loops.Go(func() {
		stop := context.AfterFunc(run, func() { _ = s.Close() }) // whoever reads them reads them elsewhere
		defer stop()
		if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.config.Logger.Error("the worker's metrics are not shown any more", "error", err)
		}
	})
	return nil
}

package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/rest"

	"example.org/widgets/internal/controller"
)

// newRegistry returns a registry that has the metrics of the process.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// serve starts health and metrics.
func serve(ctx context.Context, config *rest.Config, health, metrics string, registry *prometheus.Registry, c *controller.Controller, e *election) (s servers, err error) {
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if err := s.health(ctx, health, e, c.Ready); err != nil {
		return s, err
	}
	err = s.metrics(ctx, metrics, controller.Manager, config, registry)
	return s, err
}

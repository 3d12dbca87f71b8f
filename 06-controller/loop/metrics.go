package loop

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/util/workqueue"
)

// metrics are those of one loop. No label names an object: a series for each of
// ten thousand objects would cost more than the controller itself.
//
// metrics implements workqueue.MetricsProvider, with the names that Kubernetes'
// own components use, so that the dashboards made for those work here, too.
type metrics struct {
	registry   *prometheus.Registry
	reconciles *prometheus.CounterVec
	writes     *prometheus.CounterVec
}

var _ workqueue.MetricsProvider = &metrics{}

func newMetrics(name string, registry *prometheus.Registry) *metrics {
	if registry == nil {
		registry = prometheus.NewRegistry()
		registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	labels := prometheus.Labels{"controller": name}
	m := &metrics{
		registry: registry,
		reconciles: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "controller_reconciles_total", ConstLabels: labels,
			Help: "How often a key was worked on, by result: success, stale or error."}, []string{"result"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "controller_writes_total", ConstLabels: labels,
			Help: "What the controller has written."}, []string{"what"}),
	}
	for _, result := range []string{"success", "stale", "error"} {
		m.reconciles.WithLabelValues(result) // there from the start, as 0: a rate needs a first value
	}
	m.registry.MustRegister(m.reconciles, m.writes)
	return m
}

func (m *metrics) reconciled(err error) {
	result := "success"
	switch {
	case stale(err):
		result = "stale"
	case err != nil:
		result = "error"
	}
	m.reconciles.WithLabelValues(result).Inc()
}

func (m *metrics) gauge(queue, name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "workqueue_" + name, Help: help, ConstLabels: prometheus.Labels{"name": queue}})
	m.registry.MustRegister(g)
	return g
}

func (m *metrics) counter(queue, name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "workqueue_" + name, Help: help, ConstLabels: prometheus.Labels{"name": queue}})
	m.registry.MustRegister(c)
	return c
}

func (m *metrics) histogram(queue, name, help string) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "workqueue_" + name, Help: help, ConstLabels: prometheus.Labels{"name": queue},
		Buckets: prometheus.ExponentialBuckets(1e-5, 4, 10)})
	m.registry.MustRegister(h)
	return h
}

func (m *metrics) NewDepthMetric(queue string) workqueue.GaugeMetric {
	return m.gauge(queue, "depth", "How many keys are waiting.")
}

func (m *metrics) NewAddsMetric(queue string) workqueue.CounterMetric {
	return m.counter(queue, "adds_total", "How many keys were added.")
}

func (m *metrics) NewLatencyMetric(queue string) workqueue.HistogramMetric {
	return m.histogram(queue, "queue_duration_seconds", "How long a key waits before a worker gets it.")
}

func (m *metrics) NewWorkDurationMetric(queue string) workqueue.HistogramMetric {
	return m.histogram(queue, "work_duration_seconds", "How long a worker keeps a key.")
}

func (m *metrics) NewUnfinishedWorkSecondsMetric(queue string) workqueue.SettableGaugeMetric {
	return m.gauge(queue, "unfinished_work_seconds", "The time spent so far on the keys that are being worked on.")
}

func (m *metrics) NewLongestRunningProcessorSecondsMetric(queue string) workqueue.SettableGaugeMetric {
	return m.gauge(queue, "longest_running_processor_seconds", "How long the slowest worker has had its key.")
}

func (m *metrics) NewRetriesMetric(queue string) workqueue.CounterMetric {
	return m.counter(queue, "retries_total", "How many keys came back after a wait.")
}

// webhook is a server that the API server asks before it stores an Icecream or a
// HealthCheckPolicy. Read it in this order: rules.go decides, review.go speaks the API
// server's protocol, certificate.go reloads what the server identifies itself with, and
// this file starts and stops it.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "webhook:", err)
		os.Exit(1)
	}
}

// options are what a user can choose.
type options struct {
	listen    string        // where the API server asks, with TLS
	health    string        // where kubelet and Prometheus ask, without
	directory string        // of the certificate
	drain     time.Duration // between "not ready" and the stop
	keepAlive bool
	slow      time.Duration // how long each answer takes, for experiments
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	var o options
	flag.StringVar(&o.listen, "listen", "127.0.0.1:8443", "the address for the API server's requests; port 0 is any free one")
	flag.StringVar(&o.health, "health", "127.0.0.1:0", "the address of /healthz, /readyz and /metrics")
	flag.StringVar(&o.directory, "cert-dir", "", "the folder with tls.crt and tls.key, which may change at any time")
	flag.DurationVar(&o.drain, "drain", 0, "how long to go on answering after the signal to stop, until nobody sends requests here any more")
	flag.BoolVar(&o.keepAlive, "keep-alive", true, "answer several requests on one connection; without it each one begins with a TLS handshake")
	flag.DurationVar(&o.slow, "slow", 0, "how long to wait before each answer, for experiments")
	flag.Parse()
	if o.directory == "" {
		return errors.New("-cert-dir is missing: name the folder that has, or will have, tls.crt and tls.key")
	}

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	own, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client for Icecreams and policies: %w", err)
	}
	return serve(ctx, o, decider{client, own})
}

// serve answers until ctx ends, and then until nobody waits for an answer any more.
func serve(ctx context.Context, o options, d decider) error {
	logger := klog.FromContext(ctx)
	registry := prometheus.NewRegistry()
	counted := newMetrics(registry)
	pair := &keyPair{directory: o.directory, logger: logger, notAfter: counted.notAfter}

	// Health first: while the certificate is missing, somebody will want to know why.
	var listens atomic.Bool
	plain, err := net.Listen("tcp", o.health)
	if err != nil {
		return fmt.Errorf("listening for health and metrics (-health): %w", err)
	}
	health := &http.Server{Handler: healthHandler(&listens, registry), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 90 * time.Second}
	go func() { _ = health.Serve(plain) }() // it ends with Close
	defer func() { _ = health.Close() }()
	logger.Info("Listening for health and metrics", "address", plain.Addr().String())

	if err := pair.wait(ctx); err != nil {
		return nil // asked to stop before there was a certificate
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listening for the API server (-listen): %w", err)
	}
	server := &http.Server{
		Handler:   counted.count(slow(o.slow, lastAnswers(&listens, d.handler()))),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get},
		// Whoever opens a connection and sends nothing does not keep it.
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second, // as long as the longest timeoutSeconds of a webhook
		IdleTimeout:       90 * time.Second,
	}
	server.SetKeepAlivesEnabled(o.keepAlive)
	if !o.keepAlive {
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP1(true) // HTTP/2 would put all requests onto one connection
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(listener, "", "") }() // the files come from GetCertificate
	listens.Store(true)                                        // from here on a connection is accepted, so Ready is true
	logger.Info("Listening", "address", listener.Addr().String())

	select {
	case err := <-ended:
		return fmt.Errorf("answering the API server: %w", err)
	case <-ctx.Done():
	}
	listens.Store(false)
	if o.drain > 0 {
		logger.Info("Stopping: requests may still come", "for", o.drain)
		time.Sleep(o.drain) // a Service's endpoints change some time after the pod has been told to stop
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := server.Shutdown(stopping); err != nil {
		return fmt.Errorf("waiting for the answers in flight: %w", err)
	}
	logger.Info("Stopped")
	return nil
}

// healthHandler answers /healthz as long as the process lives, and /readyz while the TLS
// port accepts connections and has a certificate.
func healthHandler(listens *atomic.Bool, registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !listens.Load() {
			http.Error(w, "there is no certificate yet, or the process is stopping", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux
}

// lastAnswers ends each connection with its next answer, once the server is no longer ready. The API
// server keeps connections open, and asks on them whatever the endpoints are. If Shutdown closes one
// while a question is on its way, that question fails with EOF, and a POST is not sent again.
func lastAnswers(ready *atomic.Bool, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ready.Load() {
			w.Header().Set("Connection", "close") // and for HTTP/2 that is a GOAWAY
		}
		handler.ServeHTTP(w, r)
	})
}

// slow delays each answer.
func slow(d time.Duration, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
			handler.ServeHTTP(w, r)
		case <-r.Context().Done(): // the API server does not wait any longer
		}
	})
}

// metrics have no label whose values a client chooses.
type metrics struct {
	requests *prometheus.CounterVec
	notAfter prometheus.Gauge
}

func newMetrics(registry *prometheus.Registry) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "webhook_requests_total", Help: "Requests to the TLS port, by HTTP status."}, []string{"code"}),
		notAfter: prometheus.NewGauge(prometheus.GaugeOpts{Name: "webhook_certificate_not_after_seconds", Help: "When the certificate in use ends, in seconds since 1970."}),
	}
	registry.MustRegister(m.requests, m.notAfter)
	return m
}

// count counts the requests by their status.
func (m *metrics) count(handler http.Handler) http.Handler {
	return promhttp.InstrumentHandlerCounter(m.requests, handler)
}

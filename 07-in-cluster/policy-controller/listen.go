package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

// servers are what the process listens on. Each has an address of its own, so that a
// NetworkPolicy or a Service can open one and not the others.
type servers []*http.Server

// health answers the kubelet. Ready means that the caches are filled, on a standby
// too: it can take over at once, and a rollout that waits for it comes to an end.
// Alive means that the process does not believe in a lease that has run out.
func (s *servers) health(ctx context.Context, address string, e *election, ready func() bool) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := e.watchdog.Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "the caches are not filled, or the process is stopping", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return s.start(ctx, "health", address, nil, mux)
}

// metrics answers those whom the API server allows to get /metrics. The certificate
// encrypts but proves nothing: a scraper that wants to know whom it talks to needs one
// from cert-manager or the like.
func (s *servers) metrics(ctx context.Context, address, host string, config *rest.Config, g prometheus.Gatherer) error {
	guard, err := newGuard(config)
	if err != nil {
		return err
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		return fmt.Errorf("making a certificate for the metrics: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return fmt.Errorf("making a certificate for the metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", guard.protect(promhttp.HandlerFor(g, promhttp.HandlerOpts{})))
	return s.start(ctx, "metrics", address, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, mux)
}

// start listens, logs the address, because port 0 means any free port, and serves.
func (s *servers) start(ctx context.Context, name, address string, config *tls.Config, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listening for %s (-%s-listen): %w", name, name, err)
	}
	logger := klog.FromContext(ctx)
	logger.Info("Listening", "for", name, "address", listener.Addr().String())
	server := &http.Server{Handler: handler, TLSConfig: config, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 90 * time.Second}
	*s = append(*s, server)
	go func() {
		serve := server.Serve
		if config != nil {
			serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
		}
		if err := serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Error(err, "No longer served", "what", name)
		}
	}()
	return nil
}

func (s servers) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, server := range s {
		if server.Shutdown(ctx) != nil {
			_ = server.Close() // a client that does not read does not keep the process alive
		}
	}
}

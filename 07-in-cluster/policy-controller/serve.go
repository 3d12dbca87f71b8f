package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // leader_election_master_status
	_ "k8s.io/component-base/metrics/prometheus/restclient"              // rest_client_requests_total and others
	"k8s.io/klog/v2"
)

// servers are what the process listens on.
type servers struct{ running []*http.Server }

// serve starts health, metrics and, if asked for, profiles and what the X-ray reads. Each has an address of
// its own, so that a NetworkPolicy or a Service can open one and not the others.
func (o options) serve(ctx context.Context, config *rest.Config, c controllers, e *election) (_ *servers, err error) {
	s := &servers{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if err := s.start(ctx, "health", o.health, nil, health(c, e)); err != nil {
		return nil, err
	}
	certificate, err := selfSigned()
	if err != nil {
		return nil, err
	}
	guard, err := newGuard(config)
	if err != nil {
		return nil, err
	}
	metrics := http.NewServeMux()
	metrics.Handle("GET /metrics", guard.protect(promhttp.HandlerFor(
		// The first are those of client-go and of the process, the second those of the loops.
		prometheus.Gatherers{legacyregistry.DefaultGatherer, c.metrics}, promhttp.HandlerOpts{})))
	if err := s.start(ctx, "metrics", o.metrics, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}, metrics); err != nil {
		return nil, err
	}
	if o.reporter != nil {
		if err := s.start(ctx, "xray", o.xray, nil, o.reporter); err != nil {
			return nil, err
		}
	}
	if o.profiles == "" {
		return s, nil
	}
	profiles := http.NewServeMux()
	profiles.HandleFunc("/debug/pprof/", pprof.Index)
	profiles.HandleFunc("/debug/pprof/profile", pprof.Profile)
	profiles.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return s, s.start(ctx, "pprof", o.profiles, nil, profiles)
}

// health answers the kubelet. Ready means that the caches are filled, on a standby
// too: it can take over at once, and a rollout that waits for it comes to an end.
// Alive means that the process does not believe in a lease that has run out.
func health(c controllers, e *election) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := e.watchdog.Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		for _, c := range c.all {
			if !c.Ready() {
				http.Error(w, "the caches are not filled, or the process is stopping", http.StatusServiceUnavailable)
				return
			}
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}

// start listens, logs the address, because port 0 means any free port, and serves.
func (s *servers) start(ctx context.Context, name, address string, config *tls.Config, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listening for %s (-%s-listen): %w", name, name, err)
	}
	logger := klog.FromContext(ctx)
	logger.Info("Listening", "for", name, "address", listener.Addr().String())
	server := &http.Server{Handler: handler, TLSConfig: config, ReadHeaderTimeout: 10 * time.Second}
	s.running = append(s.running, server)
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

func (s *servers) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, server := range s.running {
		if server.Shutdown(ctx) != nil {
			_ = server.Close() // a client that does not read does not keep the process alive
		}
	}
}

// selfSigned makes a certificate that encrypts but proves nothing: a scraper that
// wants to know whom it talks to needs one from cert-manager or the like.
func selfSigned() (tls.Certificate, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey("policy-controller", nil, nil)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a certificate for the metrics: %w", err)
	}
	return tls.X509KeyPair(certificate, key)
}

// loopback refuses an address that other machines can reach: profiles show what is
// in memory, and cost time.
func loopback(flag, address string) error {
	if address == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("-%s: %w", flag, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("-%s %s: only a loopback address, such as 127.0.0.1:6060, is allowed", flag, address)
	}
	return nil
}

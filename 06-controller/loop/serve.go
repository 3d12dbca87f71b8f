package loop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"
)

// server answers /healthz, /readyz and /metrics while a loop runs.
type server struct {
	http  *http.Server
	ended chan struct{}
}

// serve starts to listen, and logs the address, because port 0 means any free port.
func (l *Loop) serve(logger klog.Logger) (*server, error) {
	if l.options.Listen == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", l.options.Listen)
	if err != nil {
		return nil, fmt.Errorf("listening for health and metrics (-listen): %w", err)
	}
	s := &server{http: &http.Server{Handler: l.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 90 * time.Second}, ended: make(chan struct{})}
	logger.Info("Listening", "address", listener.Addr().String())
	go func() {
		defer close(s.ended)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Error(err, "Health and metrics are no longer served")
		}
	}()
	return s, nil
}

func (s *server) stop() {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close() // a client that does not read does not keep the process alive
	}
	<-s.ended
}

// Ready reports whether the caches are filled and the stop has not begun.
func (l *Loop) Ready() bool { return l.ready.Load() }

// Handler answers /healthz as long as the process lives, /readyz from the
// moment that the caches are filled until the stop, and /metrics.
func (l *Loop) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !l.Ready() {
			http.Error(w, "the caches are not filled, or the process is stopping", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(l.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // leader_election_master_status
	_ "k8s.io/component-base/metrics/prometheus/restclient"              // rest_client_requests_total and others
)

// serve starts health, metrics and, if asked for, profiles and what the X-ray reads.
func (o options) serve(ctx context.Context, config *rest.Config, c controllers, e *election) (s servers, err error) {
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if err := s.health(ctx, o.health, e, c.ready); err != nil {
		return s, err
	}
	// The first are those of client-go and of the process, the second those of the loops.
	if err := s.metrics(ctx, o.metrics, "policy-controller", config, prometheus.Gatherers{legacyregistry.DefaultGatherer, c.metrics}); err != nil {
		return s, err
	}
	if o.reporter != nil {
		if err := s.start(ctx, "xray", o.xray, nil, o.reporter); err != nil {
			return s, err
		}
	}
	if o.profiles == "" {
		return s, nil
	}
	profiles := http.NewServeMux()
	profiles.HandleFunc("/debug/pprof/", pprof.Index)
	profiles.HandleFunc("/debug/pprof/profile", pprof.Profile)
	profiles.HandleFunc("/debug/pprof/trace", pprof.Trace)
	err = s.start(ctx, "pprof", o.profiles, nil, profiles)
	return s, err
}

// ready reports whether the caches of all controllers are filled, and the stop has not begun.
func (c controllers) ready() bool {
	return !slices.ContainsFunc(c.all, func(c controller) bool { return !c.Ready() })
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

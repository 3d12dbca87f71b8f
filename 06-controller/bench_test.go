package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// The benchmarks of this step report ratios. Both sides of a ratio are measured
// in the same run on the same cluster, so that a slow or busy machine slows both.
// Each benchmark's comment names the bar that its ratio has to meet. A ratio
// beyond the bar does not fail the benchmark: read the numbers.

// startProgram starts a program that a benchmark measures, without a proxy, and
// waits until its caches have synced.
func startProgram(b *testing.B, e *testenv.Env, environ []string, program string, args ...string) *controllertest.Controller {
	b.Helper()
	c := &controllertest.Controller{Env: e, T: b, Runner: e, Command: testenv.Command{Path: program, Args: args, Env: environ, Timeout: 20 * time.Minute}}
	c.Process = e.Start(c.Command)
	e.Eventually(2*time.Minute, func(context.Context) error {
		if !strings.Contains(c.Process.Stderr(), `"Working"`) {
			return fmt.Errorf("the program does not work yet; it has said:\n%s", c.Process.Stderr())
		}
		return nil
	})
	return c
}

// quantile returns the value that a share of the durations does not exceed.
func quantile(durations []time.Duration, share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

// ownWrites are the requests that change something, Events apart.
var ownWrites = faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Write() && r.Group != "events.k8s.io" }}

// quiet waits until nothing was written through the proxy for a while.
func quiet(b *testing.B, e *testenv.Env, proxy *testenv.Proxy) {
	b.Helper()
	const silence = 2 * time.Second
	e.Eventually(5*time.Minute, func(context.Context) error {
		requests := proxy.Requests(ownWrites)
		if n := len(requests); n > 0 && time.Since(requests[n-1].Started) < silence {
			return fmt.Errorf("the controller still writes: %s", requests[n-1])
		}
		return nil
	})
}

// BenchmarkSteadyState counts what each controller asks of the API server while
// nothing changes: during three resyncs, then while another process takes over,
// and during three resyncs of that one. Bar: 0 writes, Events apart, and no list
// or watch-list except the first of each process and informer.
func BenchmarkSteadyState(b *testing.B) {
	b.Run("controller=healthcheckpolicy", func(b *testing.B) {
		const pods, count = 200, 20
		p := newPolicyBench(b)
		team := func(i int) string { return fmt.Sprint(i % count) }
		p.createPods(pods, false, func(i int) map[string]string { return map[string]string{"team": team(i)} })
		p.createPolicies(count, team)
		steadyState(b, p.Env, policyProgram, count, 3, func() { p.settle(hasCounted(pods/count, 0)) })
	})
	b.Run("controller=icecream", func(b *testing.B) {
		const count = 20
		e, own := newIcecreamBench(b)
		for i := range count {
			fatal.If(b, createIcecream(e.Context(), own, fmt.Sprintf("object-%03d", i)))
		}
		steadyState(b, e, icecreamProgram, count, 3, func() {
			e.Eventually(5*time.Minute, func(ctx context.Context) error {
				_, available, err := lookAtIcecreams(ctx, own)
				if err == nil && available < count {
					err = fmt.Errorf("%d of %d Icecreams are available", available, count)
				}
				return err
			})
		})
	})
}

func steadyState(b *testing.B, e *testenv.Env, program string, objects, informers int, settle func()) {
	b.Helper()
	const period, resyncs = 2 * time.Second, 3
	proxy := e.Proxy()
	start := func() *controllertest.Controller {
		return startProgram(b, e, nil, e.Program(program), "-kubeconfig", proxy.Kubeconfig, "-namespace", e.Namespace, "-resync", period.String())
	}
	lists := faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Verb == "list" || r.Verb == "watch-list" }}
	for b.Loop() {
		s := start()
		settle()
		quiet(b, e, proxy)
		writes, listed := proxy.Count(ownWrites), proxy.Count(lists)
		for process := range 2 {
			if process > 0 {
				s.Stop()
				s = start()
			}
			reconciled, err := s.Metric("controller_reconciles_total")
			fatal.If(b, err)
			began := time.Now()
			e.Eventually(5*time.Minute, func(context.Context) error {
				now, err := s.Metric("controller_reconciles_total")
				if took := time.Since(began); err == nil && (took < resyncs*period || now < reconciled+float64(resyncs*objects)) {
					err = fmt.Errorf("%.0f reconciles of %d objects in %s", now-reconciled, objects, took)
				}
				return err
			})
		}
		s.Stop()
		b.ReportMetric(float64(proxy.Count(ownWrites)-writes), "writes")
		b.ReportMetric(float64(proxy.Count(lists)-listed-informers), "lists-beyond-first")
	}
}

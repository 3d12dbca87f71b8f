package controller

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// The benchmarks of this step report ratios. Both sides of a ratio are measured
// in the same run on the same cluster, so that a slow or busy machine slows both.
// Each benchmark's comment names the bar that its ratio has to meet. A ratio
// beyond the bar does not fail the benchmark: read the numbers.

// A subject is a process that a benchmark measures.
type subject struct {
	*testenv.Process
	b *testing.B
}

// startSubject starts a program, and waits until its caches have synced.
func startSubject(b *testing.B, e *testenv.Env, program string, args ...string) *subject {
	b.Helper()
	return startSubjectWith(b, e, nil, program, args...)
}

func startSubjectWith(b *testing.B, e *testenv.Env, environ []string, program string, args ...string) *subject {
	b.Helper()
	s := &subject{b: b, Process: e.Start(testenv.Command{Path: program, Args: args, Env: environ, Timeout: 20 * time.Minute})}
	e.Eventually(2*time.Minute, func(context.Context) error {
		if !regexp.MustCompile(`"Working"`).MatchString(s.Stderr()) {
			return fmt.Errorf("the program does not work yet; it has said:\n%s", s.Stderr())
		}
		return nil
	})
	return s
}

// stop ends the process as a cluster does, and expects a good end.
func (s *subject) stop() {
	s.b.Helper()
	if err := s.Signal(syscall.SIGTERM); err != nil {
		s.b.Fatal(err)
	}
	if r := s.Wait(); r.ExitCode != 0 {
		s.b.Fatalf("exit code %d after SIGTERM:\n%s", r.ExitCode, r.Stderr)
	}
}

// metric returns the sum of a controller's metric over its labels.
func (s *subject) metric(name string) (sum float64, err error) {
	found := listening.FindStringSubmatch(s.Stderr())
	if found == nil {
		return 0, fmt.Errorf("the controller has not logged its address:\n%s", s.Stderr())
	}
	code, text := get(found[1], "/metrics")
	if code != http.StatusOK {
		return 0, fmt.Errorf("/metrics: %d %s", code, text)
	}
	for _, line := range regexp.MustCompile(`(?m)^`+name+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(text, -1) {
		var value float64
		if _, err := fmt.Sscan(line[1], &value); err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum += value
	}
	return sum, nil
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
		steadyState(b, p.Env, policyProgram, count, 2, func() { p.settle(hasCounted(pods/count, 0)) })
	})
	b.Run("controller=icecream", func(b *testing.B) {
		const count = 20
		e, own := newIcecreamBench(b)
		for i := range count {
			if err := createIcecream(e.Context(), own, fmt.Sprintf("object-%03d", i)); err != nil {
				b.Fatal(err)
			}
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
	start := func() *subject {
		return startSubject(b, e, e.Program(program), "-kubeconfig", proxy.Kubeconfig, "-namespace", e.Namespace, "-resync", period.String())
	}
	lists := faultproxy.Match{If: func(r faultproxy.Request) bool { return r.Verb == "list" || r.Verb == "watch-list" }}
	for b.Loop() {
		s := start()
		settle()
		quiet(b, e, proxy)
		writes, listed := proxy.Count(ownWrites), proxy.Count(lists)
		for process := range 2 {
			if process > 0 {
				s.stop()
				s = start()
			}
			reconciled, err := s.metric("controller_reconciles_total")
			if err != nil {
				b.Fatal(err)
			}
			began := time.Now()
			e.Eventually(5*time.Minute, func(context.Context) error {
				now, err := s.metric("controller_reconciles_total")
				if took := time.Since(began); err == nil && (took < resyncs*period || now < reconciled+float64(resyncs*objects)) {
					err = fmt.Errorf("%.0f reconciles of %d objects in %s", now-reconciled, objects, took)
				}
				return err
			})
		}
		s.stop()
		b.ReportMetric(float64(proxy.Count(ownWrites)-writes), "writes")
		b.ReportMetric(float64(proxy.Count(lists)-listed-informers), "lists-beyond-first")
	}
}

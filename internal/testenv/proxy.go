package testenv

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
)

// SlowEnv names how long every proxy of a test holds back each request, such as
// SLOW=500ms: so a program behind it is as slow as on a slow machine. What a test
// says of a program must not change by that.
const SlowEnv = "SLOW"

// A Proxy stands between programs and the cluster for the length of one test,
// and breaks what the test tells it to break.
type Proxy struct {
	*faultproxy.Proxy
	Kubeconfig string // reaches the cluster through the proxy; its namespace is the test's

	e *Env
}

// Proxy starts a fault proxy in front of the cluster. If the test fails, it
// prints the requests that the proxy has seen.
func (e *Env) Proxy() *Proxy {
	e.t.Helper()
	e.own()
	p, err := faultproxy.Start(e.Config)
	if err != nil {
		e.t.Fatalf("starting a fault proxy: %v", err)
	}
	e.t.Cleanup(func() {
		p.Close()
		if e.t.Failed() {
			requests, forgotten := p.Requests(faultproxy.Match{})
			if older := len(requests) - 500; older > 0 {
				requests, forgotten = requests[older:], forgotten+older
			}
			if forgotten > 0 {
				e.t.Logf("(%d older requests are left out)", forgotten)
			}
			for _, r := range requests {
				e.t.Logf("%s %s: %s", r.Started.Format("05.000"), r.UserAgent, r)
			}
		}
	})
	kubeconfig := filepath.Join(e.t.TempDir(), "kubeconfig")
	if err := p.WriteKubeconfig(kubeconfig, e.Namespace, ""); err != nil {
		e.t.Fatalf("writing the fault proxy's kubeconfig: %v", err)
	}
	proxy := &Proxy{Proxy: p, Kubeconfig: kubeconfig, e: e}
	if text := os.Getenv(SlowEnv); text != "" {
		delay, err := time.ParseDuration(text)
		if err != nil {
			e.t.Fatalf("%s: %v", SlowEnv, err)
		}
		proxy.MustInject(faultproxy.Rule{Fault: faultproxy.Slow, Delay: delay, Times: -1})
	}
	return proxy
}

// MustInject injects a fault. A rule that the proxy refuses fails the test.
func (p *Proxy) MustInject(rule faultproxy.Rule) *faultproxy.Injection {
	p.e.t.Helper()
	i, err := p.Inject(rule)
	if err != nil {
		p.e.t.Fatalf("injecting a fault: %v", err)
	}
	return i
}

// Requests returns the requests that match, in the order in which they began.
// It fails the test if the proxy has forgotten some.
func (p *Proxy) Requests(m faultproxy.Match) []faultproxy.Request {
	p.e.t.Helper()
	found, forgotten := p.Proxy.Requests(m)
	if forgotten > 0 {
		if p.e.Flooded != nil {
			p.e.Flooded(forgotten)
		}
		p.e.t.Fatalf("the proxy has forgotten %d requests: ask earlier, or count with an injection", forgotten)
	}
	return found
}

// Count returns how many requests match, as Requests does.
func (p *Proxy) Count(m faultproxy.Match) int {
	p.e.t.Helper()
	return len(p.Requests(m))
}

// Stall starts a proxy that stalls the requests that match, and has a program use it: the program gets -namespace
// and -kubeconfig before its other arguments.
func (e *Env) Stall(m faultproxy.Match, c *Command) *Proxy {
	e.t.Helper()
	proxy := e.Proxy()
	proxy.MustInject(faultproxy.Rule{Match: m, Times: -1, Fault: faultproxy.Stall})
	c.Args = append([]string{"-namespace", e.Namespace, "-kubeconfig", proxy.Kubeconfig}, c.Args...)
	return proxy
}

// InterruptAt starts a program behind a proxy that stalls the requests that match, interrupts it at the
// first one, and returns how it ended. See Stall for its arguments.
func (e *Env) InterruptAt(m faultproxy.Match, c Command) Result {
	e.t.Helper()
	proxy := e.Stall(m, &c)
	p := e.Start(c)
	e.Eventually(time.Minute, func(context.Context) error {
		if proxy.Count(m) == 0 {
			return fmt.Errorf("none of its requests matches: %s%s", p.Stdout(), p.Stderr())
		}
		return nil
	})
	fatal.If(e.t, p.Signal(os.Interrupt))
	return p.Wait()
}

// StopsBeforeItsCaches runs a command whose informers of a resource are refused, tells it to stop, and fails the test
// unless it ends without an error and at once. While the API server refuses, an informer sleeps between its tries,
// longer each time and whatever its context says: nobody waits for that.
func (e *Env) StopsBeforeItsCaches(resource string, c Command) {
	e.t.Helper()
	p := e.Proxy()
	// The informer treats 429 as it does a refused connection, and 429 can be counted.
	busy := p.MustInject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: resource}, Fault: faultproxy.Answer, Code: http.StatusTooManyRequests, Times: -1})
	c.Env = append(slices.Clone(c.Env), "KUBECONFIG="+p.Kubeconfig)
	running := e.Start(c)
	e.Eventually(time.Minute, func(context.Context) error {
		if busy.Struck() < 4 {
			return fmt.Errorf("%d tries: %s%s", busy.Struck(), running.Stdout(), running.Stderr())
		}
		return nil
	})
	fatal.If(e.t, running.Signal(syscall.SIGTERM))
	told := time.Now()
	result := running.Wait()
	if took := time.Since(told); result.ExitCode != 0 || took > 5*time.Second { // it would sleep for 6.4 s at least
		e.t.Errorf("exit code %d, %s after SIGTERM\n%s", result.ExitCode, took, result.Stderr)
	}
}

// lessonProxy starts a fault proxy for the length of a test, with the namespace that a shell of the cluster has.
func (s *suite) lessonProxy(t *testing.T) (p *faultproxy.Proxy, kubeconfig string) {
	t.Helper()
	p, namespace, err := faultproxy.StartFor(&clientcmd.ClientConfigLoadingRules{ExplicitPath: s.cluster.Kubeconfig()})
	fatal.If(t, err)
	t.Cleanup(p.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := p.WriteKubeconfig(kubeconfig, namespace, ""); err != nil {
		t.Fatalf("writing the proxy's kubeconfig: %v", err)
	}
	return p, kubeconfig
}

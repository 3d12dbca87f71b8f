// Package controllertest runs a controller in a test: it starts and ends the process,
// asks its own server, and sees its requests.
package controllertest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
	"github.com/k8s-go/workshop/internal/proc"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A Runner starts processes and waits for what they do: the Env of a test, or the
// check of an exercise, which fails with a verdict.
type Runner interface {
	Start(testenv.Command) *testenv.Process
	Eventually(timeout time.Duration, f func(context.Context) error)
}

// A Controller is a controller that a test runs. It reaches the cluster through the
// proxy, the test does not.
type Controller struct {
	*testenv.Env
	T       testing.TB
	Runner  Runner // Env, unless an exercise is checked
	Proxy   *testenv.Proxy
	Command testenv.Command  // what Start runs
	Process *testenv.Process // the last one
}

// New prepares a controller, with a proxy of its own, that works in the namespace of the test.
func New(t testing.TB, e *testenv.Env, program string, args ...string) *Controller {
	t.Helper()
	proxy := e.Proxy()
	return &Controller{Env: e, T: t, Runner: e, Proxy: proxy, Command: testenv.Command{Path: program, Timeout: 4 * time.Minute,
		Args: append([]string{"-kubeconfig", proxy.Kubeconfig, "-namespace", e.Namespace}, args...)}}
}

// Eventually waits as the Runner does.
func (c *Controller) Eventually(timeout time.Duration, f func(context.Context) error) {
	c.T.Helper()
	c.Runner.Eventually(timeout, f)
}

// Start starts the controller, with further arguments from now on, and waits until it is ready.
func (c *Controller) Start(args ...string) {
	c.T.Helper()
	c.Command.Args = append(c.Command.Args, args...)
	c.Launch()
	c.WaitReady()
}

// Launch starts the controller, and waits until it serves its health and its metrics.
func (c *Controller) Launch() {
	c.T.Helper()
	c.Process = c.Runner.Start(c.Command)
	c.Eventually(time.Minute, func(context.Context) error {
		switch ended := c.Process.Ended(); {
		case c.Address("health") != "":
			return nil
		case ended:
			return poll.Stop(fmt.Errorf("it has ended, and said at last: %s", proc.LastLines(c.Process.Stderr(), 1)))
		}
		return fmt.Errorf("no address in the log:\n%s", c.Process.Stderr())
	})
}

// listening is the line that says where a controller listens, and for what if it has two
// servers: as step 06 logs it, or as controller-runtime does.
var listening = regexp.MustCompile(`"Listening"(?: for="([^"]+)")? address="([^"]+)"|starting server\t\{"name": "(health) probe", "addr": "([^"]+)"\}`)

// Address returns where the controller serves its "health" or its "metrics", or "".
func (c *Controller) Address(of string) string {
	for _, found := range listening.FindAllStringSubmatch(c.Process.Stderr(), -1) {
		if found[1]+found[3] == of || found[1]+found[3] == "" {
			return found[2] + found[4]
		}
	}
	return ""
}

// Stop ends the controller as a cluster does, and expects a good end.
func (c *Controller) Stop() {
	c.T.Helper()
	c.Signal(syscall.SIGTERM)
}

// Signal sends a signal that ends the controller, and expects a good end.
func (c *Controller) Signal(s syscall.Signal) {
	c.T.Helper()
	fatal.If(c.T, c.Process.Signal(s))
	if r := c.Process.Wait(); r.ExitCode != 0 {
		c.T.Errorf("exit code %d after %s\n%s", r.ExitCode, s, r.Stderr)
	}
}

// Kill ends the controller as a crash does.
func (c *Controller) Kill() {
	c.Process.Kill()
	c.Process.Wait()
}

// Restart ends the controller well, and starts another one.
func (c *Controller) Restart() {
	c.T.Helper()
	c.Stop()
	c.Start()
}

// Get asks the server for health.
func (c *Controller) Get(path string) (code int, body string) {
	return Get("http://"+c.Address("health")+path, "")
}

// Get asks a controller's server, whose certificate is self-signed, with a token or
// none. Without an answer the code is 0, and the body says why.
func Get(url, token string) (code int, body string) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(data)
}

// Ready returns nil when the controller is ready, and else what it answers.
func (c *Controller) Ready() error {
	if code, body := c.Get("/readyz"); code != http.StatusOK {
		return fmt.Errorf("/readyz: %d %s", code, body)
	}
	return nil
}

// WaitReady waits until the controller is ready.
func (c *Controller) WaitReady() {
	c.T.Helper()
	c.Eventually(time.Minute, func(context.Context) error { return c.Ready() })
}

// Metric returns the sum of a metric over its labels, or the metric with the labels
// that the name ends with.
func (c *Controller) Metric(name string) (sum float64, err error) {
	_, body := c.Get("/metrics")
	found := regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(name)+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(body, -1)
	if found == nil {
		return 0, fmt.Errorf("/metrics has no %s:\n%s", name, body)
	}
	for _, line := range found {
		var value float64
		if _, err := fmt.Sscan(line[1], &value); err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum += value
	}
	return sum, nil
}

// Writes are the controller's own writes so far, without Events. It waits for the answers.
func (c *Controller) Writes() []string {
	c.T.Helper()
	var lines []string
	c.Eventually(time.Minute, func(context.Context) error {
		lines = nil
		for _, r := range c.Proxy.Requests(faultproxy.Writes) {
			if r.Resource == "events" {
				continue
			}
			if lines = append(lines, r.String()); r.Took == 0 {
				return fmt.Errorf("no answer yet: %s", r)
			}
		}
		return nil
	})
	return lines
}

// Inject injects a fault that has to have struck when the test ends.
func (c *Controller) Inject(rule faultproxy.Rule) *faultproxy.Injection {
	c.T.Helper()
	i := c.Proxy.MustInject(rule)
	c.T.Cleanup(func() {
		if i.Struck() == 0 && !c.T.Failed() {
			c.T.Errorf("the fault has never struck: %s of %+v", rule.Fault, rule.Match)
		}
	})
	return i
}

// Struck waits until a fault has struck so many times.
func (c *Controller) Struck(i *faultproxy.Injection, times int) {
	c.T.Helper()
	c.Eventually(time.Minute, func(context.Context) error {
		if n := i.Struck(); n < times {
			return fmt.Errorf("it has sent %d of the %d requests at which a fault is to strike: %s", n, times, i)
		}
		return nil
	})
}

// Hold waits that long, or shorter if something that must stay true no longer is.
func (c *Controller) Hold(d time.Duration, check func() error) error {
	c.T.Helper()
	var broken error
	end := time.Now().Add(d)
	c.Eventually(d+30*time.Second, func(context.Context) error {
		if broken = check(); broken == nil && time.Now().Before(end) {
			return errors.New("not long enough")
		}
		return nil
	})
	return broken
}

// Crash returns what a controller that has ended said at last.
func (c *Controller) Crash() error {
	if !c.Process.Ended() {
		return nil
	}
	for line := range strings.Lines(c.Process.Stderr()) {
		if strings.HasPrefix(line, "panic: ") {
			return errors.New(strings.TrimSpace(line))
		}
	}
	return fmt.Errorf("the controller has ended with exit code %d", c.Process.Wait().ExitCode)
}

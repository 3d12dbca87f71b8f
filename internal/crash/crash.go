// Package crash is what crash tests do to controllers: cmd/chaos to those of step 06,
// cmd/judge to any.
package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/poll"
)

// Faults are at work between one controller and its API server.
type Faults struct {
	Proxy      *faultproxy.Proxy
	Chance     *rand.Rand              // decides what they do; for one goroutine
	Injections []*faultproxy.Injection // whose strikes count
	Strikes    atomic.Int64            // beyond those of the injections
	Window     Window                  // of the chances to strike, those that are taken

	chances atomic.Int64
}

// A Window leaves out all faults of a case but some in a row: those from number From on, before To. A To of
// 0 is no end.
type Window struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// Strike reports whether a fault strikes where it can, and counts that.
func (f *Faults) Strike() bool {
	if !f.chosen() {
		return false
	}
	f.Strikes.Add(1)
	return true
}

// chosen reports whether the next chance to strike is in the window.
func (f *Faults) chosen() bool {
	n := int(f.chances.Add(1)) - 1
	return n >= f.Window.From && (f.Window.To == 0 || n < f.Window.To)
}

// Chances returns how often a fault could have struck until now.
func (f *Faults) Chances() int { return int(f.chances.Load()) }

// A During is what goes on while people are busy.
type During = func(ctx context.Context) error

// Inject puts rules to work whose strikes count.
func (f *Faults) Inject(rules ...faultproxy.Rule) error {
	for _, rule := range rules {
		if len(rules) > 1 && !f.chosen() { // of one alone, its strikes are all that there is to leave out
			continue
		}
		i, err := f.Proxy.Inject(rule)
		if err != nil {
			return err
		}
		f.Injections = append(f.Injections, i)
	}
	return nil
}

// Struck returns how often the faults have struck.
func (f *Faults) Struck() int {
	n := int(f.Strikes.Load())
	for _, i := range f.Injections {
		n += i.Struck()
	}
	return n
}

// CutWatches cuts the watches three times, and one in the middle of an event.
func (f *Faults) CutWatches() (During, error) {
	err := f.Inject(faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.Cut, After: f.Chance.IntN(8)})
	waits := []time.Duration{Between(f.Chance, 0, time.Second), Between(f.Chance, 0, time.Second), Between(f.Chance, 0, 2*time.Second)}
	return func(ctx context.Context) error {
		for _, wait := range waits {
			Sleep(ctx, wait)
			if f.chosen() {
				f.Strikes.Add(int64(f.Proxy.Cut(faultproxy.Watches)))
			}
		}
		return nil
	}, err
}

// NewWatches has the controller ask for new watches after each wait. That is no strike:
// the answers to them are.
func (f *Faults) NewWatches(waits ...time.Duration) During {
	return func(ctx context.Context) error {
		for _, wait := range waits {
			Sleep(ctx, wait)
			f.Proxy.Cut(faultproxy.Watches)
		}
		return nil
	}
}

// Answer lets some requests of the workers and of the informers fail.
func (f *Faults) Answer(work faultproxy.Match, code int) (During, error) {
	var rules []faultproxy.Rule
	for _, most := range []int{2, 8, 15} {
		rules = append(rules, faultproxy.Rule{Match: work, Fault: faultproxy.Answer, Code: code, After: f.Chance.IntN(most), Times: 1 + f.Chance.IntN(2)})
	}
	rules = append(rules, faultproxy.Rule{Match: faultproxy.Watches, Fault: faultproxy.Answer, Code: code, Times: 2})
	return f.NewWatches(Between(f.Chance, 0, 2*time.Second)), f.Inject(rules...)
}

// RetryAfter is how long TooMany asks clients to wait, in whole seconds.
const RetryAfter = 2 * time.Second

// TooMany has some requests of the workers come back later.
func (f *Faults) TooMany(work faultproxy.Match) error {
	var rules []faultproxy.Rule
	for _, most := range []int{2, 6, 12} {
		rules = append(rules, faultproxy.Rule{Match: work, Fault: faultproxy.Answer, Code: http.StatusTooManyRequests, RetryAfter: RetryAfter, After: f.Chance.IntN(most)})
	}
	return f.Inject(rules...)
}

// LoseAnswers has some writes carried out without an answer.
func (f *Faults) LoseAnswers(writes faultproxy.Match) error {
	var rules []faultproxy.Rule
	for _, most := range []int{2, 5, 10, 15, 20} {
		rules = append(rules, faultproxy.Rule{Match: writes, Fault: faultproxy.Lose, After: f.Chance.IntN(most)})
	}
	return f.Inject(rules...)
}

// Between returns a time span that chance chooses.
func Between(chance *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(chance.Int64N(int64(most-least)))
}

// Sleep waits, but not beyond the end of ctx.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Revive starts all components of a cluster, because others may have ended when they
// missed one that was killed.
func Revive(ctx context.Context, c *cluster.Cluster) error {
	for _, name := range c.Components() {
		if err := c.Start(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// NewCollector exchanges Kubernetes' garbage collector for one that looks at everything at once.
func NewCollector(ctx context.Context, c *cluster.Cluster) error {
	const collector = "kube-controller-manager"
	return errors.Join(c.Kill(ctx, collector), c.Start(ctx, collector))
}

// Renew exchanges the processes that a restart of the API server or of etcd confuses.
// While it lists again, the garbage collector takes an object that was made again under
// its name for the old one, and the simulated nodes can forget to start a pod. Only new
// ones look at everything. The leases of the killed one on the nodes would keep its
// successor waiting.
func Renew(ctx context.Context, c *cluster.Cluster, client kubernetes.Interface) error {
	const nodes = "kwok-controller"
	if err := errors.Join(NewCollector(ctx, c), c.Kill(ctx, nodes)); err != nil {
		return err
	}
	if err := poll.Until(ctx, 200*time.Millisecond, time.Minute, func(ctx context.Context) error {
		return client.CoordinationV1().Leases("kube-node-lease").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	}); err != nil {
		return fmt.Errorf("deleting the leases of the nodes: %w", err)
	}
	return c.Start(ctx, nodes)
}

package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// Both styles keep three pods, side by side and under the same fault. One pod of
// each is deleted. The level one always has three pods again; the edge one only
// if nothing goes wrong.
func TestEdgeAndLevel(t *testing.T) {
	t.Parallel()
	styles := []string{"edge", "level"}
	for _, tc := range []struct {
		name   string
		edge   int // how many pods it ends with
		strike func(k *keepers)
	}{
		{"no fault", 3, func(k *keepers) { k.deleteOneOfEach() }},
		{"an event is lost", 2, func(k *keepers) {
			k.inject(faultproxy.Rule{Match: faultproxy.Watches, Event: "DELETED", Fault: faultproxy.Drop})
			k.deleteOneOfEach()
			k.struck()
		}},
		{"the watch is cut", 2, func(k *keepers) {
			k.e.Eventually(time.Minute, func(context.Context) error {
				if n := k.proxy.Open(faultproxy.Watches); n != 2 {
					return fmt.Errorf("%d watches are open, want one of each style", n)
				}
				return nil
			})
			// Nobody watches again before the pods are gone.
			k.inject(faultproxy.Rule{Match: listPods, Fault: faultproxy.Stall})
			if n := k.proxy.Cut(faultproxy.Watches); n != 2 {
				k.t.Fatalf("%d watches cut, want one of each style", n)
			}
			k.struck()
			k.deleteOneOfEach()
			k.proxy.Clear()
		}},
		{"a write fails", 2, func(k *keepers) {
			k.inject(faultproxy.Rule{Match: createPods, Fault: faultproxy.Answer, Code: 500})
			k.deleteOneOfEach()
			k.struck()
		}},
		{"a restart between event and action", 2, func(k *keepers) {
			// The rules stay, so that what they stall never reaches the server.
			k.inject(faultproxy.Rule{Match: createPods, Fault: faultproxy.Stall})
			k.deleteOneOfEach()
			k.struck() // both have heard of it, and want to act
			k.kill()
			k.start()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			k := &keepers{t: t, e: e, proxy: e.Proxy(), styles: styles}
			e.Eventually(30*time.Second, func(ctx context.Context) error {
				_, err := e.Client.CoreV1().ServiceAccounts(e.Namespace).Get(ctx, "default", metav1.GetOptions{})
				return err // without it no pod can be created
			})
			k.start()
			k.settle(3, 3)
			tc.strike(k)
			k.settle(tc.edge, 3)
			for _, p := range k.running {
				if err := p.Signal(os.Interrupt); err != nil {
					t.Error(err)
				}
				// client-go logs a request that the interrupt has cut off; the program itself has nothing to say.
				if r := p.Wait(); r.ExitCode != 0 || strings.Contains(r.Stderr, "edge-vs-level:") {
					t.Errorf("exit code %d after an interrupt\n%s", r.ExitCode, r.Stderr)
				}
			}
		})
	}
}

const resync = 300 * time.Millisecond

var (
	createPods = faultproxy.Match{Verb: "create", Resource: "pods"}
	listPods   = faultproxy.Match{Verb: "list", Resource: "pods"}
)

// keepers are both styles at work in one namespace.
type keepers struct {
	t       *testing.T
	e       *testenv.Env
	proxy   *testenv.Proxy
	styles  []string
	running []*testenv.Process
	faults  []*faultproxy.Injection
}

// inject has the fault strike each style once.
func (k *keepers) inject(rule faultproxy.Rule) {
	k.t.Helper()
	for _, style := range k.styles {
		rule.UserAgent = "keeper-" + style
		k.faults = append(k.faults, k.proxy.MustInject(rule))
	}
}

// struck waits until the fault has struck each style.
func (k *keepers) struck() {
	k.t.Helper()
	k.e.Eventually(time.Minute, func(context.Context) error {
		for i, fault := range k.faults {
			if n := fault.Struck(); n != 1 {
				return fmt.Errorf("the fault has struck %s %d times, want once", k.styles[i], n)
			}
		}
		return nil
	})
}

func (k *keepers) start() {
	k.t.Helper()
	k.running = nil
	for _, style := range k.styles {
		k.running = append(k.running, k.e.Start(testenv.Command{
			Path: k.e.Program("./06-controller/edge-vs-level"),
			Args: []string{"-kubeconfig", k.proxy.Kubeconfig, "-namespace", k.e.Namespace, "-style", style, "-resync", resync.String()},
		}))
	}
}

// kill ends both at once, with what they have in flight.
func (k *keepers) kill() {
	k.t.Helper()
	for _, p := range k.running {
		fatal.If(k.t, p.Signal(syscall.SIGKILL))
		<-p.Done()
	}
}

// deleteOneOfEach returns when the pods are gone.
func (k *keepers) deleteOneOfEach() {
	k.t.Helper()
	before := k.pods()
	var wait sync.WaitGroup
	for _, style := range k.styles {
		wait.Go(func() {
			options := metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}
			if err := k.e.Client.CoreV1().Pods(k.e.Namespace).Delete(k.e.Context(), before[style][0], options); err != nil {
				k.t.Error(err)
			}
		})
	}
	wait.Wait()
	k.e.Eventually(time.Minute, func(context.Context) error {
		now := k.pods()
		for _, style := range k.styles {
			if slices.Contains(now[style], before[style][0]) {
				return fmt.Errorf("%s is still there", before[style][0])
			}
		}
		return nil
	})
}

// pods returns the names of the pods of each style, as the server knows them.
func (k *keepers) pods() map[string][]string {
	k.t.Helper()
	list, err := k.e.Client.CoreV1().Pods(k.e.Namespace).List(k.e.Context(), metav1.ListOptions{})
	fatal.If(k.t, err)
	names := map[string][]string{}
	for _, pod := range list.Items {
		style := pod.Labels["keeper"]
		names[style] = append(names[style], pod.Name)
		if pod.Spec.Containers[0].Image != "workshop/pause:1" || pod.Status.Phase == corev1.PodFailed {
			k.t.Errorf("pod %s: image %s, phase %s", pod.Name, pod.Spec.Containers[0].Image, pod.Status.Phase)
		}
	}
	return names
}

// settle waits until both have their numbers of pods and have kept them for
// three resyncs.
func (k *keepers) settle(edge, level int) {
	k.t.Helper()
	var since time.Time
	k.e.Eventually(30*time.Second, func(context.Context) error {
		now := k.pods()
		if len(now["edge"]) != edge || len(now["level"]) != level {
			since = time.Time{}
			return fmt.Errorf("edge has %d pods, want %d; level has %d, want %d", len(now["edge"]), edge, len(now["level"]), level)
		}
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) < 3*resync {
			return errors.New("the numbers are right, but not for long enough")
		}
		return nil
	})
}

package incluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/poll"
)

const (
	loadPods    = 8
	loadEvery   = 100 * time.Millisecond
	minInterval = 2 * time.Second // between two evictions
)

// A load is a stream of changes to pods and policies, each of which the leader has to
// answer with a write. Beside it a policy evicts pods, which come back. No scheduler
// knows these pods: nothing of them has to run.
type load struct {
	o     *controllerTest
	stop  context.CancelFunc
	ended chan error
	steps atomic.Int64
}

// The apps that the labels of the pods and the selector of the policy change between.
var apps = []string{"web", "db"}

func (o *controllerTest) startLoad() *load {
	o.t.Helper()
	ctx, stop := context.WithCancel(o.Context())
	o.t.Cleanup(stop)
	for i := range loadPods {
		if _, err := o.client.CoreV1().Pods(o.namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: loadPod(i), Labels: map[string]string{"app": apps[0]}}, Spec: unscheduled,
		}, metav1.CreateOptions{}); err != nil {
			o.t.Fatal(err)
		}
	}
	o.policyWith("load", v1alpha1.HealthCheckPolicySpec{PodLabel: "load", Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": apps[0]}}})
	labels := map[string]string{"app": "victim"}
	if _, err := o.client.AppsV1().Deployments(o.namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "victim"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: unscheduled}}}, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
	o.policyWith("kill", v1alpha1.HealthCheckPolicySpec{Action: v1alpha1.ActionKill, Selector: metav1.LabelSelector{MatchLabels: labels},
		Eviction: v1alpha1.EvictionSpec{MinIntervalSeconds: int32(minInterval / time.Second)}})
	l := &load{o: o, stop: stop, ended: make(chan error, 1)}
	go func() { l.ended <- l.run(ctx) }()
	return l
}

var unscheduled = corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "web", Image: cluster.PauseImage}}}

func loadPod(i int) string { return fmt.Sprintf("load-%d", i) }

func (l *load) run(ctx context.Context) error {
	tick := time.NewTicker(loadEvery)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// Each pod changes in every round, and the policy with every second round.
		pod, round := i%loadPods, i/loadPods
		change := func(ctx context.Context) error {
			_, err := l.o.client.CoreV1().Pods(l.o.namespace).Patch(ctx, loadPod(pod), types.MergePatchType,
				fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, apps[(pod+round)%2]), metav1.PatchOptions{})
			return err
		}
		if pod == 0 && round%2 == 1 {
			change = func(ctx context.Context) error {
				_, err := l.o.objects.PolicyV1alpha1().HealthCheckPolicies(l.o.namespace).Patch(ctx, "load", types.MergePatchType,
					fmt.Appendf(nil, `{"spec":{"selector":{"matchLabels":{"app":%q}}}}`, apps[round/2%2]), metav1.PatchOptions{})
				return err
			}
		}
		// While the API server restarts, a person tries again, too.
		if err := poll.Until(ctx, 200*time.Millisecond, 4*time.Minute, change); err != nil && ctx.Err() == nil {
			return fmt.Errorf("change %d: %w", i, err)
		}
		l.steps.Add(1)
	}
}

// end ends the load, and waits until everything is as the last changes want it.
// Nothing repeats an event that was lost: the resync is hours away.
func (l *load) end() {
	o := l.o
	o.t.Helper()
	l.stop()
	fatal.If(o.t, <-l.ended)
	o.t.Logf("%d changes", l.steps.Load())
	o.Eventually(time.Minute, func(ctx context.Context) error {
		policy, err := o.objects.PolicyV1alpha1().HealthCheckPolicies(o.namespace).Get(ctx, "load", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var errs []error
		for i := range loadPods {
			pod, err := o.client.CoreV1().Pods(o.namespace).Get(ctx, loadPod(i), metav1.GetOptions{})
			if err != nil {
				return err
			}
			want := ""
			if pod.Labels["app"] == policy.Spec.Selector.MatchLabels["app"] {
				want = "true"
			}
			if pod.Labels["load"] != want {
				errs = append(errs, fmt.Errorf("pod %s of app %s has the mark %q, want %q", pod.Name, pod.Labels["app"], pod.Labels["load"], want))
			}
		}
		if policy.Status.ObservedGeneration != policy.Generation {
			errs = append(errs, fmt.Errorf("the policy's generation is %d, observed is %d", policy.Generation, policy.Status.ObservedGeneration))
		}
		return errors.Join(errs...)
	})
	if err := errors.Join(o.objects.PolicyV1alpha1().HealthCheckPolicies(o.namespace).Delete(o.Context(), "kill", metav1.DeleteOptions{}),
		o.client.AppsV1().Deployments(o.namespace).Delete(o.Context(), "victim", metav1.DeleteOptions{})); err != nil {
		o.t.Fatal(err)
	}
}

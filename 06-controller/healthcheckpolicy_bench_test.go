package controller

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	typedpolicy "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/cluster"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

const (
	policyProgram   = "./06-controller/healthcheckpolicy"
	baselineProgram = "./06-controller/status-baseline"
)

// A policyBench is a namespace with many policies and pods.
type policyBench struct {
	*testenv.Env
	b        *testing.B
	policies typedpolicy.HealthCheckPolicyInterface
}

func newPolicyBench(b *testing.B) *policyBench {
	b.Helper()
	e := testenv.New(b)
	crdtest.Share(b, e, policies)
	client, err := versioned.NewForConfig(e.Config)
	fatal.If(b, err)
	p := &policyBench{Env: e, b: b, policies: client.PolicyV1alpha1().HealthCheckPolicies(e.Namespace)}
	b.Cleanup(p.remove)
	return p
}

// remove deletes the policies, whose controller has ended, and the pods.
func (p *policyBench) remove() {
	ctx := context.WithoutCancel(p.Context())
	if err := p.policies.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		p.b.Errorf("deleting the policies: %v", err)
	}
	list, err := p.policies.List(ctx, metav1.ListOptions{})
	if err != nil {
		p.b.Errorf("looking for policies that are left: %v", err)
		return
	}
	p.all(ctx, len(list.Items), func(i int) error {
		_, err := p.policies.Patch(ctx, list.Items[i].Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	if err := p.DeleteAll(ctx, corev1.SchemeGroupVersion.WithResource("pods"), now); err != nil {
		p.b.Errorf("deleting the pods: %v", err)
	}
}

// all calls f with 0 to n-1, some at the same time, and fails the benchmark at an error.
func (p *policyBench) all(ctx context.Context, n int, f func(i int) error) {
	p.b.Helper()
	var once sync.Once
	workqueue.ParallelizeUntil(ctx, 16, n, func(i int) {
		if err := f(i); err != nil {
			once.Do(func() { p.b.Errorf("%d of %d: %v", i, n, err) })
		}
	})
}

func (p *policyBench) must() {
	p.b.Helper()
	if p.b.Failed() {
		p.b.FailNow()
	}
}

// createPods makes pods that lack every probe, or none. They have a scheduling
// gate, so that nothing but the benchmark and the controller changes them.
func (p *policyBench) createPods(n int, passing bool, labelsOf func(i int) map[string]string) {
	p.b.Helper()
	var probe *corev1.Probe
	if passing {
		probe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	}
	p.all(p.Context(), n, func(i int) error {
		_, err := p.Client.CoreV1().Pods(p.Namespace).Create(p.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: podName(i), Labels: labelsOf(i)},
			Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: ptr.To[int64](0),
				SchedulingGates:               []corev1.PodSchedulingGate{{Name: "workshop.k8s-go.dev/bench"}},
				Containers:                    []corev1.Container{{Name: "main", Image: cluster.PauseImage, LivenessProbe: probe, ReadinessProbe: probe}},
			},
		}, metav1.CreateOptions{})
		return err
	})
	p.must()
}

func podName(i int) string    { return fmt.Sprintf("pod-%04d", i) }
func policyName(i int) string { return fmt.Sprintf("policy-%04d", i) }

// createPolicies makes policies with the action label, each of which selects one value of the label team.
func (p *policyBench) createPolicies(n int, teamOf func(i int) string) {
	p.b.Helper()
	p.all(p.Context(), n, func(i int) error {
		_, err := p.policies.Create(p.Context(), &v1alpha1.HealthCheckPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: policyName(i)},
			Spec: v1alpha1.HealthCheckPolicySpec{Action: v1alpha1.ActionLabel, PodLabel: fmt.Sprintf("lacks-%d", i),
				Selector: metav1.LabelSelector{MatchLabels: map[string]string{"team": teamOf(i)}}},
		}, metav1.CreateOptions{})
		return err
	})
	p.must()
}

// move gives a pod a value of the label team.
func (p *policyBench) move(pod, team string) error {
	_, err := p.Client.CoreV1().Pods(p.Namespace).Patch(p.Context(), pod, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{"team":%q}}}`, team), metav1.PatchOptions{})
	return err
}

// settle waits until every policy has the statistics that it should have.
func (p *policyBench) settle(check func(*v1alpha1.HealthCheckPolicy) error) {
	p.b.Helper()
	p.Eventually(5*time.Minute, func(ctx context.Context) error {
		list, err := p.policies.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if err := check(&list.Items[i]); err != nil {
				return fmt.Errorf("policy %s: %w", list.Items[i].Name, err)
			}
		}
		return nil
	})
}

// hasCounted checks that a policy has counted so many pods, and is done with its generation.
func hasCounted(failed, passed int32) func(*v1alpha1.HealthCheckPolicy) error {
	return func(policy *v1alpha1.HealthCheckPolicy) error {
		s := policy.Status
		want := v1alpha1.PodStatistics{Failed: failed, Passed: passed}
		if s.Statistics == nil || s.Statistics.Pods != want || s.ObservedGeneration != policy.Generation || len(s.Conditions) != 2 {
			return fmt.Errorf("generation %d, status %+v; want %+v", policy.Generation, s, want)
		}
		return nil
	}
}

// BenchmarkStatusWrites compares how many statuses a second the controller and
// status-baseline write when one pod's change changes those of 1,000 policies.
// Each has 8 workers, and the two take turns on the same policies: controller,
// baseline, baseline, controller. The clock runs from the pod's change to the
// watch event of the last status. Bar: at least 0.8 x-baseline.
func BenchmarkStatusWrites(b *testing.B) {
	const count, flips, workers = 1000, 2, 8
	p := newPolicyBench(b)
	p.createPods(1, true, func(int) map[string]string { return map[string]string{"team": "none"} })
	p.createPolicies(count, func(int) string { return "counted" })
	took := map[string]time.Duration{}
	selected, settled := false, false
	for b.Loop() {
		for _, program := range []string{policyProgram, baselineProgram, baselineProgram, policyProgram} {
			s := startProgram(b, p.Env, nil, p.Program(program), "-namespace", p.Namespace, "-workers", fmt.Sprint(workers))
			if !settled { // at first the policies have no status yet
				p.settle(hasCounted(0, 0))
				settled = true
			}
			for i := range 1 + flips { // the first one warms up the connections
				selected = !selected
				if d := p.flip(count, selected); i > 0 {
					took[program] += d
				}
			}
			s.Stop()
		}
	}
	written := float64(2 * flips * count * b.N)
	b.ReportMetric(written/took[policyProgram].Seconds(), "statuses/s")
	b.ReportMetric(written/took[baselineProgram].Seconds(), "baseline-statuses/s")
	b.ReportMetric(took[baselineProgram].Seconds()/took[policyProgram].Seconds(), "x-baseline")
}

// flip changes whether the policies select the pod, and returns how long it
// takes until all of them have written so into their status.
func (p *policyBench) flip(policies int, selected bool) time.Duration {
	p.b.Helper()
	team, passed := "none", int32(0)
	if selected {
		team, passed = "counted", 1
	}
	ctx, cancel := context.WithTimeout(p.Context(), 5*time.Minute)
	defer cancel()
	list, err := p.policies.List(ctx, metav1.ListOptions{Limit: 1})
	fatal.If(p.b, err)
	// A busy server ends a watch that does not keep up; this one resumes.
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: p.policies.Watch})
	fatal.If(p.b, err)
	defer w.Stop()
	started := time.Now()
	fatal.If(p.b, p.move(podName(0), team))
	done := map[string]bool{}
	for event := range w.ResultChan() {
		policy, ok := event.Object.(*v1alpha1.HealthCheckPolicy)
		if !ok {
			p.b.Fatalf("the watch has sent %s %+v", event.Type, event.Object)
		}
		if s := policy.Status.Statistics; s != nil && s.Pods.Passed == passed {
			done[policy.Name] = true
		}
		if len(done) == policies {
			return time.Since(started)
		}
	}
	p.b.Fatalf("after %s, %d of %d policies have a new status", time.Since(started), len(done), policies)
	return 0
}

// BenchmarkBurst counts the writes of the controller from one settled state to
// the next, and compares them with the fewest that lead there: one for each
// mark, status and finalizer in which the two states differ. 500 pods belong to
// 20 policies; the benchmark sends 16 requests at the same time. A proxy counts
// the requests; Events are left out. Bar: at most 1.05 x-minimum.
func BenchmarkBurst(b *testing.B) {
	const pods, count = 500, 20
	p := newPolicyBench(b)
	proxy := p.Proxy()
	team := func(i int) string { return fmt.Sprint(i % count) }
	p.createPods(pods, false, func(i int) map[string]string { return map[string]string{"team": team(i)} })
	s := startProgram(b, p.Env, nil, p.Program(policyProgram), "-kubeconfig", proxy.Kubeconfig, "-namespace", p.Namespace)
	full, empty := hasCounted(pods/count, 0), hasCounted(0, 0)
	total, least := 0, 0
	for b.Loop() {
		for _, burst := range []struct {
			name    string
			minimum int
			do      func()
			settled func(*v1alpha1.HealthCheckPolicy) error
		}{
			{"policies-created", pods + 2*count, func() { p.createPolicies(count, team) }, full},
			{"policies-changed", pods + count, func() {
				p.all(p.Context(), count, func(i int) error {
					_, err := p.policies.Patch(p.Context(), policyName(i), types.MergePatchType, []byte(`{"spec":{"action":"annotate"}}`), metav1.PatchOptions{})
					return err
				})
			}, full},
			{"pods-left", pods + count, func() {
				p.all(p.Context(), pods, func(i int) error { return p.move(podName(i), "none") })
			}, empty},
			{"pods-came", pods + count, func() {
				p.all(p.Context(), pods, func(i int) error { return p.move(podName(i), team(i)) })
			}, full},
			{"policies-deleted", pods + count, func() {
				if err := p.policies.DeleteCollection(p.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
					b.Error(err)
				}
			}, func(policy *v1alpha1.HealthCheckPolicy) error {
				return fmt.Errorf("it is still there: %v", policy.Finalizers)
			}},
		} {
			before := proxy.Count(ownWrites)
			burst.do()
			p.must()
			p.settle(burst.settled)
			quiet(b, p.Env, proxy)
			writes := proxy.Count(ownWrites) - before
			total, least = total+writes, least+burst.minimum
			b.ReportMetric(float64(writes)/float64(burst.minimum), burst.name+"-x-minimum")
		}
	}
	s.Stop()
	b.ReportMetric(float64(total)/float64(least), "x-minimum")
}

// BenchmarkChangeToMark changes 50 pods a second so that a policy selects them,
// and measures how long it takes from the request to the watch event that shows
// the mark. The raw round trip is the time from the same request to the watch
// event that shows the change itself, while no controller runs; it is measured
// before and after. The policies have their finalizer already.
// Bar: at most 3 p99-x-raw.
func BenchmarkChangeToMark(b *testing.B) {
	for _, count := range []int{1, 50} {
		b.Run(fmt.Sprintf("policies=%d", count), func(b *testing.B) {
			const pods, perSecond = 500, 50
			p := newPolicyBench(b)
			p.createPods(pods+count, false, func(i int) map[string]string {
				if i < pods {
					return map[string]string{"team": "none"}
				}
				return map[string]string{"team": fmt.Sprint(i - pods)} // so that each policy has a finalizer
			})
			p.createPolicies(count, func(i int) string { return fmt.Sprint(i) })
			var raw, beside, marked []time.Duration
			for b.Loop() {
				before, _ := p.changes(pods/2, perSecond, func(int) string { return "raw" }, false)
				s := startProgram(b, p.Env, nil, p.Program(policyProgram), "-namespace", p.Namespace)
				p.settle(hasCounted(1, 0))
				change, mark := p.changes(pods, perSecond, func(i int) string { return fmt.Sprint(i % count) }, true)
				p.settle(func(policy *v1alpha1.HealthCheckPolicy) error { return hasCounted(1+int32(pods/count), 0)(policy) })
				p.all(p.Context(), pods, func(i int) error { return p.move(podName(i), "none") })
				p.must()
				p.settle(hasCounted(1, 0))
				s.Stop()
				after, _ := p.changes(pods/2, perSecond, func(int) string { return "raw" }, false)
				raw, beside, marked = append(append(raw, before...), after...), append(beside, change...), append(marked, mark...)
			}
			for _, q := range []struct {
				name  string
				share float64
			}{{"p50", 0.5}, {"p99", 0.99}} {
				m := float64(quantile(marked, q.share))
				b.ReportMetric(m/1e6, q.name+"-ms")
				b.ReportMetric(m/float64(quantile(raw, q.share)), q.name+"-x-raw")
				b.ReportMetric(m/float64(quantile(beside, q.share)), q.name+"-x-raw-beside-controller")
			}
		})
	}
}

// changes gives n pods another team, so many a second, whether the server has
// answered the last request or not. It returns for each how long it took from
// the request until a watch has shown the change and, if asked for, the mark.
func (p *policyBench) changes(n, perSecond int, team func(i int) string, marks bool) (changed, marked []time.Duration) {
	p.b.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), 5*time.Minute)
	defer cancel()
	pods := p.Client.CoreV1().Pods(p.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
	fatal.If(p.b, err)
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: pods.Watch})
	fatal.If(p.b, err)
	defer w.Stop()

	sent := make([]time.Time, n)
	index := map[string]int{}
	for i := range n {
		index[podName(i)] = i
	}
	var mu sync.Mutex // guards sent
	var requests sync.WaitGroup
	defer requests.Wait()
	requests.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := range n {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			requests.Go(func() {
				mu.Lock()
				sent[i] = time.Now()
				mu.Unlock()
				if err := p.move(podName(i), team(i)); err != nil {
					p.b.Errorf("changing %s: %v", podName(i), err)
					cancel()
				}
			})
		}
	})

	changed, marked = make([]time.Duration, n), make([]time.Duration, n)
	left := n
	for event := range w.ResultChan() {
		now := time.Now()
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || event.Type == watch.Error {
			p.b.Fatalf("the watch has sent %s %+v", event.Type, event.Object)
		}
		i, ours := index[pod.Name]
		if !ours || pod.Labels["team"] != team(i) {
			continue
		}
		mu.Lock()
		took := now.Sub(sent[i])
		mu.Unlock()
		if changed[i] == 0 {
			changed[i] = took
			if !marks {
				left--
			}
		}
		if _, has := pod.Labels["lacks-"+team(i)]; marks && has && marked[i] == 0 {
			marked[i] = took
			left--
		}
		if left == 0 {
			return changed, marked
		}
	}
	p.b.Fatalf("%d of %d pods have not come to what they should be", left, n)
	return nil, nil
}

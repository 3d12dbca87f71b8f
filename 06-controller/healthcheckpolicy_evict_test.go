package controller

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
)

// evictions are the requests for real evictions, not the dry runs.
var evictions = faultproxy.Match{Verb: "create", Resource: "pods/eviction", If: faultproxy.Request.Write}

// evicted are those that the API server has accepted.
func (f *policyTest) evicted() []faultproxy.Request {
	return slices.DeleteFunc(f.Proxy.Requests(evictions), func(r faultproxy.Request) bool { return r.Code != 201 })
}

// expectEvicted waits until so many were accepted, and returns them.
func (f *policyTest) expectEvicted(n int) []faultproxy.Request {
	f.T.Helper()
	var all []faultproxy.Request
	f.Eventually(time.Minute, func(context.Context) error {
		if all = f.evicted(); len(all) != n {
			return fmt.Errorf("%d evictions, want %d", len(all), n)
		}
		return nil
	})
	return all
}

// alive waits until exactly these pods are left that are not being deleted.
func (f *policyTest) alive(names ...string) {
	f.T.Helper()
	f.Eventually(time.Minute, func(ctx context.Context) error {
		list, err := f.pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var left []string
		for _, p := range list.Items {
			if p.DeletionTimestamp == nil {
				left = append(left, p.Name)
			}
		}
		if !slices.Equal(left, names) {
			return fmt.Errorf("pods %v, want %v", left, names)
		}
		return nil
	})
}

// budget makes a PodDisruptionBudget for the pods with app=guarded, and waits until it allows no disruption.
func (f *policyTest) budget(name string, minAvailable int) {
	f.T.Helper()
	budgets := f.Client.PolicyV1().PodDisruptionBudgets(f.Namespace)
	_, err := budgets.Create(f.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt(minAvailable)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}},
	}, metav1.CreateOptions{})
	fatal.If(f.T, err)
	f.Eventually(time.Minute, func(ctx context.Context) error {
		b, err := budgets.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if b.Status.ObservedGeneration != b.Generation || int(b.Status.CurrentHealthy) != minAvailable || b.Status.DisruptionsAllowed != 0 {
			return fmt.Errorf("the budget is not computed: %s", asJSON(b.Status))
		}
		return nil
	})
}

func neverEvicted(p *v1alpha1.HealthCheckPolicy) error {
	if p.Status.LastEvictionTime != nil {
		return fmt.Errorf("there is a lastEvictionTime")
	}
	return nil
}

// The cache shows an older spec, which one pod fails like the new one does. No status may say of the
// new spec what was found out about the old one.
func TestKillUnderAnOlderSpec(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	owned := f.controlled()
	f.pod("half", []string{"web: liveness"}, owned)
	f.Start()
	f.policy("example", specOf("kill", requiring("liveness"), every(1)))
	f.expect("example", counted(0, 1), done)
	held := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "healthcheckpolicies"}, Fault: faultproxy.Hold})
	changed := f.change("example", `{"spec":{"requiredProbes":["liveness","readiness"]}}`)
	f.Struck(held, 1)
	f.pod("bad", withoutProbes, owned)
	if err := f.Hold(2*time.Second, func() error {
		p, err := f.policies.Get(f.Context(), "example", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.ObservedGeneration == changed.Generation {
				return fmt.Errorf("condition %s=%s %s of a spec that the cache does not show yet", c.Type, c.Status, c.Reason)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	held.Remove()
	f.alive()
	f.expect("example", counted(0, 0), done)
}

func TestKillSparesWhatNobodyReplaces(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	owned := f.controlled()
	f.pod("good", withProbes, owned)
	f.pod("other", withoutProbes, owned, labelled("app", "db"))
	f.pod("orphan", withoutProbes)
	f.pod("ended", withoutProbes, owned)
	f.phase("ended", corev1.PodFailed)
	f.pod("owned-by-two", withoutProbes, func(p *corev1.Pod) { owned(p); p.OwnerReferences[0].Controller = nil })
	f.pod("bad", withoutProbes, owned)
	f.policy("example", specOf("kill", selecting("app=web"), every(1)))
	f.Start()
	f.alive("ended", "good", "orphan", "other", "owned-by-two")
	p := f.expect("example", counted(2, 1), hindered("NotEvictable", "NotEvictable: 2 pods"))
	if p.Status.LastEvictionTime == nil {
		t.Error("no lastEvictionTime")
	}

	// What was asked, in its order: only then is an eviction never wrong.
	f.Writes() // all have their answers
	var asked []string
	for _, r := range f.Proxy.Requests(faultproxy.Match{}) {
		if r.Resource == "events" || r.Resource == "" || strings.HasPrefix(r.Verb, "watch") {
			continue
		}
		line := r.String()
		if strings.Contains(r.Query, "dryRun=All") {
			line += " (dry run)"
		}
		asked = append(asked, line)
	}
	want := []string{
		"201 create pods/eviction/bad (dry run)", "200 get healthcheckpolicies/example", "200 get pods/bad",
		"200 update healthcheckpolicies/status/example", "201 create pods/eviction/bad", "200 update healthcheckpolicies/status/example",
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// A controller takes over a pod that nobody would have replaced.
func TestKillOfAnAdoptedPod(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes)
	f.policy("example", specOf("kill"))
	f.expect("example", counted(1, 0), hindered("NotEvictable", "NotEvictable: 1 pod"))
	var owner corev1.Pod
	f.controlled()(&owner)
	f.edit("a", fmt.Sprintf(`{"metadata":{"ownerReferences":%s}}`, asJSON(owner.OwnerReferences)))
	f.alive()
	f.expect("example", counted(0, 0), done)
}

func TestKillSparesMirrorPods(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	owned := f.controlled()
	f.pod("static", withoutProbes, owned, annotated(corev1.MirrorPodAnnotationKey, "x"), func(p *corev1.Pod) {
		p.Spec.NodeName, p.Spec.SchedulingGates = "nowhere", nil // a mirror pod has a node; this one has no kubelet
	})
	f.policy("example", specOf("kill"))
	f.expect("example", counted(1, 0), hindered("NotEvictable", "NotEvictable: 1 pod"), neverEvicted)
	f.deletePod("static") // no kubelet will
}

func TestKillKeepsTheInterval(t *testing.T) {
	t.Parallel()
	const interval = 4
	f := newPolicyTest(t)
	owned := f.controlled()
	for _, name := range []string{"a", "b", "c"} {
		f.pod(name, withoutProbes, owned)
	}
	f.policy("example", specOf("kill", every(interval)))
	f.Start()
	f.expect("example", counted(2, 0), hindered("Throttled", "Throttled: 2 pods"))
	f.Kill() // a crash does not make it forget
	f.Start()
	f.expect("example", counted(1, 0), hindered("Throttled", "Throttled: 1 pod"))
	f.Restart()
	f.alive()
	f.expect("example", counted(0, 0), done)
	all := f.expectEvicted(3)
	for i, r := range all[1:] {
		if gap := r.Started.Sub(all[i].Started); gap < interval*time.Second {
			t.Errorf("evicted again after %s, want %d s", gap, interval)
		}
	}
}

// The API server takes long for the status that says when, so that the next process could count from too early.
func TestKillKeepsTheIntervalAfterASlowStatus(t *testing.T) {
	t.Parallel()
	const interval = 5
	f := newPolicyTest(t)
	owned := f.controlled()
	f.pod("a", withoutProbes, owned)
	f.pod("b", withoutProbes, owned)
	slow := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update", Resource: "healthcheckpolicies/status"}, Fault: faultproxy.CallAnswered,
		Call: func(ctx context.Context, _ faultproxy.Request) error {
			select {
			case <-ctx.Done():
			case <-time.After(4 * time.Second):
			}
			return ctx.Err()
		}})
	f.policy("example", specOf("kill", every(interval)))
	f.Start()
	f.expectEvicted(1)
	f.Kill()
	f.Struck(slow, 1)
	f.Start()
	all := f.expectEvicted(2)
	if gap := all[1].Started.Sub(all[0].Started); gap < interval*time.Second {
		t.Errorf("evicted again after %s, want %d s", gap, interval)
	}
}

// The first try is refused. The second follows in the same second, so both have
// the same lastEvictionTime, and that of the second counts.
func TestKillKeepsTheIntervalAfterARefusal(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	owned := f.controlled()
	for _, name := range []string{"a", "b", "c"} {
		f.pod(name, withoutProbes, owned)
	}
	refused := f.Inject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Answer, Code: 429})
	f.policy("example", specOf("kill", every(60)))
	f.Start()
	f.expect("example", counted(2, 0), hindered("Throttled", "Throttled: 2 pods"))
	f.Struck(refused, 1)
	if all := f.evicted(); len(all) != 1 {
		t.Errorf("%d evictions within a minute, want 1", len(all))
	}
}

// A rival that removes the time from the status gets no further eviction by that.
func TestKillKeepsTheIntervalWithoutTheTime(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	owned := f.controlled()
	f.pod("a", withoutProbes, owned)
	f.pod("b", withoutProbes, owned)
	f.policy("example", specOf("kill", every(3600)))
	f.expect("example", counted(1, 0), hindered("Throttled", "Throttled: 1 pod"))
	f.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := f.policies.Patch(ctx, "example", types.MergePatchType, []byte(`{"status":{"lastEvictionTime":null}}`), metav1.PatchOptions{}, "status")
		return err
	})
	f.pod("c", withoutProbes, owned) // when this one is counted, the policy was looked at again
	f.expect("example", counted(2, 0), hindered("Throttled", "Throttled: 2 pods"))
	f.expectEvicted(1)
}

// A clock that was set back delays the next eviction by an interval, not until the clock has caught up.
func TestKillAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	f.pod("a", withoutProbes, f.controlled())
	p := f.policy("example", specOf("kill", every(3)))
	p.Status.LastEvictionTime = ptr.To(metav1.NewTime(time.Now().Add(time.Hour)))
	if _, err := f.policies.UpdateStatus(f.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	f.Start()
	f.alive()
	if took := f.expectEvicted(1)[0].Started.Sub(begun); took < 3*time.Second {
		t.Errorf("evicted after %s, want an interval of 3 s", took)
	}
}

func TestKillRespectsBudgets(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	owned := f.controlled()
	for _, name := range []string{"guarded-a", "guarded-b"} {
		f.pod(name, withoutProbes, owned, labelled("app", "guarded"))
		f.phase(name, corev1.PodRunning)
	}
	f.budget("budget", 2)
	f.policy("example", specOf("kill", every(3600)))
	f.Command.Args = append(f.Command.Args, "-resync", "1s")
	f.Start()
	f.expect("example", counted(2, 0), hindered("DisruptionBudget", "DisruptionBudget: 2 pods"), neverEvicted)
	// Asking again changes nothing, so nothing is written again.
	f.resyncs(3)
	f.Restart()
	f.resyncs(2)
	if diff := cmp.Diff([]string{"200 update healthcheckpolicies/status/example"}, f.Writes()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	f.expect("example", neverEvicted)

	// The budget of some holds up no other.
	f.pod("a", withoutProbes, owned)
	f.pod("z", withoutProbes, owned)
	f.expect("example", counted(3, 0), hindered("DisruptionBudget", "DisruptionBudget: 2 pods; Throttled: 1 pod"))
	if p := f.expect("example"); meta.FindStatusCondition(p.Status.Conditions, "Enforced").Message != "DisruptionBudget: 2 pods; Throttled: 1 pod" {
		t.Errorf("status %s", asJSON(p.Status))
	}
	before := len(f.Writes())
	f.Restart()
	f.resyncs(2)
	if diff := cmp.Diff([]string(nil), f.Writes()[before:], cmp.Transformer("", func(s []string) string { return strings.Join(s, "\n") })); diff != "" {
		t.Errorf("writes after a restart:\n%s", diff)
	}
	f.expectEvicted(1)

	// The budget goes, and so does the next pod once the hour is over.
	fatal.If(t, f.Client.PolicyV1().PodDisruptionBudgets(f.Namespace).Delete(f.Context(), "budget", metav1.DeleteOptions{}))
	f.change("example", `{"spec":{"eviction":{"minIntervalSeconds":1}}}`)
	f.alive()
	f.expect("example", counted(0, 0), done)
}

// The API server answers 500 to the eviction of a pod with two budgets, but it is no accident.
func TestKillRespectsTwoBudgets(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes, f.controlled(), labelled("app", "guarded"))
	f.phase("a", corev1.PodRunning)
	f.budget("one", 1)
	f.budget("two", 1)
	f.policy("example", specOf("kill"))
	f.expect("example", counted(1, 0), hindered("DisruptionBudget", "DisruptionBudget: 1 pod"), neverEvicted)
}

// The pod changes after it was judged: the eviction carries its resourceVersion.
func TestKillNeverTheWrongPod(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"no longer selected": `{"metadata":{"labels":{"app":"db"}}}`,
		"changed otherwise":  `{"metadata":{"annotations":{"x":"y"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startPolicyTest(t)
			f.pod("a", withoutProbes, f.controlled())
			i := f.Inject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Call, Call: func(context.Context, faultproxy.Request) error {
				f.edit("a", change)
				return nil
			}})
			f.policy("example", specOf("kill", selecting("app=web"), every(1)))
			f.Struck(i, 1)
			f.Eventually(time.Minute, func(context.Context) error {
				for _, r := range f.Proxy.Requests(evictions) {
					if r.Code == 409 {
						return nil
					}
				}
				return fmt.Errorf("no eviction was refused: %v", f.Proxy.Requests(evictions))
			})
			if name == "no longer selected" {
				f.expect("example", counted(0, 0), done)
				f.alive("a")
				return
			}
			f.alive() // it still fails, so it goes at the next try
		})
	}
}

// The policy changes after it was read: its status write fails, so nothing is evicted.
func TestKillNeverForAPolicyThatHasChanged(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes, f.controlled())
	f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update", Resource: "healthcheckpolicies/status"}, Fault: faultproxy.Call, Call: func(context.Context, faultproxy.Request) error {
		f.change("example", `{"spec":{"action":"label"}}`)
		return nil
	}})
	f.policy("example", specOf("kill", every(1)))
	f.expect("example", counted(1, 0), done, neverEvicted)
	f.expectMarks(map[string]string{"a": "true"})
	if n := len(f.Proxy.Requests(evictions)); n > 0 {
		t.Errorf("%d evictions", n)
	}
}

// The cache is behind: policy and pod are read live before anything is done.
func TestKillReadsLive(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	delivered := deliveries(t, f.Proxy)
	f.policy("example", specOf("kill", every(1)))
	before := f.expect("example", counted(0, 0), done)
	f.Eventually(time.Minute, func(context.Context) error { return delivered(before.ResourceVersion) })
	held := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "healthcheckpolicies"}, Fault: faultproxy.Hold})
	f.change("example", `{"spec":{"action":"label"}}`)
	f.Struck(held, 1)
	f.pod("a", withoutProbes, f.controlled())
	f.Eventually(time.Minute, func(context.Context) error { // it has looked
		if n := len(f.Proxy.Requests(faultproxy.Match{Verb: "get", Resource: "healthcheckpolicies"})); n < 3 {
			return fmt.Errorf("%d live reads of the policy", n)
		}
		return nil
	})
	if p, err := f.policies.Get(f.Context(), "example", metav1.GetOptions{}); err != nil || neverEvicted(p) != nil {
		t.Errorf("status %s (%v)", asJSON(p.Status), err)
	}
	held.Remove()
	f.expect("example", counted(1, 0), done, neverEvicted)
	f.alive("a")
}

// The server does not want to be asked about one pod now. Another pod is evicted
// meanwhile, after which all others are usually asked about again.
func TestKillWaitsForRetryAfterOfADryRun(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	owned := f.controlled()
	f.pod("a", withoutProbes, owned)
	f.pod("b", withoutProbes, owned)
	dryRuns := faultproxy.Match{Verb: "create", Resource: "pods/eviction", Name: "a"}
	f.Inject(faultproxy.Rule{Match: dryRuns, Fault: faultproxy.Answer, Code: 429, RetryAfter: 3 * time.Second})
	f.policy("example", specOf("kill", every(1)))
	f.Start()
	f.expectEvicted(2)
	asked := f.Proxy.Requests(dryRuns)
	if pause := asked[1].Started.Sub(asked[0].Started); pause < 3*time.Second {
		t.Errorf("asked again after %s, though the server wanted 3 s", pause)
	}
}

// Another 429 than that of a budget is the server's, and not repeated before its Retry-After ends.
func TestKillWaitsForRetryAfter(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes, f.controlled())
	f.Inject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Answer, Code: 429, RetryAfter: 3 * time.Second})
	f.policy("example", specOf("kill", every(1)))
	f.Eventually(time.Minute, func(context.Context) error {
		if len(f.Proxy.Requests(evictions)) == 0 {
			return fmt.Errorf("no eviction yet")
		}
		return nil
	})
	f.edit("a", `{"metadata":{"annotations":{"x":"y"}}}`) // an event does not end the wait
	f.alive()
	all := f.Proxy.Requests(evictions)
	if len(all) != 2 || all[1].Started.Sub(all[0].Started.Add(all[0].Took)) < 3*time.Second {
		t.Errorf("evictions %v, want the second one 3 s after the first", all)
	}
	// client-go has not repeated it by itself: before each eviction the policy's status was written.
	writes := f.Writes()
	for i, line := range writes {
		if strings.Contains(line, "pods/eviction") && (i == 0 || !strings.Contains(writes[i-1], "healthcheckpolicies/status")) {
			t.Errorf("an eviction without a status write before it:\n%s", strings.Join(writes, "\n"))
		}
	}
}

func TestKillThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	for code, reason := range map[int]string{403: "Forbidden", 400: "Refused", 404: "Refused", 409: "Refused"} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			f := startPolicyTest(t)
			owned := f.controlled()
			f.pod("a", withoutProbes, owned)
			f.pod("b", withoutProbes, owned)
			i := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "pods/eviction", Name: "a"}, Fault: faultproxy.Answer, Code: code, Times: -1})
			f.policy("example", specOf("kill", every(1)))
			f.alive("a") // b is evicted all the same
			f.expect("example", counted(1, 0), hindered(reason, reason+": 1 pod"))
			i.Remove()
			f.alive()
		})
	}
}

// A mark that may not be taken back holds up no eviction, and the pod counts once.
func TestKillThoughAMarkMayNotBeTakenBack(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes, f.controlled())
	f.policy("example", specOf("label", every(1)))
	f.expect("example", counted(1, 0), done)
	f.Inject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Answer, Code: 403, Times: -1})
	i := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "pods/eviction"}, Fault: faultproxy.Answer, Code: 403, Times: -1})
	f.change("example", `{"spec":{"action":"kill"}}`)
	f.Struck(i, 1)
	f.expect("example", counted(1, 0), hindered("Forbidden", "Forbidden: 1 pod. The server says: "))
	i.Remove()
	f.alive()
}

// Taking the marks back changes the pods, so an eviction with what the cache shows of them would be refused.
func TestKillAfterMarksAsksAboutThePodsOfNow(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	unscheduled := func(p *corev1.Pod) { // nobody else changes it, either
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	}
	for _, name := range []string{"a", "b", "c"} {
		f.pod(name, withoutProbes, f.controlled(), unscheduled)
	}
	f.policy("example", specOf("label", every(1)))
	f.expect("example", counted(3, 0), done)
	f.change("example", `{"spec":{"action":"kill"}}`)
	f.alive()
	for _, r := range f.Proxy.Requests(faultproxy.Match{Verb: "create", Resource: "pods/eviction"}) {
		if r.Code == http.StatusConflict {
			t.Errorf("refused, because the pod has changed: %s", r)
		}
	}
}

// Without the right to read live nothing is evicted, and the condition says why.
func TestKillMayNotRead(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"pods", "healthcheckpolicies"} {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			f := startPolicyTest(t)
			f.pod("a", withoutProbes, f.controlled())
			i := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "get", Resource: resource}, Fault: faultproxy.Answer, Code: 403, Times: -1})
			f.policy("example", specOf("kill"))
			f.expect("example", counted(1, 0), hindered("Forbidden", "Forbidden: 1 pod"), neverEvicted)
			i.Remove()
			f.alive()
		})
	}
}

func TestKillOfAPodThatIsGone(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	owned := f.controlled()
	f.policy("example", specOf("kill", every(1)))
	f.expect("example", counted(0, 0), done)
	// The pod is replaced by a good one of the same name while the pod watch is held.
	held := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "pods"}, Fault: faultproxy.Hold, Object: "a", After: 1})
	stalled := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "pods/eviction"}, Fault: faultproxy.Stall})
	f.pod("a", withoutProbes, owned)
	f.Struck(stalled, 1) // the dry run
	f.deletePod("a")
	f.pod("a", withProbes, owned)
	stalled.Remove()
	f.Struck(held, 1)
	f.Eventually(time.Minute, func(context.Context) error {
		if n := len(f.Proxy.Requests(faultproxy.Match{Verb: "create", Resource: "pods/eviction"})); n < 3 {
			return fmt.Errorf("%d dry runs", n)
		}
		return nil
	})
	held.Remove()
	f.expect("example", counted(0, 1), done, neverEvicted)
	if p, err := f.pods.Get(f.Context(), "a", metav1.GetOptions{}); apierrors.IsNotFound(err) || p.DeletionTimestamp != nil {
		t.Error("the good pod was evicted")
	}
}

package controller

import (
	"context"
	"fmt"
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
	"github.com/k8s-go/workshop/internal/faultproxy"
)

// evictions are the requests for real evictions, not the dry runs.
var evictions = faultproxy.Match{Verb: "create", Resource: "pods/eviction", If: faultproxy.Request.Write}

// evicted are those that the API server has accepted.
func (w *ward) evicted() []faultproxy.Request {
	return slices.DeleteFunc(w.requests(evictions), func(r faultproxy.Request) bool { return r.Code != 201 })
}

// expectEvicted waits until so many were accepted, and returns them.
func (w *ward) expectEvicted(n int) []faultproxy.Request {
	w.t.Helper()
	var all []faultproxy.Request
	w.Eventually(time.Minute, func(context.Context) error {
		if all = w.evicted(); len(all) != n {
			return fmt.Errorf("%d evictions, want %d", len(all), n)
		}
		return nil
	})
	return all
}

// alive waits until exactly these pods are left that are not being deleted.
func (w *ward) alive(names ...string) {
	w.t.Helper()
	w.Eventually(time.Minute, func(ctx context.Context) error {
		list, err := w.pods.List(ctx, metav1.ListOptions{})
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
func (w *ward) budget(name string, minAvailable int) {
	w.t.Helper()
	budgets := w.Client.PolicyV1().PodDisruptionBudgets(w.Namespace)
	_, err := budgets.Create(w.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt(minAvailable)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Eventually(time.Minute, func(ctx context.Context) error {
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

func TestKillSparesWhatNobodyReplaces(t *testing.T) {
	t.Parallel()
	w := openWard(t)
	owned := w.controlled()
	w.pod("good", healthy, owned)
	w.pod("other", ill, owned, labelled("app", "db"))
	w.pod("orphan", ill)
	w.pod("ended", ill, owned)
	w.phase("ended", corev1.PodFailed)
	w.pod("owned-by-two", ill, func(p *corev1.Pod) { owned(p); p.OwnerReferences[0].Controller = nil })
	w.pod("bad", ill, owned)
	w.policy("example", specOf("kill", selecting("app=web"), every(1)))
	w.start()
	w.alive("ended", "good", "orphan", "other", "owned-by-two")
	p := w.expect("example", counted(2, 1), hindered("NotEvictable", "NotEvictable: 2 pods"))
	if p.Status.LastEvictionTime == nil {
		t.Error("no lastEvictionTime")
	}

	// What was asked, in its order: only then is an eviction never wrong.
	var asked []string
	for _, r := range w.requests(faultproxy.Match{}) {
		if r.Resource == "events" || r.Resource == "" {
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
	w := begin(t)
	w.pod("a", ill)
	w.policy("example", specOf("kill"))
	w.expect("example", counted(1, 0), hindered("NotEvictable", "NotEvictable: 1 pod"))
	var owner corev1.Pod
	w.controlled()(&owner)
	w.edit("a", fmt.Sprintf(`{"metadata":{"ownerReferences":%s}}`, asJSON(owner.OwnerReferences)))
	w.alive()
	w.expect("example", counted(0, 0), done)
}

func TestKillSparesMirrorPods(t *testing.T) {
	t.Parallel()
	w := begin(t)
	owned := w.controlled()
	w.pod("static", ill, owned, annotated(corev1.MirrorPodAnnotationKey, "x"), func(p *corev1.Pod) {
		p.Spec.NodeName, p.Spec.SchedulingGates = "nowhere", nil // a mirror pod has a node; this one has no kubelet
	})
	w.policy("example", specOf("kill"))
	w.expect("example", counted(1, 0), hindered("NotEvictable", "NotEvictable: 1 pod"), neverEvicted)
	w.dismiss("static") // no kubelet will
}

func TestKillKeepsTheInterval(t *testing.T) {
	t.Parallel()
	const interval = 4
	w := openWard(t)
	owned := w.controlled()
	for _, name := range []string{"a", "b", "c"} {
		w.pod(name, ill, owned)
	}
	w.policy("example", specOf("kill", every(interval)))
	w.start()
	w.expect("example", counted(2, 0), hindered("Throttled", "Throttled: 2 pods"))
	w.kill() // a crash does not make it forget
	w.start()
	w.expect("example", counted(1, 0), hindered("Throttled", "Throttled: 1 pod"))
	w.restart()
	w.alive()
	w.expect("example", counted(0, 0), done)
	all := w.expectEvicted(3)
	for i, r := range all[1:] {
		if gap := r.Started.Sub(all[i].Started); gap < interval*time.Second {
			t.Errorf("evicted again after %s, want %d s", gap, interval)
		}
	}
}

// The first try is refused. The second follows in the same second, so both have
// the same lastEvictionTime, and that of the second counts.
func TestKillKeepsTheIntervalAfterARefusal(t *testing.T) {
	t.Parallel()
	w := openWard(t)
	owned := w.controlled()
	for _, name := range []string{"a", "b", "c"} {
		w.pod(name, ill, owned)
	}
	refused := w.inject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Answer, Code: 409})
	w.policy("example", specOf("kill", every(60)))
	w.start()
	w.expect("example", counted(2, 0), hindered("Throttled", "Throttled: 2 pods"))
	w.struck(refused, 1)
	if all := w.evicted(); len(all) != 1 {
		t.Errorf("%d evictions within a minute, want 1", len(all))
	}
}

// A rival that removes the time from the status gets no further eviction by that.
func TestKillKeepsTheIntervalWithoutTheTime(t *testing.T) {
	t.Parallel()
	w := begin(t)
	owned := w.controlled()
	w.pod("a", ill, owned)
	w.pod("b", ill, owned)
	w.policy("example", specOf("kill", every(3600)))
	w.expect("example", counted(1, 0), hindered("Throttled", "Throttled: 1 pod"))
	w.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := w.policies.Patch(ctx, "example", types.MergePatchType, []byte(`{"status":{"lastEvictionTime":null}}`), metav1.PatchOptions{}, "status")
		return err
	})
	w.pod("c", ill, owned) // when this one is counted, the policy was looked at again
	w.expect("example", counted(2, 0), hindered("Throttled", "Throttled: 2 pods"))
	w.expectEvicted(1)
}

// A clock that was set back delays the next eviction by an interval, not until the clock has caught up.
func TestKillAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	w := openWard(t)
	w.pod("a", ill, w.controlled())
	p := w.policy("example", specOf("kill", every(3)))
	p.Status.LastEvictionTime = ptr.To(metav1.NewTime(time.Now().Add(time.Hour)))
	if _, err := w.policies.UpdateStatus(w.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	w.start()
	w.alive()
	if took := w.expectEvicted(1)[0].Started.Sub(begun); took < 3*time.Second {
		t.Errorf("evicted after %s, want an interval of 3 s", took)
	}
}

func TestKillRespectsBudgets(t *testing.T) {
	t.Parallel()
	w := openWard(t)
	owned := w.controlled()
	for _, name := range []string{"guarded-a", "guarded-b"} {
		w.pod(name, ill, owned, labelled("app", "guarded"))
		w.phase(name, corev1.PodRunning)
	}
	w.budget("budget", 2)
	w.policy("example", specOf("kill", every(3600)))
	w.command.Args = append(w.command.Args, "-resync", "1s")
	w.start()
	w.expect("example", counted(2, 0), hindered("DisruptionBudget", "DisruptionBudget: 2 pods"), neverEvicted)
	// Asking again changes nothing, so nothing is written again.
	w.resyncs(3)
	w.restart()
	w.resyncs(2)
	if diff := cmp.Diff([]string{"200 update healthcheckpolicies/status/example"}, w.writes()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	w.expect("example", neverEvicted)

	// The budget of some holds up no other.
	w.pod("a", ill, owned)
	w.pod("z", ill, owned)
	w.expect("example", counted(3, 0), hindered("DisruptionBudget", "DisruptionBudget: 2 pods; Throttled: 1 pod"))
	if p := w.expect("example"); meta.FindStatusCondition(p.Status.Conditions, "Enforced").Message != "DisruptionBudget: 2 pods; Throttled: 1 pod" {
		t.Errorf("status %s", asJSON(p.Status))
	}
	before := len(w.writes())
	w.restart()
	w.resyncs(2)
	if diff := cmp.Diff([]string(nil), w.writes()[before:], cmp.Transformer("", func(s []string) string { return strings.Join(s, "\n") })); diff != "" {
		t.Errorf("writes after a restart:\n%s", diff)
	}
	w.expectEvicted(1)

	// The budget goes, and so does the next pod once the hour is over.
	if err := w.Client.PolicyV1().PodDisruptionBudgets(w.Namespace).Delete(w.Context(), "budget", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.change("example", `{"spec":{"eviction":{"minIntervalSeconds":1}}}`)
	w.alive()
	w.expect("example", counted(0, 0), done)
}

// The API server answers 500 to the eviction of a pod with two budgets, but it is no accident.
func TestKillRespectsTwoBudgets(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.pod("a", ill, w.controlled(), labelled("app", "guarded"))
	w.phase("a", corev1.PodRunning)
	w.budget("one", 1)
	w.budget("two", 1)
	w.policy("example", specOf("kill"))
	w.expect("example", counted(1, 0), hindered("DisruptionBudget", "DisruptionBudget: 1 pod"), neverEvicted)
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
			w := begin(t)
			w.pod("a", ill, w.controlled())
			i := w.inject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Call, Call: func(context.Context, faultproxy.Request) error {
				w.edit("a", change)
				return nil
			}})
			w.policy("example", specOf("kill", selecting("app=web"), every(1)))
			w.struck(i, 1)
			w.Eventually(time.Minute, func(context.Context) error {
				for _, r := range w.requests(evictions) {
					if r.Code == 409 {
						return nil
					}
				}
				return fmt.Errorf("no eviction was refused: %v", w.requests(evictions))
			})
			if name == "no longer selected" {
				w.expect("example", counted(0, 0), done)
				w.alive("a")
				return
			}
			w.alive() // it still fails, so it goes at the next try
		})
	}
}

// The policy changes after it was read: its status write fails, so nothing is evicted.
func TestKillNeverForAPolicyThatHasChanged(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.pod("a", ill, w.controlled())
	w.inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "update", Resource: "healthcheckpolicies/status"}, Fault: faultproxy.Call, Call: func(context.Context, faultproxy.Request) error {
		w.change("example", `{"spec":{"action":"label"}}`)
		return nil
	}})
	w.policy("example", specOf("kill", every(1)))
	w.expect("example", counted(1, 0), done, neverEvicted)
	w.expectMarks(map[string]string{"a": "true"})
	if n := len(w.requests(evictions)); n > 0 {
		t.Errorf("%d evictions", n)
	}
}

// The cache is behind: policy and pod are read live before anything is done.
func TestKillReadsLive(t *testing.T) {
	t.Parallel()
	w := begin(t)
	delivered := deliveries(t, w.proxy)
	w.policy("example", specOf("kill", every(1)))
	before := w.expect("example", counted(0, 0), done)
	w.Eventually(time.Minute, func(context.Context) error { return delivered(before.ResourceVersion) })
	held := w.inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "healthcheckpolicies"}, Fault: faultproxy.Hold})
	w.change("example", `{"spec":{"action":"label"}}`)
	w.struck(held, 1)
	w.pod("a", ill, w.controlled())
	w.Eventually(time.Minute, func(context.Context) error { // it has looked
		if n := len(w.requests(faultproxy.Match{Verb: "get", Resource: "healthcheckpolicies"})); n < 3 {
			return fmt.Errorf("%d live reads of the policy", n)
		}
		return nil
	})
	if p, err := w.policies.Get(w.Context(), "example", metav1.GetOptions{}); err != nil || neverEvicted(p) != nil {
		t.Errorf("status %s (%v)", asJSON(p.Status), err)
	}
	held.Remove()
	w.expect("example", counted(1, 0), done, neverEvicted)
	w.alive("a")
}

// The server does not want to be asked about one pod now. Another pod is evicted
// meanwhile, after which all others are usually asked about again.
func TestKillWaitsForRetryAfterOfADryRun(t *testing.T) {
	t.Parallel()
	w := openWard(t)
	owned := w.controlled()
	w.pod("a", ill, owned)
	w.pod("b", ill, owned)
	dryRuns := faultproxy.Match{Verb: "create", Resource: "pods/eviction", Name: "a"}
	w.inject(faultproxy.Rule{Match: dryRuns, Fault: faultproxy.Answer, Code: 429, RetryAfter: 3 * time.Second})
	w.policy("example", specOf("kill", every(1)))
	w.start()
	w.expectEvicted(2)
	asked := w.requests(dryRuns)
	if pause := asked[1].Started.Sub(asked[0].Started); pause < 3*time.Second {
		t.Errorf("asked again after %s, though the server wanted 3 s", pause)
	}
}

// Another 429 than that of a budget is the server's, and not repeated before its Retry-After ends.
func TestKillWaitsForRetryAfter(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.pod("a", ill, w.controlled())
	w.inject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Answer, Code: 429, RetryAfter: 3 * time.Second})
	w.policy("example", specOf("kill", every(1)))
	w.Eventually(time.Minute, func(context.Context) error {
		if len(w.requests(evictions)) == 0 {
			return fmt.Errorf("no eviction yet")
		}
		return nil
	})
	w.edit("a", `{"metadata":{"annotations":{"x":"y"}}}`) // an event does not end the wait
	w.alive()
	all := w.requests(evictions)
	if len(all) != 2 || all[1].Started.Sub(all[0].Started.Add(all[0].Took)) < 3*time.Second {
		t.Errorf("evictions %v, want the second one 3 s after the first", all)
	}
	// client-go has not repeated it by itself: before each eviction the policy's status was written.
	writes := w.writes()
	for i, line := range writes {
		if strings.Contains(line, "pods/eviction") && (i == 0 || !strings.Contains(writes[i-1], "healthcheckpolicies/status")) {
			t.Errorf("an eviction without a status write before it:\n%s", strings.Join(writes, "\n"))
		}
	}
}

func TestKillThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	for reason, code := range map[string]int{"Forbidden": 403, "Refused": 400} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			owned := w.controlled()
			w.pod("a", ill, owned)
			w.pod("b", ill, owned)
			i := w.inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "pods/eviction", Name: "a"}, Fault: faultproxy.Answer, Code: code, Times: -1})
			w.policy("example", specOf("kill", every(1)))
			w.alive("a") // b is evicted all the same
			w.expect("example", counted(1, 0), hindered(reason, reason+": 1 pod"))
			i.Remove()
			w.alive()
		})
	}
}

// Without the right to read live nothing is evicted, and the condition says why.
func TestKillMayNotRead(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"pods", "healthcheckpolicies"} {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			w.pod("a", ill, w.controlled())
			i := w.inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "get", Resource: resource}, Fault: faultproxy.Answer, Code: 403, Times: -1})
			w.policy("example", specOf("kill"))
			w.expect("example", counted(1, 0), hindered("Forbidden", "Forbidden: 1 pod"), neverEvicted)
			i.Remove()
			w.alive()
		})
	}
}

func TestKillOfAPodThatIsGone(t *testing.T) {
	t.Parallel()
	w := begin(t)
	owned := w.controlled()
	w.policy("example", specOf("kill", every(1)))
	w.expect("example", counted(0, 0), done)
	// The pod is replaced by a good one of the same name while the pod watch is held.
	held := w.inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "pods"}, Fault: faultproxy.Hold, Object: "a", After: 1})
	stalled := w.inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "pods/eviction"}, Fault: faultproxy.Stall})
	w.pod("a", ill, owned)
	w.struck(stalled, 1) // the dry run
	w.dismiss("a")
	w.pod("a", healthy, owned)
	stalled.Remove()
	w.struck(held, 1)
	w.Eventually(time.Minute, func(context.Context) error {
		if n := len(w.requests(faultproxy.Match{Verb: "create", Resource: "pods/eviction"})); n < 3 {
			return fmt.Errorf("%d dry runs", n)
		}
		return nil
	})
	held.Remove()
	w.expect("example", counted(0, 1), done, neverEvicted)
	if p, err := w.pods.Get(w.Context(), "a", metav1.GetOptions{}); apierrors.IsNotFound(err) || p.DeletionTimestamp != nil {
		t.Error("the good pod was evicted")
	}
}

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/internal/crash"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// dryRuns are the requests that ask whether a pod could be evicted.
var dryRuns = faultproxy.Match{Verb: "create", Resource: "pods/eviction", If: func(r faultproxy.Request) bool { return !r.Write() }}

// What an eviction costs does not depend on how many pods wait for theirs. Neither
// changes of those pods nor of budgets make the controller ask about each of them.
func TestAnEvictionCostsFewRequests(t *testing.T) {
	t.Parallel()
	const candidates, changes = 600, 3
	f := newPolicyTest(t)
	owned := f.controlled()
	errs := make([]error, candidates)
	workqueue.ParallelizeUntil(f.Context(), 8, candidates, func(i int) {
		_, errs[i] = f.pods.Create(f.Context(), newPod(fmt.Sprintf("pod-%03d", i), withoutProbes, owned), metav1.CreateOptions{})
	})
	fatal.If(t, errors.Join(errs...))
	f.policy("example", specOf("kill", every(600)))
	f.Start()
	throttled := hindered("Throttled", fmt.Sprintf("Throttled: %d pods", candidates-1))
	f.expect("example", counted(candidates-1, 0), throttled)
	first := f.expectEvicted(1)[0]

	// Pods and budgets change, and at the end the controller has looked at it all.
	for i := range changes {
		f.edit(fmt.Sprintf("pod-%03d", candidates-1-i), `{"metadata":{"annotations":{"x":"y"}}}`)
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("budget-%d", i)},
			Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{}}}
		if _, err := f.Client.PolicyV1().PodDisruptionBudgets(f.Namespace).Create(f.Context(), budget, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	f.pod("good", withProbes)
	f.expect("example", counted(candidates-1, 1), throttled)

	further := slices.DeleteFunc(f.Proxy.Requests(faultproxy.Match{}), func(r faultproxy.Request) bool {
		return r.ID <= first.ID || strings.HasPrefix(r.Verb, "watch")
	})
	if len(further) > 10+changes {
		t.Errorf("%d further requests after an eviction, of which %d are dry runs; want at most %d", len(further), len(f.Proxy.Requests(dryRuns))-1, 10+changes)
	}
}

// A server that is busy says so once, and is not asked about all the other pods meanwhile.
func TestABusyServerIsAskedOnce(t *testing.T) {
	t.Parallel()
	const pause = 3 * time.Second
	f := newPolicyTest(t)
	owned := f.controlled()
	for i := range 20 {
		f.pod(fmt.Sprintf("pod-%02d", i), withoutProbes, owned)
	}
	busy := f.Inject(faultproxy.Rule{Match: dryRuns, Fault: faultproxy.Answer, Code: 429, RetryAfter: pause, Times: -1})
	f.policy("example", specOf("kill", every(600)))
	f.Start()
	f.Struck(busy, 2)
	busy.Remove()
	asked := f.Proxy.Requests(dryRuns)
	if between := asked[1].Started.Sub(asked[0].Started.Add(asked[0].Took)); between < pause {
		t.Errorf("after a Retry-After of %s, the next question came after %s: %v", pause, between, asked[:2])
	}
	f.expectEvicted(1)
}

// Pods about which it never says more, as with a webhook that is broken for them, hold up no other.
func TestOneBusyAnswerHoldsUpNoOtherPod(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	owned := f.controlled()
	for _, name := range []string{"a", "b", "c"} {
		f.pod(name, withoutProbes, owned)
	}
	for name, code := range map[string]int{"a": 429, "b": 500} {
		f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "pods/eviction", Name: name}, Fault: faultproxy.Answer, Code: code, RetryAfter: time.Second, Times: -1})
	}
	f.policy("example", specOf("kill", every(600)))
	f.Start()
	if evicted := f.expectEvicted(1)[0]; evicted.Name != "c" {
		t.Errorf("evicted: %s", evicted)
	}
}

// Nor do pods of which the eviction itself, or the read before it, always goes wrong.
func TestOneFailedEvictionHoldsUpNoOtherPod(t *testing.T) {
	t.Parallel()
	real := faultproxy.Match{Verb: "create", Resource: "pods/eviction", Name: "a", If: faultproxy.Request.Write}
	for name, rule := range map[string]faultproxy.Rule{
		"busy":   {Match: real, Code: 429, RetryAfter: time.Second},
		"broken": {Match: real, Code: 500},
		"unread": {Match: faultproxy.Match{Verb: "get", Resource: "pods", Name: "a"}, Code: 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newPolicyTest(t)
			owned := f.controlled()
			f.pod("a", withoutProbes, owned)
			f.pod("b", withoutProbes, owned)
			rule.Fault, rule.Times = faultproxy.Answer, -1
			f.Inject(rule)
			f.policy("example", specOf("kill", every(2)))
			f.Start()
			if evicted := f.expectEvicted(1)[0]; evicted.Name != "b" {
				t.Errorf("evicted: %s", evicted)
			}
		})
	}
}

// However many pods a webhook is broken for, the next one is asked about soon: not after a pause for each of them.
func TestManyBrokenAnswersHoldUpNoOtherPod(t *testing.T) {
	t.Parallel()
	const broken = 16
	f := newPolicyTest(t)
	owned := f.controlled()
	for i := range broken {
		f.pod(fmt.Sprintf("broken-%02d", i), withoutProbes, owned)
	}
	f.pod("good", withoutProbes, owned)
	f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "pods/eviction", Name: "broken-*"}, Fault: faultproxy.Answer, Code: 500, Times: -1})
	f.policy("example", specOf("kill", every(600)))
	f.Start()
	f.expectEvicted(1)
	// Each failed pass waits longer: five take less than a second, and one for each pod ten minutes.
	all := f.Proxy.Requests(faultproxy.Match{Verb: "create", Resource: "pods/eviction"})
	if passes := len(all) / maxAskedInAPass; passes > broken/maxAskedInAPass+2 {
		t.Errorf("%d requests for evictions until the good one was evicted", len(all))
	}
	if took := all[len(all)-1].Started.Sub(all[0].Started); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

const maxAskedInAPass = 4

// A webhook lets the dry run through and refuses the eviction. That is tried again later and later, as any refusal.
func TestARefusedEvictionAfterAnAcceptedDryRunBacksOff(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	f.pod("a", withoutProbes, f.controlled())
	f.Inject(faultproxy.Rule{Match: evictions, Fault: faultproxy.Answer, Code: 403, Times: -1})
	f.policy("example", specOf("kill", every(1)))
	f.Start()
	f.expect("example", counted(1, 0), hindered("Forbidden", "Forbidden: 1 pod"))
	time.Sleep(15 * time.Second) // after 1, 2, 4 and 8 s; without the wait, about fifteen
	if n := len(f.Proxy.Requests(evictions)); n > 6 {
		t.Errorf("%d evictions in 15 s", n)
	}
}

// What the API server has refused about a pod counts until it agrees.
func TestAPodThatMayGoByNowIsThrottled(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	owned := f.controlled()
	f.pod("a", withoutProbes, owned)
	f.pod("b", withoutProbes, owned)
	refused := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "create", Resource: "pods/eviction", Name: "a"}, Fault: faultproxy.Answer, Code: 403, Times: -1})
	f.policy("example", specOf("kill", every(600)))
	f.Start()
	f.expect("example", counted(1, 0), hindered("Forbidden", "Forbidden: 1 pod"))
	f.expectEvicted(1)
	refused.Remove()
	f.edit("a", `{"metadata":{"annotations":{"x":"y"}}}`) // which may be what a webhook wants
	f.expect("example", counted(1, 0), hindered("Throttled", "Throttled: 1 pod"))
}

// Pods that end make no place for further questions.
func TestPodsThatEndMakeNoPlaceForFurtherQuestions(t *testing.T) {
	t.Parallel()
	const candidates = 16
	f := newPolicyTest(t)
	owned := f.controlled()
	for i := range candidates {
		f.pod(fmt.Sprintf("pod-%02d", i), withoutProbes, owned)
	}
	f.policy("example", specOf("kill", every(600)))
	f.Start()
	f.expect("example", counted(candidates-1, 0), hindered("Throttled", fmt.Sprintf("Throttled: %d pods", candidates-1)))
	f.expectEvicted(1)
	asked := f.Proxy.Requests(dryRuns)
	for i, r := range asked[1:] {
		fatal.If(t, f.pods.Delete(f.Context(), r.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		f.expect("example", counted(int32(candidates-2-i), 0))
	}
	if now := f.Proxy.Requests(dryRuns); len(now) != len(asked) {
		t.Errorf("%d dry runs after those that were asked about had ended, %d before", len(now), len(asked))
	}
}

// Nobody asks about a pod whose budget says no. The budget's next event brings the eviction.
func TestABudgetThatAllowsWakesThePolicy(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	owned := f.controlled()
	for _, name := range []string{"a", "b"} {
		f.pod(name, withoutProbes, owned, labelled("app", "guarded"))
		f.phase(name, corev1.PodRunning)
	}
	f.budget("budget", 2)
	f.policy("example", specOf("kill", every(600)))
	f.Command.Args = append(f.Command.Args, "-resync", "1s")
	f.Start()
	f.expect("example", counted(2, 0), hindered("DisruptionBudget", "DisruptionBudget: 2 pods"), neverEvicted)
	f.resyncs(4)
	if asked := f.Proxy.Requests(dryRuns); len(asked) > 0 {
		t.Errorf("the budget has said no, and the API server was asked %d times", len(asked))
	}
	patch := []byte(`{"spec":{"minAvailable":1}}`)
	if _, err := f.Client.PolicyV1().PodDisruptionBudgets(f.Namespace).Patch(f.Context(), "budget", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.expectEvicted(1)
	// The other one has to wait, for the budget and not for the interval, as the first status says.
	f.expect("example", counted(1, 0), hindered("DisruptionBudget", "DisruptionBudget: 1 pod"))
	if asked := f.Proxy.Requests(dryRuns); len(asked) != 1 {
		t.Errorf("%d dry runs, want that of the pod that was evicted", len(asked))
	}
}

// Somebody else has used what the budget allows, and the cache does not show that yet. One refusal
// says it for all pods of the budget.
func TestABudgetThatIsUsedUpIsAskedOnce(t *testing.T) {
	t.Parallel()
	const candidates = 12
	f := newPolicyTest(t)
	owned := f.controlled()
	for i := range candidates {
		name := fmt.Sprintf("pod-%02d", i)
		f.pod(name, withoutProbes, owned, labelled("app", "guarded"))
		f.phase(name, corev1.PodRunning)
	}
	f.budget("budget", candidates)
	budgets := f.Client.PolicyV1().PodDisruptionBudgets(f.Namespace)
	minAvailable := func(n int) {
		if _, err := budgets.Patch(f.Context(), "budget", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"minAvailable":%d}}`, n), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	allows := func(disruptions int32) {
		f.Eventually(time.Minute, func(ctx context.Context) error {
			b, err := budgets.Get(ctx, "budget", metav1.GetOptions{})
			if err == nil && (b.Status.ObservedGeneration != b.Generation || b.Status.DisruptionsAllowed != disruptions) {
				err = fmt.Errorf("the budget is not computed: %s", asJSON(b.Status))
			}
			return err
		})
	}
	minAvailable(candidates - 1)
	allows(1)
	f.Start()
	f.policy("early", specOf("label"))
	f.expect("early", counted(candidates, 0), done) // so the caches are filled
	held := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "poddisruptionbudgets"}, Fault: faultproxy.Hold})
	minAvailable(candidates)
	allows(0)
	f.Struck(held, 1)
	f.policy("example", specOf("kill", every(1)))
	f.expect("example", counted(candidates, 0), hindered("DisruptionBudget", fmt.Sprintf("DisruptionBudget: %d pods", candidates)), neverEvicted)
	if asked := f.Proxy.Requests(dryRuns); len(asked) > 3 { // once, and once more after a second or two
		t.Errorf("the API server was asked %d times about %d pods of one budget", len(asked), candidates)
	}
	// The first look after the news is the one that evicts.
	held.Remove()
	minAvailable(candidates - 1)
	f.expectEvicted(1)
}

// A budget with the policy AlwaysAllow protects no pod that is not ready. A change of
// the pod's readiness alone is no change to a policy that marks.
func TestKillOfAPodThatIsNoLongerReady(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes, f.controlled(), labelled("app", "guarded"))
	f.phase("a", corev1.PodRunning)
	f.budget("budget", 1)
	f.policy("example", specOf("kill"))
	f.expect("example", counted(1, 0), hindered("DisruptionBudget", "DisruptionBudget: 1 pod"))
	patch := []byte(`{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}`)
	if _, err := f.Client.PolicyV1().PodDisruptionBudgets(f.Namespace).Patch(f.Context(), "budget", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.edit("a", `{"metadata":{"annotations":{"x":"y"}}}`)
	unready := []byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
	if _, err := f.pods.Patch(f.Context(), "a", types.StrategicMergePatchType, unready, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	f.alive()
	f.expect("example", counted(0, 0), done)
}

// The wall clock jumps an hour ahead. The process's own clock does not.
func TestKillAfterTheClockWasSetForward(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	offset := filepath.Join(t.TempDir(), "offset")
	f.Command.Env = append(f.Command.Env, crash.JumpingClockEnv+"="+offset)
	f.Command.Path = f.Program("./06-controller/healthcheckpolicy", testenv.AddFile("jumping_clock.go", crash.JumpingClockSource),
		testenv.Replace("main.go", crash.RealClock, crash.JumpingClock))
	owned := f.controlled()
	f.pod("a", withoutProbes, owned)
	f.pod("b", withoutProbes, owned)
	f.policy("example", specOf("kill", every(600)))
	f.Command.Args = append(f.Command.Args, "-resync", "1s")
	f.Start()
	f.expect("example", counted(1, 0), hindered("Throttled", "Throttled: 1 pod"))
	fatal.If(t, os.WriteFile(offset, []byte("1h"), 0o644))
	f.resyncs(3)
	if all := f.evicted(); len(all) != 1 {
		t.Errorf("%d evictions within 600 s, because the clock was set forward", len(all))
	}
}

// Without the feature gate AtomicFIFO no cache knows its resourceVersion.
func TestMarksAreTakenBackWithoutAtomicFIFO(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	f.Command.Env = append(f.Command.Env, "KUBE_FEATURE_AtomicFIFO=false")
	f.pod("a", withoutProbes)
	f.policy("example", specOf("label"))
	f.Start()
	f.expect("example", counted(1, 0), done)
	f.expectMarks(map[string]string{"a": "true"})
	f.removed("example")
	f.expectMarks(map[string]string{})
}

// Without its finalizer a policy is gone for ever, so the controller looks at the live one first.
func TestFinalizerIsRemovedFromALivePolicy(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes)
	f.policy("example", specOf("label"))
	f.expect("example", counted(1, 0), done)
	f.removed("example")
	f.Writes() // all have their answers
	var asked []string
	for _, r := range f.Proxy.Requests(faultproxy.Match{Name: "example"}) {
		if r.Code != http.StatusNotFound { // an event of a pod may have come before that of the policy's end
			asked = append(asked, r.String())
		}
	}
	if want := []string{"200 get healthcheckpolicies/example", "200 patch healthcheckpolicies/example"}; len(asked) < 2 || !slices.Equal(asked[len(asked)-2:], want) {
		t.Errorf("the last requests about the policy are not %v:\n%s", want, strings.Join(asked, "\n"))
	}
}

// Many pods are marked in one pass: one Event says so, and how many they are.
func TestOneEventForManyPods(t *testing.T) {
	t.Parallel()
	const pods = 40
	f := newPolicyTest(t)
	for i := range pods {
		f.pod(fmt.Sprintf("pod-%02d", i), withoutProbes)
	}
	f.policy("example", specOf("label"))
	f.Start()
	f.expect("example", counted(pods, 0), done)
	f.Eventually(time.Minute, func(ctx context.Context) error {
		list, err := f.Client.EventsV1().Events(f.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes []string
		for _, e := range list.Items {
			if e.ReportingController == "healthcheckpolicy" {
				notes = append(notes, e.Note)
			}
		}
		if want := fmt.Sprintf(" (and %d more)", pods-1); len(notes) != 1 || !strings.HasSuffix(notes[0], want) {
			return fmt.Errorf("%d Events, want one that ends with%s: %q", len(notes), want, notes)
		}
		return nil
	})
}

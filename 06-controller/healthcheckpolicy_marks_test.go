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
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestLabelMarksThePodsThatLackAProbe(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	always := corev1.ContainerRestartPolicyAlways
	f.pod("good", []string{"web: liveness, readiness"})
	f.pod("more", []string{"web: liveness, readiness, startup", "log: readiness, liveness"})
	f.pod("none", []string{"web"})
	f.pod("one", []string{"web: readiness"})
	f.pod("second", []string{"web: liveness, readiness", "log: liveness"})
	f.pod("init", withProbes, func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "workshop/pause:1"}, {Name: "sidecar", Image: "workshop/pause:1", RestartPolicy: &always}}
	})
	f.pod("other", withoutProbes, labelled("app", "db"))
	policy := f.policy("example", specOf("label", selecting("app=web")))
	f.Start()

	f.expect("example", counted(3, 3), done)
	f.expectMarks(map[string]string{"none": "true", "one": "true", "second": "true"})

	// The API server has recorded who put the label there, and nothing else.
	p, err := f.pods.Get(f.Context(), "none", metav1.GetOptions{})
	fatal.If(t, err)
	var managers []string
	for _, e := range p.ManagedFields {
		if strings.HasPrefix(e.Manager, "healthcheckpolicy") {
			managers = append(managers, fmt.Sprintf("%s %s %s", e.Manager, e.Operation, e.FieldsV1.GetRawString()))
		}
	}
	if diff := cmp.Diff([]string{"healthcheckpolicy-" + string(policy.UID) + ` Apply {"f:metadata":{"f:labels":{"f:lacks":{}}}}`}, managers); diff != "" {
		t.Errorf("field managers (-want +got):\n%s", diff)
	}

	// Exactly the writes that are needed, and the finalizer before the first mark.
	writes := f.Writes()
	if len(writes) != 5 || writes[0] != "200 patch healthcheckpolicies/example" || writes[4] != "200 update healthcheckpolicies/status/example" {
		t.Errorf("writes, want the finalizer, three marks and the status:\n%s", strings.Join(writes, "\n"))
	}
	f.removed("example")
	f.expectMarks(map[string]string{})
	if n := len(f.Writes()); n != 5+4 {
		t.Errorf("writes, want four more for three marks and the finalizer:\n%s", strings.Join(f.Writes(), "\n"))
	}
}

func TestAnnotateSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	many := make([]string, 60)
	for i := range many {
		many[i] = fmt.Sprintf("container-%02d", i)
	}
	f.pod("web", []string{"web: startup", "log: readiness, liveness"})
	f.pod("order", []string{"z", "a: liveness"})
	f.pod("many", many)
	f.policy("example", specOf("annotate", requiring("startup", "readiness", "liveness")))
	f.expect("example", counted(3, 0), done)
	found, err := f.marked(f.Context(), "lacks")
	fatal.If(t, err)
	text := strings.TrimPrefix(found["many"], "annotation ")
	if len(text) != 1024 || !strings.HasSuffix(text, "...") || !strings.HasPrefix(text, "container-00: liveness, readiness, startup; container-01: liveness") {
		t.Errorf("a long text: %d bytes: %s", len(text), text)
	}
	delete(found, "many")
	want := map[string]string{"web": "annotation web: liveness, readiness; log: startup", "order": "annotation z: liveness, readiness, startup; a: readiness, startup"}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}

	// When the policy needs less, the text changes; in one write a pod.
	before := len(f.Writes())
	f.change("example", `{"spec":{"requiredProbes":["startup"]}}`)
	f.expect("example", counted(3, 0), done)
	if found, err = f.marked(f.Context(), "lacks"); err != nil || found["web"] != "annotation log: startup" || found["order"] != "annotation z: startup; a: startup" {
		t.Errorf("annotations: %v (%v)", found, err)
	}
	if n := len(f.Writes()) - before; n != 4 {
		t.Errorf("%d writes, want three marks and the status:\n%s", n, strings.Join(f.Writes()[before:], "\n"))
	}
}

func TestMarksAreTakenBack(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.policy("example", specOf("label", selecting("app=web")))
	f.pod("a", withoutProbes)
	f.pod("b", []string{"web: liveness"})
	f.expectMarks(map[string]string{"a": "true", "b": "true"})

	f.edit("a", `{"metadata":{"labels":{"app":"db"}}}`) // no longer selected
	f.expectMarks(map[string]string{"b": "true"})
	f.expect("example", counted(1, 0), done)
	f.edit("a", `{"metadata":{"labels":{"app":"web"}}}`)
	f.expectMarks(map[string]string{"a": "true", "b": "true"})
	f.change("example", `{"spec":{"requiredProbes":["liveness"]}}`) // b passes
	f.expectMarks(map[string]string{"a": "true"})
	f.expect("example", counted(1, 1), done)

	before := len(f.Writes())
	f.change("example", `{"spec":{"action":"annotate"}}`)
	f.expectMarks(map[string]string{"a": "annotation web: liveness"})
	f.expect("example", counted(1, 1), done)
	if n := len(f.Writes()) - before; n != 2 {
		t.Errorf("%d writes for the new action, want one for the pod and one for the status:\n%s", n, strings.Join(f.Writes()[before:], "\n"))
	}
	f.change("example", `{"spec":{"action":"kill"}}`)
	f.expectMarks(map[string]string{})
	f.expect("example", counted(1, 1), hindered("NotEvictable", "NotEvictable: 1 pod"))
	f.change("example", `{"spec":{"action":"label"}}`)
	f.expectMarks(map[string]string{"a": "true"})
	f.change("example", `{"spec":{"selector":{"matchLabels":{"app":"nobody"}}}}`)
	f.expectMarks(map[string]string{})
	f.expect("example", counted(0, 0), done)
	f.removed("example")
}

func TestPodsThatDoNotCount(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	f.pod("lives", withoutProbes)
	f.pod("succeeded", withoutProbes)
	f.pod("failed", withoutProbes)
	f.pod("deleted", withoutProbes, f.held())
	f.phase("succeeded", corev1.PodSucceeded)
	f.phase("failed", corev1.PodFailed)
	fatal.If(t, f.pods.Delete(f.Context(), "deleted", metav1.DeleteOptions{}))
	f.policy("example", specOf("label"))
	f.Start()
	f.expect("example", counted(1, 0), done)
	f.expectMarks(map[string]string{"lives": "true"})

	// A marked pod that is being deleted is left alone, and holds nothing up.
	f.pod("going", withoutProbes, f.held())
	f.expect("example", counted(2, 0), done)
	fatal.If(t, f.pods.Delete(f.Context(), "going", metav1.DeleteOptions{}))
	f.expect("example", counted(1, 0), done)
	f.removed("example")
	f.expectMarks(map[string]string{"going": "true"})
}

// The cache does not show yet that the pod has finished. Once there, the mark would stay.
func TestAPodThatHasJustFinishedGetsNoMark(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes)
	f.policy("annotates", specOf("annotate", withKey("note")))
	f.expect("annotates", counted(1, 0), done)
	held := f.Inject(faultproxy.Rule{Match: podWatches, Fault: faultproxy.Hold})
	f.phase("a", corev1.PodSucceeded)
	f.Struck(held, 1)
	marked := f.Inject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Slow, Delay: time.Millisecond})
	f.policy("labels", specOf("label"))
	f.Struck(marked, 1)
	held.Remove()
	f.expect("labels", counted(0, 0), done)
	f.expectMarks(map[string]string{})
}

func TestFinishedPodsKeepTheirMarkUntilThePolicyChanges(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.policy("example", specOf("label", selecting("app=web")))
	f.pod("a", withoutProbes)
	f.pod("b", withoutProbes)
	f.expect("example", counted(2, 0), done)
	f.phase("a", corev1.PodSucceeded)
	f.expect("example", counted(1, 0), done)
	f.edit("a", `{"metadata":{"labels":{"app":"db"}}}`)
	f.pod("c", withoutProbes) // something that the controller surely sees after the change of a
	f.expect("example", counted(2, 0), done)
	f.expectMarks(map[string]string{"a": "true", "b": "true", "c": "true"})
	f.Restart()
	f.pod("d", withoutProbes)
	f.expect("example", counted(3, 0), done)
	f.expectMarks(map[string]string{"a": "true", "b": "true", "c": "true", "d": "true"})

	// The policy changes: the finished pod loses the mark before the status says that the change was seen.
	before := len(f.Writes())
	f.change("example", `{"spec":{"requiredProbes":["liveness"]}}`)
	f.expect("example", counted(3, 0), done)
	if diff := cmp.Diff([]string{"200 patch pods/a", "200 update healthcheckpolicies/status/example"}, f.Writes()[before:]); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	f.expectMarks(map[string]string{"b": "true", "c": "true", "d": "true"})

	// And when the policy goes.
	f.phase("b", corev1.PodFailed)
	f.expect("example", counted(2, 0), done)
	f.removed("example")
	f.expectMarks(map[string]string{})
}

func TestWhatAUserPutIsNeverTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		action v1alpha1.Action
		pods   []*corev1.Pod
		after  map[string]string
		kept   map[string]string
	}{
		{"label", []*corev1.Pod{
			newPod("free", withoutProbes), newPod("same", withoutProbes, labelled("lacks", "true")), newPod("taken", withoutProbes, labelled("lacks", "mine")),
		}, map[string]string{"free": "true", "same": "true", "taken": "mine"}, map[string]string{"same": "true", "taken": "mine"}},
		{"annotate", []*corev1.Pod{
			newPod("free", withoutProbes), newPod("same", withoutProbes, annotated("lacks", "web: liveness, readiness")), newPod("taken", withoutProbes, annotated("lacks", "mine")),
		}, map[string]string{"free": "annotation web: liveness, readiness", "same": "annotation web: liveness, readiness", "taken": "annotation mine"},
			map[string]string{"same": "annotation web: liveness, readiness", "taken": "annotation mine"}},
	} {
		t.Run(string(c.action), func(t *testing.T) {
			t.Parallel()
			f := startPolicyTest(t)
			for _, p := range c.pods {
				if _, err := f.pods.Create(f.Context(), p, metav1.CreateOptions{FieldManager: "user"}); err != nil {
					t.Fatal(err)
				}
			}
			f.policy("example", specOf(c.action))
			f.expect("example", counted(3, 0), hindered("KeyConflict", "KeyConflict: 1 pod"))
			f.expectMarks(c.after)
			// When the user gives the key up, the policy tries again.
			f.edit("taken", `{"metadata":{"labels":{"lacks":null},"annotations":{"lacks":null}}}`)
			f.expect("example", counted(3, 0), done)
			// When the user takes it over, the policy loses it.
			f.edit("taken", `{"metadata":{"labels":{"lacks":"mine"},"annotations":{"lacks":"mine"}}}`)
			f.expect("example", counted(3, 0), hindered("KeyConflict", "KeyConflict: 1 pod"))
			f.edit("taken", `{"metadata":{"`+map[bool]string{true: "annotations", false: "labels"}[c.action == "label"]+`":{"lacks":null}}}`)
			f.removed("example")
			f.expectMarks(c.kept)
		})
	}
}

// Nothing that a user put under the policy's key is lost, even if the policy is
// as careless as this one.
func TestPodLabelApp(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes)
	f.policy("careless", specOf("label", withKey("app")))
	f.expect("careless", counted(1, 0), hindered("KeyConflict", "KeyConflict: 1 pod"))
	f.removed("careless")
	if p, err := f.pods.Get(f.Context(), "a", metav1.GetOptions{}); err != nil || p.Labels["app"] != "web" {
		t.Errorf("labels %v (%v)", p.Labels, err)
	}
}

func TestTwoPoliciesShareAKey(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes)
	f.policy("first", specOf("annotate"))
	f.policy("second", specOf("annotate"))
	f.expect("first", counted(1, 0), done)
	f.expect("second", counted(1, 0), done)
	f.expectMarks(map[string]string{"a": "annotation web: liveness, readiness"})

	// One alone changes its mind: the other's claim is respected.
	f.change("first", `{"spec":{"requiredProbes":["startup"]}}`)
	f.expect("first", counted(1, 0), hindered("KeyConflict", "KeyConflict: 1 pod"))
	f.expectMarks(map[string]string{"a": "annotation web: liveness, readiness"})
	// Both want the same again: they converge.
	f.change("second", `{"spec":{"requiredProbes":["startup"]}}`)
	f.expect("second", counted(1, 0), done)
	f.expect("first", counted(1, 0), done)
	f.expectMarks(map[string]string{"a": "annotation web: startup"})
	// The value stays as long as one of them wants it.
	f.removed("first")
	f.expectMarks(map[string]string{"a": "annotation web: startup"})
	f.removed("second")
	f.expectMarks(map[string]string{})
}

func TestInvalidSelector(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes)
	f.policy("never", specOf("label", withKey("never"), selecting("not a label=x")))
	f.policy("example", specOf("label"))
	invalid := func(p *v1alpha1.HealthCheckPolicy) error {
		if p.Status.Statistics != nil {
			return fmt.Errorf("there are statistics")
		}
		if err := hasCondition(p, "Compliant", metav1.ConditionUnknown, "InvalidSelector"); err != nil {
			return err
		}
		return hasCondition(p, "Enforced", metav1.ConditionFalse, "InvalidSelector")
	}
	f.expect("never", invalid)
	f.expect("example", counted(1, 0), done)
	f.change("example", `{"spec":{"selector":{"matchLabels":{"not a label":"x"}},"action":"annotate"}}`)
	f.expect("example", invalid)
	f.pod("b", withoutProbes)
	f.expectMarks(map[string]string{"a": "true"}) // marks stay as they are
	f.change("example", `{"spec":{"selector":{"matchLabels":null}}}`)
	f.expect("example", counted(2, 0), done)
	f.expectMarks(map[string]string{"a": "annotation web: liveness, readiness", "b": "annotation web: liveness, readiness"})
	f.change("example", `{"spec":{"selector":{"matchLabels":{"not a label":"x"}}}}`)
	f.expect("example", invalid)
	f.removed("example") // being deleted, it takes its marks back all the same
	f.expectMarks(map[string]string{})
	f.removed("never")
}

func TestSelectorMayNotNameTheMark(t *testing.T) {
	t.Parallel()
	f := newPolicyTest(t)
	_, err := f.policies.Create(f.Context(), &v1alpha1.HealthCheckPolicy{ObjectMeta: metav1.ObjectMeta{Name: "example"}, Spec: specOf("label", selecting("lacks=true"))}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("a policy that selects by its own mark was not refused: %v", err)
	}
}

func TestFinalizerIsOnlyForMarks(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("good", withProbes)
	f.pod("bad", withoutProbes, labelled("app", "db"), f.controlled())
	f.policy("passes", specOf("label", selecting("app=web")))
	f.policy("kills", v1alpha1.HealthCheckPolicySpec{Action: "kill", Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}})
	f.expect("kills", counted(0, 0), done)
	for _, name := range []string{"passes", "kills"} {
		if p := f.expect(name, done); len(p.Finalizers) > 0 {
			t.Errorf("%s has finalizers %v, though it has never marked a pod", name, p.Finalizers)
		}
	}
	f.edit("good", `{"metadata":{"labels":{"x":"y"}}}`)
	f.pod("new", withoutProbes)
	if p := f.expect("passes", counted(1, 1), done); !slices.Equal(p.Finalizers, []string{"policy.k8s-go.openshift.org/take-back"}) {
		t.Errorf("finalizers %v", p.Finalizers)
	}
	// Somebody removes it by force: it comes back, because pods carry the mark.
	f.change("passes", `{"metadata":{"finalizers":null}}`)
	f.Eventually(time.Minute, func(ctx context.Context) error {
		p, err := f.policies.Get(ctx, "passes", metav1.GetOptions{})
		if err == nil && len(p.Finalizers) != 1 {
			err = fmt.Errorf("finalizers %v", p.Finalizers)
		}
		return err
	})
	// A finalizer of somebody else stays, and the mark is gone before the policy is.
	f.change("passes", `{"metadata":{"finalizers":["policy.k8s-go.openshift.org/take-back","example.com/wait"]}}`)
	f.remove("passes")
	f.Eventually(time.Minute, func(ctx context.Context) error {
		p, err := f.policies.Get(ctx, "passes", metav1.GetOptions{})
		if err == nil && !slices.Equal(p.Finalizers, []string{"example.com/wait"}) {
			err = fmt.Errorf("finalizers %v", p.Finalizers)
		}
		return err
	})
	f.expectMarks(map[string]string{})
	f.change("passes", `{"metadata":{"finalizers":null}}`)
}

// A finalizer that is refused is tried again with pauses, whatever happens to the pods.
func TestFinalizerThatIsRefused(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusConflict, http.StatusNotFound} { // a webhook refuses with any code that it likes
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			f := startPolicyTest(t)
			f.pod("a", withoutProbes)
			i := f.Inject(faultproxy.Rule{Match: finalizers, Fault: faultproxy.Answer, Code: code, Times: -1})
			f.policy("example", specOf("label"))
			f.expect("example", counted(1, 0), hindered("Refused", "Refused: 1 pod"))
			i.Remove()
			f.expect("example", counted(1, 0), done)
		})
	}
	f := startPolicyTest(t)
	f.pod("a", withoutProbes)
	i := f.Inject(faultproxy.Rule{Match: finalizers, Fault: faultproxy.Answer, Code: 403, Times: -1})
	begun := time.Now()
	f.policy("example", specOf("label"))
	f.expect("example", counted(1, 0), hindered("Forbidden", "Forbidden: 1 pod"))
	for n := range 50 {
		f.edit("a", fmt.Sprintf(`{"metadata":{"annotations":{"x":"%d"}}}`, n))
	}
	f.policy("other", specOf("annotate", withKey("note"))) // looked at after those changes
	f.expect("other", counted(1, 0), hindered("Forbidden", "Forbidden: 1 pod"))
	tries := len(f.Proxy.Requests(faultproxy.Match{Verb: finalizers.Verb, Resource: finalizers.Resource, Name: "example", If: finalizers.If}))
	if most := 2 + int(time.Since(begun)/time.Second); tries > most { // the pauses are a second at least
		t.Errorf("%d tries, want %d at most", tries, most)
	}
	i.Remove()
	f.expect("example", counted(1, 0), done)
}

// What keeps a deleted policy from going is in its status: the finalizer that may not be removed, or the marks.
func TestDeletedPolicySaysWhatHoldsIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		refused faultproxy.Match
		code    int
		reason  string
		says    string
		marks   map[string]string // meanwhile
	}{
		"finalizer":                      {finalizers, 403, "Forbidden", "Forbidden. The server says: injected by faultproxy", map[string]string{}},
		"finalizer, as if it were gone":  {finalizers, 404, "Refused", "Refused. The server says: injected by faultproxy", map[string]string{}},
		"finalizer, as if it were newer": {finalizers, 409, "Refused", "Refused. The server says: injected by faultproxy", map[string]string{}},
		"mark":                           {markWrites, 403, "Forbidden", "Forbidden: 1 pod. The server says: injected by faultproxy", map[string]string{"a": "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startPolicyTest(t)
			f.pod("a", withoutProbes)
			f.policy("example", specOf("label"))
			f.expect("example", counted(1, 0), done)
			i := f.Inject(faultproxy.Rule{Match: tc.refused, Fault: faultproxy.Answer, Code: tc.code, Times: -1})
			f.remove("example")
			f.Eventually(time.Minute, func(ctx context.Context) error {
				p, err := f.policies.Get(ctx, "example", metav1.GetOptions{})
				if err != nil {
					return err
				}
				return hindered(tc.reason, tc.says)(p)
			})
			f.expectMarks(tc.marks)
			i.Remove()
			// What is read before the last write is not there, it is said.
			f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "get", Resource: "healthcheckpolicies"}, Fault: faultproxy.Answer, Code: 404})
			f.Eventually(time.Minute, func(ctx context.Context) error { return f.isGone(ctx, "example") })
			f.expectMarks(map[string]string{})
		})
	}
}

// The finalizer may not be removed, and the server says so in other words each time.
func TestDeletedPolicyWaitsBetweenItsTries(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	f.pod("a", withoutProbes)
	f.policy("example", specOf("label"))
	f.policy("probe", specOf("kill", selecting("x=y")))
	f.expect("example", counted(1, 0), done)
	allow := refuses(t, f.Env, admissionv1.Update, "policy.k8s-go.openshift.org", "healthcheckpolicies", "object.metadata.name != 'probe' && !has(oldObject.metadata.deletionTimestamp)",
		"'not at ' + oldObject.metadata.resourceVersion", func(ctx context.Context) error {
			_, err := f.policies.Patch(ctx, "probe", types.MergePatchType, []byte(`{"metadata":{"annotations":{"x":"y"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
	f.remove("example")
	f.Eventually(time.Minute, func(ctx context.Context) error {
		p, err := f.policies.Get(ctx, "example", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return hasCondition(p, "Enforced", metav1.ConditionFalse, "Forbidden")
	})
	time.Sleep(5 * time.Second)
	if n := len(f.Proxy.Requests(faultproxy.Match{Verb: finalizers.Verb, Resource: finalizers.Resource, Name: "example", If: finalizers.If})); n > 8 {
		t.Errorf("%d tries in five seconds, though the pauses are a second at least", n)
	}
	allow()
	f.Eventually(time.Minute, func(ctx context.Context) error { return f.isGone(ctx, "example") })
	f.expectMarks(map[string]string{})
}

// refuses has an admission policy refuse what differs from an expression, and waits until try meets it.
func refuses(t *testing.T, e *testenv.Env, operation admissionv1.OperationType, group, resource, unless, message string, try func(context.Context) error) (allow func()) {
	t.Helper()
	ctx, api := context.WithoutCancel(e.Context()), e.Client.AdmissionregistrationV1()
	named := metav1.ObjectMeta{Name: e.Namespace}
	if _, err := api.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: named, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: e.Namespace}},
			ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{operation},
				Rule: admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}}}}},
		},
		Validations: []admissionv1.Validation{{Expression: unless, MessageExpression: message, Reason: ptr.To(metav1.StatusReasonForbidden)}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	allow = func() {
		if err := api.ValidatingAdmissionPolicyBindings().Delete(ctx, e.Namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		allow()
		if err := api.ValidatingAdmissionPolicies().Delete(ctx, e.Namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: named,
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: e.Namespace, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.Eventually(time.Minute, func(ctx context.Context) error {
		if err := try(ctx); !apierrors.IsForbidden(err) {
			return fmt.Errorf("the policy does not work yet: %w", err)
		}
		return nil
	})
	return allow
}

// Somebody removes the finalizer by force, and the first try to take the mark back is refused.
func TestMarksAreTakenBackWithoutTheFinalizer(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"it is gone": false, "another one has its name": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takenBackWithoutTheFinalizer(t, again)
		})
	}
}

func takenBackWithoutTheFinalizer(t *testing.T, again bool) {
	f := startPolicyTest(t)
	delivered := deliveries(t, f.Proxy)
	f.policy("example", specOf("label"))
	f.pod("a", withoutProbes)
	p := f.expect("example", counted(1, 0), done)
	f.Eventually(time.Minute, func(context.Context) error { return delivered(p.ResourceVersion) })
	held := f.Inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "healthcheckpolicies"}, Fault: faultproxy.Hold})
	f.change("example", `{"metadata":{"finalizers":null}}`)
	f.remove("example")
	f.Struck(held, 1)
	if again {
		f.policy("example", specOf("annotate", selecting("no=such")))
	}
	f.Inject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Answer, Code: 422})
	held.Remove()
	f.expectMarks(map[string]string{})
}

// Whoever deletes a namespace does not have to know about controllers.
func TestNamespaceCanBeDeleted(t *testing.T) {
	t.Parallel()
	f := startPolicyTest(t)
	for i := range 5 {
		f.pod(fmt.Sprintf("bad-%d", i), withoutProbes)
	}
	f.policy("label", specOf("label"))
	f.policy("note", specOf("annotate", withKey("note")))
	f.policy("kills", specOf("kill"))
	f.expect("label", counted(5, 0), done)
	f.expect("note", counted(5, 0), done)
	fatal.If(t, f.Client.CoreV1().Namespaces().Delete(f.Context(), f.Namespace, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}))
	f.Eventually(namespaceGoes, func(ctx context.Context) error {
		ns, err := f.Client.CoreV1().Namespaces().Get(ctx, f.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the namespace is still there: %s (%w)", asJSON(ns.Status), err)
	})
	f.Stop()
	if log := f.Process.Stderr(); strings.Contains(log, "panic") || strings.Contains(log, "Server rejected event") {
		t.Errorf("the log:\n%s", log)
	}
}

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/faultproxy"
)

func TestLabelMarksThePodsThatLackAProbe(t *testing.T) {
	t.Parallel()
	w := openWard(t)
	always := corev1.ContainerRestartPolicyAlways
	w.pod("good", []string{"web: liveness, readiness"})
	w.pod("more", []string{"web: liveness, readiness, startup", "log: readiness, liveness"})
	w.pod("none", []string{"web"})
	w.pod("one", []string{"web: readiness"})
	w.pod("second", []string{"web: liveness, readiness", "log: liveness"})
	w.pod("init", healthy, func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "workshop/pause:1"}, {Name: "sidecar", Image: "workshop/pause:1", RestartPolicy: &always}}
	})
	w.pod("other", ill, labelled("app", "db"))
	policy := w.policy("example", specOf("label", selecting("app=web")))
	w.start()

	w.expect("example", counted(3, 3), done)
	w.expectMarks(map[string]string{"none": "true", "one": "true", "second": "true"})

	// The API server has recorded who put the label there, and nothing else.
	p, err := w.pods.Get(w.Context(), "none", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
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
	writes := w.writes()
	if len(writes) != 5 || writes[0] != "200 patch healthcheckpolicies/example" || writes[4] != "200 update healthcheckpolicies/status/example" {
		t.Errorf("writes, want the finalizer, three marks and the status:\n%s", strings.Join(writes, "\n"))
	}
	w.removed("example")
	w.expectMarks(map[string]string{})
	if n := len(w.writes()); n != 5+4 {
		t.Errorf("writes, want four more for three marks and the finalizer:\n%s", strings.Join(w.writes(), "\n"))
	}
}

func TestAnnotateSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	w := begin(t)
	many := make([]string, 60)
	for i := range many {
		many[i] = fmt.Sprintf("container-%02d", i)
	}
	w.pod("web", []string{"web: startup", "log: readiness, liveness"})
	w.pod("order", []string{"z", "a: liveness"})
	w.pod("many", many)
	w.policy("example", specOf("annotate", requiring("startup", "readiness", "liveness")))
	w.expect("example", counted(3, 0), done)
	found, err := w.marked(w.Context(), "lacks")
	if err != nil {
		t.Fatal(err)
	}
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
	before := len(w.writes())
	w.change("example", `{"spec":{"requiredProbes":["startup"]}}`)
	w.expect("example", counted(3, 0), done)
	if found, err = w.marked(w.Context(), "lacks"); err != nil || found["web"] != "annotation log: startup" || found["order"] != "annotation z: startup; a: startup" {
		t.Errorf("annotations: %v (%v)", found, err)
	}
	if n := len(w.writes()) - before; n != 4 {
		t.Errorf("%d writes, want three marks and the status:\n%s", n, strings.Join(w.writes()[before:], "\n"))
	}
}

func TestMarksAreTakenBack(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.policy("example", specOf("label", selecting("app=web")))
	w.pod("a", ill)
	w.pod("b", []string{"web: liveness"})
	w.expectMarks(map[string]string{"a": "true", "b": "true"})

	w.edit("a", `{"metadata":{"labels":{"app":"db"}}}`) // no longer selected
	w.expectMarks(map[string]string{"b": "true"})
	w.expect("example", counted(1, 0), done)
	w.edit("a", `{"metadata":{"labels":{"app":"web"}}}`)
	w.expectMarks(map[string]string{"a": "true", "b": "true"})
	w.change("example", `{"spec":{"requiredProbes":["liveness"]}}`) // b passes
	w.expectMarks(map[string]string{"a": "true"})
	w.expect("example", counted(1, 1), done)

	before := len(w.writes())
	w.change("example", `{"spec":{"action":"annotate"}}`)
	w.expectMarks(map[string]string{"a": "annotation web: liveness"})
	w.expect("example", counted(1, 1), done)
	if n := len(w.writes()) - before; n != 2 {
		t.Errorf("%d writes for the new action, want one for the pod and one for the status:\n%s", n, strings.Join(w.writes()[before:], "\n"))
	}
	w.change("example", `{"spec":{"action":"kill"}}`)
	w.expectMarks(map[string]string{})
	w.expect("example", counted(1, 1), hindered("NotEvictable", "NotEvictable: 1 pod"))
	w.change("example", `{"spec":{"action":"label"}}`)
	w.expectMarks(map[string]string{"a": "true"})
	w.change("example", `{"spec":{"selector":{"matchLabels":{"app":"nobody"}}}}`)
	w.expectMarks(map[string]string{})
	w.expect("example", counted(0, 0), done)
	w.removed("example")
}

func TestPodsThatDoNotCount(t *testing.T) {
	t.Parallel()
	w := openWard(t)
	w.pod("lives", ill)
	w.pod("succeeded", ill)
	w.pod("failed", ill)
	w.pod("deleted", ill, w.held())
	w.phase("succeeded", corev1.PodSucceeded)
	w.phase("failed", corev1.PodFailed)
	if err := w.pods.Delete(w.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.policy("example", specOf("label"))
	w.start()
	w.expect("example", counted(1, 0), done)
	w.expectMarks(map[string]string{"lives": "true"})

	// A marked pod that is being deleted is left alone, and holds nothing up.
	w.pod("going", ill, w.held())
	w.expect("example", counted(2, 0), done)
	if err := w.pods.Delete(w.Context(), "going", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.expect("example", counted(1, 0), done)
	w.removed("example")
	w.expectMarks(map[string]string{"going": "true"})
}

func TestFinishedPodsKeepTheirMarkUntilThePolicyChanges(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.policy("example", specOf("label", selecting("app=web")))
	w.pod("a", ill)
	w.pod("b", ill)
	w.expect("example", counted(2, 0), done)
	w.phase("a", corev1.PodSucceeded)
	w.expect("example", counted(1, 0), done)
	w.edit("a", `{"metadata":{"labels":{"app":"db"}}}`)
	w.pod("c", ill) // something that the controller surely sees after the change of a
	w.expect("example", counted(2, 0), done)
	w.expectMarks(map[string]string{"a": "true", "b": "true", "c": "true"})
	w.restart()
	w.pod("d", ill)
	w.expect("example", counted(3, 0), done)
	w.expectMarks(map[string]string{"a": "true", "b": "true", "c": "true", "d": "true"})

	// The policy changes: the finished pod loses the mark before the status says that the change was seen.
	before := len(w.writes())
	w.change("example", `{"spec":{"requiredProbes":["liveness"]}}`)
	w.expect("example", counted(3, 0), done)
	if diff := cmp.Diff([]string{"200 patch pods/a", "200 update healthcheckpolicies/status/example"}, w.writes()[before:]); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	w.expectMarks(map[string]string{"b": "true", "c": "true", "d": "true"})

	// And when the policy goes.
	w.phase("b", corev1.PodFailed)
	w.expect("example", counted(2, 0), done)
	w.removed("example")
	w.expectMarks(map[string]string{})
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
			patient("free", ill), patient("same", ill, labelled("lacks", "true")), patient("taken", ill, labelled("lacks", "patience")),
		}, map[string]string{"free": "true", "same": "true", "taken": "patience"}, map[string]string{"same": "true", "taken": "patience"}},
		{"annotate", []*corev1.Pod{
			patient("free", ill), patient("same", ill, annotated("lacks", "web: liveness, readiness")), patient("taken", ill, annotated("lacks", "patience")),
		}, map[string]string{"free": "annotation web: liveness, readiness", "same": "annotation web: liveness, readiness", "taken": "annotation patience"},
			map[string]string{"same": "annotation web: liveness, readiness", "taken": "annotation patience"}},
	} {
		t.Run(string(c.action), func(t *testing.T) {
			t.Parallel()
			w := begin(t)
			for _, p := range c.pods {
				if _, err := w.pods.Create(w.Context(), p, metav1.CreateOptions{FieldManager: "user"}); err != nil {
					t.Fatal(err)
				}
			}
			w.policy("example", specOf(c.action))
			w.expect("example", counted(3, 0), hindered("KeyConflict", "KeyConflict: 1 pod"))
			w.expectMarks(c.after)
			// When the user gives the key up, the policy tries again.
			w.edit("taken", `{"metadata":{"labels":{"lacks":null},"annotations":{"lacks":null}}}`)
			w.expect("example", counted(3, 0), done)
			// When the user takes it over, the policy loses it.
			w.edit("taken", `{"metadata":{"labels":{"lacks":"patience"},"annotations":{"lacks":"patience"}}}`)
			w.expect("example", counted(3, 0), hindered("KeyConflict", "KeyConflict: 1 pod"))
			w.edit("taken", `{"metadata":{"`+map[bool]string{true: "annotations", false: "labels"}[c.action == "label"]+`":{"lacks":null}}}`)
			w.removed("example")
			w.expectMarks(c.kept)
		})
	}
}

// Nothing that a user put under the policy's key is lost, even if the policy is
// as careless as this one.
func TestPodLabelApp(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.pod("a", ill)
	w.policy("careless", specOf("label", withKey("app")))
	w.expect("careless", counted(1, 0), hindered("KeyConflict", "KeyConflict: 1 pod"))
	w.removed("careless")
	if p, err := w.pods.Get(w.Context(), "a", metav1.GetOptions{}); err != nil || p.Labels["app"] != "web" {
		t.Errorf("labels %v (%v)", p.Labels, err)
	}
}

func TestTwoPoliciesShareAKey(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.pod("a", ill)
	w.policy("first", specOf("annotate"))
	w.policy("second", specOf("annotate"))
	w.expect("first", counted(1, 0), done)
	w.expect("second", counted(1, 0), done)
	w.expectMarks(map[string]string{"a": "annotation web: liveness, readiness"})

	// One alone changes its mind: the other's claim is respected.
	w.change("first", `{"spec":{"requiredProbes":["startup"]}}`)
	w.expect("first", counted(1, 0), hindered("KeyConflict", "KeyConflict: 1 pod"))
	w.expectMarks(map[string]string{"a": "annotation web: liveness, readiness"})
	// Both want the same again: they converge.
	w.change("second", `{"spec":{"requiredProbes":["startup"]}}`)
	w.expect("second", counted(1, 0), done)
	w.expect("first", counted(1, 0), done)
	w.expectMarks(map[string]string{"a": "annotation web: startup"})
	// The value stays as long as one of them wants it.
	w.removed("first")
	w.expectMarks(map[string]string{"a": "annotation web: startup"})
	w.removed("second")
	w.expectMarks(map[string]string{})
}

func TestInvalidSelector(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.pod("a", ill)
	w.policy("never", specOf("label", withKey("never"), selecting("not a label=x")))
	w.policy("example", specOf("label"))
	invalid := func(p *v1alpha1.HealthCheckPolicy) error {
		if p.Status.Statistics != nil {
			return fmt.Errorf("there are statistics")
		}
		if err := hasCondition(p, "Compliant", metav1.ConditionUnknown, "InvalidSelector"); err != nil {
			return err
		}
		return hasCondition(p, "Enforced", metav1.ConditionFalse, "InvalidSelector")
	}
	w.expect("never", invalid)
	w.expect("example", counted(1, 0), done)
	w.change("example", `{"spec":{"selector":{"matchLabels":{"not a label":"x"}},"action":"annotate"}}`)
	w.expect("example", invalid)
	w.pod("b", ill)
	w.expectMarks(map[string]string{"a": "true"}) // marks stay as they are
	w.change("example", `{"spec":{"selector":{"matchLabels":null}}}`)
	w.expect("example", counted(2, 0), done)
	w.expectMarks(map[string]string{"a": "annotation web: liveness, readiness", "b": "annotation web: liveness, readiness"})
	w.change("example", `{"spec":{"selector":{"matchLabels":{"not a label":"x"}}}}`)
	w.expect("example", invalid)
	w.removed("example") // being deleted, it takes its marks back all the same
	w.expectMarks(map[string]string{})
	w.removed("never")
}

func TestSelectorMayNotNameTheMark(t *testing.T) {
	t.Parallel()
	w := openWard(t)
	_, err := w.policies.Create(w.Context(), &v1alpha1.HealthCheckPolicy{ObjectMeta: metav1.ObjectMeta{Name: "example"}, Spec: specOf("label", selecting("lacks=true"))}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("a policy that selects by its own mark was not refused: %v", err)
	}
}

func TestFinalizerIsOnlyForMarks(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.pod("good", healthy)
	w.pod("bad", ill, labelled("app", "db"), w.controlled())
	w.policy("passes", specOf("label", selecting("app=web")))
	w.policy("kills", v1alpha1.HealthCheckPolicySpec{Action: "kill", Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}})
	w.expect("kills", counted(0, 0), done)
	for _, name := range []string{"passes", "kills"} {
		if p := w.expect(name, done); len(p.Finalizers) > 0 {
			t.Errorf("%s has finalizers %v, though it has never marked a pod", name, p.Finalizers)
		}
	}
	w.edit("good", `{"metadata":{"labels":{"x":"y"}}}`)
	w.pod("new", ill)
	if p := w.expect("passes", counted(1, 1), done); !slices.Equal(p.Finalizers, []string{"policy.k8s-go.openshift.org/take-back"}) {
		t.Errorf("finalizers %v", p.Finalizers)
	}
	// Somebody removes it by force: it comes back, because pods carry the mark.
	w.change("passes", `{"metadata":{"finalizers":null}}`)
	w.Eventually(time.Minute, func(ctx context.Context) error {
		p, err := w.policies.Get(ctx, "passes", metav1.GetOptions{})
		if err == nil && len(p.Finalizers) != 1 {
			err = fmt.Errorf("finalizers %v", p.Finalizers)
		}
		return err
	})
	// A finalizer of somebody else stays, and the mark is gone before the policy is.
	w.change("passes", `{"metadata":{"finalizers":["policy.k8s-go.openshift.org/take-back","example.com/wait"]}}`)
	w.remove("passes")
	w.Eventually(time.Minute, func(ctx context.Context) error {
		p, err := w.policies.Get(ctx, "passes", metav1.GetOptions{})
		if err == nil && !slices.Equal(p.Finalizers, []string{"example.com/wait"}) {
			err = fmt.Errorf("finalizers %v", p.Finalizers)
		}
		return err
	})
	w.expectMarks(map[string]string{})
	w.change("passes", `{"metadata":{"finalizers":null}}`)
}

// Whoever deletes a namespace does not have to know about controllers.
// What keeps a deleted policy from going is in its status.
func TestMarksThatMayNotBeTakenBack(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.pod("a", ill)
	w.policy("example", specOf("label"))
	w.expect("example", counted(1, 0), done)
	i := w.inject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Answer, Code: 403, Times: -1})
	w.remove("example")
	w.Eventually(time.Minute, func(ctx context.Context) error {
		p, err := w.policies.Get(ctx, "example", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return hindered("Forbidden", "Forbidden: 1 pod. The server says: injected by faultproxy")(p)
	})
	w.expectMarks(map[string]string{"a": "true"})
	i.Remove()
	w.Eventually(time.Minute, func(ctx context.Context) error { return w.isGone(ctx, "example") })
	w.expectMarks(map[string]string{})
}

// Somebody removes the finalizer by force, and the first try to take the mark back is refused.
func TestMarksAreTakenBackWithoutTheFinalizer(t *testing.T) {
	t.Parallel()
	w := begin(t)
	delivered := deliveries(t, w.proxy)
	w.policy("example", specOf("label"))
	w.pod("a", ill)
	p := w.expect("example", counted(1, 0), done)
	w.Eventually(time.Minute, func(context.Context) error { return delivered(p.ResourceVersion) })
	held := w.inject(faultproxy.Rule{Match: faultproxy.Match{Verb: "watch*", Resource: "healthcheckpolicies"}, Fault: faultproxy.Hold})
	w.change("example", `{"metadata":{"finalizers":null}}`)
	w.remove("example")
	w.struck(held, 1)
	w.inject(faultproxy.Rule{Match: markWrites, Fault: faultproxy.Answer, Code: 422})
	held.Remove()
	w.expectMarks(map[string]string{})
}

func TestNamespaceCanBeDeleted(t *testing.T) {
	t.Parallel()
	w := begin(t)
	for i := range 5 {
		w.pod(fmt.Sprintf("bad-%d", i), ill)
	}
	w.policy("label", specOf("label"))
	w.policy("note", specOf("annotate", withKey("note")))
	w.policy("kills", specOf("kill"))
	w.expect("label", counted(5, 0), done)
	w.expect("note", counted(5, 0), done)
	if err := w.Client.CoreV1().Namespaces().Delete(w.Context(), w.Namespace, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
		t.Fatal(err)
	}
	w.Eventually(namespaceGoes, func(ctx context.Context) error {
		ns, err := w.Client.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the namespace is still there: %s (%w)", asJSON(ns.Status), err)
	})
	w.stop()
	if log := w.running.Stderr(); strings.Contains(log, "panic") || strings.Contains(log, "Server rejected event") {
		t.Errorf("the log:\n%s", log)
	}
}

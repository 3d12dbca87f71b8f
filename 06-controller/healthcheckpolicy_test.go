package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	typedpolicy "github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned/typed/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/controllertest"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A policyTest is a namespace with a healthcheckpolicy controller in it.
//
// Its pods have a scheduling gate, so no kubelet changes their status: a test
// says itself whether a pod runs, is ready or has ended.
type policyTest struct {
	*controllertest.Controller
	policies typedpolicy.HealthCheckPolicyInterface
	pods     typedcorev1.PodInterface
}

// newPolicyTest prepares a controller that does not run yet.
func newPolicyTest(t *testing.T) *policyTest {
	t.Helper()
	e := testenv.New(t)
	return policyTestOf(t, e, e.Program(policyProgram))
}

// policyTestOf prepares another program than the controller of the lesson.
func policyTestOf(t testing.TB, e *testenv.Env, program string) *policyTest {
	t.Helper()
	crdtest.Share(t, e, policies)
	client, err := versioned.NewForConfig(e.Config)
	fatal.If(t, err)
	f := &policyTest{controllertest.New(t, e, program), client.PolicyV1alpha1().HealthCheckPolicies(e.Namespace), e.Client.CoreV1().Pods(e.Namespace)}
	e.FreeAtEnd(v1alpha1.HealthCheckPolicyResource)
	return f
}

// startPolicyTest starts the controller with further arguments.
func startPolicyTest(t *testing.T, args ...string) *policyTest {
	t.Helper()
	f := newPolicyTest(t)
	f.Start(args...)
	return f
}

// specOf makes a spec from "label", "annotate" or "kill", and what differs from the default.
func specOf(action v1alpha1.Action, changes ...func(*v1alpha1.HealthCheckPolicySpec)) v1alpha1.HealthCheckPolicySpec {
	spec := v1alpha1.HealthCheckPolicySpec{Action: action, PodLabel: "lacks", RequiredProbes: []v1alpha1.Probe{"liveness", "readiness"}}
	for _, change := range changes {
		change(&spec)
	}
	return spec
}

func selecting(pairs ...string) func(*v1alpha1.HealthCheckPolicySpec) {
	return func(spec *v1alpha1.HealthCheckPolicySpec) {
		spec.Selector.MatchLabels = map[string]string{}
		for _, pair := range pairs {
			key, value, _ := strings.Cut(pair, "=")
			spec.Selector.MatchLabels[key] = value
		}
	}
}

func requiring(probes ...v1alpha1.Probe) func(*v1alpha1.HealthCheckPolicySpec) {
	return func(spec *v1alpha1.HealthCheckPolicySpec) { spec.RequiredProbes = probes }
}

func every(seconds int32) func(*v1alpha1.HealthCheckPolicySpec) {
	return func(spec *v1alpha1.HealthCheckPolicySpec) { spec.Eviction.MinIntervalSeconds = seconds }
}

func withKey(key string) func(*v1alpha1.HealthCheckPolicySpec) {
	return func(spec *v1alpha1.HealthCheckPolicySpec) { spec.PodLabel = key }
}

func (f *policyTest) policy(name string, spec v1alpha1.HealthCheckPolicySpec) *v1alpha1.HealthCheckPolicy {
	f.T.Helper()
	p, err := f.policies.Create(f.Context(), &v1alpha1.HealthCheckPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	fatal.If(f.T, err)
	return p
}

// change changes a policy as kubectl patch --type merge does.
func (f *policyTest) change(name, patch string) *v1alpha1.HealthCheckPolicy {
	f.T.Helper()
	p, err := f.policies.Patch(f.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	fatal.If(f.T, err)
	return p
}

func (f *policyTest) remove(name string) {
	f.T.Helper()
	fatal.If(f.T, f.policies.Delete(f.Context(), name, metav1.DeleteOptions{}))
}

// removed removes a policy, and waits until it is gone.
func (f *policyTest) removed(name string) {
	f.T.Helper()
	f.remove(name)
	f.Eventually(time.Minute, func(ctx context.Context) error { return f.isGone(ctx, name) })
}

func (f *policyTest) isGone(ctx context.Context, name string) error {
	p, err := f.policies.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("policy %s is still there: finalizers %v, status %s", name, p.Finalizers, asJSON(p.Status))
}

// newPod makes a pod of containers such as "web: liveness, startup".
func newPod(name string, containers []string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "workshop.k8s-go.dev/test"}}}}
	probe := func(declares, name string) *corev1.Probe {
		if !strings.Contains(declares, name) {
			return nil
		}
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	}
	for _, text := range containers {
		name, declares, _ := strings.Cut(text, ":")
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: "workshop/pause:1",
			LivenessProbe: probe(declares, "liveness"), ReadinessProbe: probe(declares, "readiness"), StartupProbe: probe(declares, "startup")})
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

var (
	withProbes    = []string{"web: liveness, readiness"}
	withoutProbes = []string{"web"}
)

func (f *policyTest) pod(name string, containers []string, changes ...func(*corev1.Pod)) *corev1.Pod {
	f.T.Helper()
	p, err := f.pods.Create(f.Context(), newPod(name, containers, changes...), metav1.CreateOptions{FieldManager: "user"})
	fatal.If(f.T, err)
	return p
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
}

// controlled gives pods a controller: a ConfigMap, which replaces nothing, but
// keeps the garbage collector away.
func (f *policyTest) controlled() func(*corev1.Pod) {
	f.T.Helper()
	owner, err := f.Client.CoreV1().ConfigMaps(f.Namespace).Create(f.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "owner-"}}, metav1.CreateOptions{})
	fatal.If(f.T, err)
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: ptr.To(true)}}
	}
}

// edit changes a pod as a user does.
func (f *policyTest) edit(name, patch string) {
	f.T.Helper()
	if _, err := f.pods.Patch(f.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "user"}); err != nil {
		f.T.Fatal(err)
	}
}

// phase says how a pod fares, as a kubelet does.
func (f *policyTest) phase(name string, phase corev1.PodPhase) {
	f.T.Helper()
	ready := corev1.ConditionFalse
	if phase == corev1.PodRunning {
		ready = corev1.ConditionTrue
	}
	patch := fmt.Sprintf(`{"status":{"phase":%q,"conditions":[{"type":"Ready","status":%q}]}}`, phase, ready)
	if _, err := f.pods.Patch(f.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		f.T.Fatal(err)
	}
}

// deletePod deletes a pod and waits until it is gone.
func (f *policyTest) deletePod(name string) {
	f.T.Helper()
	fatal.If(f.T, f.pods.Delete(f.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}))
	f.Eventually(time.Minute, func(ctx context.Context) error {
		if _, err := f.pods.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod %s is still there (%v)", name, err)
		}
		return nil
	})
}

// held keeps a pod that is being deleted, until the test ends.
func (f *policyTest) held() func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Finalizers = []string{"workshop.k8s-go.dev/test"}
		f.AtEnd(func(ctx context.Context) error {
			_, err := f.pods.Patch(ctx, p.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			return err
		})
	}
}

// marked returns what the pods have under a key, as label or annotation.
func (f *policyTest) marked(ctx context.Context, key string) (map[string]string, error) {
	list, err := f.pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, p := range list.Items {
		if v, ok := p.Labels[key]; ok {
			found[p.Name] = v
		}
		if v, ok := p.Annotations[key]; ok {
			found[p.Name] = "annotation " + v
		}
	}
	return found, nil
}

// expectMarks waits until exactly these pods carry the key "lacks", with these values.
func (f *policyTest) expectMarks(want map[string]string) {
	f.T.Helper()
	f.Eventually(time.Minute, func(ctx context.Context) error { return f.hasMarks(ctx, want) })
}

func (f *policyTest) hasMarks(ctx context.Context, want map[string]string) error {
	found, err := f.marked(ctx, "lacks")
	if err != nil {
		return err
	}
	if !maps.Equal(found, want) {
		return fmt.Errorf("marks %v, want %v", found, want)
	}
	return nil
}

// expect waits until a policy's status is about its present generation and is as it should be.
func (f *policyTest) expect(name string, checks ...func(*v1alpha1.HealthCheckPolicy) error) *v1alpha1.HealthCheckPolicy {
	f.T.Helper()
	var p *v1alpha1.HealthCheckPolicy
	f.Eventually(time.Minute, func(ctx context.Context) (err error) {
		if p, err = f.policies.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if p.Status.ObservedGeneration != p.Generation {
			return fmt.Errorf("policy %s: generation %d, observed %d: %s", name, p.Generation, p.Status.ObservedGeneration, asJSON(p.Status))
		}
		for _, check := range checks {
			if err := check(p); err != nil {
				return fmt.Errorf("policy %s: %w in %s", name, err, asJSON(p.Status))
			}
		}
		return nil
	})
	return p
}

// counted expects numbers of pods.
func counted(failed, passed int32) func(*v1alpha1.HealthCheckPolicy) error {
	return func(p *v1alpha1.HealthCheckPolicy) error {
		want := &v1alpha1.Statistics{Pods: v1alpha1.PodStatistics{Failed: failed, Passed: passed}}
		if s := p.Status.Statistics; s == nil || *s != *want {
			return fmt.Errorf("want %d failed, %d passed", failed, passed)
		}
		reason, status := "AllPassed", metav1.ConditionTrue
		if failed > 0 {
			reason, status = "ProbesMissing", metav1.ConditionFalse
		}
		return hasCondition(p, "Compliant", status, reason)
	}
}

// done expects that the action was carried out.
func done(p *v1alpha1.HealthCheckPolicy) error {
	return hasCondition(p, "Enforced", metav1.ConditionTrue, "Done")
}

// hindered expects that it was not, and what the message begins with.
func hindered(reason, message string) func(*v1alpha1.HealthCheckPolicy) error {
	return func(p *v1alpha1.HealthCheckPolicy) error {
		if err := hasCondition(p, "Enforced", metav1.ConditionFalse, reason); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(p.Status.Conditions, "Enforced"); !strings.HasPrefix(c.Message, message) {
			return fmt.Errorf("the message %q does not begin with %q", c.Message, message)
		}
		return nil
	}
}

func hasCondition(p *v1alpha1.HealthCheckPolicy, kind string, status metav1.ConditionStatus, reason string) error {
	c := meta.FindStatusCondition(p.Status.Conditions, kind)
	if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != p.Generation {
		return fmt.Errorf("want %s %s/%s", kind, status, reason)
	}
	return nil
}

// resyncs waits until the controller has looked at so many policies because of a
// resync, and has nothing left to do. It must have been started with -resync.
func (f *policyTest) resyncs(policies int) {
	f.T.Helper()
	const added = `workqueue_adds_total{name="healthcheckpolicy"}`
	first, err := f.Metric(added)
	fatal.If(f.T, err)
	f.Eventually(time.Minute, func(context.Context) error {
		now, err := f.Metric(added)
		if err != nil {
			return err
		}
		busy, err := f.Metric(`workqueue_unfinished_work_seconds{name="healthcheckpolicy"}`)
		if err != nil {
			return err
		}
		if now < first+float64(policies) || busy > 0 {
			return fmt.Errorf("%g keys added, want %d more than %g; unfinished: %g", now, policies, first, busy)
		}
		return nil
	})
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

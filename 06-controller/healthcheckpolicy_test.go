package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/faultproxy"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A ward is a namespace with a healthcheckpolicy controller in it. The
// controller reaches the cluster through the proxy, the test does not.
//
// Its pods have a scheduling gate, so no kubelet changes their status: a test
// says itself whether a pod runs, is ready or has ended.
type ward struct {
	*testenv.Env
	t        testing.TB
	proxy    *testenv.Proxy
	policies typedpolicy.HealthCheckPolicyInterface
	pods     typedcorev1.PodInterface
	command  testenv.Command
	running  *testenv.Process
	address  string        // of health and metrics
	revives  bool          // Eventually starts a controller that has been killed again
	patience time.Duration // of the scenarios of TestGuards
}

// Eventually polls as Env.Eventually does.
func (w *ward) Eventually(timeout time.Duration, f func(context.Context) error) {
	w.t.Helper()
	w.Env.Eventually(timeout, func(ctx context.Context) error {
		if w.revives && w.running.Ended() {
			w.running = w.Start(w.command)
		}
		return f(ctx)
	})
}

// openWard makes a ward with a controller that does not run yet.
func openWard(t *testing.T) *ward {
	t.Helper()
	e := testenv.New(t)
	return newWard(t, e, e.Program("./06-controller/healthcheckpolicy"))
}

func newWard(t testing.TB, e *testenv.Env, program string) *ward {
	t.Helper()
	crdtest.Share(t, e, policies)
	client, err := versioned.NewForConfig(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	w := &ward{Env: e, t: t, proxy: e.Proxy(), policies: client.PolicyV1alpha1().HealthCheckPolicies(e.Namespace), pods: e.Client.CoreV1().Pods(e.Namespace)}
	t.Cleanup(w.release)
	w.command = testenv.Command{Path: program, Timeout: 3 * time.Minute,
		Args: []string{"-kubeconfig", w.proxy.Kubeconfig, "-namespace", e.Namespace}}
	return w
}

// release removes the finalizers of the policies that a test has left, because
// their controller has ended.
func (w *ward) release() {
	ctx := context.WithoutCancel(w.Context())
	list, err := w.policies.List(ctx, metav1.ListOptions{})
	if err != nil {
		w.t.Errorf("looking for policies that are left: %v", err)
		return
	}
	for _, p := range list.Items {
		_, err := w.policies.Patch(ctx, p.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			w.t.Errorf("removing the finalizers of policy %s: %v", p.Name, err)
		}
	}
}

// begin makes a ward, and starts its controller with further arguments.
func begin(t *testing.T, args ...string) *ward {
	t.Helper()
	w := openWard(t)
	w.command.Args = append(w.command.Args, args...)
	w.start()
	return w
}

var serving = regexp.MustCompile(`"Listening" address="([^"]+)"`)

// start starts the controller, and waits until it is ready.
func (w *ward) start() {
	w.t.Helper()
	w.launch()
	w.Eventually(time.Minute, func(context.Context) error {
		code, body := w.get("/readyz")
		if code != http.StatusOK {
			return fmt.Errorf("/readyz: %d %s", code, body)
		}
		return nil
	})
}

// launch starts the controller, and waits until it has logged its address.
func (w *ward) launch() {
	w.t.Helper()
	w.running = w.Start(w.command)
	w.Eventually(time.Minute, func(context.Context) error {
		found := serving.FindStringSubmatch(w.running.Stderr())
		if found == nil {
			return fmt.Errorf("no address in the log:\n%s", w.running.Stderr())
		}
		w.address = found[1]
		return nil
	})
}

// stop ends the controller as a cluster does, and expects a good end.
func (w *ward) stop() {
	w.t.Helper()
	w.signal(syscall.SIGTERM)
}

func (w *ward) signal(s syscall.Signal) {
	w.t.Helper()
	if err := w.running.Signal(s); err != nil {
		w.t.Fatal(err)
	}
	if r := w.running.Wait(); r.ExitCode != 0 {
		w.t.Errorf("exit code %d after %s\n%s", r.ExitCode, s, r.Stderr)
	}
}

// kill ends the controller as a crash does.
func (w *ward) kill() {
	w.running.Kill()
	w.running.Wait()
}

// restart ends the controller well, and starts another one.
func (w *ward) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

func (w *ward) get(path string) (code int, body string) { return get(w.address, path) }

// get asks a controller's own server. Without an answer the code is 0, and the body says why.
func get(address, path string) (code int, body string) {
	answer, err := http.Get("http://" + address + path)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
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

func (w *ward) policy(name string, spec v1alpha1.HealthCheckPolicySpec) *v1alpha1.HealthCheckPolicy {
	w.t.Helper()
	p, err := w.policies.Create(w.Context(), &v1alpha1.HealthCheckPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// change changes a policy as kubectl patch --type merge does.
func (w *ward) change(name, patch string) *v1alpha1.HealthCheckPolicy {
	w.t.Helper()
	p, err := w.policies.Patch(w.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *ward) remove(name string) {
	w.t.Helper()
	if err := w.policies.Delete(w.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// removed removes a policy, and waits until it is gone.
func (w *ward) removed(name string) {
	w.t.Helper()
	w.remove(name)
	w.Eventually(time.Minute, func(ctx context.Context) error { return w.isGone(ctx, name) })
}

func (w *ward) isGone(ctx context.Context, name string) error {
	p, err := w.policies.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("policy %s is still there: finalizers %v, status %s", name, p.Finalizers, asJSON(p.Status))
}

// patient makes a pod of containers such as "web: liveness, startup".
func patient(name string, containers []string, changes ...func(*corev1.Pod)) *corev1.Pod {
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
	healthy = []string{"web: liveness, readiness"}
	ill     = []string{"web"}
)

func (w *ward) pod(name string, containers []string, changes ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	p, err := w.pods.Create(w.Context(), patient(name, containers, changes...), metav1.CreateOptions{FieldManager: "user"})
	if err != nil {
		w.t.Fatal(err)
	}
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
func (w *ward) controlled() func(*corev1.Pod) {
	w.t.Helper()
	owner, err := w.Client.CoreV1().ConfigMaps(w.Namespace).Create(w.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "owner-"}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: ptr.To(true)}}
	}
}

// edit changes a pod as a user does.
func (w *ward) edit(name, patch string) {
	w.t.Helper()
	if _, err := w.pods.Patch(w.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "user"}); err != nil {
		w.t.Fatal(err)
	}
}

// phase says how a pod fares, as a kubelet does.
func (w *ward) phase(name string, phase corev1.PodPhase) {
	w.t.Helper()
	ready := corev1.ConditionFalse
	if phase == corev1.PodRunning {
		ready = corev1.ConditionTrue
	}
	patch := fmt.Sprintf(`{"status":{"phase":%q,"conditions":[{"type":"Ready","status":%q}]}}`, phase, ready)
	if _, err := w.pods.Patch(w.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		w.t.Fatal(err)
	}
}

// dismiss deletes a pod and waits until it is gone.
func (w *ward) dismiss(name string) {
	w.t.Helper()
	if err := w.pods.Delete(w.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
		w.t.Fatal(err)
	}
	w.Eventually(time.Minute, func(ctx context.Context) error {
		if _, err := w.pods.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod %s is still there (%v)", name, err)
		}
		return nil
	})
}

// held keeps a pod that is being deleted, until the test ends.
func (w *ward) held() func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Finalizers = []string{"workshop.k8s-go.dev/test"}
		w.t.Cleanup(func() {
			_, err := w.pods.Patch(context.WithoutCancel(w.Context()), p.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				w.t.Errorf("removing the finalizer of pod %s: %v", p.Name, err)
			}
		})
	}
}

// marked returns what the pods of the ward have under a key, as label or annotation.
func (w *ward) marked(ctx context.Context, key string) (map[string]string, error) {
	list, err := w.pods.List(ctx, metav1.ListOptions{})
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
func (w *ward) expectMarks(want map[string]string) {
	w.t.Helper()
	w.Eventually(time.Minute, func(ctx context.Context) error { return w.hasMarks(ctx, want) })
}

func (w *ward) hasMarks(ctx context.Context, want map[string]string) error {
	found, err := w.marked(ctx, "lacks")
	if err != nil {
		return err
	}
	if !maps.Equal(found, want) {
		return fmt.Errorf("marks %v, want %v", found, want)
	}
	return nil
}

// expect waits until a policy's status is about its present generation and is as it should be.
func (w *ward) expect(name string, checks ...func(*v1alpha1.HealthCheckPolicy) error) *v1alpha1.HealthCheckPolicy {
	w.t.Helper()
	var p *v1alpha1.HealthCheckPolicy
	w.Eventually(time.Minute, func(ctx context.Context) (err error) {
		if p, err = w.policies.Get(ctx, name, metav1.GetOptions{}); err != nil {
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

// writes are the controller's own writes so far, without Events. It waits for the answers.
func (w *ward) writes() []string {
	w.t.Helper()
	var lines []string
	w.Eventually(time.Minute, func(context.Context) error {
		lines = nil
		for _, r := range w.proxy.Requests(faultproxy.Writes) {
			if r.Resource == "events" {
				continue
			}
			if lines = append(lines, r.String()); r.Took == 0 {
				return fmt.Errorf("no answer yet: %s", r)
			}
		}
		return nil
	})
	return lines
}

// requests are those of the controller that match, without watches.
func (w *ward) requests(match faultproxy.Match) []faultproxy.Request {
	return slices.DeleteFunc(w.proxy.Requests(match), func(r faultproxy.Request) bool { return strings.HasPrefix(r.Verb, "watch") })
}

// metric returns a metric of the controller.
func (w *ward) metric(name string) (float64, error) {
	_, body := w.get("/metrics")
	for line := range strings.Lines(body) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(text), 64)
		}
	}
	return 0, fmt.Errorf("/metrics has no %s:\n%s", name, body)
}

// resyncs waits until the controller has looked at so many policies because of a
// resync, and has nothing left to do. It must have been started with -resync.
func (w *ward) resyncs(policies int) {
	w.t.Helper()
	const added = `workqueue_adds_total{name="healthcheckpolicy"}`
	first, err := w.metric(added)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Eventually(time.Minute, func(context.Context) error {
		now, err := w.metric(added)
		if err != nil {
			return err
		}
		busy, err := w.metric(`workqueue_unfinished_work_seconds{name="healthcheckpolicy"}`)
		if err != nil {
			return err
		}
		if now < first+float64(policies) || busy > 0 {
			return fmt.Errorf("%g keys added, want %d more than %g; unfinished: %g", now, policies, first, busy)
		}
		return nil
	})
}

// inject injects a fault that has to have struck when the test ends.
func (w *ward) inject(rule faultproxy.Rule) *faultproxy.Injection {
	w.t.Helper()
	i := w.proxy.MustInject(rule)
	w.t.Cleanup(func() {
		if i.Struck() == 0 && !w.t.Failed() {
			w.t.Errorf("the fault has never struck: %s of %+v", rule.Fault, rule.Match)
		}
	})
	return i
}

// struck waits until a fault has struck so many times.
func (w *ward) struck(i *faultproxy.Injection, times int) {
	w.t.Helper()
	w.Eventually(time.Minute, func(context.Context) error {
		if n := i.Struck(); n < times {
			return fmt.Errorf("the fault has struck %d times, want %d", n, times)
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

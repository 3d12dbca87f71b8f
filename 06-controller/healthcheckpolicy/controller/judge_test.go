package controller

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/internal/fatal"
)

// aPod makes a pod of containers such as "web: liveness, startup".
func aPod(containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "pod", ResourceVersion: "7"}}
	for _, text := range containers {
		name, declares, _ := strings.Cut(text, ":")
		c := corev1.Container{Name: name}
		if strings.Contains(declares, "liveness") {
			c.LivenessProbe = &corev1.Probe{}
		}
		if strings.Contains(declares, "readiness") {
			c.ReadinessProbe = &corev1.Probe{}
		}
		if strings.Contains(declares, "startup") {
			c.StartupProbe = &corev1.Probe{}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

func TestFails(t *testing.T) {
	both := required([]v1alpha1.Probe{v1alpha1.ProbeReadiness, v1alpha1.ProbeLiveness})
	for _, c := range []struct {
		pod  *corev1.Pod
		text string // empty: it passes
	}{
		{aPod("web: liveness, readiness"), ""},
		{aPod("web: liveness, readiness, startup", "log: readiness, liveness"), ""},
		{aPod("web"), "web: liveness, readiness"},
		{aPod("web: startup"), "web: liveness, readiness"},
		{aPod("web: readiness", "good: liveness, readiness", "log: liveness"), "web: liveness; log: readiness"},
	} {
		// Init containers do not count, not even one that goes on running.
		c.pod.Spec.InitContainers = []corev1.Container{{Name: "init"}, {Name: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		p := reduce(c.pod)
		if got := p.fails(both); got != (c.text != "") {
			t.Errorf("%v: fails %t, want %t", p.containers, got, c.text != "")
		}
		if got := markText(p, both); got != c.text {
			t.Errorf("%v: text %q, want %q", p.containers, got, c.text)
		}
	}
}

func TestMarkTextHasAnOrderAndALimit(t *testing.T) {
	all := required([]v1alpha1.Probe{v1alpha1.ProbeStartup, v1alpha1.ProbeReadiness, v1alpha1.ProbeLiveness})
	if got, want := markText(reduce(aPod("b", "a: liveness")), all), "b: liveness, readiness, startup; a: readiness, startup"; got != want {
		t.Errorf("text %q, want %q: containers as in the spec, probes in their own order", got, want)
	}
	startup := required([]v1alpha1.Probe{v1alpha1.ProbeStartup})
	// "c: startup; " is 12 bytes, the last one has no "; ".
	for n, want := range map[int]int{85: 85*12 - 2, 86: maxMarkBytes, 500: maxMarkBytes} {
		containers := make([]string, n)
		for i := range containers {
			containers[i] = "c"
		}
		text := markText(reduce(aPod(containers...)), startup)
		if len(text) != want || strings.HasSuffix(text, "...") != (want == maxMarkBytes) || !strings.HasPrefix(text, "c: startup; c: startup") {
			t.Errorf("%d containers: %d bytes, want %d: %s", n, len(text), want, text)
		}
	}
	exact := aPod(strings.Repeat("x", maxMarkBytes-len(": startup")))
	if text := markText(reduce(exact), startup); len(text) != maxMarkBytes || strings.HasSuffix(text, "...") {
		t.Errorf("a text of exactly %d bytes was cut: %d bytes", maxMarkBytes, len(text))
	}
}

func entryOf(manager, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(fields)}
}

func TestMarksAreReadFromManagedFields(t *testing.T) {
	p := aPod("web")
	updated := entryOf("healthcheckpolicy-update", `{"f:metadata":{"f:labels":{"f:x":{}}}}`)
	updated.Operation = metav1.ManagedFieldsOperationUpdate
	status := entryOf("healthcheckpolicy-status", `{"f:metadata":{"f:labels":{"f:x":{}}}}`)
	status.Subresource = "status"
	p.ManagedFields = []metav1.ManagedFieldsEntry{
		entryOf("kubectl", `{"f:metadata":{"f:labels":{"f:app":{}}}}`), updated, status,
		entryOf("healthcheckpolicy-a", `{"f:metadata":{"f:labels":{"f:missing":{}}}}`),
		entryOf("healthcheckpolicy-b", `{"f:metadata":{"f:annotations":{".":{},"f:example.com/probes":{}}}}`),
	}
	want := []mark{{policy: "a", labels: []string{"missing"}}, {policy: "b", annotations: []string{"example.com/probes"}}}
	if diff := cmp.Diff(want, reduce(p).marks, cmp.AllowUnexported(mark{})); diff != "" {
		t.Errorf("marks (-want +got):\n%s", diff)
	}
}

func TestCompare(t *testing.T) {
	label := wish{key: "k", value: "true"}
	note := wish{annotation: true, key: "k", value: "web: startup"}
	mineLabel, mineNote := &mark{policy: "me", labels: []string{"k"}}, &mark{policy: "me", annotations: []string{"k"}}
	for _, c := range []struct {
		name                string
		labels, annotations map[string]string
		mine                *mark
		wish                wish
		write, taken        bool
	}{
		{"nothing wished, nothing there", nil, nil, nil, wishNone, false, false},
		{"nothing wished, somebody else's key", map[string]string{"k": "true"}, nil, nil, wishNone, false, false},
		{"nothing wished, mine is there", map[string]string{"k": "true"}, nil, mineLabel, wishNone, true, false},
		{"wished, absent", nil, nil, nil, label, true, false},
		{"wished, there and mine", map[string]string{"k": "true"}, nil, mineLabel, label, false, false},
		{"wished, there with the same value, not mine: shared", map[string]string{"k": "true"}, nil, nil, label, true, false},
		{"wished, there with another value, not mine: taken", map[string]string{"k": "no"}, nil, nil, label, false, true},
		{"taken, and an old mark of mine is there", map[string]string{"k": "no"}, map[string]string{"k": "old"}, mineNote, label, true, true},
		{"annotation wished, a label of the same key does not matter", map[string]string{"k": "no"}, nil, nil, note, true, false},
		{"annotation there and mine", nil, map[string]string{"k": "web: startup"}, mineNote, note, false, false},
		{"annotation mine, with an old text", nil, map[string]string{"k": "web: liveness"}, mineNote, note, true, false},
		{"annotation somebody else's", nil, map[string]string{"k": "web: liveness"}, nil, note, false, true},
		{"the action has changed: one write for both", map[string]string{"k": "true"}, nil, mineLabel, note, true, false},
		{"both are mine, one too many", map[string]string{"k": "true"}, map[string]string{"k": "x"}, &mark{labels: []string{"k"}, annotations: []string{"k"}}, label, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := aPod("web")
			p.Labels, p.Annotations = c.labels, c.annotations
			write, taken := compare(reduce(p), c.mine, c.wish)
			if write != c.write || taken != c.taken {
				t.Errorf("write %t taken %t, want %t %t", write, taken, c.write, c.taken)
			}
		})
	}
}

func policyWith(selector metav1.LabelSelector) *v1alpha1.HealthCheckPolicy {
	return &v1alpha1.HealthCheckPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u", Generation: 1}, Spec: v1alpha1.HealthCheckPolicySpec{Selector: selector}}
}

func TestInvalidSelectorHasOneMessage(t *testing.T) {
	bad := policyWith(metav1.LabelSelector{MatchLabels: map[string]string{"a a": "1", "b b": "2", "c": "3 3", "d d": "4"}})
	seen := map[string]bool{}
	for range 50 { // maps have no order
		_, err := selectorOf(bad)
		if err == nil {
			t.Fatal("the selector is taken for valid")
		}
		seen[err.Error()] = true
	}
	if len(seen) != 1 {
		t.Errorf("the message varies: %v", seen)
	}
	for _, s := range []metav1.LabelSelector{
		{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "no label", Operator: metav1.LabelSelectorOpExists}}},
		{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{"not a value"}}}},
	} {
		if _, err := selectorOf(policyWith(s)); err == nil {
			t.Errorf("%v is taken for valid", s)
		}
	}
}

// Whatever a selector matches must be found through an anchor, or pods are overlooked.
func TestAnchorsMissNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	keys, values := []string{"a", "b", "c"}, []string{"1", "2", "3"}
	pick := func(from []string) string { return from[random.IntN(len(from))] }
	matched := 0
	for range 5000 {
		s := metav1.LabelSelector{MatchLabels: map[string]string{}}
		for range random.IntN(3) {
			s.MatchLabels[pick(keys)] = pick(values)
		}
		for range random.IntN(3) {
			r := metav1.LabelSelectorRequirement{Key: pick(keys), Operator: []metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}[random.IntN(4)]}
			if r.Operator == "In" || r.Operator == "NotIn" {
				r.Values = []string{pick(values), pick(values)}
			}
			s.MatchExpressions = append(s.MatchExpressions, r)
		}
		selector, err := metav1.LabelSelectorAsSelector(&s)
		fatal.If(t, err)
		p := aPod("web")
		p.Labels = map[string]string{}
		for range random.IntN(4) {
			p.Labels[pick(keys)] = pick(values)
		}
		found := false
		for _, a := range anchors("n", selector) {
			found = found || slices.Contains(podAnchors(reduce(p)), a)
		}
		matches := selector.Matches(labels.Set(p.Labels))
		if found && !matches && anchored(selector) {
			t.Fatalf("%s is said to match whatever has one of its anchors, but does not match %v", selector, p.Labels)
		}
		if !matches {
			continue
		}
		matched++
		if !found {
			t.Fatalf("%s matches %v, but no anchor of %v is one of %v", selector, p.Labels, anchors("n", selector), podAnchors(reduce(p)))
		}
	}
	if matched < 500 {
		t.Fatalf("only %d cases were about anything", matched)
	}
}

func TestAnchorsAreAsFewAsPossible(t *testing.T) {
	for _, c := range []struct {
		selector metav1.LabelSelector
		want     []string
	}{
		{metav1.LabelSelector{}, []string{"n"}},
		{metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, []string{"n app=web"}},
		{metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}, MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "aa", Operator: "In", Values: []string{"1", "2"}}}}, []string{"n app=web"}},
		{metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "NotIn", Values: []string{"web"}}}}, []string{"n"}},
		{metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "In", Values: []string{"web", "web"}}}}, []string{"n app=web"}},
	} {
		selector, err := metav1.LabelSelectorAsSelector(&c.selector)
		fatal.If(t, err)
		if diff := cmp.Diff(c.want, anchors("n", selector)); diff != "" {
			t.Errorf("anchors of %s (-want +got):\n%s", selector, diff)
		}
	}
}

func TestOnlyWhatMattersIsAChange(t *testing.T) {
	before := aPod("web")
	before.Labels, before.Annotations = map[string]string{"a": "1"}, map[string]string{"x": "1"}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		same   bool
	}{
		"resourceVersion": {func(p *corev1.Pod) { p.ResourceVersion = "8" }, true},
		"ready": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}}
		}, true},
		"running":     {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, true},
		"failed":      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"succeeded":   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"label":       {func(p *corev1.Pod) { p.Labels = map[string]string{"a": "2"} }, false},
		"annotation":  {func(p *corev1.Pod) { p.Annotations = map[string]string{"x": "2"} }, false},
		"deletion":    {func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }, false},
		"another pod": {func(p *corev1.Pod) { p.UID = types.UID("other") }, false},
		"mark": {func(p *corev1.Pod) {
			p.ManagedFields = []metav1.ManagedFieldsEntry{entryOf("healthcheckpolicy-a", `{"f:metadata":{"f:labels":{"f:a":{}}}}`)}
		}, false},
	} {
		after := before.DeepCopy()
		c.change(after)
		if got := reduce(before).same(reduce(after)); got != c.same {
			t.Errorf("%s: same %t, want %t", name, got, c.same)
		}
	}
}

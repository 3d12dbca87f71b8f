package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
)

func TestStampIsRoundedUp(t *testing.T) {
	for _, c := range []struct{ now, want time.Time }{
		{noon, noon},
		{noon.Add(time.Nanosecond), noon.Add(time.Second)},
		{noon.Add(999 * time.Millisecond), noon.Add(time.Second)},
	} {
		if got := stampOf(c.now); !got.Equal(c.want) {
			t.Errorf("%s: %s, want %s", c.now, got, c.want)
		}
	}
}

func killer(last time.Time, seconds int32) *v1alpha1.HealthCheckPolicy {
	policy := policyWith(metav1.LabelSelector{})
	policy.Spec.Action, policy.Spec.Eviction.MinIntervalSeconds = v1alpha1.ActionKill, seconds
	if !last.IsZero() {
		policy.Status.LastEvictionTime = &metav1.Time{Time: last}
	}
	return policy
}

func TestBrake(t *testing.T) {
	for _, c := range []struct {
		name string
		last time.Time
		want time.Duration
	}{
		{"never evicted", time.Time{}, 0},
		{"long ago", noon.Add(-time.Hour), 0},
		{"just now", noon, 30 * time.Second},
		{"rounded up to the next second", noon.Add(time.Second), 31 * time.Second},
		{"on its last second", noon.Add(-29 * time.Second), time.Second},
		{"over", noon.Add(-30 * time.Second), 0},
		{"in the future: as if it were now", noon.Add(time.Second + time.Nanosecond), 30 * time.Second},
		{"far in the future", noon.AddDate(10, 0, 0), 30 * time.Second},
	} {
		if got := (&memory{}).brake(killer(c.last, 30), noon); got != c.want {
			t.Errorf("%s: waits %s, want %s", c.name, got, c.want)
		}
	}
	if got := (&memory{}).brake(killer(noon, 0), noon); got != 10*time.Second {
		t.Errorf("without a minIntervalSeconds: waits %s, want 10s", got)
	}
}

// A clock that was set back delays the next eviction by one interval, and not by the whole jump.
func TestBrakeAfterTheClockWasSetBack(t *testing.T) {
	m, policy := &memory{}, killer(noon.Add(time.Hour), 30)
	for _, c := range []struct{ now, want time.Duration }{{0, 30 * time.Second}, {10 * time.Second, 20 * time.Second}, {30 * time.Second, 0}} {
		if got := m.brake(policy, noon.Add(c.now)); got != c.want {
			t.Errorf("after %s: waits %s, want %s", c.now, got, c.want)
		}
	}
	policy.Status.LastEvictionTime = &metav1.Time{Time: noon.Add(2 * time.Hour)}
	if got := m.brake(policy, noon.Add(31*time.Second)); got != 30*time.Second {
		t.Errorf("another time in the future: waits %s, want 30s from when it is first seen", got)
	}
}

// The interval begins when the eviction was carried out, if that was later than the status says.
func TestBrakeAfterASlowEviction(t *testing.T) {
	m := &memory{agreed: noon.Add(20 * time.Second)}
	policy := killer(noon, 30)
	if got := m.brake(policy, noon.Add(25*time.Second)); got != 25*time.Second {
		t.Errorf("waits %s, want 25s, so that there are 30s between the evictions", got)
	}
	if got := m.brake(policy, noon.Add(-time.Hour)); got != 30*time.Second {
		t.Errorf("the clock was set back: waits %s, want 30s", got)
	}
	if got := m.brake(policy, noon.Add(-time.Hour+30*time.Second)); got != 0 {
		t.Errorf("the clock was set back 30 s ago: waits %s", got)
	}
}

// The API server has said no, so no eviction has taken place at that time.
func TestBrakeDoesNotCountARefusedEviction(t *testing.T) {
	m := &memory{unused: noon}
	if got := m.brake(killer(noon, 30), noon); got != 0 {
		t.Errorf("waits %s", got)
	}
	if got := m.brake(killer(noon.Add(time.Second), 30), noon); got != 31*time.Second {
		t.Errorf("a later eviction was not refused: waits %s", got)
	}
	m.agreed = noon.Add(-10 * time.Second)
	if got := m.brake(killer(noon, 30), noon); got != 20*time.Second {
		t.Errorf("the one before was carried out 10 s ago: waits %s, want 20s", got)
	}
	if got := m.brake(killer(time.Time{}, 30), noon); got != 20*time.Second {
		t.Errorf("somebody has removed the time from the status: waits %s, want 20s", got)
	}
}

func TestKillsJudgesPolicyAndPodAsTheyAre(t *testing.T) {
	controlled := func(p *corev1.Pod) *corev1.Pod {
		p.OwnerReferences = []metav1.OwnerReference{{Controller: ptr.To(true), Name: "r", UID: "r"}}
		p.Labels = map[string]string{"app": "web"}
		return p
	}
	policy := killer(time.Time{}, 10)
	policy.Spec.Selector = metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	policy.Spec.RequiredProbes = []v1alpha1.Probe{v1alpha1.ProbeLiveness}
	if !kills(policy, reduce(controlled(aPod("web")))) {
		t.Fatal("the pod that lacks a probe is spared")
	}
	for name, change := range map[string]func(*v1alpha1.HealthCheckPolicy, *corev1.Pod){
		"the policy marks now":    func(h *v1alpha1.HealthCheckPolicy, _ *corev1.Pod) { h.Spec.Action = v1alpha1.ActionLabel },
		"the policy is deleted":   func(h *v1alpha1.HealthCheckPolicy, _ *corev1.Pod) { h.DeletionTimestamp = ptr.To(metav1.Now()) },
		"the selector is invalid": func(h *v1alpha1.HealthCheckPolicy, _ *corev1.Pod) { h.Spec.Selector.MatchLabels["a b"] = "" },
		"not selected any more":   func(_ *v1alpha1.HealthCheckPolicy, p *corev1.Pod) { p.Labels = nil },
		"it passes": func(_ *v1alpha1.HealthCheckPolicy, p *corev1.Pod) {
			p.Spec.Containers[0].LivenessProbe = &corev1.Probe{}
		},
		"it is being deleted":  func(_ *v1alpha1.HealthCheckPolicy, p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) },
		"it has ended":         func(_ *v1alpha1.HealthCheckPolicy, p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"it has no controller": func(_ *v1alpha1.HealthCheckPolicy, p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
		"it is a mirror pod": func(_ *v1alpha1.HealthCheckPolicy, p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		},
		"its probes are not needed": func(h *v1alpha1.HealthCheckPolicy, _ *corev1.Pod) { h.Spec.RequiredProbes = nil },
	} {
		h, p := policy.DeepCopy(), controlled(aPod("web"))
		change(h, p)
		if kills(h, reduce(p)) {
			t.Errorf("%s, and yet it is killed", name)
		}
	}
}

func TestObstacleHoldsUntilSomethingChanges(t *testing.T) {
	p, changed := reduce(aPod("web")), aPod("web")
	changed.ResourceVersion = "8"
	m := &memory{obstacles: map[types.UID]obstacle{}}
	m.remember(p, noon, "Refused", "no", 0)
	if _, holds := m.obstacleOf(p, noon); !holds {
		t.Error("forgotten at once")
	}
	if _, holds := m.obstacleOf(reduce(changed), noon); holds {
		t.Error("the pod has changed, and is not tried again")
	}
	if _, holds := m.obstacleOf(p, noon.Add(firstWait)); holds {
		t.Error("the wait is over, and the pod is not tried again")
	}
	waited := firstWait
	for range 10 {
		until := m.remember(p, noon, "Refused", "no", 0)
		if waited = min(2*waited, maxWait); until.Sub(noon) != waited {
			t.Fatalf("waits %s, want %s", until.Sub(noon), waited)
		}
	}
	m.remember(p, noon, "DisruptionBudget", "", 10*time.Second)
	if _, holds := m.obstacleOf(reduce(changed), noon.Add(9*time.Second)); !holds {
		t.Error("the server has asked for 10 s, and a change of the pod ends them")
	}
}

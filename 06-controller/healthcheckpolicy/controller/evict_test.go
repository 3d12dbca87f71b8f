package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
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

// booted is a reading of the process's own clock, which has nothing to do with the wall clock.
var booted = time.Time{}.Add(time.Hour)

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
		if got := (&brake{}).wait(killer(c.last, 30), noon, booted); got != c.want {
			t.Errorf("%s: waits %s, want %s", c.name, got, c.want)
		}
	}
	if got := (&brake{}).wait(killer(noon, 0), noon, booted); got != 10*time.Second {
		t.Errorf("without a minIntervalSeconds: waits %s, want 10s", got)
	}
}

// A pod was evicted at noon. The wall clock jumps, and the process's own clock does not.
func TestBrakeOnTwoClocks(t *testing.T) {
	for _, c := range []struct {
		name      string
		wall, own time.Duration // since the eviction
		want      time.Duration
	}{
		{"both clocks agree", 10 * time.Second, 10 * time.Second, 20 * time.Second},
		{"the wall clock was set forward", time.Hour, 10 * time.Second, 20 * time.Second},
		{"set forward, and the interval is over", time.Hour, 30 * time.Second, 0},
		{"set back a little", 5 * time.Second, 10 * time.Second, 25 * time.Second},
		{"set back by an hour: from when that is first seen", -time.Hour, 10 * time.Second, 30 * time.Second},
		{"the machine was asleep, and with it the process's own clock", time.Hour, time.Second, 29 * time.Second},
	} {
		b := &brake{last: booted}
		if got := b.wait(killer(noon, 30), noon.Add(c.wall), booted.Add(c.own)); got != c.want {
			t.Errorf("%s: waits %s, want %s", c.name, got, c.want)
		}
	}
}

// A clock that was set back delays the next eviction by one interval, and not by the whole jump.
func TestBrakeAfterTheClockWasSetBack(t *testing.T) {
	b, policy := &brake{}, killer(noon.Add(time.Hour), 30)
	for _, c := range []struct{ now, want time.Duration }{{0, 30 * time.Second}, {10 * time.Second, 20 * time.Second}, {30 * time.Second, 0}} {
		if got := b.wait(policy, noon.Add(c.now), booted.Add(c.now)); got != c.want {
			t.Errorf("after %s: waits %s, want %s", c.now, got, c.want)
		}
	}
	policy.Status.LastEvictionTime = &metav1.Time{Time: noon.Add(2 * time.Hour)}
	if got := b.wait(policy, noon.Add(31*time.Second), booted.Add(31*time.Second)); got != 30*time.Second {
		t.Errorf("another time in the future: waits %s, want 30s from when it is first seen", got)
	}
}

// The interval begins when the eviction was carried out, if that was later than the status says.
func TestBrakeAfterASlowEviction(t *testing.T) {
	b := &brake{last: booted.Add(20 * time.Second)}
	if got := b.wait(killer(noon, 30), noon.Add(25*time.Second), booted.Add(25*time.Second)); got != 25*time.Second {
		t.Errorf("waits %s, want 25s, so that there are 30s between the evictions", got)
	}
}

// The API server has said no, so no eviction has taken place at that time.
func TestBrakeDoesNotCountARefusedEviction(t *testing.T) {
	b := &brake{ignored: noon}
	if got := b.wait(killer(noon, 30), noon, booted); got != 0 {
		t.Errorf("waits %s", got)
	}
	if got := b.wait(killer(noon.Add(time.Second), 30), noon, booted); got != 31*time.Second {
		t.Errorf("a later eviction was not refused: waits %s", got)
	}
	b.last = booted.Add(-10 * time.Second)
	if got := b.wait(killer(noon, 30), noon, booted); got != 20*time.Second {
		t.Errorf("the one before was carried out 10 s ago: waits %s, want 20s", got)
	}
	if got := b.wait(killer(time.Time{}, 30), noon, booted); got != 20*time.Second {
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
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""}
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
	m := newMemory("u")
	m.remember(evicting(p), "Refused", "no", noon, 0)
	if _, holds := m.obstacleOf(evicting(p)); !holds {
		t.Error("forgotten at once")
	}
	if _, holds := m.obstacleOf(evicting(reduce(changed))); holds {
		t.Error("the pod has changed, and is not tried again")
	}
	waited := firstWait
	for range 10 {
		o := m.remember(evicting(p), "Refused", "no", noon, 0)
		if waited = min(2*waited, maxWait); o.until.Sub(noon) != waited {
			t.Fatalf("waits %s, want %s", o.until.Sub(noon), waited)
		}
	}
	o := m.remember(evicting(p), "DisruptionBudget", "", noon, 10*time.Second)
	if _, holds := m.obstacleOf(evicting(reduce(changed))); !holds || o.until != noon.Add(10*time.Second) {
		t.Error("the server has asked for 10 s, and a change of the pod ends them")
	}
	if _, holds := m.obstacleOf(marking(p)); holds {
		t.Error("a refused eviction holds up the mark")
	}
	m.remember(marking(p), "Refused", "no", noon, 0)
	c, policy := &Controller{}, policyWith(metav1.LabelSelector{})
	policy.UID, policy.Generation = m.uid, 2
	c.memories.Store(cache.MetaObjectToName(policy), m)
	c.memoryOf(cache.MetaObjectToName(policy), policy)
	if _, holds := m.obstacleOf(marking(p)); holds {
		t.Error("the policy has changed, and the pod is not tried again")
	}
	if _, holds := m.obstacleOf(evicting(p)); !holds {
		t.Error("the server has asked for 10 s, and a change of the policy ends them")
	}
}

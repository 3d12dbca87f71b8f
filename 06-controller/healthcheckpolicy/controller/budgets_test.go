package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// What a budget allows is the API server's decision; see pkg/registry/core/pod/storage/eviction.go in Kubernetes.
func TestBudgetAllowsWhatTheAPIServerDoes(t *testing.T) {
	for _, c := range []struct {
		name   string
		ready  corev1.ConditionStatus
		policy *policyv1.UnhealthyPodEvictionPolicyType
		status policyv1.PodDisruptionBudgetStatus
		used   bool // by an eviction that the cache does not show yet
		want   bool
	}{
		{"one to spare", "True", nil, policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: 1}, false, true},
		{"none to spare", "True", nil, policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2}, false, false},
		{"not computed yet", "True", nil, policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1}, false, false},
		{"the last one is used", "True", nil, policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: 1}, true, false},
		{"one of two is used", "True", nil, policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DisruptionsAllowed: 2}, true, true},
		{"not ready, the others are healthy", "False", nil, policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, CurrentHealthy: 2, DesiredHealthy: 2}, false, true},
		{"not ready, and too few are", "False", nil, policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, CurrentHealthy: 1, DesiredHealthy: 2}, false, false},
		{"not ready, which is always allowed", "False", ptr.To(policyv1.AlwaysAllow), policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 2}, false, true},
		{"ready, which is not always allowed", "True", ptr.To(policyv1.AlwaysAllow), policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 2, DesiredHealthy: 2}, false, false},
	} {
		p := aPod("web")
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: c.ready}}
		b := budget{PodDisruptionBudget: &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Generation: 2},
			Spec: policyv1.PodDisruptionBudgetSpec{UnhealthyPodEvictionPolicy: c.policy}, Status: c.status}}
		var used *policyv1.PodDisruptionBudget
		if c.used {
			used = b.PodDisruptionBudget
		}
		if got := b.allows(reduce(p), used); got != c.want {
			t.Errorf("%s: allowed %t, want %t", c.name, got, c.want)
		}
	}
}

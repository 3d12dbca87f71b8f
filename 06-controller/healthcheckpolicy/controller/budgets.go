package controller

import (
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
)

// A cached PodDisruptionBudget says in its status how many evictions it allows. So
// the controller need not ask the API server about each pod, and the budget's next
// event says when to look again.

// A budget is a cached PodDisruptionBudget and its selector.
type budget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
}

// budgetsIn returns the budgets of a namespace. One with an invalid selector protects no pod.
func (c *Controller) budgetsIn(namespace string) ([]budget, error) {
	cached, err := c.budgets.PodDisruptionBudgets(namespace).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("reading the budgets from the cache: %w", err)
	}
	var budgets []budget
	for _, b := range cached {
		if selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil {
			budgets = append(budgets, budget{b, selector})
		}
	}
	return budgets, nil
}

// budgetsOf returns those of the budgets that protect a pod. The API server asks
// none about a pod that does not run yet.
func budgetsOf(p *pod, budgets []budget) []budget {
	var of []budget
	for _, b := range budgets {
		if !p.pending && b.selector.Matches(podLabels(p)) {
			of = append(of, b)
		}
	}
	return of
}

// allows reports whether a budget allows the eviction of a pod that it protects, as
// the API server decides it. used is a budget in the state before the last
// eviction: as long as the cache shows that state, the budget allows one eviction less.
func (b budget) allows(p *pod, used *policyv1.PodDisruptionBudget) bool {
	if b.spares(p) {
		return true
	}
	allowed := b.Status.DisruptionsAllowed
	if b.PodDisruptionBudget == used {
		allowed--
	}
	return allowed > 0 && b.Status.ObservedGeneration >= b.Generation
}

// spares reports whether the eviction of a pod that is not ready costs the budget nothing.
func (b budget) spares(p *pod) bool {
	always := b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow
	return !p.ready && (always || b.Status.DesiredHealthy > 0 && b.Status.CurrentHealthy >= b.Status.DesiredHealthy)
}

// evicting is the request to evict a pod that these budgets protect.
func evicting(p *pod, budgets ...budget) request {
	state := p.ResourceVersion
	for _, b := range budgets {
		state += fmt.Sprintf(" %s/%s", b.UID, b.ResourceVersion)
	}
	return request{requestKey{p.UID, true}, p, state}
}

// budgetChanged queues the policies that may evict pods which the budget protects.
func (c *Controller) budgetChanged(what string, states ...any) {
	key, err := cache.DeletionHandlingObjectToName(states[0])
	if err != nil {
		utilruntime.HandleError(err)
		return
	}
	c.loop.Event(what, key)
	policies, err := c.lister.HealthCheckPolicies(key.Namespace).List(labels.Everything())
	if err != nil {
		utilruntime.HandleError(err)
	}
	for _, policy := range policies {
		if policy.Spec.Action == v1alpha1.ActionKill {
			c.loop.Add(cache.MetaObjectToName(policy), what)
		}
	}
}

package controller

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
)

// The indexes lead from a policy to its pods and from a pod to its policies, so
// that the cost of one event grows neither with the pods nor with the policies.
const (
	byAnchor = "anchor" // policies by what their selector requires, pods by what they have
	byMark   = "mark"   // pods by the policies that have marked them
	byUID    = "uid"    // policies
)

// The types in a cache are known, so these errors are mistakes of this program.
// client-go turns them into a panic when an object is stored.

var podIndexers = cache.Indexers{
	byAnchor: func(obj any) ([]string, error) {
		p, err := podIn(obj)
		if err != nil {
			return nil, err
		}
		return podAnchors(p), nil
	},
	byMark: func(obj any) ([]string, error) {
		p, err := podIn(obj)
		if err != nil {
			return nil, err
		}
		var policies []string
		for _, m := range p.marks {
			policies = append(policies, p.Namespace+"/"+string(m.policy)) // whoever writes a pod can name a policy of another namespace there
		}
		return policies, nil
	},
}

var policyIndexers = cache.Indexers{
	byAnchor: func(obj any) ([]string, error) {
		policy, err := policyIn(obj)
		if err != nil {
			return nil, err
		}
		selector, err := selectorOf(policy)
		if err != nil {
			return nil, nil // an invalid selector selects nothing; the policy says so in its status
		}
		return anchors(policy.Namespace, selector), nil
	},
	byUID: func(obj any) ([]string, error) {
		policy, err := policyIn(obj)
		if err != nil {
			return nil, err
		}
		return []string{string(policy.UID)}, nil
	},
}

func policyIn(obj any) (*v1alpha1.HealthCheckPolicy, error) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	policy, ok := obj.(*v1alpha1.HealthCheckPolicy)
	if !ok {
		return nil, fmt.Errorf("the policy cache holds a %T", obj)
	}
	return policy, nil
}

// selected returns the cached pods that a selector matches.
func (c *Controller) selected(namespace string, selector labels.Selector) ([]*pod, error) {
	pods, err := podsBy(c.pods, byAnchor, anchors(namespace, selector)...)
	if err != nil || anchored(selector) {
		return pods, err
	}
	return slices.DeleteFunc(pods, func(p *pod) bool { return !selector.Matches(podLabels(p)) }), nil
}

// marked returns the cached pods that carry a policy's mark. It does not look
// at the selector, which may have changed since.
func (c *Controller) marked(p *pass) ([]*pod, error) {
	return podsBy(c.pods, byMark, p.key.Namespace+"/"+string(p.memory.uid))
}

func podsBy(indexer cache.Indexer, index string, values ...string) ([]*pod, error) {
	var pods []*pod
	for _, value := range values {
		objs, err := indexer.ByIndex(index, value)
		if err != nil {
			return nil, fmt.Errorf("looking up pods by %s: %w", index, err)
		}
		pods = slices.Grow(pods, len(objs))
		for _, obj := range objs {
			p, err := podIn(obj)
			if err != nil {
				return nil, err
			}
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// concerned returns the policies that a pod in these states concerns: those that
// select one of them, and those that have marked one of them; with onlyKill only
// policies that evict.
func (c *Controller) concerned(onlyKill bool, states ...*pod) (sets.Set[cache.ObjectName], error) {
	keys := sets.New[cache.ObjectName]()
	var errs []error
	visit := func(index, value string, concerns func(*v1alpha1.HealthCheckPolicy) bool) {
		objs, err := c.policies.ByIndex(index, value)
		errs = append(errs, err)
		for _, obj := range objs {
			policy, err := policyIn(obj)
			errs = append(errs, err)
			if err == nil && (!onlyKill || policy.Spec.Action == v1alpha1.ActionKill) && concerns(policy) {
				keys.Insert(cache.MetaObjectToName(policy))
			}
		}
	}
	for _, p := range states {
		for _, value := range podAnchors(p) {
			visit(byAnchor, value, func(policy *v1alpha1.HealthCheckPolicy) bool {
				selector, err := selectorOf(policy)
				return err == nil && selector.Matches(podLabels(p))
			})
		}
		for _, m := range p.marks {
			visit(byUID, string(m.policy), func(policy *v1alpha1.HealthCheckPolicy) bool { return policy.Namespace == p.Namespace })
		}
	}
	return keys, errors.Join(errs...)
}

func podLabels(p *pod) labels.Set { return p.Labels }

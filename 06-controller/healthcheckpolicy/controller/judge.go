package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/06-controller/loop"
)

// This file decides and does nothing: its functions depend on their arguments only.

// fails reports whether a pod lacks a probe. Init containers do not count, not
// even restartable ones, so the cache does not hold them.
func (p *pod) fails(required probes) bool {
	return required&^p.everywhere != 0
}

const maxMarkBytes = 1024

// markText says what a pod lacks, such as "web: liveness, readiness; log: startup".
func markText(p *pod, required probes) string {
	var parts []string
	for _, c := range p.containers {
		if missing := required &^ c.declares; missing != 0 {
			parts = append(parts, c.name+": "+missing.String())
		}
	}
	return loop.Cut(strings.Join(parts, "; "), maxMarkBytes)
}

// A wish is the mark that a pod should carry.
type wish struct {
	annotation bool // else a label
	key, value string
}

var wishNone wish

// wishFor returns what a policy wants a pod to carry that it selects.
func wishFor(spec *v1alpha1.HealthCheckPolicySpec, p *pod, required probes) wish {
	if !p.fails(required) {
		return wishNone
	}
	switch spec.Action {
	case v1alpha1.ActionLabel:
		return wish{key: spec.PodLabel, value: "true"}
	case v1alpha1.ActionAnnotate:
		return wish{annotation: true, key: spec.PodLabel, value: markText(p, required)}
	default:
		return wishNone
	}
}

// compare tells what has to be done so that a pod carries exactly what a policy
// wishes. mine is what the policy has put there; nil for nothing.
//
// The key is taken if it has another value and the policy has no part in it.
// Then nobody needs to ask the API server, which would refuse.
func compare(p *pod, mine *mark, w wish) (write, taken bool) {
	if w == wishNone {
		return mine != nil, false
	}
	var present, equal, owned, alone bool
	if w.annotation {
		value, ok := p.annotations[w.key]
		present, equal = ok, ok && value == hash(w.value)
		owned = mine != nil && slices.Contains(mine.annotations, w.key)
		alone = owned && len(mine.annotations) == 1 && len(mine.labels) == 0
	} else {
		value, ok := p.Labels[w.key]
		present, equal = ok, ok && value == w.value
		owned = mine != nil && slices.Contains(mine.labels, w.key)
		alone = owned && len(mine.labels) == 1 && len(mine.annotations) == 0
	}
	if present && !equal && !owned {
		return mine != nil, true
	}
	return !(alone && equal), false
}

// selectorOf returns a policy's selector. An error is the same for the same
// selector, although the labels in it are a map.
func selectorOf(policy *v1alpha1.HealthCheckPolicy) (labels.Selector, error) {
	s := &policy.Spec.Selector
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err == nil {
		return selector, nil
	}
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		one := &metav1.LabelSelector{MatchLabels: map[string]string{key: s.MatchLabels[key]}}
		if _, err := metav1.LabelSelectorAsSelector(one); err != nil {
			return nil, fmt.Errorf("spec.selector.matchLabels: %w", err)
		}
	}
	return nil, fmt.Errorf("spec.selector: %w", err)
}

// anchors returns index values of which every pod that the selector matches has
// at least one. Policies are indexed by their anchors and pods by podAnchors,
// so both can be found from the other without a walk over all.
func anchors(namespace string, selector labels.Selector) []string {
	requirements, selectable := selector.Requirements()
	if !selectable {
		return nil
	}
	best := []string{namespace}
	found := false
	for _, r := range requirements {
		switch r.Operator() {
		case "=", "==", "in":
			values := r.Values().UnsortedList() // ValuesUnsorted returns a value twice that somebody has written twice
			if !found || len(values) < len(best) {
				found, best = true, nil
				for _, v := range values {
					best = append(best, anchor(namespace, r.Key(), v))
				}
			}
		}
	}
	return best
}

// anchored reports whether the selector matches every pod that has one of its
// anchors, so that nobody needs to look at the pod's labels.
func anchored(selector labels.Selector) bool {
	requirements, selectable := selector.Requirements()
	if !selectable || len(requirements) > 1 {
		return false
	}
	for _, r := range requirements {
		switch r.Operator() {
		case "=", "==", "in":
		default:
			return false
		}
	}
	return true
}

func podAnchors(p *pod) []string {
	values := make([]string, 0, len(p.Labels)+1)
	values = append(values, p.Namespace)
	for key, value := range p.Labels {
		values = append(values, anchor(p.Namespace, key, value))
	}
	return values
}

func anchor(namespace, key, value string) string { return namespace + " " + key + "=" + value }

// Package rights says what RBAC rules allow.
package rights

import (
	"iter"

	rbacv1 "k8s.io/api/rbac/v1"
)

// A Right is a verb for a resource, with its subresource after a slash, in an API group.
type Right struct{ Group, Resource, Verb string }

// Of yields what a rule about resources allows. A rule about URLs has none.
func Of(rule rbacv1.PolicyRule) iter.Seq[Right] {
	return func(yield func(Right) bool) {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if !yield(Right{group, resource, verb}) {
						return
					}
				}
			}
		}
	}
}

package rights

import (
	"context"
	"errors"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-go/workshop/internal/exercise/check"
)

// Grant binds rules to a service account of the check's namespace.
func Grant(c *check.C, account string, rules ...rbacv1.PolicyRule) error {
	_, err := c.Client.RbacV1().Roles(c.Namespace).Create(c.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: account}, Rules: rules}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = c.Client.RbacV1().RoleBindings(c.Namespace).Create(c.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: c.Namespace}}}, metav1.CreateOptions{})
	return err
}

// May asks the API server what a service account of the check's namespace may do there.
func May(c *check.C, account string, what authorizationv1.ResourceAttributes) bool {
	what.Namespace = c.Namespace
	review, err := c.Client.AuthorizationV1().SubjectAccessReviews().Create(c.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + c.Namespace + ":" + account, ResourceAttributes: &what}}, metav1.CreateOptions{})
	c.Must(err)
	return review.Status.Allowed
}

// Settled waits until the API server's authorizer knows all roles and bindings that were
// created so far: it learns of them in order, so a last one is enough.
func Settled(c *check.C) {
	c.Must(Grant(c, "last", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}}))
	c.Must(c.Until(time.Minute, func(context.Context) error {
		if !May(c, "last", authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets"}) {
			return errors.New("the authorizer does not know the last role")
		}
		return nil
	}))
}

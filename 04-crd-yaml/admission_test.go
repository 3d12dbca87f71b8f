package crdyaml

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// readPair reads a file with two documents into two objects.
func readPair(t testing.TB, path string, first, second any) {
	t.Helper()
	data, err := os.ReadFile(path)
	fatal.If(t, err)
	documents := bytes.Split(data, []byte("\n---\n"))
	if len(documents) != 2 {
		t.Fatalf("%s has %d documents, want 2", path, len(documents))
	}
	for i, o := range []any{first, second} {
		if err := yaml.UnmarshalStrict(documents[i], o); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
}

// onlyHere binds an admission policy to the test's namespace.
func onlyHere(t testing.TB, e *testenv.Env, selector *metav1.LabelSelector) {
	t.Helper()
	if len(selector.MatchLabels) == 0 {
		t.Fatal("the binding is not limited to a namespace")
	}
	selector.MatchLabels = map[string]string{"kubernetes.io/metadata.name": e.Namespace}
}

// installKillPolicy installs the lesson's admission policy, renamed, for the
// CRD in the test's namespace. It returns once the policy is in force.
func installKillPolicy(t *testing.T, e *testenv.Env, crd *definition) *admissionv1.ValidatingAdmissionPolicy {
	t.Helper()
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	readPair(t, "kill-needs-permission.yaml", policy, binding)
	name := "kill." + e.Namespace + ".crd-yaml.k8s-go.openshift.org"
	policy.Name, binding.Name, binding.Spec.PolicyName = name, name, name
	policy.Spec.MatchConstraints.ResourceRules[0].APIGroups = []string{crd.Spec.Group}
	onlyHere(t, e, binding.Spec.MatchResources.NamespaceSelector)
	client := e.Client.AdmissionregistrationV1()
	e.AtEnd(
		func(ctx context.Context) error {
			return client.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{})
		},
		func(ctx context.Context) error {
			return client.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{})
		})
	if _, err := client.ValidatingAdmissionPolicies().Create(e.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ValidatingAdmissionPolicyBindings().Create(e.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// No condition tells when a policy is in force. Asking without writing does.
	e.Eventually(30*time.Second, func(ctx context.Context) error {
		_, err := resource(e, crd, "").Create(ctx, object(crd, "probe", map[string]any{"action": "kill"}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("the policy is not in force: %v", err)
		}
		return nil
	})
	return policy
}

func labelNamespace(t testing.TB, e *testenv.Env, value string) {
	t.Helper()
	patch := `{"metadata": {"labels": {"policy.k8s-go.openshift.org/kill": ` + value + `}}}`
	if _, err := e.Client.CoreV1().Namespaces().Patch(e.Context(), e.Namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// as returns a client for the policies that acts as a user without any rights
// but those in the rules.
func as(t testing.TB, e *testenv.Env, crd *definition, user string, rules ...rbacv1.PolicyRule) dynamic.ResourceInterface {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := e.Client.RbacV1().Roles(e.Namespace).Create(e.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Client.RbacV1().RoleBindings(e.Namespace).Create(e.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(e.Config)
	config.Impersonate.UserName = user
	client, err := dynamic.NewForConfig(config)
	fatal.If(t, err)
	gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Resource: crd.Spec.Names.Plural}
	policies := client.Resource(gvr).Namespace(e.Namespace)
	// The authorizer learns of the binding a moment later.
	e.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := policies.List(ctx, metav1.ListOptions{})
		return err
	})
	return policies
}

func TestKillNeedsPermission(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	elsewhere := testenv.New(t) // a namespace that the binding does not select
	crd := own(t, policyCRD, "kill")
	crdtest.Install(t, e, crd)
	policies := resource(e, crd, "")
	kill := func(name string) error {
		_, err := policies.Create(e.Context(), object(crd, name, map[string]any{"action": "kill"}), strict)
		return err
	}
	patch := func(name, patch string, subresources ...string) error {
		_, err := policies.Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
		return err
	}
	if err := kill("before"); err != nil {
		t.Fatalf("before there is a policy: %v", err)
	}
	fatal.If(t, patch("before", `{"metadata": {"finalizers": ["policy.k8s-go.openshift.org/take-back"]}}`))
	policy := installKillPolicy(t, e, crd)

	err := kill("denied")
	want := "policies may not kill in " + e.Namespace + ": label it policy.k8s-go.openshift.org/kill=allowed"
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want Forbidden with %q", err, want)
	}
	must(t)(policies.Create(e.Context(), object(crd, "harmless", map[string]any{"podLabel": "x"}), strict))
	beta := object(crd, "beta", map[string]any{"action": "kill"})
	beta.SetAPIVersion(crd.Spec.Group + "/v1beta1")
	if _, err := resource(e, crd, "v1beta1").Create(e.Context(), beta, strict); !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want Forbidden through the other version, too", err)
	}
	for _, p := range []struct{ name, patch string }{
		{"harmless", `{"spec": {"action": "kill"}}`},
		// What kills already cannot be made to kill more, or otherwise.
		{"before", `{"spec": {"selector": {"matchLabels": {"app": "shop"}}}}`},
		{"before", `{"spec": {"requiredProbes": ["startup"]}}`},
		{"before", `{"spec": {"eviction": {"minIntervalSeconds": 1}}}`},
	} {
		if err := patch(p.name, p.patch); !apierrors.IsForbidden(err) {
			t.Errorf("patch of %s %s: error %v, want Forbidden", p.name, p.patch, err)
		}
	}
	// It can be labelled, reported about, released, made harmless and deleted.
	for _, p := range []struct{ patch, subresource string }{
		{`{"metadata": {"labels": {"a": "b"}}}`, ""},
		{`{"status": {"observedGeneration": 1}}`, "status"},
		{`{"metadata": {"finalizers": null}}`, ""},
		{`{"spec": {"action": "annotate", "podLabel": "x"}}`, ""},
	} {
		if err := patch("before", p.patch, strings.Fields(p.subresource)...); err != nil {
			t.Errorf("an object that killed before cannot be changed by %s: %v", p.patch, err)
		}
	}
	if err := policies.Delete(e.Context(), "before", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	must(t)(resource(elsewhere, crd, "").Create(e.Context(), object(crd, "elsewhere", map[string]any{"action": "kill"}), strict))

	labelNamespace(t, e, `"allowed"`)
	e.Eventually(time.Minute, func(context.Context) error { return kill("allowed") })
	if err := patch("harmless", `{"spec": {"action": "kill"}}`); err != nil {
		t.Errorf("denied in a namespace that allows it: %v", err)
	}
	labelNamespace(t, e, `"forbidden"`) // a label of that name is not enough
	e.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := policies.Create(ctx, object(crd, "denied", map[string]any{"action": "kill"}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("error %v, want Forbidden with another value of the label", err)
		}
		return nil
	})

	// The controller manager type-checks the expressions against the CRD.
	e.Eventually(30*time.Second, func(ctx context.Context) error {
		p, err := e.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, policy.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.ObservedGeneration != p.Generation || p.Status.TypeChecking == nil {
			return fmt.Errorf("not type-checked yet: %+v", p.Status)
		}
		for _, w := range p.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s: %s", w.FieldRef, w.Warning)
		}
		return nil
	})
}

// In a namespace that allows it, a user who may write policies and not evict
// pods cannot let a policy do it, nor change what one kills.
func TestKillNeedsTheRightToEvict(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := own(t, policyCRD, "evict")
	crdtest.Install(t, e, crd)
	must(t)(resource(e, crd, "").Create(e.Context(), object(crd, "killer", map[string]any{"action": "kill"}), strict))
	installKillPolicy(t, e, crd)
	labelNamespace(t, e, `"allowed"`)

	var view, edit rbacv1.ClusterRole
	readPair(t, "roles.yaml", &view, &edit)
	rules := edit.Rules
	for i := range rules {
		rules[i].APIGroups = []string{crd.Spec.Group}
	}
	evict := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}}
	anna := as(t, e, crd, "anna", rules...)
	bert := as(t, e, crd, "bert", append(rules, evict)...)

	must(t)(anna.Create(e.Context(), object(crd, "harmless", map[string]any{"podLabel": "x"}), strict))
	const want = "anna may not evict pods in "
	e.Eventually(time.Minute, func(ctx context.Context) error { // until the namespace's label is seen
		_, err := anna.Create(ctx, object(crd, "denied", map[string]any{"action": "kill"}), strict)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want+e.Namespace) {
			return fmt.Errorf("error %v, want Forbidden with %q", err, want)
		}
		return nil
	})
	wider := []byte(`{"spec": {"requiredProbes": ["startup"]}}`)
	_, err := anna.Patch(e.Context(), "killer", types.MergePatchType, wider, metav1.PatchOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want Forbidden with %q", err, want)
	}
	must(t)(anna.Patch(e.Context(), "killer", types.MergePatchType, []byte(`{"metadata": {"finalizers": null, "labels": {"a": "b"}}}`), metav1.PatchOptions{}))
	must(t)(bert.Create(e.Context(), object(crd, "allowed", map[string]any{"action": "kill"}), strict))
	must(t)(bert.Patch(e.Context(), "killer", types.MergePatchType, wider, metav1.PatchOptions{}))
}

// Who has the role view of Kubernetes may look at policies once the lesson's
// roles are there; nobody may write them who has not been given that role.
func TestRoles(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	group := "roles." + e.Namespace + ".crd-yaml.k8s-go.openshift.org"
	var view, edit rbacv1.ClusterRole
	readPair(t, "roles.yaml", &view, &edit)
	roles := e.Client.RbacV1().ClusterRoles()
	for _, role := range []*rbacv1.ClusterRole{&view, &edit} {
		role.Name = strings.Split(role.Name, ".")[0] + "." + group
		for i := range role.Rules {
			role.Rules[i].APIGroups = []string{group}
		}
		e.AtEnd(func(ctx context.Context) error { return roles.Delete(ctx, role.Name, metav1.DeleteOptions{}) })
	}
	can := func(user, verb, subresource string) (bool, error) {
		config := rest.CopyConfig(e.Config)
		config.Impersonate.UserName = user
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return false, err
		}
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: e.Namespace, Group: group, Resource: "healthcheckpolicies", Verb: verb, Subresource: subresource},
		}}
		review, err = client.AuthorizationV1().SelfSubjectAccessReviews().Create(e.Context(), review, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		return review.Status.Allowed, nil
	}
	for user, role := range map[string]string{"viewer": "view", "admin": "admin", "author": edit.Name} {
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		}
		if _, err := e.Client.RbacV1().RoleBindings(e.Namespace).Create(e.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if yes, err := can("viewer", "list", ""); yes || err != nil {
		t.Errorf("before there are roles a viewer may list policies: %t (%v), want false", yes, err)
	}
	for _, role := range []*rbacv1.ClusterRole{&view, &edit} {
		if _, err := roles.Create(e.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		user, verb, subresource string
		want                    bool
	}{
		{"viewer", "list", "", true}, {"viewer", "watch", "", true}, {"viewer", "get", "status", true}, {"viewer", "create", "", false},
		{"admin", "get", "", true}, {"admin", "create", "", false}, {"admin", "delete", "", false},
		{"author", "create", "", true}, {"author", "patch", "", true}, {"author", "update", "status", false},
	} {
		e.Eventually(time.Minute, func(context.Context) error { // aggregation is a controller's work
			if yes, err := can(c.user, c.verb, c.subresource); err != nil || yes != c.want {
				return fmt.Errorf("%s may %s healthcheckpolicies/%s: %t (%v), want %t", c.user, c.verb, c.subresource, yes, err, c.want)
			}
			return nil
		})
	}
}

// The author is written down on creation, and only then.
func TestRecordAuthor(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := own(t, policyCRD, "author")
	crdtest.Install(t, e, crd)
	must(t)(resource(e, crd, "v1alpha1").Create(e.Context(), object(crd, "older", map[string]any{"podLabel": "x"}), strict))
	policy, binding := &admissionv1.MutatingAdmissionPolicy{}, &admissionv1.MutatingAdmissionPolicyBinding{}
	readPair(t, "record-author.yaml", policy, binding)
	name := "author." + e.Namespace + ".crd-yaml.k8s-go.openshift.org"
	policy.Name, binding.Name, binding.Spec.PolicyName = name, name, name
	policy.Spec.MatchConstraints.ResourceRules[0].APIGroups = []string{crd.Spec.Group}
	onlyHere(t, e, binding.Spec.MatchResources.NamespaceSelector)
	client := e.Client.AdmissionregistrationV1()
	e.AtEnd(
		func(ctx context.Context) error {
			return client.MutatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{})
		},
		func(ctx context.Context) error {
			return client.MutatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{})
		})
	_, err := client.MutatingAdmissionPolicies().Create(e.Context(), policy, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		t.Skip("this cluster does not serve MutatingAdmissionPolicy, which is on by default from Kubernetes 1.36")
	}
	fatal.If(t, err)
	if _, err := client.MutatingAdmissionPolicyBindings().Create(e.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	const key = "policy.k8s-go.openshift.org/author"
	edit := rbacv1.PolicyRule{APIGroups: []string{crd.Spec.Group}, Resources: []string{crd.Spec.Names.Plural}, Verbs: []string{"*"}}
	anna, bert := as(t, e, crd, "anna", edit), as(t, e, crd, "bert", edit)
	o := object(crd, "x", map[string]any{"action": "kill"})
	o.SetAnnotations(map[string]string{"kept": "yes", key: "somebody else"})
	e.Eventually(30*time.Second, func(ctx context.Context) error {
		stored, err := anna.Create(ctx, o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && stored.GetAnnotations()[key] != "anna" {
			err = fmt.Errorf("annotations %v: the policy is not in force", stored.GetAnnotations())
		}
		return err
	})
	stored := must(t)(anna.Create(e.Context(), o, strict))
	if got := stored.GetAnnotations(); got[key] != "anna" || got["kept"] != "yes" {
		t.Errorf("annotations %v, want anna as the author beside the other one", got)
	}
	stored = must(t)(bert.Patch(e.Context(), "x", types.MergePatchType, []byte(`{"spec": {"requiredProbes": ["startup"]}}`), metav1.PatchOptions{}))
	if got := stored.GetAnnotations()[key]; got != "anna" {
		t.Errorf("after a change by bert the author is %q, want anna", got)
	}
	stored = must(t)(bert.Patch(e.Context(), "x", types.MergePatchType, []byte(`{"metadata": {"annotations": {"`+key+`": "bert"}}}`), metav1.PatchOptions{}))
	if got := stored.GetAnnotations()[key]; got != "anna" {
		t.Errorf("bert has made himself the author: %q, want anna", got)
	}
	stored = must(t)(bert.Patch(e.Context(), "older", types.MergePatchType, []byte(`{"spec": {"requiredProbes": ["startup"]}}`), metav1.PatchOptions{}))
	if got, ok := stored.GetAnnotations()[key]; ok {
		t.Errorf("an object that is older than the policy has got an author, %q", got)
	}
}

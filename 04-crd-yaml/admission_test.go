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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/testenv"
)

const killPolicy = "kill-needs-permission.yaml"

// readAdmission reads the policy and its binding, renamed and bound to the
// test's namespace only.
func readAdmission(t *testing.T, e *testenv.Env) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	t.Helper()
	data, err := os.ReadFile(killPolicy)
	if err != nil {
		t.Fatal(err)
	}
	documents := bytes.Split(data, []byte("\n---\n"))
	if len(documents) != 2 {
		t.Fatalf("%d documents, want a policy and a binding", len(documents))
	}
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	for i, o := range []any{policy, binding} {
		if err := yaml.UnmarshalStrict(documents[i], o); err != nil {
			t.Fatal(err)
		}
	}
	if len(binding.Spec.MatchResources.NamespaceSelector.MatchLabels) == 0 {
		t.Fatal("the binding is not limited to a namespace")
	}
	name := "kill." + e.Namespace + ".crd-yaml.k8s-go.openshift.org"
	policy.Name, binding.Name, binding.Spec.PolicyName = name, name, name
	binding.Spec.MatchResources.NamespaceSelector.MatchLabels = map[string]string{"kubernetes.io/metadata.name": e.Namespace}
	return policy, binding
}

func TestKillNeedsPermission(t *testing.T) {
	e := testenv.New(t)
	elsewhere := testenv.New(t) // a namespace that the binding does not select
	crd := crdtest.Read(t, policyCRD)
	crdtest.Install(t, e, crd)
	policies := resource(e, crd, "")
	kill := func(name string) error {
		_, err := policies.Create(e.Context(), object(crd, name, map[string]any{"action": "kill"}), strict)
		return err
	}
	if err := kill("before"); err != nil {
		t.Fatalf("before there is a policy: %v", err)
	}

	policy, binding := readAdmission(t, e)
	client := e.Client.AdmissionregistrationV1()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(e.Context())
		for _, err := range []error{
			client.ValidatingAdmissionPolicyBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}),
			client.ValidatingAdmissionPolicies().Delete(ctx, policy.Name, metav1.DeleteOptions{}),
		} {
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	if _, err := client.ValidatingAdmissionPolicies().Create(e.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ValidatingAdmissionPolicyBindings().Create(e.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// No condition tells when a policy is in force. Asking without writing does.
	e.Eventually(30*time.Second, func(ctx context.Context) error {
		_, err := policies.Create(ctx, object(crd, "probe", map[string]any{"action": "kill"}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return fmt.Errorf("the policy is not in force")
		}
		return nil
	})

	err := kill("denied")
	want := "policies may not kill in " + e.Namespace + ": label it policy.k8s-go.openshift.org/kill=allowed"
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want Forbidden with %q", err, want)
	}
	must(t)(policies.Create(e.Context(), object(crd, "harmless", map[string]any{"podLabel": "x"}), strict))
	patch := func(name, patch string) error {
		_, err := policies.Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	if err := patch("harmless", `{"spec": {"action": "kill"}}`); !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want Forbidden for an update, too", err)
	}
	beta := object(crd, "beta", map[string]any{"action": "kill"})
	beta.SetAPIVersion(crd.Spec.Group + "/v1beta1")
	if _, err := resource(e, crd, "v1beta1").Create(e.Context(), beta, strict); !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want Forbidden through the other version, too", err)
	}
	// What killed before stays editable, down to its finalizers.
	for _, p := range []string{`{"metadata": {"finalizers": ["crd-yaml.k8s-go.openshift.org/x"]}}`, `{"metadata": {"finalizers": null}}`} {
		if err := patch("before", p); err != nil {
			t.Errorf("an object that killed before cannot be edited: %v", err)
		}
	}
	must(t)(resource(elsewhere, crd, "").Create(e.Context(), object(crd, "elsewhere", map[string]any{"action": "kill"}), strict))

	label := func(value string) {
		t.Helper()
		if _, err := e.Client.CoreV1().Namespaces().Patch(e.Context(), e.Namespace, types.MergePatchType,
			[]byte(`{"metadata": {"labels": {"policy.k8s-go.openshift.org/kill": "`+value+`"}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label("forbidden") // a label of that name is not enough
	if err := kill("denied"); !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want Forbidden with another value of the label", err)
	}
	label("allowed")
	e.Eventually(20*time.Second, func(context.Context) error { return kill("allowed") })
	if err := patch("harmless", `{"spec": {"action": "kill"}}`); err != nil {
		t.Errorf("denied in a namespace that allows it: %v", err)
	}

	// The controller manager type-checks the expressions against the definition.
	e.Eventually(30*time.Second, func(ctx context.Context) error {
		p, err := client.ValidatingAdmissionPolicies().Get(ctx, policy.Name, metav1.GetOptions{})
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

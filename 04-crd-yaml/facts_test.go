package crdyaml

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A new rule tolerates an old object only while nothing changes below the place
// where the rule stands, and a transition rule does not tolerate it at all.
func TestRatchetingOfRules(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := variant(t, policyCRD, "ratchet-rules")
	edit(t, crd, "spec", func(s *props) { s.XValidations = nil })
	crdtest.Install(t, e, crd)
	policies := resource(e, crd, "")
	must(t)(policies.Create(e.Context(), object(crd, "old", map[string]any{"podLabel": "plain"}), strict))
	patch := func(ctx context.Context, patch string, subresource ...string) error {
		_, err := policies.Patch(ctx, "old", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
		return err
	}
	addRule := func(rule string) {
		t.Helper()
		fatal.If(t, update(t, e, crd.Name, func(c *definition) {
			edit(t, c, "spec", func(s *props) {
				s.XValidations = []apiextensionsv1.ValidationRule{{Rule: rule, Message: "the key needs a prefix"}}
			})
		}))
	}

	addRule("self.podLabel.contains('/')")
	e.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := policies.Create(ctx, object(crd, "new", map[string]any{"podLabel": "plain"}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsInvalid(err) {
			return fmt.Errorf("a new object that breaks the rule: error %v", err)
		}
		return nil
	})
	if err := patch(e.Context(), `{"metadata": {"labels": {"a": "b"}}}`); err != nil {
		t.Errorf("a change of the metadata is refused: %v", err)
	}
	if err := patch(e.Context(), `{"status": {"observedGeneration": 1}}`, "status"); err != nil {
		t.Errorf("a change of the status is refused: %v", err)
	}
	wantRefused(t, patch(e.Context(), `{"spec": {"requiredProbes": ["startup"]}}`), "the key needs a prefix")

	addRule("self.podLabel.contains('/') || oldSelf.podLabel.contains('/')")
	e.Eventually(time.Minute, func(ctx context.Context) error {
		if err := patch(ctx, fmt.Sprintf(`{"metadata": {"labels": {"a": "%d"}}}`, time.Now().UnixNano())); !apierrors.IsInvalid(err) {
			return fmt.Errorf("a change of the metadata, with a transition rule: error %v", err)
		}
		return nil
	})
}

// The conversion None rewrites apiVersion. Each version then drops the fields
// that its own schema lacks, also those that another version has stored.
func TestConversionNoneNeedsEqualSchemas(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := own(t, policyCRD, "conversion")
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].SelectableFields = nil // not allowed in all versions of different schemas
	}
	crd.Spec.Versions[0], crd.Spec.Versions[1] = crd.Spec.Versions[1], crd.Spec.Versions[0] // edit takes the first
	edit(t, crd, "spec", func(s *props) { s.XValidations = nil; delete(s.Properties, "requiredProbes") })
	crdtest.Install(t, e, crd)
	stored, other := resource(e, crd, crd.Spec.Versions[1].Name), resource(e, crd, crd.Spec.Versions[0].Name)
	o := object(crd, "both", map[string]any{"podLabel": "plain", "requiredProbes": []any{"startup"}})
	o.SetAPIVersion(crd.Spec.Group + "/" + crd.Spec.Versions[1].Name)
	must(t)(stored.Create(e.Context(), o, strict))

	read := must(t)(other.Get(e.Context(), "both", metav1.GetOptions{}))
	if probes := field(read, "spec", "requiredProbes"); probes != nil {
		t.Errorf("the version without the field shows it: %v", probes)
	}
	read.SetLabels(map[string]string{"a": "b"})
	must(t)(other.Update(e.Context(), read, metav1.UpdateOptions{}))
	read = must(t)(stored.Get(e.Context(), "both", metav1.GetOptions{}))
	if probes := fmt.Sprint(field(read, "spec", "requiredProbes")); probes != "[liveness readiness]" {
		t.Errorf("after an update in the other version, the field is %s, want the default", probes)
	}
}

// A policy's refusal is 422 Invalid, unless the policy says reason: Forbidden.
func TestReasonOfAPolicyIsInvalid(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := variant(t, policyCRD, "reason")
	crdtest.Install(t, e, crd)
	policy := installKillPolicy(t, e, crd)
	create := func(ctx context.Context) error {
		_, err := resource(e, crd, "").Create(ctx, object(crd, "deadly", map[string]any{"action": "kill"}), strict)
		return err
	}
	if err := create(e.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("with the reason Forbidden: %v", err)
	}
	for i := range policy.Spec.Validations {
		policy.Spec.Validations[i].Reason = nil
	}
	client := e.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	current, err := client.Get(e.Context(), policy.Name, metav1.GetOptions{})
	fatal.If(t, err)
	policy.ResourceVersion = current.ResourceVersion
	if _, err := client.Update(e.Context(), policy, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.Eventually(time.Minute, func(ctx context.Context) error {
		switch err := create(ctx); {
		case err == nil:
			return errors.New("the object was accepted")
		case apierrors.IsInvalid(err) && strings.Contains(err.Error(), "policies may not kill"):
			return nil
		default:
			return fmt.Errorf("without a reason: %w", err)
		}
	})
}

package crdyaml

import (
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/exercise/check"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{"rules": checkRules})
}

// checkRules installs the definition in a group of its own and asks the server
// what it accepts.
func checkRules(c *check.C) {
	data, err := os.ReadFile(c.Path("crd.yaml"))
	c.Must(err)
	crd := &definition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		c.Fail("a CustomResourceDefinition", err.Error())
	}
	if len(crd.Spec.Versions) == 0 {
		c.Fail("a CustomResourceDefinition with the version v1alpha1", "no version")
	}
	crd.Spec.Versions = crd.Spec.Versions[:1]
	crdtest.Rename(crd, c.Namespace+".k8s-go.openshift.org")
	if err := crdtest.Create(c.T, c.Env, crd); err != nil {
		if strings.Contains(err.Error(), "cost") {
			c.Mistake("cost exceeded", "a definition that the server takes", err.Error())
		}
		c.Fail("a definition that the server takes", err.Error())
	}
	c.Must(crdwait.Established(c.Context(), c.Config, crd.Name))

	policies := resource(c.Env, crd, "")
	const selects = `"selector":{"matchLabels":{"unhealthy":"yes"}}`
	const selectsByExpression = `"selector":{"matchExpressions":[{"key":"unhealthy","operator":"Exists"}]}`
	for _, tc := range []struct {
		name, spec string
		accepted   bool
		mistake    string // what explains another answer
	}{
		{"nothing", `{}`, false, "has of a field with a default"},
		{"annotate-without", `{"action":"annotate"}`, false, ""},
		{"kill-without", `{"action":"kill"}`, true, ""},
		{"labels", `{"podLabel":"unhealthy"}`, true, ""},
		{"kill-with", `{"action":"kill","podLabel":"unhealthy",` + selects + `}`, true, "every action is restricted"},
		{"annotate-selects", `{"action":"annotate","podLabel":"unhealthy",` + selectsByExpression + `}`, true, "every action is restricted"},
		{"label-selects", `{"action":"label","podLabel":"unhealthy",` + selects + `}`, false, ""},
		{"label-selects-by-expression", `{"podLabel":"unhealthy",` + selectsByExpression + `}`, false, ""},
		{"selects-another", `{"podLabel":"unhealthy","selector":{"matchLabels":{"app":"web"}}}`, true, ""},
	} {
		var spec map[string]any
		c.Must(yaml.Unmarshal([]byte(tc.spec), &spec))
		_, err := policies.Create(c.Context(), object(crd, tc.name, spec), strict)
		wantAnswer(c, "a policy with the spec "+tc.spec, err, tc.accepted, tc.mistake)
	}
	for _, tc := range []struct {
		name, patch string
		accepted    bool
		mistake     string
	}{
		{"kill-without", `{"spec":{"podLabel":"late"}}`, true, ""},
		{"labels", `{"spec":{"podLabel":"other"}}`, false, ""},
		{"kill-with", `{"spec":{"podLabel":null}}`, false, "transition rule on the field"},
	} {
		_, err := policies.Patch(c.Context(), tc.name, types.MergePatchType, []byte(tc.patch), metav1.PatchOptions{})
		wantAnswer(c, "the change "+tc.patch+" of the policy "+tc.name, err, tc.accepted, tc.mistake)
	}
}

// wantAnswer ends the check unless the server accepts or refuses something as it should.
func wantAnswer(c *check.C, what string, err error, accepted bool, mistake string) {
	if err != nil && !apierrors.IsInvalid(err) {
		c.T.Fatal(err)
	}
	held := "the server has accepted it"
	if err != nil {
		held = err.Error()
	}
	switch {
	case (err == nil) == accepted:
	case mistake != "" && c.Matches(mistake):
		c.Mistake(mistake, what+verb(accepted), held)
	default:
		c.Fail(what+verb(accepted), held)
	}
}

func verb(accepted bool) string {
	if accepted {
		return " is accepted"
	}
	return " is refused"
}

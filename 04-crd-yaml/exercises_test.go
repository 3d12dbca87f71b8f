package crdyaml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/04-crd-yaml/exercises"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/exercise/check"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestExercises(t *testing.T) {
	check.Exercises(t, check.Checks{
		"anchors":   checkTry("anchors"),
		"between":   checkTry("between"),
		"grow":      checkTry("grow"),
		"defaults":  checkTry("defaults"),
		"rules":     checkRules,
		"retire":    checkRetire,
		"admission": checkAdmission,
		"images":    checkImages,
		"resources": func(c *check.C) {
			checkDefinition(c, exercises.ResourcesPolicy, map[string]string{
				"action delete needs no label":              "label always needed",
				"require asks for limits, requests or both": "has of a field with a default",
				"requestsLowerThanLimits needs limits":      "one of both is enough",
				"requestsLowerThanLimits needs requests":    "one of both is enough",
				"the status that a user writes is dropped":  "no status subresource",
			})
		},
	})
}

// checkImages tries a CRD of ContainerImagePolicies.
func checkImages(c *check.C) {
	mistakes := map[string]string{
		"require asks for something":                          "has of a field with a default",
		"an unknown field is refused under strict validation": "unknown fields are kept",
		"spec is needed, because require is":                  "everything goes through",
		"nothing stands beside spec and status":               "everything goes through",
		"the status that a user writes is dropped":            "no status subresource",
	}
	crd := &definition{}
	c.ReadYAML("crd.yaml", "a CustomResourceDefinition", crd)
	for _, v := range crd.Spec.Versions {
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		regex := v.Schema.OpenAPIV3Schema.Properties["spec"].Properties["require"].Properties["imageRegex"]
		if regex.Pattern != "" || strings.Contains(fmt.Sprint(regex.XValidations), "self.matches(") {
			mistakes["imageRegex is a regular expression"] = "pattern instead of a rule"
		}
	}
	checkDefinition(c, exercises.ContainerImagePolicy, mistakes)
}

// checkDefinition tries all requirements on a CRD. The first that is not met
// decides; mistakes says which mistake explains it, if a line of the file is about it.
func checkDefinition(c *check.C, d exercises.Definition, mistakes map[string]string) {
	crd := &definition{}
	c.ReadYAML("crd.yaml", "a CustomResourceDefinition", crd)
	misses, of := d.Misses(c, crd)
	if len(misses) == 0 {
		return
	}
	first := misses[0]
	held := fmt.Sprintf("%s\n%d of %d requirements are met", first.Problem, of-len(misses), of)
	if name := mistakes[first.Requirement]; name != "" && c.Matches(name) {
		c.Mistake(name, first.Requirement, held)
	}
	c.Fail(first.Requirement, held)
}

// checkRules installs the CRD in a group of its own and asks the server
// what it accepts.
func checkRules(c *check.C) {
	crd := &definition{}
	c.ReadYAML("crd.yaml", "a CustomResourceDefinition", crd)
	if len(crd.Spec.Versions) == 0 {
		c.Fail("a CustomResourceDefinition with the version v1alpha1", "no version")
	}
	crd.Spec.Versions = crd.Spec.Versions[:1]
	crdtest.Rename(crd, c.Namespace+".k8s-go.openshift.org")
	if err := crdtest.Create(c.T, c.Env, crd); err != nil {
		if strings.Contains(err.Error(), "cost") {
			c.At("crd.yaml", dearest(c, crd, err.Error()))
			c.Mistake("cost exceeded", "a CRD that the server takes", err.Error())
		}
		c.Fail("a CRD that the server takes", err.Error())
	}
	c.Must(crdwait.Established(c.Context(), c.Config, crd.Name))

	policies := resource(c.Env, crd, "")
	const selects = `"selector":{"matchLabels":{"unhealthy":"yes"}}`
	const selectsByExpression = `"selector":{"matchExpressions":[{"key":"unhealthy","operator":"Exists"}]}`
	removal := "removal accepted"
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	if strings.Contains(fmt.Sprint(spec.Properties["podLabel"].XValidations), "oldSelf") {
		removal = "transition rule on the field"
	}
	for _, tc := range []struct {
		name, spec, change string // a new policy with that spec, or a change of one
		accepted           bool
		mistake            string // what explains another answer
	}{
		// In the order of the task's points.
		{"nothing", `{}`, "", false, "has of a field with a default"},
		{"annotate-without", `{"action":"annotate"}`, "", false, ""},
		{"kill-without", `{"action":"kill"}`, "", true, ""},
		{"labels", `{"podLabel":"unhealthy"}`, "", true, ""},

		{"kill-without", "", `{"spec":{"eviction":{"minIntervalSeconds":60}}}`, true, "frozen without a label"},
		{"kill-without", "", `{"spec":{"podLabel":"late"}}`, true, ""},
		{"labels", "", `{"spec":{"podLabel":"other"}}`, false, ""},
		{"labels", "", `{"spec":{"action":"annotate","podLabel":"other"}}`, false, ""},
		{"kill-with", `{"action":"kill","podLabel":"unhealthy"}`, "", true, ""},
		{"kill-with", "", `{"spec":{"podLabel":null}}`, false, removal},
		{"kill-with", "", `{"spec":{"action":"annotate"}}`, true, ""},
		{"labels", "", `{"spec":{"action":"kill","podLabel":null}}`, false, "removal accepted"},

		{"kill-selects", `{"action":"kill","podLabel":"unhealthy",` + selects + `}`, "", true, "every action is restricted"},
		{"annotate-selects", `{"action":"annotate","podLabel":"unhealthy",` + selectsByExpression + `}`, "", true, "every action is restricted"},
		{"annotate-selects-plainly", `{"action":"annotate","podLabel":"unhealthy",` + selects + `}`, "", true, "every action is restricted"},
		{"kill-selects-by-expression", `{"action":"kill","podLabel":"unhealthy",` + selectsByExpression + `}`, "", true, "every action is restricted"},
		{"label-selects", `{"action":"label","podLabel":"unhealthy",` + selects + `}`, "", false, ""},
		{"label-selects-by-expression", `{"podLabel":"unhealthy",` + selectsByExpression + `}`, "", false, ""},
		{"label-selects-by-second-expression", `{"podLabel":"unhealthy","selector":{"matchExpressions":[{"key":"app","operator":"Exists"},{"key":"unhealthy","operator":"Exists"}]}}`, "", false, ""},
		{"label-selects-by-absence", `{"podLabel":"unhealthy","selector":{"matchExpressions":[{"key":"unhealthy","operator":"DoesNotExist"}]}}`, "", false, ""},
		{"label-selects-by-value", `{"podLabel":"unhealthy","selector":{"matchExpressions":[{"key":"unhealthy","operator":"NotIn","values":["yes"]}]}}`, "", false, ""},
		{"selects-another", `{"podLabel":"unhealthy","selector":{"matchLabels":{"app":"web"}}}`, "", true, ""},
		{"selects-another-by-expression", `{"podLabel":"unhealthy","selector":{"matchExpressions":[{"key":"app","operator":"Exists"}]}}`, "", true, ""},

		{"probes", `{"action":"kill","requiredProbes":["liveness","readiness","startup"]}`, "", true, ""},
		{"probe-alone", `{"action":"kill","requiredProbes":["startup"]}`, "", true, ""},
		{"probes-in-another-order", `{"action":"kill","requiredProbes":["startup","liveness"]}`, "", true, ""},
		{"probe-twice", `{"action":"kill","requiredProbes":["liveness","startup","liveness"]}`, "", false, "probe named twice"},
		{"two-probes-the-same", `{"action":"kill","requiredProbes":["liveness","liveness"]}`, "", false, ""},
		{"last-probe-twice", `{"action":"kill","requiredProbes":["liveness","startup","startup"]}`, "", false, ""},
	} {
		if tc.change != "" {
			_, err := policies.Patch(c.Context(), tc.name, types.MergePatchType, []byte(tc.change), metav1.PatchOptions{})
			wantAnswer(c, "the change "+tc.change+" of the policy "+tc.name, err, tc.accepted, tc.mistake)
			continue
		}
		var spec map[string]any
		c.Must(yaml.Unmarshal([]byte(tc.spec), &spec))
		_, err := policies.Create(c.Context(), object(crd, tc.name, spec), strict)
		wantAnswer(c, "a policy with the spec "+tc.spec, err, tc.accepted, tc.mistake)
	}
	for _, rule := range slices.Concat(spec.XValidations, spec.Properties["requiredProbes"].XValidations) {
		if rule.Message == "" && rule.MessageExpression == "" {
			c.Fail("a message for each rule", "none for "+strings.TrimSpace(rule.Rule))
		}
	}
}

// onSpec finds the rule of the spec that an answer of the API server is about.
var onSpec = regexp.MustCompile(`properties\[spec\]\.x-kubernetes-validations\[(\d+)\]`)

// dearest returns the line of the rule of the spec that the API server calls too costly, or 0.
func dearest(c *check.C, crd *definition, answer string) int {
	c.T.Helper()
	found := onSpec.FindStringSubmatch(answer)
	if found == nil {
		return 0
	}
	i, err := strconv.Atoi(found[1])
	c.Must(err)
	rules := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].XValidations
	if i >= len(rules) {
		return 0
	}
	data, err := os.ReadFile(c.Path("crd.yaml"))
	c.Must(err)
	begin, _, _ := strings.Cut(strings.TrimSpace(rules[i].Rule), "\n")
	before, _, ok := strings.Cut(string(data), begin[:min(len(begin), 40)])
	if !ok {
		return 0
	}
	return strings.Count(before, "\n") + 1
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

// checkRetire lets the script retire v1alpha1, of a CRD in a group of its
// own with objects in two namespaces.
func checkRetire(c *check.C) {
	elsewhere := testenv.New(c.T)
	crd := crdtest.Read(c.T, policyCRD)
	// A third version, which is kept, gives both of the others another place in the list.
	kept := *crd.Spec.Versions[1].DeepCopy()
	kept.Name, kept.Storage = "v1", false
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{kept, crd.Spec.Versions[1], crd.Spec.Versions[0]}
	crdtest.Rename(crd, c.Namespace+".k8s-go.openshift.org")
	crdtest.Install(c.T, c.Env, crd)
	definitions := crdtest.Client(c.T, c.Env).ApiextensionsV1().CustomResourceDefinitions()
	installed, err := definitions.Get(c.Context(), crd.Name, metav1.GetOptions{}) // with its defaults
	c.Must(err)
	sound, name := false, crd.Name
	c.T.Cleanup(func() {
		if !sound {
			repair(c, name)
		}
	})
	type place struct {
		where, name string
		old, new    dynamic.ResourceInterface
		before, now *unstructured.Unstructured
		left        bool // in v1alpha1
	}
	var places []*place
	for _, name := range []string{"x", "y"} {
		places = append(places,
			&place{where: "the namespace of WORKSHOP_NAMESPACE", name: name, old: resource(c.Env, crd, "v1alpha1"), new: resource(c.Env, crd, "v1beta1")},
			&place{where: "another namespace", name: name, old: resource(elsewhere, crd, "v1alpha1"), new: resource(elsewhere, crd, "v1beta1")})
	}
	for _, p := range places {
		o := object(crd, p.name, map[string]any{"podLabel": "x"})
		o.SetAPIVersion(crd.Spec.Group + "/v1alpha1")
		o.SetLabels(map[string]string{"team": "shop"})
		o.SetAnnotations(map[string]string{"why": "tried"})
		var err error
		p.before, err = p.old.Create(c.Context(), o, strict)
		c.Must(err)
	}

	script := c.Start(testenv.Command{Path: c.Path("retire.sh"), Args: []string{crd.Name, "v1alpha1", "v1beta1"}, Timeout: 2 * time.Minute,
		Env: []string{"KUBECACHEDIR=" + c.T.TempDir()}})
	if err := c.Until(2*time.Minute, func(context.Context) error {
		if script.Ended() {
			return nil
		}
		return errors.New("it still runs after two minutes:\n" + script.Stdout() + script.Stderr())
	}); err != nil {
		c.Fail("retire.sh ends", err.Error())
	}
	said := strings.TrimSpace(script.Stderr())
	if strings.Contains(said, "must have exactly one version marked as storage version") {
		c.Mistake("two storage versions", "CRDs that the server takes", said)
	}
	if strings.Contains(said, "spec.versions[0].schema.openAPIV3Schema: Required value") {
		c.Mistake("list replaced", "CRDs that the server takes", said)
	}
	crd, err = definitions.Get(c.Context(), crd.Name, metav1.GetOptions{})
	c.Must(err)
	var served []string
	for _, v := range crd.Spec.Versions {
		served = append(served, v.Name)
	}
	if slices.Contains(served, "v1alpha1") && strings.Contains(said, "missing from spec.versions") {
		c.Mistake("stored versions not updated", "v1alpha1 is removed", said)
	}
	if held := fmt.Sprintf("versions %v, status.storedVersions %v, exit code %d\n%s", served, crd.Status.StoredVersions, script.ExitCode(), said); script.ExitCode() != 0 ||
		!slices.Equal(served, []string{"v1", "v1beta1"}) || !slices.Equal(crd.Status.StoredVersions, []string{"v1beta1"}) {
		c.Fail("versions [v1 v1beta1] of [v1 v1beta1 v1alpha1], status.storedVersions [v1beta1], exit code 0", held)
	}

	// An object that still has its resourceVersion is stored as it was, whether or not
	// the server can read it for a moment yet. For the others it has to show: the server
	// reads with its old CRD until it has exchanged it, of which nobody hears.
	c.Must(c.Until(time.Minute, func(ctx context.Context) error {
		if _, err := places[0].old.List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("v1alpha1 still answers, or otherwise: %v", err)
		}
		return nil
	}))
	left := map[string]int{} // by namespace
	for _, p := range places {
		var err error
		_ = c.Until(500*time.Millisecond, func(context.Context) error { // an error ends this early, not its absence
			if p.now, err = p.new.Get(c.Context(), p.name, metav1.GetOptions{}); err != nil || p.now.GetResourceVersion() == p.before.GetResourceVersion() {
				return nil
			}
			return errors.New("it was stored again, and can be read")
		})
		switch {
		case apierrors.IsNotFound(err):
			c.Mistake("deleted and made again", "the policy "+p.name+" in "+p.where+", with the UID that it had", err.Error())
		case err != nil && strings.Contains(err.Error(), "invalid group/version"), err == nil && p.now.GetResourceVersion() == p.before.GetResourceVersion():
			p.left = true
			left[p.where]++
		default:
			c.Must(err)
		}
	}
	sound = len(left) == 0
	const stored = "every policy is stored in v1beta1"
	if !slices.ContainsFunc(places, func(p *place) bool { return !p.left }) {
		c.Mistake("status patched without rewriting", stored, "none of them: the server cannot read them any more, or will soon not")
	}
	for _, p := range places {
		switch {
		case p.left && len(left) == 1 && left[p.where] == len(places)/2:
			c.Mistake("one namespace only", stored, "those in "+p.where+" are still stored in v1alpha1")
		case p.left:
			c.Fail(stored, "the policy "+p.name+" in "+p.where+" is still stored in v1alpha1")
		case p.now.GetUID() != p.before.GetUID():
			c.Mistake("deleted and made again", "the UID "+string(p.before.GetUID()), "the UID "+string(p.now.GetUID()))
		}
		for _, path := range [][]string{{"spec"}, {"metadata", "labels"}, {"metadata", "annotations"}, {"metadata", "finalizers"}} {
			if before, now := field(p.before, path...), field(p.now, path...); !cmp.Equal(before, now) {
				c.Failf(fmt.Sprintf("the same objects, with %s %v", strings.Join(path, "."), before), "the policy %s in %s with %v", p.name, p.where, now)
			}
		}
	}

	for i, v := range crd.Spec.Versions {
		before := installed.Spec.Versions[i]
		v.Storage, v.Deprecated, v.DeprecationWarning = before.Storage, before.Deprecated, before.DeprecationWarning
		if diff := cmp.Diff(before, v); diff != "" {
			c.Mistake("kept version changed", "the version "+v.Name+" as it was, but for storage", "(-was +is)\n"+diff)
		}
	}

	// Where there is nothing to store again, nothing shows that the server has noticed.
	empty := crdtest.Read(c.T, policyCRD)
	crdtest.Rename(empty, "empty-"+c.Namespace+".k8s-go.openshift.org")
	crdtest.Install(c.T, c.Env, empty)
	r := c.Run(testenv.Command{Path: c.Path("retire.sh"), Args: []string{empty.Name, "v1alpha1", "v1beta1"}, Timeout: 2 * time.Minute, Env: []string{"KUBECACHEDIR=" + c.T.TempDir()}})
	if r.TimedOut || r.ExitCode != 0 {
		c.Failf("retire.sh ends with exit code 0 where there is no object", "after two minutes or earlier: exit code %d\n%s", r.ExitCode, strings.TrimSpace(r.Stderr))
	}
	empty, err = definitions.Get(c.Context(), empty.Name, metav1.GetOptions{})
	c.Must(err)
	if len(empty.Spec.Versions) != 1 || !slices.Equal(empty.Status.StoredVersions, []string{"v1beta1"}) {
		c.Failf("v1beta1 alone, also where there is no object", "%d versions, status.storedVersions %v", len(empty.Spec.Versions), empty.Status.StoredVersions)
	}
}

// repair makes objects readable again that are stored in v1alpha1. Without that
// they could not be deleted with their CRD.
func repair(c *check.C, name string) {
	c.T.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		definitions := crdtest.Client(c.T, c.Env).ApiextensionsV1().CustomResourceDefinitions()
		crd, err := definitions.Get(c.Context(), name, metav1.GetOptions{})
		if err != nil || slices.ContainsFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == "v1alpha1" }) {
			return err
		}
		alpha := *crd.Spec.Versions[0].DeepCopy()
		alpha.Name, alpha.Storage = "v1alpha1", false
		crd.Spec.Versions = append(crd.Spec.Versions, alpha)
		_, err = definitions.Update(c.Context(), crd, metav1.UpdateOptions{})
		return err
	})
	c.Must(err)
	group := name[strings.Index(name, ".")+1:]
	everywhere := c.Dynamic.Resource(schema.GroupVersionResource{Group: group, Version: "v1alpha1", Resource: "healthcheckpolicies"})
	c.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := everywhere.List(ctx, metav1.ListOptions{})
		return err
	})
}

// checkAdmission puts the policy and its binding into force in the check's
// namespace, for a CRD in a group of its own, and asks in dry runs.
func checkAdmission(c *check.C) {
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	c.ReadYAML("policy.yaml", "a ValidatingAdmissionPolicy and a ValidatingAdmissionPolicyBinding", policy, binding)
	if binding.Spec.PolicyName != policy.Name || !slices.Contains(binding.Spec.ValidationActions, admissionv1.Deny) {
		c.Mistake("no binding", "policyName "+policy.Name+" and validationActions [Deny]",
			fmt.Sprintf("policyName %s and validationActions %v", binding.Spec.PolicyName, binding.Spec.ValidationActions))
	}
	if binds(c, binding, "workshop-05") {
		c.Mistake("bound everywhere", "a binding for the namespace workshop-04 only", "it is for workshop-05, too")
	}
	if !binds(c, binding, "workshop-04") {
		c.Fail("a binding for the namespace workshop-04", "it is not for workshop-04")
	}

	crd := crdtest.Read(c.T, policyCRD)
	crd.Spec.Versions = crd.Spec.Versions[:1]
	crdtest.Rename(crd, c.Namespace+".k8s-go.openshift.org")
	crdtest.Install(c.T, c.Env, crd)
	policies := resource(c.Env, crd, "")
	killer := object(crd, "killer", map[string]any{"action": "kill"})
	killer.SetFinalizers([]string{"policy.k8s-go.openshift.org/take-back"})
	_, err := policies.Create(c.Context(), killer, strict)
	c.Must(err)
	_, err = policies.Create(c.Context(), object(crd, "mild", map[string]any{"podLabel": "x"}), strict)
	c.Must(err)
	var view, edit rbacv1.ClusterRole
	readPair(c.T, "roles.yaml", &view, &edit)
	for i := range edit.Rules {
		edit.Rules[i].APIGroups = []string{crd.Spec.Group}
	}
	// Each user may write policies, and what the one more rule says: in the namespace, not
	// in the whole cluster.
	user := func(name string, more ...rbacv1.PolicyRule) dynamic.ResourceInterface {
		return as(c.T, c.Env, crd, name, slices.Concat(edit.Rules, more)...)
	}
	pods := func(verb, resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{corev1.GroupName}, Resources: []string{resource}, Verbs: []string{verb}}
	}
	anna, bert := user("anna"), user("bert", pods("create", "pods/eviction"))
	carl, dora := user("carl", pods("create", "pods")), user("dora", pods("delete", "pods"))
	owner := user("owner", rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}})

	name := c.Namespace + ".k8s-go.openshift.org"
	policy.Name, binding.Name, binding.Spec.PolicyName = name, name, name
	if policy.Spec.MatchConstraints == nil || len(policy.Spec.MatchConstraints.ResourceRules) == 0 {
		c.Fail("matchConstraints as they were", "none")
	}
	policy.Spec.MatchConstraints.ResourceRules[0].APIGroups = []string{crd.Spec.Group}
	bound := binding.Spec.MatchResources // whatever else it selects by stays
	bound.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: c.Namespace}}
	for _, rule := range slices.Concat(bound.ResourceRules, bound.ExcludeResourceRules) {
		for i, group := range rule.APIGroups {
			if group == "policy.k8s-go.openshift.org" {
				rule.APIGroups[i] = crd.Spec.Group
			}
		}
	}
	client := c.Client.AdmissionregistrationV1()
	removePolicyAtEnd(c, name)
	if _, err := client.ValidatingAdmissionPolicies().Create(c.Context(), policy, metav1.CreateOptions{}); err != nil {
		c.Fail("a policy that the server takes", err.Error())
	}
	if _, err := client.ValidatingAdmissionPolicyBindings().Create(c.Context(), binding, metav1.CreateOptions{}); err != nil {
		c.Fail("a binding that the server takes", err.Error())
	}

	dryRun := []string{metav1.DryRunAll}
	create := func(client dynamic.ResourceInterface, spec map[string]any) error {
		_, err := client.Create(c.Context(), object(crd, "tried", spec), metav1.CreateOptions{DryRun: dryRun})
		if err != nil && !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			c.T.Fatal(err)
		}
		return err
	}
	changeOf := func(client dynamic.ResourceInterface, name, patch string) error {
		_, err := client.Patch(c.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun})
		if err != nil && !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			c.T.Fatal(err)
		}
		return err
	}
	change := func(patch string) error { return changeOf(policies, "killer", patch) }
	kill := map[string]any{"action": "kill"}
	const refused = "in a namespace without the label, a new policy that kills is refused"
	allowed := sentinel(c, crd)
	c.Must(c.Until(time.Minute, func(context.Context) error {
		if allowed() {
			return errors.New("the policies are not in force")
		}
		return nil
	}))
	denied := create(policies, kill)
	if denied == nil {
		c.Fail(refused, "the server has accepted it")
	}
	if strings.Contains(denied.Error(), "resulted in error") {
		const expected = refused + ", with a message about the label"
		if strings.Contains(denied.Error(), "labels") {
			c.Mistake("error on missing labels", expected, denied.Error())
		}
		c.Fail(expected, denied.Error())
	}
	if strings.Contains(denied.Error(), "failed expression: ") {
		c.Fail(refused+", with a message of yours", denied.Error())
	}
	if err := create(policies, map[string]any{"podLabel": "x"}); err != nil {
		c.Fail("a policy that does not kill is accepted", err.Error())
	}
	if err := change(`{"spec": {"action": "label", "podLabel": "x"}}`); err != nil {
		c.Fail("a policy that kills already can be changed into one that labels", err.Error())
	}
	if err := change(`{"metadata": {"finalizers": null}}`); err != nil {
		c.Mistake("finalizers cannot be edited", "the finalizer of a policy that kills already can be removed", err.Error())
	}
	for _, field := range []string{"labels", "annotations"} {
		if err := change(`{"metadata": {"` + field + `": {"team": "shop"}}}`); err != nil {
			c.Fail("a policy that kills already can get "+field, err.Error())
		}
	}
	for field, patch := range map[string]string{"selector": `{"matchLabels": {"app": "shop"}}`, "requiredProbes": `["startup"]`, "eviction": `{"minIntervalSeconds": 60}`, "podLabel": `"x"`} {
		if err := change(`{"spec": {"` + field + `": ` + patch + `}}`); err == nil {
			c.Mistake("a killer can be widened", "a change of "+field+" of a policy that kills already is refused", "the server has accepted it")
		}
	}
	const widened = `{"selector": {"matchLabels": {"app": "shop"}}}`
	if err := change(`{"metadata": {"labels": {"team": "shop"}}, "spec": ` + widened + `}`); err == nil {
		c.Mistake("a killer can be widened", "a change of selector of a policy that kills already, together with a label, is refused", "the server has accepted it")
	}
	if err := changeOf(policies, "mild", `{"spec": {"action": "kill"}}`); err == nil {
		c.Mistake("becomes a killer", "a change of a policy that labels into one that kills is refused", "the server has accepted it")
	}
	labelNamespace(c.T, c.Env, `"allowed"`)
	c.Must(c.Until(time.Minute, func(context.Context) error {
		if !allowed() {
			return errors.New("the server has not seen the label of the namespace")
		}
		return nil
	}))
	if err := create(policies, kill); err != nil {
		c.Fail("in a namespace with the label, an administrator can make a policy that kills", err.Error())
	}
	const another = "another right is asked for"
	for _, u := range []struct {
		who      string
		client   dynamic.ResourceInterface
		accepted bool
		mistake  string
	}{
		{"anna, who has no right to pods,", anna, false, "author not asked"},
		{"carl, who may create pods, but not pods/eviction,", carl, false, another},
		{"dora, who may delete pods, but not create pods/eviction,", dora, false, another},
		{"the owner of the namespace, who may do everything in it,", owner, true, "not asked about the namespace"},
		{"bert, who may create pods/eviction in the namespace,", bert, true, another},
	} {
		err := create(u.client, kill)
		switch expected := "a policy that kills, from " + u.who + verb(u.accepted); {
		case (err == nil) == u.accepted:
		case err == nil:
			c.Mistake(u.mistake, expected, "the server has accepted it")
		case c.Matches(u.mistake): // or another expression refuses it
			c.Mistake(u.mistake, expected, err.Error())
		default:
			c.Fail(expected, err.Error())
		}
	}

	if err := changeOf(anna, "killer", `{"spec": `+widened+`}`); err == nil {
		c.Fail("a change of selector of a policy that kills already, from anna, who has no right to pods, is refused", "the server has accepted it")
	}
	if err := changeOf(bert, "killer", `{"spec": `+widened+`}`); err != nil {
		c.Fail("a change of selector of a policy that kills already, from bert, who may create pods/eviction in the namespace, is accepted", err.Error())
	}

	labelNamespace(c.T, c.Env, `"denied"`)
	c.Must(c.Until(time.Minute, func(context.Context) error {
		if allowed() {
			return errors.New("the server has not seen the new label of the namespace")
		}
		return nil
	}))
	if err := create(policies, kill); err == nil {
		c.Mistake("any value of the label", "with the label kill=denied on the namespace, a new policy that kills is refused", "the server has accepted it")
	}
}

// removePolicyAtEnd removes an admission policy and its binding, which has the same name.
func removePolicyAtEnd(c *check.C, name string) {
	c.T.Helper()
	client := c.Client.AdmissionregistrationV1()
	c.AtEnd(
		func(ctx context.Context) error {
			return client.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{})
		},
		func(ctx context.Context) error {
			return client.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{})
		})
}

// sentinel puts a policy of the check's own into force, later than the learner's: it
// refuses one object in a namespace without the label. The function that it returns
// tells whether that object is allowed. As long as it is, the learner's policy may
// not be in force, and once it is again, the server has seen the label.
func sentinel(c *check.C, crd *definition) (allowed func() bool) {
	c.T.Helper()
	name := "sentinel." + c.Namespace + ".k8s-go.openshift.org"
	client := c.Client.AdmissionregistrationV1()
	removePolicyAtEnd(c, name)
	var policy admissionv1.ValidatingAdmissionPolicy
	var binding admissionv1.ValidatingAdmissionPolicyBinding
	readPair(c.T, "kill-needs-permission.yaml", &policy, &binding)
	policy.Name, binding.Name, binding.Spec.PolicyName = name, name, name
	policy.Spec.MatchConstraints.ResourceRules[0].APIGroups = []string{crd.Spec.Group}
	policy.Spec.MatchConditions = []admissionv1.MatchCondition{{Name: "only-one", Expression: "object.metadata.name == 'sentinel'"}}
	policy.Spec.Validations = policy.Spec.Validations[:1]
	onlyHere(c.T, c.Env, binding.Spec.MatchResources.NamespaceSelector)
	_, err := client.ValidatingAdmissionPolicies().Create(c.Context(), &policy, metav1.CreateOptions{})
	c.Must(err)
	_, err = client.ValidatingAdmissionPolicyBindings().Create(c.Context(), &binding, metav1.CreateOptions{})
	c.Must(err)
	return func() bool {
		_, err := resource(c.Env, crd, "").Create(c.Context(), object(crd, "sentinel", map[string]any{"podLabel": "x"}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && !strings.Contains(err.Error(), name) {
			if strings.Contains(err.Error(), "ValidatingAdmissionPolicy") { // of two that refuse, the answer names one
				c.Fail("a policy that does not kill is accepted", err.Error())
			}
			return true
		}
		return err == nil
	}
}

// binds reports whether a binding is for a namespace of that name.
func binds(c *check.C, binding *admissionv1.ValidatingAdmissionPolicyBinding, namespace string) bool {
	if binding.Spec.MatchResources == nil || binding.Spec.MatchResources.NamespaceSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(binding.Spec.MatchResources.NamespaceSelector)
	if err != nil {
		c.Fail("a namespaceSelector that selects by labels", err.Error())
	}
	return selector.Matches(labels.Set{corev1.LabelMetadataName: namespace})
}

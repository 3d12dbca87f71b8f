package crdyaml

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

type (
	definition = apiextensionsv1.CustomResourceDefinition
	props      = apiextensionsv1.JSONSchemaProps
)

// own is a CRD of the lesson in a group of its own, so that the test can
// run beside others.
func own(t *testing.T, path, name string) *definition {
	t.Helper()
	crd := crdtest.Read(t, path)
	crdtest.Rename(crd, name+".crd-yaml.k8s-go.openshift.org")
	return crd
}

// variant is one to be changed: its own, with one version.
func variant(t *testing.T, path, name string) *definition {
	t.Helper()
	crd := own(t, path, name)
	crd.Spec.Versions = crd.Spec.Versions[:1]
	return crd
}

// edit changes the schema of a variant at a path such as spec.requiredProbes.[].
func edit(t *testing.T, crd *definition, path string, change func(*props)) {
	t.Helper()
	var descend func(s *props, path []string)
	descend = func(s *props, path []string) {
		switch {
		case len(path) == 0:
			change(s)
		case path[0] == "[]":
			descend(s.Items.Schema, path[1:])
		default:
			p, ok := s.Properties[path[0]]
			if !ok {
				t.Fatalf("the schema has no %s", path[0])
			}
			descend(&p, path[1:])
			s.Properties[path[0]] = p
		}
	}
	descend(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, strings.FieldsFunc(path, func(r rune) bool { return r == '.' }))
}

// update changes a CRD in the cluster.
func update(t *testing.T, e *testenv.Env, name string, change func(*definition)) error {
	t.Helper()
	client := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions()
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		crd, err := client.Get(e.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(crd)
		_, err = client.Update(e.Context(), crd, metav1.UpdateOptions{})
		return err
	})
}

// Each line of the schema is taken away once: the bad example that it refuses
// is then accepted. So every line is needed, and every example fails because of
// the line that it is about.
func TestEachLineOfTheSchemaRefusesItsExample(t *testing.T) {
	t.Parallel() // its CRDs are its own
	e := testenv.New(t)
	features := []struct {
		name, crd, example, path string
		remove                   func(*props)
	}{
		{"pattern", policyCRD, "podlabel-space", "spec.podLabel", func(s *props) { s.Pattern = "" }},
		{"max-length", policyCRD, "podlabel-254", "spec.podLabel", func(s *props) { s.MaxLength = nil }},
		{"enum", policyCRD, "action-in-capitals", "spec.action", func(s *props) { s.Enum = nil }},
		{"enum-of-items", policyCRD, "probe-unknown", "spec.requiredProbes.[]", func(s *props) { s.Enum = nil }},
		{"min-items", policyCRD, "probes-empty", "spec.requiredProbes", func(s *props) { s.MinItems = nil }},
		{"each-once", policyCRD, "probes-twice", "spec.requiredProbes", func(s *props) { s.XValidations = nil }},
		// Of four probes two are the same, and without a limit the rule costs too much.
		{"max-items", policyCRD, "probes-four", "spec.requiredProbes", func(s *props) { s.MaxItems, s.XValidations = nil, nil }},
		{"minimum", policyCRD, "eviction-interval-zero", "spec.eviction.minIntervalSeconds", func(s *props) { s.Minimum = nil }},
		{"maximum", policyCRD, "eviction-interval-long", "spec.eviction.minIntervalSeconds", func(s *props) { s.Maximum = nil }},
		{"required", policyCRD, "spec-missing", "", func(s *props) { s.Required = nil }},
		{"required-in-items", policyCRD, "selector-key-missing", "spec", func(s *props) {
			// The rules go, too: what an item must hold limits how many fit into a request.
			selector := s.Properties["selector"]
			selector.Properties["matchExpressions"].Items.Schema.Required, selector.XValidations = nil, nil
			s.Properties["selector"], s.XValidations = selector, nil
		}},
		{"type", policyCRD, "selector-number", "spec", func(s *props) {
			// A rule cannot be about what has no type.
			s.Properties["selector"].Properties["matchLabels"].AdditionalProperties.Schema = &props{XPreserveUnknownFields: ptr(true)}
			s.XValidations = slices.Delete(s.XValidations, 2, 3)
		}},
		{"cross-field-rule", policyCRD, "podlabel-missing", "spec", func(s *props) { s.XValidations = slices.Delete(s.XValidations, 0, 1) }},
		{"rule-of-labels", policyCRD, "selector-names-podlabel", "spec", func(s *props) { s.XValidations = slices.Delete(s.XValidations, 2, 3) }},
		{"rule-of-expressions", policyCRD, "selector-expression-names-podlabel", "spec", func(s *props) { s.XValidations = slices.Delete(s.XValidations, 3, 4) }},
		{"rules-of-selector", policyCRD, "selector-operator", "spec.selector", func(s *props) { s.XValidations = nil }},
		{"pruning", policyCRD, "field-misspelt", "spec", func(s *props) { s.XPreserveUnknownFields = ptr(true) }},
		{"required-name", icecreamCRD, "icecream-deployment-missing", "spec", func(s *props) { s.Required = nil }},
		{"format", icecreamCRD, "icecream-replicas-huge", "spec.replicas", func(s *props) { s.Format = "int64" }},
	}
	var crds []*definition
	for _, f := range features {
		crd := variant(t, f.crd, f.name)
		crd.Spec.Versions[0].Subresources.Scale = nil // it has limits of its own
		edit(t, crd, f.path, f.remove)
		crds = append(crds, crd)
	}
	complete := map[string]*definition{}
	for _, path := range []string{policyCRD, icecreamCRD} {
		crd := variant(t, path, "complete")
		crd.Spec.Versions[0].Subresources.Scale = nil
		complete[path] = crd
		crds = append(crds, crd)
	}
	crdtest.Install(t, e, crds...)
	for i, f := range features {
		t.Run(f.name, func(t *testing.T) {
			o, want := readObject(t, "examples/bad/"+f.example+".yaml")
			o.SetAPIVersion(complete[f.crd].Spec.Group + "/v1alpha1")
			_, err := resource(e, complete[f.crd], "").Create(e.Context(), o, strict)
			wantRefused(t, err, want)
			o.SetAPIVersion(crds[i].Spec.Group + "/v1alpha1")
			if _, err := resource(e, crds[i], "").Create(e.Context(), o, strict); err != nil {
				t.Errorf("still refused without that line: %v", err)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// A rule's reason, field and message are what a client gets to see.
func ruleSaysWhatIsWrong(t *testing.T, e *testenv.Env, crds map[string]*definition) {
	told := crds["HealthCheckPolicy"]
	silent := variant(t, policyCRD, "silent")
	edit(t, silent, "spec", func(s *props) {
		s.XValidations = []apiextensionsv1.ValidationRule{{Rule: s.XValidations[0].Rule}}
	})
	crdtest.Install(t, e, silent)
	for crd, want := range map[*definition]string{
		told:   "FieldValueRequired spec.podLabel: Required value: podLabel is needed unless action is kill",
		silent: "FieldValueInvalid spec: Invalid value: ", // and then "failed rule" with the expression
	} {
		_, err := resource(e, crd, "").Create(e.Context(), object(crd, "x", map[string]any{}), strict)
		got := causes(t, err)
		if len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("causes %q, want one that begins with %q", got, want)
		}
		if crd == silent && !strings.Contains(got[0], "failed rule: self.action == 'kill'") {
			t.Errorf("cause %q does not show the rule that failed", got[0])
		}
	}
}

func transitionRule(t *testing.T, e *testenv.Env, crds map[string]*definition) {
	crd := crds["HealthCheckPolicy"]
	// The rule where one would first put it, on the field itself.
	naive := variant(t, policyCRD, "naive")
	edit(t, naive, "spec", func(s *props) { s.XValidations = nil })
	edit(t, naive, "spec.podLabel", func(s *props) {
		s.XValidations = []apiextensionsv1.ValidationRule{{Rule: "self == oldSelf", Message: "cannot change"}}
	})
	crdtest.Install(t, e, naive)
	policies := resource(e, crd, "")
	patch := func(client dynamic.ResourceInterface, patch string) error {
		_, err := client.Patch(e.Context(), "x", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	for _, c := range []*definition{crd, naive} {
		if _, err := resource(e, c, "").Create(e.Context(), object(c, "x", map[string]any{"podLabel": "first"}), strict); err != nil {
			t.Fatal(err)
		}
	}

	const refused = "FieldValueForbidden spec.podLabel: Forbidden: podLabel cannot change, because pods carry the old key"
	for _, p := range []string{`{"spec": {"podLabel": "second"}}`, `{"spec": {"podLabel": null, "action": "kill"}}`} {
		if got := causes(t, patch(policies, p)); !slices.Equal(got, []string{refused}) {
			t.Errorf("patch %s: causes %q, want %q", p, got, refused)
		}
	}
	for _, p := range []string{`{"spec": {"action": "kill"}}`, `{"spec": {"action": "annotate"}}`, `{"metadata": {"labels": {"a": "b"}}}`} {
		if err := patch(policies, p); err != nil {
			t.Errorf("patch %s leaves the key alone and was refused: %v", p, err)
		}
	}

	// On the field, changing is refused, but removing and setting anew is not.
	clients := resource(e, naive, "")
	wantRefused(t, patch(clients, `{"spec": {"podLabel": "second"}}`), "cannot change")
	for _, p := range []string{`{"spec": {"podLabel": null}}`, `{"spec": {"podLabel": "second"}}`} {
		if err := patch(clients, p); err != nil {
			t.Errorf("the naive rule was expected to overlook the patch %s: %v", p, err)
		}
	}
}

// With optionalOldSelf a transition rule is evaluated on creation too, so that
// what new objects must not have, old ones may keep.
func TestOptionalOldSelf(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := variant(t, policyCRD, "optional")
	later := crd.DeepCopy()
	edit(t, later, "spec.podLabel", func(s *props) {
		s.XValidations = []apiextensionsv1.ValidationRule{{
			Rule: "self.contains('/') || oldSelf.hasValue()", OptionalOldSelf: ptr(true), Message: "the key of a new policy needs a prefix",
		}}
	})
	crdtest.Install(t, e, crd)
	policies := resource(e, crd, "")
	must(t)(policies.Create(e.Context(), object(crd, "old", map[string]any{"podLabel": "plain"}), strict))
	fatal.If(t, update(t, e, crd.Name, func(c *definition) { c.Spec.Versions = later.Spec.Versions }))
	e.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := policies.Create(ctx, object(crd, "new", map[string]any{"podLabel": "plain"}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "the key of a new policy needs a prefix") {
			return fmt.Errorf("a new object without a prefix: error %v", err)
		}
		return nil
	})
	must(t)(policies.Create(e.Context(), object(crd, "new", map[string]any{"podLabel": "example.org/prefixed"}), strict))
	must(t)(policies.Patch(e.Context(), "old", types.MergePatchType, []byte(`{"spec": {"action": "annotate", "requiredProbes": ["startup"]}}`), metav1.PatchOptions{}))
}

// The server estimates the worst case of every rule from the limits in the
// schema, and refuses a CRD whose rules could cost too much.
func TestRuleCost(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	client := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions()
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	crd := variant(t, policyCRD, "cost")
	edit(t, crd, "spec.selector.matchExpressions.[]", func(s *props) {
		s.XValidations = []apiextensionsv1.ValidationRule{{Rule: "!has(self.values) || self.values.all(v, self.values.exists_one(w, v == w))", Message: "values twice"}}
	})
	_, err := client.Create(e.Context(), crd, dryRun)
	wantRefused(t, err, "estimated rule cost exceeds budget")
	edit(t, crd, "spec.selector.matchExpressions", func(s *props) { s.MaxItems = ptr(int64(10)) })
	edit(t, crd, "spec.selector.matchExpressions.[].values", func(s *props) { s.MaxItems = ptr(int64(20)) })
	edit(t, crd, "spec.selector.matchExpressions.[].values.[]", func(s *props) { s.MaxLength = ptr(int64(63)) })
	if _, err := client.Create(e.Context(), crd, dryRun); err != nil {
		t.Errorf("refused with limits, too: %v", err)
	}
}

// A schema must be structural: every value has a type, or says that it may be anything.
func TestSchemaMustBeStructural(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	client := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions()
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	for name, tc := range map[string]struct {
		change func(*definition)
		want   string
	}{
		"type missing": {func(crd *definition) { edit(t, crd, "spec.podLabel", func(s *props) { s.Type = "" }) }, "type: Required value: must not be empty for specified object fields"},
		"default of bad type": {func(crd *definition) {
			edit(t, crd, "spec.action", func(s *props) { s.Default.Raw = []byte(`"delete"`) })
		}, `default: Unsupported value: "delete"`},
		"name is not the rule": {func(crd *definition) { crd.Name = "policies." + crd.Spec.Group }, `metadata.name: Invalid value: "policies.structural.crd-yaml.k8s-go.openshift.org": must be spec.names.plural+"."+spec.group`},
		"two storage versions": {func(crd *definition) {
			crd.Spec.Versions = append(crd.Spec.Versions, crd.Spec.Versions[0])
			crd.Spec.Versions[1].Name = "v1"
		}, "must have exactly one version marked as storage version"},
		"rule does not compile": {func(crd *definition) {
			edit(t, crd, "spec", func(s *props) { s.XValidations[0].Rule = "self.acton == 'kill'" })
		}, "undefined field 'acton'"},
		"column is no path": {func(crd *definition) { crd.Spec.Versions[0].AdditionalPrinterColumns[0].JSONPath = "spec action" }, "must be a simple json path"},
	} {
		t.Run(name, func(t *testing.T) {
			crd := variant(t, policyCRD, "structural")
			if _, err := client.Create(e.Context(), crd, dryRun); err != nil {
				t.Fatalf("refused as it is: %v", err)
			}
			tc.change(crd)
			_, err := client.Create(e.Context(), crd, dryRun)
			wantRefused(t, err, tc.want)
		})
	}
}

// Defaults are filled in when an object is written, and when an older one is read.
func TestDefaults(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := variant(t, policyCRD, "defaults")
	complete := crd.DeepCopy()
	for _, key := range []string{"action", "requiredProbes", "selector", "eviction"} {
		edit(t, crd, "spec."+key, func(s *props) { s.Default = nil })
	}
	edit(t, crd, "spec", func(s *props) { s.XValidations = nil }) // they rely on the defaults
	crdtest.Install(t, e, crd)
	policies := resource(e, crd, "")
	before := map[string]any{"podLabel": "missing"}
	after := map[string]any{"podLabel": "missing", "action": "label", "requiredProbes": []any{"liveness", "readiness"},
		"selector": map[string]any{}, "eviction": map[string]any{"minIntervalSeconds": int64(10)}}

	old, err := policies.Create(e.Context(), object(crd, "old", before), strict)
	fatal.If(t, err)
	if diff := cmp.Diff(before, field(old, "spec")); diff != "" {
		t.Errorf("spec without defaults in the schema (-want +got):\n%s", diff)
	}
	fatal.If(t, update(t, e, crd.Name, func(c *definition) { c.Spec.Versions = complete.Spec.Versions }))
	e.Eventually(time.Minute, func(ctx context.Context) error {
		got, err := policies.Get(ctx, "old", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if diff := cmp.Diff(after, field(got, "spec")); diff != "" {
			return fmt.Errorf("an object older than the defaults (-want +got):\n%s", diff)
		}
		if got.GetResourceVersion() != old.GetResourceVersion() {
			return fmt.Errorf("reading has written: resourceVersion %s, then %s", old.GetResourceVersion(), got.GetResourceVersion())
		}
		return nil
	})
	created, err := policies.Create(e.Context(), object(crd, "new", before), strict)
	fatal.If(t, err)
	if diff := cmp.Diff(after, field(created, "spec")); diff != "" {
		t.Errorf("a new object (-want +got):\n%s", diff)
	}
}

type warnings struct {
	mu   sync.Mutex
	list []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, text)
}

// An unknown field is dropped. Who asks gets a warning or an error.
func pruning(t *testing.T, e *testenv.Env, crds map[string]*definition) {
	pruned := crds["HealthCheckPolicy"]
	open := variant(t, policyCRD, "open")
	edit(t, open, "spec", func(s *props) { s.XPreserveUnknownFields = ptr(true) })
	crdtest.Install(t, e, open)

	var seen warnings
	config := rest.CopyConfig(e.Config)
	config.WarningHandler = &seen
	client, err := dynamic.NewForConfig(config)
	fatal.If(t, err)
	const warning = `unknown field "spec.podLable"`
	for _, tc := range []struct {
		name, validation string
		crd              *definition
		kept             any
		warnings         []string
		err              string
	}{
		{"ignore", metav1.FieldValidationIgnore, pruned, nil, nil, ""},
		{"warn", metav1.FieldValidationWarn, pruned, nil, []string{warning}, ""},
		{"strict", metav1.FieldValidationStrict, pruned, nil, nil, warning},
		{"preserved", metav1.FieldValidationStrict, open, "x", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			seen.list = nil
			gvr := schema.GroupVersionResource{Group: tc.crd.Spec.Group, Version: "v1alpha1", Resource: "healthcheckpolicies"}
			stored, err := client.Resource(gvr).Namespace(e.Namespace).Create(e.Context(),
				object(tc.crd, tc.name, map[string]any{"action": "kill", "podLable": "x"}), metav1.CreateOptions{FieldValidation: tc.validation})
			if tc.err != "" {
				wantRefused(t, err, tc.err)
				return
			}
			fatal.If(t, err)
			if got := field(stored, "spec", "podLable"); got != tc.kept {
				t.Errorf("the unknown field is %v, want %v", got, tc.kept)
			}
			if diff := cmp.Diff(tc.warnings, seen.list); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// Ratcheting: a value that a later schema refuses may stay, and does not keep
// anybody from changing the rest of the object.
func TestRatcheting(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := variant(t, policyCRD, "ratchet")
	var pattern string
	edit(t, crd, "spec.podLabel", func(s *props) { pattern, s.Pattern = s.Pattern, "" })
	edit(t, crd, "spec", func(s *props) { s.XValidations = s.XValidations[:1] }) // podLabel may change
	crdtest.Install(t, e, crd)
	policies := resource(e, crd, "")
	if _, err := policies.Create(e.Context(), object(crd, "old", map[string]any{"podLabel": "two words"}), strict); err != nil {
		t.Fatal(err)
	}

	fatal.If(t, update(t, e, crd.Name, func(c *definition) {
		edit(t, c, "spec.podLabel", func(s *props) { s.Pattern = pattern })
	}))
	e.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := policies.Create(ctx, object(crd, "new", map[string]any{"podLabel": "two words"}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "should match") {
			return fmt.Errorf("a new object with the old value: error %v, want one about the pattern", err)
		}
		return nil
	})
	patch := func(patch string) (*unstructured.Unstructured, error) {
		return policies.Patch(e.Context(), "old", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	}
	got, err := patch(`{"metadata": {"labels": {"a": "b"}}, "spec": {"requiredProbes": ["startup"]}}`)
	if err != nil {
		t.Fatalf("the old object cannot be changed elsewhere: %v", err)
	}
	if field(got, "spec", "podLabel") != "two words" || got.GetLabels()["a"] != "b" {
		t.Errorf("stored is %v", got.Object)
	}
	_, err = patch(`{"spec": {"podLabel": "three more words"}}`)
	wantRefused(t, err, "should match")
	if _, err := patch(`{"spec": {"podLabel": "one-word"}}`); err != nil {
		t.Fatal(err)
	}
	// It only clicks forward.
	_, err = patch(`{"spec": {"podLabel": "two words"}}`)
	wantRefused(t, err, "should match")
}

// The pattern and the limit of podLabel let no key through that the server
// would refuse as a label, and no short one be lost.
func TestPodLabelPatternIsThatOfLabels(t *testing.T) {
	podLabel := crdtest.Read(t, policyCRD).Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["podLabel"]
	pattern := regexp.MustCompile(podLabel.Pattern)
	random := rand.New(rand.NewPCG(4, 4))
	alphabet := []rune("aaAZ019-._//é \n")
	good := 0
	check := func(key string) {
		matches := pattern.MatchString(key) && int64(len(key)) <= *podLabel.MaxLength
		isKey := len(validation.IsQualifiedName(key)) == 0
		if matches != isKey {
			t.Errorf("%q: the schema says %v, Kubernetes says %v", key, matches, isKey)
		}
		if isKey {
			good++
		}
	}
	for range 200_000 {
		key := make([]rune, random.IntN(9))
		for i := range key {
			key[i] = alphabet[random.IntN(len(alphabet))]
		}
		check(string(key))
	}
	for _, n := range []int{62, 63, 64} {
		check(strings.Repeat("a", n))
		check("example.org/" + strings.Repeat("a", n))
		check(strings.Repeat("a", 248) + "/a" + strings.Repeat("b", n-61))
	}
	if good < 10_000 {
		t.Errorf("only %d keys were good ones: the alphabet has become a bad one", good)
	}
}

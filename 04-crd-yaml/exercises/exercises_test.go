// Package exercises checks the definitions that a learner writes, and proves
// about itself that the starters do not pass and the solutions do.
package exercises

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const group = "policy.k8s-go.openshift.org"

type exercise struct {
	kind, plural, shortName string
	specs                   []spec
}

// A spec is one that the server must refuse, or accept and store as it says.
type spec struct {
	requirement string
	yaml        string
	stored      string // with its defaults; empty for what must be refused
}

var exercises = map[string]exercise{
	"containerimagepolicy": {"ContainerImagePolicy", "containerimagepolicies", "cip", []spec{
		{"the example of the README", `{action: label, labels: {pods: a}, require: {explicitRegistry: true, imageRegex: '^registry\.example\.org/'}}`,
			`{action: label, labels: {pods: a}, require: {explicitRegistry: true, imageRegex: '^registry\.example\.org/'}}`},
		{"action delete needs no label", `{action: delete, require: {explicitRegistry: true}}`, `{action: delete, require: {explicitRegistry: true}}`},
		{"action is label when left out", `{labels: {pods: a}, require: {explicitRegistry: true}}`, `{action: label, labels: {pods: a}, require: {explicitRegistry: true}}`},
		{"explicitRegistry is false when left out", `{action: delete, require: {imageRegex: x}}`, `{action: delete, require: {explicitRegistry: false, imageRegex: x}}`},
		{"action is delete or label", `{action: kill, labels: {pods: a}, require: {explicitRegistry: true}}`, ""},
		{"labels.pods is needed when action is label", `{action: label, require: {explicitRegistry: true}}`, ""},
		{"labels.pods is needed when action is left out", `{labels: {}, require: {explicitRegistry: true}}`, ""},
		{"labels.pods is a label key", `{labels: {pods: two words}, require: {explicitRegistry: true}}`, ""},
		{"require is needed", `{action: delete}`, ""},
		{"require asks for something", `{action: delete, require: {}}`, ""},
		{"require asks for something else than nothing", `{action: delete, require: {explicitRegistry: false}}`, ""},
		{"explicitRegistry is a boolean", `{action: delete, require: {explicitRegistry: "true"}}`, ""},
		{"imageRegex is a string", `{action: delete, require: {imageRegex: 1}}`, ""},
		{"imageRegex has at most 256 characters", `{action: delete, require: {imageRegex: ` + strings.Repeat("a", 257) + `}}`, ""},
		{"imageRegex is a regular expression", `{action: delete, require: {imageRegex: '(unclosed'}}`, ""},
		{"an unknown field is refused under strict validation", `{action: delete, require: {explicitRegistry: true, regex: a}}`, ""},
	}},
	"resourcespolicy": {"ResourcesPolicy", "resourcespolicies", "rp", []spec{
		{"the example of the README", `{action: label, labels: {pods: a}, require: {limits: true, requests: true, requestsLowerThanLimits: true}}`,
			`{action: label, labels: {pods: a}, require: {limits: true, requests: true, requestsLowerThanLimits: true}}`},
		{"what is left out has its default", `{labels: {pods: a}, require: {limits: true}}`,
			`{action: label, labels: {pods: a}, require: {limits: true, requests: false, requestsLowerThanLimits: false}}`},
		{"action delete needs no label", `{action: delete, require: {requests: true}}`,
			`{action: delete, require: {limits: false, requests: true, requestsLowerThanLimits: false}}`},
		{"action is delete or label", `{action: kill, labels: {pods: a}, require: {limits: true}}`, ""},
		{"labels.pods is needed when action is label", `{action: label, require: {limits: true}}`, ""},
		{"labels.pods is needed when action is left out", `{labels: {}, require: {limits: true}}`, ""},
		{"labels.pods is a label key", `{labels: {pods: two words}, require: {limits: true}}`, ""},
		{"require is needed", `{action: delete}`, ""},
		{"require asks for limits, requests or both", `{action: delete, require: {limits: false, requests: false}}`, ""},
		{"requestsLowerThanLimits needs limits", `{action: delete, require: {requests: true, requestsLowerThanLimits: true}}`, ""},
		{"requestsLowerThanLimits needs requests", `{action: delete, require: {limits: true, requestsLowerThanLimits: true}}`, ""},
		{"limits is a boolean", `{action: delete, require: {limits: 500m}}`, ""},
		{"an unknown field is refused under strict validation", `{action: delete, require: {limits: true, quota: true}}`, ""},
	}},
}

// check is the outcome for one requirement; problem is empty where it is met.
type check struct{ requirement, problem string }

// checks installs a definition and tries every requirement on it. The
// definition is removed when the test ends.
func checks(t *testing.T, e *testenv.Env, ex exercise, crd *apiextensionsv1.CustomResourceDefinition) (done []check) {
	t.Helper()
	add := func(requirement, problem string, args ...any) {
		done = append(done, check{requirement, fmt.Sprintf(problem, args...)})
	}
	if want := ex.plural + "." + group; crd.Name != want {
		add("the definition is called "+want, "it is %s", crd.Name)
		return done
	}
	if err := crdtest.Create(t, e, crd); err != nil {
		add("the server accepts the definition", "%v", err)
		return done
	}
	if err := crdwait.Established(e.Context(), e.Config, crd.Name); err != nil {
		add("the definition can be used", "%v", err)
		return done
	}

	gvr := schema.GroupVersionResource{Group: group, Version: "v1alpha1", Resource: ex.plural}
	list, err := e.Client.Discovery().ServerResourcesForGroupVersion(gvr.GroupVersion().String())
	if err != nil {
		add("version v1alpha1 is served", "%v", err)
		return done
	}
	var listed metav1.APIResource
	for _, r := range list.APIResources {
		if r.Name == ex.plural {
			listed = r
		}
	}
	describe := func(want, got []string) string {
		if slices.Equal(want, got) {
			return ""
		}
		return fmt.Sprintf("it is %q", got)
	}
	add("the kind is "+ex.kind+", of a namespace", "%s", describe([]string{ex.kind, "true"}, []string{listed.Kind, fmt.Sprint(listed.Namespaced)}))
	add("the short name is "+ex.shortName, "%s", describe([]string{ex.shortName}, listed.ShortNames))
	add("the category is policies", "%s", describe([]string{"policies"}, listed.Categories))
	add("the columns are Name, Action, Failed, Passed and Age", "%s", describe([]string{"Name", "Action", "Failed", "Passed", "Age"}, columns(t, e, gvr)))

	objects := e.Dynamic.Resource(gvr).Namespace(e.Namespace)
	strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	object := func(name string, spec any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
		o.SetGroupVersionKind(gvr.GroupVersion().WithKind(ex.kind))
		o.SetName(name)
		return o
	}
	for i, s := range ex.specs {
		stored, err := objects.Create(e.Context(), object(fmt.Sprintf("spec-%d", i), parse(t, s.yaml)), strict)
		switch {
		case err != nil && s.stored != "":
			add(s.requirement, "spec %s was refused: %v", s.yaml, err)
		case err == nil && s.stored == "":
			add(s.requirement, "spec %s was accepted", s.yaml)
		case err == nil:
			if diff := cmp.Diff(parse(t, s.stored), stored.Object["spec"]); diff != "" {
				add(s.requirement, "spec %s was stored otherwise (-want +stored):\n%s", s.yaml, diff)
			} else {
				add(s.requirement, "")
			}
		default:
			add(s.requirement, "")
		}
	}

	good := object("status", parse(t, ex.specs[0].stored))
	good.Object["status"] = parse(t, `{statistics: {pods: {failed: 1, passed: 8}}}`)
	if stored, err := objects.Create(e.Context(), good, strict); err != nil {
		add("an object may come with a status", "%v", err)
	} else if stored.Object["status"] != nil {
		add("the status that a user writes is dropped", "it was stored")
	} else {
		add("the status that a user writes is dropped", "")
	}
	for _, s := range []struct {
		requirement, status string
		good                bool
	}{
		{"a controller can write the status", `{"statistics": {"pods": {"failed": 1, "passed": 8}}}`, true},
		{"numbers of the status are not negative", `{"statistics": {"pods": {"failed": -1, "passed": 8}}}`, false},
		{"numbers of the status are integers", `{"statistics": {"pods": {"failed": 1, "passed": "8"}}}`, false},
	} {
		stored, err := objects.Patch(e.Context(), "status", types.MergePatchType, []byte(`{"status": `+s.status+`}`), metav1.PatchOptions{}, "status")
		switch {
		case s.good && err != nil:
			add(s.requirement, "%v", err)
		case s.good:
			passed, _, _ := unstructured.NestedInt64(stored.Object, "status", "statistics", "pods", "passed")
			if passed != 8 {
				add(s.requirement, "statistics.pods is not in what was stored: %v", stored.Object["status"])
			} else {
				add(s.requirement, "")
			}
		case err == nil:
			add(s.requirement, "status %s was accepted", s.status)
		case apierrors.IsNotFound(err):
			add(s.requirement, "there is no path for the status")
		default:
			add(s.requirement, "")
		}
	}
	return done
}

func parse(t *testing.T, text string) any {
	t.Helper()
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	// Numbers are read as the dynamic client reads them.
	if err := o.UnmarshalJSON([]byte(`{"apiVersion": "v1", "kind": "x", "value": ` + string(data) + `}`)); err != nil {
		t.Fatal(err)
	}
	return o.Object["value"]
}

// columns asks the server for the table that kubectl shows.
func columns(t *testing.T, e *testenv.Env, gvr schema.GroupVersionResource) (names []string) {
	t.Helper()
	data, err := e.Client.Discovery().RESTClient().Verb(http.MethodGet).
		AbsPath("/apis", gvr.Group, gvr.Version, "namespaces", e.Namespace, gvr.Resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(e.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(data, &table); err != nil {
		t.Fatal(err)
	}
	for _, c := range table.ColumnDefinitions {
		names = append(names, c.Name)
	}
	return names
}

// TestDefinition checks the file that a learner writes: EXERCISE=resourcespolicy
// for crd.yaml in that folder, or the path of any file. Without EXERCISE it
// checks the solutions.
func TestDefinition(t *testing.T) {
	paths := []string{"containerimagepolicy/solution.yaml", "resourcespolicy/solution.yaml"}
	if name := os.Getenv("EXERCISE"); name != "" {
		paths = []string{name}
		if _, known := exercises[name]; known {
			paths[0] = name + "/crd.yaml"
		}
	}
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			crd := crdtest.Read(t, path)
			ex, known := exercises[strings.ToLower(crd.Spec.Names.Kind)]
			if !known {
				t.Fatalf("%s defines the kind %q, which is no exercise", path, crd.Spec.Names.Kind)
			}
			done := checks(t, testenv.New(t), ex, crd)
			met := 0
			for _, c := range done {
				if c.problem == "" {
					met++
				} else {
					t.Errorf("%s: %s", c.requirement, c.problem)
				}
			}
			t.Logf("%d of %d requirements met", met, len(done))
		})
	}
}

// A starter meets nothing but what is about objects that must be accepted as
// they are; all else is left to do.
func TestStartersDoNotPass(t *testing.T) {
	for name, ex := range exercises {
		t.Run(name, func(t *testing.T) {
			free := map[string]bool{"the kind is " + ex.kind + ", of a namespace": true}
			for _, s := range ex.specs {
				if s.stored != "" && cmp.Equal(parse(t, s.yaml), parse(t, s.stored)) {
					free[s.requirement] = true
				}
			}
			for _, c := range checks(t, testenv.New(t), ex, crdtest.Read(t, name+"/starter.yaml")) {
				if (c.problem == "") != free[c.requirement] {
					t.Errorf("%s: problem %q, but a starter should meet it: %v", c.requirement, c.problem, free[c.requirement])
				}
			}
		})
	}
}

// And what a starter meets for free is missed by a definition that is too strict.
func TestTooStrictDoesNotPass(t *testing.T) {
	for name, ex := range exercises {
		t.Run(name, func(t *testing.T) {
			crd := crdtest.Read(t, name+"/solution.yaml")
			root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
			root.XValidations = append(root.XValidations, apiextensionsv1.ValidationRule{Rule: "false"})
			refused := map[string]bool{}
			for _, c := range checks(t, testenv.New(t), ex, crd) {
				refused[c.requirement] = c.problem != ""
			}
			for _, s := range ex.specs {
				if refused[s.requirement] != (s.stored != "") {
					t.Errorf("%s: counted as missed: %v", s.requirement, refused[s.requirement])
				}
			}
		})
	}
}

// A definition that the server does not take is one problem that says so.
func TestBrokenDefinitionIsReported(t *testing.T) {
	e := testenv.New(t)
	ex := exercises["resourcespolicy"]
	crd := crdtest.Read(t, "resourcespolicy/solution.yaml")
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Type = "objekt"
	done := checks(t, e, ex, crd)
	if len(done) != 1 || !strings.Contains(done[0].problem, "objekt") {
		t.Errorf("%+v, want one problem that names the type", done)
	}
	crd = crdtest.Read(t, "resourcespolicy/solution.yaml")
	crd.Name = "policies." + group
	if done := checks(t, e, ex, crd); len(done) != 1 || !strings.Contains(done[0].requirement, "resourcespolicies."+group) {
		t.Errorf("%+v, want one problem that names the rule for names", done)
	}
}

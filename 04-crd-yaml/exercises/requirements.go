// Package exercises says what the CRDs that learners write must do. Step 04
// writes them in YAML, and step 05 one of them as Go types.
package exercises

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/exercise/check"
)

const (
	group   = "policy.k8s-go.openshift.org"
	unknown = "an unknown field is refused under strict validation"
)

// longestName is a name as long as that of a label key may be.
var longestName = strings.Repeat("a", 63)

// A Definition is one that a learner writes.
type Definition struct {
	kind, plural, shortName string
	specs                   []spec
}

// A spec is one that the server must refuse, or accept and store as it says.
type spec struct {
	requirement string
	yaml        string
	stored      string // with its defaults; empty for what must be refused
}

// ContainerImagePolicy says which images containers may use.
var ContainerImagePolicy = Definition{"ContainerImagePolicy", "containerimagepolicies", "cip", []spec{
	{"the example of the task", `{action: label, labels: {pods: a}, require: {explicitRegistry: true, imageRegex: '^registry\.example\.org/'}}`,
		`{action: label, labels: {pods: a}, require: {explicitRegistry: true, imageRegex: '^registry\.example\.org/'}}`},
	{"action delete needs no label", `{action: delete, require: {explicitRegistry: true}}`, `{action: delete, require: {explicitRegistry: true}}`},
	{"action delete needs no label, also beside empty labels", `{action: delete, labels: {}, require: {explicitRegistry: true}}`, `{action: delete, labels: {}, require: {explicitRegistry: true}}`},
	{"action is label when left out", `{labels: {pods: a}, require: {explicitRegistry: true}}`, `{action: label, labels: {pods: a}, require: {explicitRegistry: true}}`},
	{"explicitRegistry is false when left out", `{action: delete, require: {imageRegex: x}}`, `{action: delete, require: {explicitRegistry: false, imageRegex: x}}`},
	{"action is delete or label", `{action: kill, labels: {pods: a}, require: {explicitRegistry: true}}`, ""},
	{"action is delete or label", `{action: annotate, labels: {pods: a}, require: {explicitRegistry: true}}`, ""},
	{"action is delete or label", `{action: deleted, labels: {pods: a}, require: {explicitRegistry: true}}`, ""},
	{"labels.pods is needed when action is label", `{action: label, require: {explicitRegistry: true}}`, ""},
	{"labels.pods is needed when action is left out", `{labels: {}, require: {explicitRegistry: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: two words}, require: {explicitRegistry: true}}`, ""},
	{"labels.pods may have a prefix, as label keys do", `{labels: {pods: example.org/checked}, require: {explicitRegistry: true}}`,
		`{action: label, labels: {pods: example.org/checked}, require: {explicitRegistry: true}}`},
	{"labels.pods is a label key", `{labels: {pods: -a}, require: {explicitRegistry: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: a-}, require: {explicitRegistry: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: ""}, require: {explicitRegistry: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: /a}, require: {explicitRegistry: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: Example.org/a}, require: {explicitRegistry: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: a/b/c}, require: {explicitRegistry: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: ` + longestName + `a}, require: {explicitRegistry: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: example.org/` + longestName + `a}, require: {explicitRegistry: true}}`, ""},
	{"the name in labels.pods may have 63 characters, whatever the prefix", `{labels: {pods: example.org/` + longestName + `}, require: {explicitRegistry: true}}`,
		`{action: label, labels: {pods: example.org/` + longestName + `}, require: {explicitRegistry: true}}`},
	{"labels.pods may have capitals and underscores, as label keys do", `{labels: {pods: Image_Checked}, require: {explicitRegistry: true}}`,
		`{action: label, labels: {pods: Image_Checked}, require: {explicitRegistry: true}}`},
	{"labels holds nothing but pods", `{labels: {pods: a, services: b}, require: {explicitRegistry: true}}`, ""},
	{"require is needed", `{action: delete}`, ""},
	{"require asks for something", `{action: delete, require: {}}`, ""},
	{"require asks for something else than nothing", `{action: delete, require: {explicitRegistry: false}}`, ""},
	{"explicitRegistry is a boolean", `{action: delete, require: {explicitRegistry: "true"}}`, ""},
	{"imageRegex is a string", `{action: delete, require: {imageRegex: 1}}`, ""},
	{"imageRegex has at most 256 characters", `{action: delete, require: {imageRegex: ` + strings.Repeat("a", 257) + `}}`, ""},
	{"imageRegex may have 256 characters", `{action: delete, require: {imageRegex: ` + strings.Repeat("a", 256) + `}}`,
		`{action: delete, require: {explicitRegistry: false, imageRegex: ` + strings.Repeat("a", 256) + `}}`},
	{"explicitRegistry is false when it is null, as when left out", `{action: delete, require: {explicitRegistry: null, imageRegex: x}}`, `{action: delete, require: {explicitRegistry: false, imageRegex: x}}`},
	{"imageRegex is not stored when it is null, as when left out", `{action: delete, require: {explicitRegistry: true, imageRegex: null}}`, `{action: delete, require: {explicitRegistry: true}}`},
	{"imageRegex is a regular expression", `{action: delete, require: {imageRegex: '(unclosed'}}`, ""},
	{"imageRegex is a regular expression", `{action: delete, require: {imageRegex: '*a'}}`, ""},
	{"imageRegex may have groups and classes, as regular expressions do", `{action: delete, require: {imageRegex: '^(a|b)[0-9]+'}}`,
		`{action: delete, require: {explicitRegistry: false, imageRegex: '^(a|b)[0-9]+'}}`},
	{unknown, `{action: delete, require: {explicitRegistry: true, regex: a}}`, ""},
	{unknown, `{action: delete, require: {explicitRegistry: true}, regex: a}`, ""},
}}

// ResourcesPolicy says which limits and requests containers must declare.
var ResourcesPolicy = Definition{"ResourcesPolicy", "resourcespolicies", "rp", []spec{
	{"the example of the task", `{action: label, labels: {pods: a}, require: {limits: true, requests: true, requestsLowerThanLimits: true}}`,
		`{action: label, labels: {pods: a}, require: {limits: true, requests: true, requestsLowerThanLimits: true}}`},
	{"what is left out has its default", `{labels: {pods: a}, require: {limits: true}}`,
		`{action: label, labels: {pods: a}, require: {limits: true, requests: false, requestsLowerThanLimits: false}}`},
	{"action delete needs no label", `{action: delete, require: {requests: true}}`,
		`{action: delete, require: {limits: false, requests: true, requestsLowerThanLimits: false}}`},
	{"action delete needs no label, also beside empty labels", `{action: delete, labels: {}, require: {requests: true}}`,
		`{action: delete, labels: {}, require: {limits: false, requests: true, requestsLowerThanLimits: false}}`},
	{"action is delete or label", `{action: kill, labels: {pods: a}, require: {limits: true}}`, ""},
	{"action is delete or label", `{action: annotate, labels: {pods: a}, require: {limits: true}}`, ""},
	{"action is delete or label", `{action: deleted, labels: {pods: a}, require: {limits: true}}`, ""},
	{"labels.pods is needed when action is label", `{action: label, require: {limits: true}}`, ""},
	{"labels.pods is needed when action is left out", `{labels: {}, require: {limits: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: two words}, require: {limits: true}}`, ""},
	{"labels.pods may have a prefix, as label keys do", `{labels: {pods: example.org/checked}, require: {limits: true}}`,
		`{action: label, labels: {pods: example.org/checked}, require: {limits: true, requests: false, requestsLowerThanLimits: false}}`},
	{"labels.pods is a label key", `{labels: {pods: -a}, require: {limits: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: a-}, require: {limits: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: ""}, require: {limits: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: /a}, require: {limits: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: Example.org/a}, require: {limits: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: a/b/c}, require: {limits: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: ` + longestName + `a}, require: {limits: true}}`, ""},
	{"labels.pods is a label key", `{labels: {pods: example.org/` + longestName + `a}, require: {limits: true}}`, ""},
	{"the name in labels.pods may have 63 characters, whatever the prefix", `{labels: {pods: example.org/` + longestName + `}, require: {limits: true}}`,
		`{action: label, labels: {pods: example.org/` + longestName + `}, require: {limits: true, requests: false, requestsLowerThanLimits: false}}`},
	{"labels.pods may have capitals and underscores, as label keys do", `{labels: {pods: Limits_Missing}, require: {limits: true}}`,
		`{action: label, labels: {pods: Limits_Missing}, require: {limits: true, requests: false, requestsLowerThanLimits: false}}`},
	{"requestsLowerThanLimits may be left out when both are required", `{action: delete, require: {limits: true, requests: true}}`,
		`{action: delete, require: {limits: true, requests: true, requestsLowerThanLimits: false}}`},
	{"labels holds nothing but pods", `{labels: {pods: a, services: b}, require: {limits: true}}`, ""},
	{"require is needed", `{action: delete}`, ""},
	{"require asks for limits, requests or both", `{action: delete, require: {limits: false, requests: false}}`, ""},
	{"requestsLowerThanLimits needs limits", `{action: delete, require: {requests: true, requestsLowerThanLimits: true}}`, ""},
	{"requestsLowerThanLimits needs requests", `{action: delete, require: {limits: true, requestsLowerThanLimits: true}}`, ""},
	{"limits is a boolean", `{action: delete, require: {limits: 500m}}`, ""},
	{unknown, `{action: delete, require: {limits: true, quota: true}}`, ""},
	{unknown, `{action: delete, require: {limits: true}, quota: true}`, ""},
}}

// A Miss is a requirement that a CRD does not meet, and what happened instead.
type Miss struct{ Requirement, Problem string }

// Taken is the requirement without which no object can be tried.
const Taken = "the server takes the CRD"

// Misses installs a CRD in a group of its own and tries every requirement
// on it. It returns those that are not met, in order, and how many there are.
func (d Definition) Misses(c *check.C, crd *apiextensionsv1.CustomResourceDefinition) (misses []Miss, of int) {
	c.T.Helper()
	add := func(requirement, problem string) {
		of++
		if problem != "" {
			misses = append(misses, Miss{requirement, problem})
		}
	}
	is := func(want, got any) string {
		if cmp.Equal(want, got, cmpopts.EquateEmpty()) {
			return ""
		}
		return fmt.Sprintf("it is %v", got)
	}
	names := crd.Spec.Names
	add("the CRD is called "+d.plural+"."+group, is(d.plural+"."+group, crd.Name))
	add("the kind is "+d.kind, is(d.kind, names.Kind))
	add("the scope is Namespaced", is(apiextensionsv1.NamespaceScoped, crd.Spec.Scope))
	add("version v1alpha1 is served", served(crd))
	if len(misses) > 0 {
		return misses, of // else all requests would go astray
	}
	among := func(want string, got []string) string { // others do no harm
		if slices.Contains(got, want) {
			return ""
		}
		return fmt.Sprintf("it is %v", got)
	}
	add("the short name is "+d.shortName, among(d.shortName, names.ShortNames))
	add("the category is policies", among("policies", names.Categories))
	crdtest.Rename(crd, c.Namespace+".k8s-go.openshift.org")
	err := crdtest.Create(c.T, c.Env, crd)
	if err != nil {
		add(Taken, err.Error())
		return misses, of
	}
	c.Must(crdwait.Established(c.Context(), c.Config, crd.Name))

	gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Version: "v1alpha1", Resource: d.plural}
	add("the columns are Name, Action, Failed, Passed and Age", is([]string{"Name", "Action", "Failed", "Passed", "Age"}, columns(c, gvr)))
	objects := c.Dynamic.Resource(gvr).Namespace(c.Namespace)
	strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	object := func(name string, spec any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
		o.SetGroupVersionKind(gvr.GroupVersion().WithKind(d.kind))
		o.SetName(name)
		return o
	}
	refuses := func(requirement, what string, o *unstructured.Unstructured) {
		problem := ""
		if _, err := objects.Create(c.Context(), o, strict); err == nil {
			problem = what + " was accepted"
		} else if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			c.Must(err)
		}
		add(requirement, problem)
	}
	for i, s := range d.specs {
		o := object(fmt.Sprintf("spec-%d", i), parse(c, s.yaml))
		if s.stored == "" {
			refuses(s.requirement, "the spec "+s.yaml, o)
			continue
		}
		stored, err := objects.Create(c.Context(), o, strict)
		requirement, problem := s.requirement, ""
		if err != nil {
			problem = fmt.Sprintf("the spec %s was refused: %v", s.yaml, err)
		} else if diff := cmp.Diff(parse(c, s.stored), stored.Object["spec"]); diff != "" {
			if !strings.Contains(requirement, "left out") {
				requirement = "what is stored is what was sent, and has its defaults"
			}
			problem = fmt.Sprintf("the spec %s was stored otherwise (-want +stored):\n%s", s.yaml, diff)
		}
		add(requirement, problem)
	}

	o := object("bare", nil)
	delete(o.Object, "spec")
	refuses("spec is needed, because require is", "an object without spec", o)
	o = object("more", parse(c, d.specs[0].stored))
	o.Object["more"] = "a"
	refuses("nothing stands beside spec and status", "the field more beside spec", o)

	o = object("status", parse(c, d.specs[0].stored))
	o.Object["status"] = parse(c, `{statistics: {pods: {failed: 1, passed: 8}}}`)
	stored, err := objects.Create(c.Context(), o, strict)
	switch {
	case err != nil:
		add("the status that a user writes is dropped", "an object with a status was refused: "+err.Error())
	case stored.Object["status"] != nil:
		add("the status that a user writes is dropped", "it was stored")
	default:
		add("the status that a user writes is dropped", "")
	}
	report := func(status string) (*unstructured.Unstructured, error) {
		return objects.Patch(c.Context(), "status", types.MergePatchType, []byte(`{"status": `+status+`}`),
			metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict}, "status")
	}
	stored, err = report(`{"statistics": {"pods": {"failed": 1, "passed": 8}}}`)
	switch {
	case apierrors.IsNotFound(err):
		add("a controller can write the status", "the status has no path of its own")
	case err != nil:
		add("a controller can write the status", err.Error())
	default:
		add("a controller can write the status", is(o.Object["status"], stored.Object["status"]))
		cells := table(c, gvr, "status").Rows[0].Cells
		add("the columns show label, 1 and 8 for an object with the action label, 1 failed and 8 passed pods",
			is("[status label 1 8]", fmt.Sprint(cells[:min(4, len(cells))])))
	}
	problem := ""
	if _, err := report(`{"statistics": {"pods": {"failed": 0, "passed": 0}}}`); err != nil {
		problem = err.Error()
	}
	add("numbers of the status may be 0", problem)
	for _, s := range []struct{ requirement, status string }{
		{"numbers of the status are not negative", `{"statistics": {"pods": {"failed": -1, "passed": 8}}}`},
		{"numbers of the status are not negative", `{"statistics": {"pods": {"failed": 1, "passed": -8}}}`},
		{"numbers of the status are integers", `{"statistics": {"pods": {"failed": 1, "passed": "8"}}}`},
		{"numbers of the status are integers", `{"statistics": {"pods": {"failed": 1.5, "passed": 8}}}`},
		{"numbers of the status are integers", `{"statistics": {"pods": {"failed": 1, "passed": 1.5}}}`},
		{unknown, `{"statistics": {"pods": {"failed": 1, "passed": 8, "more": 1}}}`},
		{unknown, `{"more": 1}`},
	} {
		problem := ""
		if _, err := report(s.status); err == nil {
			problem = "the status " + s.status + " was accepted"
		}
		add(s.requirement, problem)
	}
	for _, v := range crd.Spec.Versions {
		if v.Name == gvr.Version { // the API server has taken it, so it has a schema
			add("nothing else can be written", more("spec", v.Schema.OpenAPIV3Schema.Properties["spec"], parse(c, d.specs[0].stored)))
		}
	}
	return misses, of
}

// more says which field the schema of a spec has beside those of what is asked for, if any.
func more(path string, schema apiextensionsv1.JSONSchemaProps, asked any) string {
	fields, _ := asked.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		value, ok := fields[name]
		if !ok {
			return "the schema has the field " + path + "." + name
		}
		if problem := more(path+"."+name, schema.Properties[name], value); problem != "" {
			return problem
		}
	}
	return ""
}

func served(crd *apiextensionsv1.CustomResourceDefinition) string {
	var names []string
	for _, v := range crd.Spec.Versions {
		if v.Name == "v1alpha1" && v.Served {
			return ""
		}
		names = append(names, v.Name)
	}
	return fmt.Sprintf("the versions are %v", names)
}

func parse(c *check.C, text string) any {
	c.T.Helper()
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	c.Must(err)
	o := &unstructured.Unstructured{}
	// Numbers are read as the dynamic client reads them.
	c.Must(o.UnmarshalJSON([]byte(`{"apiVersion": "v1", "kind": "x", "value": ` + string(data) + `}`)))
	return o.Object["value"]
}

// columns returns what kubectl shows of a list.
func columns(c *check.C, gvr schema.GroupVersionResource) (names []string) {
	c.T.Helper()
	for _, c := range table(c, gvr, "").ColumnDefinitions {
		name := c.Name
		if c.Priority > 0 && name != "Name" {
			name += " (with -o wide only)"
		}
		names = append(names, name)
	}
	return names
}

// table asks the server for what kubectl shows of an object, or of all.
func table(c *check.C, gvr schema.GroupVersionResource, name string) (table metav1.Table) {
	c.T.Helper()
	data, err := c.Client.Discovery().RESTClient().Verb(http.MethodGet).
		AbsPath("/apis", gvr.Group, gvr.Version, "namespaces", c.Namespace, gvr.Resource, name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(c.Context())
	c.Must(err)
	c.Must(json.Unmarshal(data, &table))
	return table
}

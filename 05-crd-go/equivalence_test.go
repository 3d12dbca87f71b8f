package crdgo

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
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
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// pairs are the definitions written by hand in step 04 and those made from Go.
var pairs = []struct{ kind, byHand, generated string }{
	{"HealthCheckPolicy", "../04-crd-yaml/healthcheckpolicy-crd.yaml", generatedCRDs[0]},
	{"Icecream", "../04-crd-yaml/icecream-crd.yaml", generatedCRDs[1]},
}

// version is the one that both have; step 04 also serves a v1beta1.
const version = "v1alpha1"

// The server is asked about every example of step 04, and about what becomes of
// it in updates and as a table, once under each definition.
func TestSameAnswersAsTheDefinitionByHand(t *testing.T) {
	for _, pair := range pairs {
		t.Run(pair.kind, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t)
			crds := []*apiextensionsv1.CustomResourceDefinition{crdtest.Read(t, pair.byHand), crdtest.Read(t, pair.generated)}
			for i, group := range []string{"by-hand", "generated"} {
				crdtest.Rename(crds[i], group+".crd-go.k8s-go.openshift.org")
			}
			crdtest.Install(t, e, crds...)
			byHand, generated := answers(t, e, pair.kind, crds[0]), answers(t, e, pair.kind, crds[1])
			if diff := cmp.Diff(slices.Sorted(maps.Keys(byHand)), slices.Sorted(maps.Keys(generated))); diff != "" {
				t.Errorf("other questions could be asked (-by hand +generated):\n%s", diff)
			}
			for question, want := range byHand {
				if diff := cmp.Diff(want, generated[question]); diff != "" {
					t.Errorf("%s (-by hand +generated):\n%s", question, diff)
				}
			}
			t.Logf("%d questions", len(byHand))
		})
	}
}

// answers asks under one definition. The answers are the server's errors or what
// it has stored, by question. Good examples must be accepted and bad ones refused.
func answers(t *testing.T, e *testenv.Env, kind string, crd *apiextensionsv1.CustomResourceDefinition) map[string]any {
	t.Helper()
	config := rest.CopyConfig(e.Config)
	config.WarningHandlerWithContext = rest.NoWarnings{} // of unknown fields, a hundred times
	client, err := dynamic.NewForConfig(config)
	fatal.If(t, err)
	resource := client.Resource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: version, Resource: crd.Spec.Names.Plural}).Namespace(e.Namespace)
	answers := map[string]any{}
	note := func(question string, o *unstructured.Unstructured, err error) {
		if err != nil {
			answers[question] = refusal(err)
		} else {
			answers[question] = stable(o)
		}
	}
	strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}

	files, err := filepath.Glob("../04-crd-yaml/examples/*/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d examples of step 04: %v", len(files), err)
	}
	var names []string
	for _, path := range files {
		o := readObject(t, path)
		if o.GetKind() != kind || o.GroupVersionKind().Version != version {
			continue
		}
		o.SetAPIVersion(crd.Spec.Group + "/" + version)
		stored, err := resource.Create(e.Context(), o, strict)
		note("create "+path, stored, err)
		if good := filepath.Base(filepath.Dir(path)) == "good"; good != (err == nil) {
			t.Errorf("%s under %s: error %v", path, crd.Spec.Group, err)
		}
		if err == nil {
			names = append(names, o.GetName())
		}
		// Without strict validation unknown fields are dropped and the rest counts.
		o.SetName("loose-" + o.GetName())
		stored, err = resource.Create(e.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		note("create loosely "+path, stored, err)
	}
	for _, name := range names {
		for _, p := range []struct{ body, subresource string }{
			{`{"spec":{"podLabel":"changed"}}`, ""},
			{`{"spec":{"podLabel":null}}`, ""},
			{`{"spec":{"action":"kill","requiredProbes":null}}`, ""},
			{`{"spec":{"replicas":7}}`, ""},
			{`{"spec":{"replicas":3}}`, "scale"},
			{`{"spec":{"replicas":9},"status":{"observedGeneration":"x"}}`, "status"},
			{`{"spec":{"selector":{"matchLabels":{"health-check-missing":"true"}}}}`, ""},
			{`{"spec":{"action":"label","podLabel":"tier"}}`, ""},
			{`{"spec":{"eviction":{}}}`, ""},
			{`{"spec":{"action":"kill"},"status":{"nodes":["a","a"]}}`, "status"},
			{`{"status":{"nodes":["` + strings.Repeat(`a","`, 99) + `a"]}}`, "status"},
			{`{"status":{"nodes":["` + strings.Repeat(`a","`, 100) + `a"]}}`, "status"},
			{`{"status":{"replicas":-1}}`, "status"},
			{`{"status":{"replicas":0,"availableReplicas":0,"selector":"a=b"}}`, "status"},
			{`{"status":{"lastEvictionTime":"now"}}`, "status"},
			{`{"status":{"conditions":[{"type":"Compliant","status":"True","reason":"AllPassed","message":"","lastTransitionTime":"2026-11-21T09:13:07Z"}]}}`, "status"},
			{`{"status":{"statistics":{"pods":{"failed":-1}}}}`, "status"},
			{`{"status":{"lastChecked":"today"}}`, "status"},
			{`{"status":{"conditions":[{"type":"A"},{"type":"A"}]}}`, "status"},
			{`{"status":{"availableReplicas":2,"nodes":["b","a"],"observedGeneration":1,"statistics":{"pods":{"failed":1,"passed":2}},"lastChecked":"2026-11-21T09:13:07Z","lastEvictionTime":"2026-11-21T09:13:00Z"}}`, "status"},
			{`{"status":{"unknown":1}}`, "status"},
		} {
			var path []string
			if p.subresource != "" {
				path = append(path, p.subresource)
			}
			o, err := resource.Patch(e.Context(), name, types.MergePatchType, []byte(p.body), metav1.PatchOptions{}, path...)
			note("patch "+name+" "+p.subresource+" "+p.body, o, err)
		}
	}

	// Server-side apply shows list types, map types and keys: they decide who owns what.
	for _, name := range names {
		o, err := resource.Get(e.Context(), name, metav1.GetOptions{})
		fatal.If(t, err)
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
		o.SetUID("")
		o, err = resource.Apply(e.Context(), name, o, metav1.ApplyOptions{FieldManager: "test", Force: true})
		note("apply "+name, o, err)
	}
	for _, selector := range []string{"spec.action=kill", "spec.podLabel=x"} {
		list, err := resource.List(e.Context(), metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			answers["select "+selector] = refusal(err)
			continue
		}
		var found []string
		for _, o := range list.Items {
			found = append(found, o.GetName())
		}
		answers["select "+selector] = found
	}
	table := &metav1.Table{}
	data, err := e.Client.CoreV1().RESTClient().Get().
		AbsPath("/apis", crd.Spec.Group, version, "namespaces", e.Namespace, crd.Spec.Names.Plural).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(e.Context())
	if err == nil {
		err = json.Unmarshal(data, table)
	}
	fatal.If(t, err)
	rows := []any{table.ColumnDefinitions}
	for _, row := range table.Rows {
		rows = append(rows, row.Cells[:len(row.Cells)-1]) // the last is the age
	}
	answers["table"] = rows
	for question, answer := range answers {
		answers[question] = withoutGroup(t, answer, crd.Spec.Group)
	}
	return answers
}

// withoutGroup returns an answer in which the group is called GROUP.
func withoutGroup(t *testing.T, answer any, group string) (same any) {
	t.Helper()
	data, err := json.Marshal(answer)
	if err == nil {
		err = json.Unmarshal([]byte(strings.ReplaceAll(string(data), group, "GROUP")), &same)
	}
	fatal.If(t, err)
	return same
}

// refusal returns the reason of an error and its causes in order. The server
// lists the required fields that are missing in the order of the definition.
func refusal(err error) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return []string{err.Error()}
	}
	if status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return []string{string(status.Status().Reason), status.Status().Message}
	}
	var causes []string
	for _, c := range status.Status().Details.Causes {
		causes = append(causes, fmt.Sprintf("%s %s: %s", c.Type, c.Field, c.Message))
	}
	slices.Sort(causes)
	return append([]string{string(status.Status().Reason)}, causes...)
}

// stable returns an object without what differs from one creation to the next.
func stable(o *unstructured.Unstructured) map[string]any {
	o = o.DeepCopy()
	for _, key := range []string{"uid", "resourceVersion", "creationTimestamp"} {
		unstructured.RemoveNestedField(o.Object, "metadata", key)
	}
	managed := o.GetManagedFields()
	for i := range managed {
		managed[i].Time = nil
	}
	o.SetManagedFields(managed)
	return o.Object
}

func readObject(t *testing.T, path string) *unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(path)
	fatal.If(t, err)
	json, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(json); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return o
}

// What no question has touched: the two say the same, word by word, except for
// the descriptions. A difference here comes with the line that differs.
func TestSameDefinition(t *testing.T) {
	for _, pair := range pairs {
		t.Run(pair.kind, func(t *testing.T) {
			byHand, generated := normal(t, pair.byHand), normal(t, pair.generated)
			if diff := cmp.Diff(byHand, generated); diff != "" {
				t.Errorf("definition (-by hand +generated):\n%s", diff)
			}
		})
	}
}

func normal(t *testing.T, path string) map[string]any {
	t.Helper()
	crd := crdtest.Read(t, path)
	v := crd.Spec.Versions[slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version })]
	data, err := json.Marshal(map[string]any{"name": crd.Name, "group": crd.Spec.Group, "names": crd.Spec.Names, "scope": crd.Spec.Scope, "version": v})
	fatal.If(t, err)
	var tree map[string]any
	fatal.If(t, json.Unmarshal(data, &tree))
	withoutDescriptions(tree)
	return tree
}

// withoutDescriptions also puts names of required fields in order.
func withoutDescriptions(node any) {
	switch node := node.(type) {
	case map[string]any:
		if _, isText := node["description"].(string); isText {
			delete(node, "description")
		}
		if required, ok := node["required"].([]any); ok {
			slices.SortFunc(required, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		for child := range maps.Values(node) {
			withoutDescriptions(child)
		}
	case []any:
		for _, child := range node {
			withoutDescriptions(child)
		}
	}
}

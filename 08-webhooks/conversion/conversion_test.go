package conversion

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/k8s-go/workshop/internal/fatal"
)

// What people do to an Icecream of v1alpha1 that is kept as v1.
func TestAnnotation(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ annotation, replicas, want string }{
		"nothing":             {`{"portions": 250, "toppings": ["nuts"]}`, "3", `{"deployment":{"name":"a","portions":250},"toppings":["nuts"]}`},
		"other pods":          {`{"portions": 250, "toppings": ["nuts"]}`, "2", `{"deployment":{"name":"a","portions":200},"toppings":["nuts"]}`},
		"another annotation":  {`{"portions": -9223372036854775808}`, "3", `{"deployment":{"name":"a","portions":300}}`},
		"less than none":      {`{"portions": -250}`, "0", `{"deployment":{"name":"a","portions":0}}`},
		"more than there are": {`{"portions": 214748364701}`, "2147483647", `{"deployment":{"name":"a","portions":214748364700}}`},
		"twice the same":      {`{"toppings": ["nuts", "nuts"]}`, "3", `{"deployment":{"name":"a","portions":300}}`},
		"eleven toppings":     {`{"toppings": ["1","2","3","4","5","6","7","8","9","10","11"]}`, "3", `{"deployment":{"name":"a","portions":300}}`},
		"a long topping":      {`{"toppings": ["` + strings.Repeat("x", 64) + `"]}`, "3", `{"deployment":{"name":"a","portions":300}}`},
		"no JSON":             {`{"portions": `, "3", `{"deployment":{"name":"a","portions":300}}`},
		"half of it is wrong": {`{"toppings": ["nuts"], "portions": "many"}`, "3", `{"deployment":{"name":"a","portions":300}}`},
		"the largest number":  {"", "2147483647", `{"deployment":{"name":"a","portions":214748364700}}`},
	} {
		var o unstructured.Unstructured
		annotation, err := json.Marshal(tc.annotation)
		fatal.If(t, err)
		if err := json.Unmarshal([]byte(`{"apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream", "metadata": {"name": "a", "annotations": {"controller.nicoleh.io/v1": `+
			string(annotation)+`}}, "spec": {"deploymentName": "a", "replicas": `+tc.replicas+`}}`), &o); err != nil {
			t.Fatal(err)
		}
		if err := Convert(&o, V1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := json.Marshal(o.Object["spec"]); err != nil || string(got) != tc.want || len(o.GetAnnotations()) > 0 {
			t.Errorf("%s: %s with annotations %v (%v), want %s", name, got, o.GetAnnotations(), err, tc.want)
		}
	}
}

// An export of v1alpha1 that somebody has rewritten to v1 by hand still carries the annotation.
// In v1 the spec alone says what is wanted.
func TestAStaleAnnotationSaysNothing(t *testing.T) {
	t.Parallel()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": V1, "kind": "Icecream",
		"metadata": map[string]any{"name": "lemon", "annotations": map[string]any{KeptAnnotation: `{"portions":250,"toppings":["nuts"]}`}},
		"spec":     map[string]any{"deployment": map[string]any{"name": "cone", "portions": int64(300)}},
	}}
	for _, version := range []string{V1alpha1, V1} {
		fatal.If(t, Convert(object, version))
	}
	toppings, found, _ := unstructured.NestedSlice(object.Object, "spec", "toppings")
	portions, _, _ := unstructured.NestedInt64(object.Object, "spec", "deployment", "portions")
	if found || portions != 300 {
		t.Errorf("the spec has come back with the toppings %v and %d portions", toppings, portions)
	}
}

// An object whose own annotations leave no room for ours. The API server refuses a converted
// object with more than it allows, and then every list that the object is in.
func TestAnnotationsAreFull(t *testing.T) {
	t.Parallel()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": V1, "kind": "Icecream",
		"metadata": map[string]any{"name": "lemon", "annotations": map[string]any{"theirs": strings.Repeat("x", validation.TotalAnnotationSizeLimitB-len("theirs"))}},
		"spec":     map[string]any{"deployment": map[string]any{"name": "cone", "portions": int64(250)}},
	}}
	fatal.If(t, Convert(object, V1alpha1))
	fatal.If(t, validation.ValidateAnnotationsSize(object.GetAnnotations()))
	if replicas, _, _ := unstructured.NestedInt64(object.Object, "spec", "replicas"); replicas != 3 {
		t.Errorf("%d replicas, want 3", replicas)
	}
}

package crdyaml

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// ours marks the definitions that the workshop made: only those are deleted.
const ours = "workshop.k8s-go.dev/step"

// readCRD reads a definition from a file of this folder.
func readCRD(t *testing.T, path string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return crd
}

func crdClient(t *testing.T, e *testenv.Env) clientset.Interface {
	t.Helper()
	c, err := clientset.NewForConfig(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// create creates a definition that is deleted when the test ends, and replaces
// one that an interrupted run has left behind. It does not wait.
func create(t *testing.T, e *testenv.Env, crd *apiextensionsv1.CustomResourceDefinition) (*apiextensionsv1.CustomResourceDefinition, error) {
	t.Helper()
	client := crdClient(t, e).ApiextensionsV1().CustomResourceDefinitions()
	if old, err := client.Get(e.Context(), crd.Name, metav1.GetOptions{}); err == nil {
		if old.Labels[ours] == "" {
			t.Fatalf("the cluster has a definition %s that the workshop did not make", crd.Name)
		}
		remove(t, e, crd.Name)
	}
	t.Cleanup(func() { remove(t, e, crd.Name) })
	return client.Create(e.Context(), crd, metav1.CreateOptions{})
}

// install creates definitions and waits until they can be used.
func install(t *testing.T, e *testenv.Env, crds ...*apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	var names []string
	for _, crd := range crds {
		if _, err := create(t, e, crd); err != nil {
			t.Fatal(err)
		}
		names = append(names, crd.Name)
	}
	if err := crdwait.Established(e.Context(), e.Config, names...); err != nil {
		t.Fatal(err)
	}
}

// remove deletes definitions, with all objects of theirs, and waits for the end.
func remove(t *testing.T, e *testenv.Env, names ...string) {
	t.Helper()
	ctx := context.WithoutCancel(e.Context())
	client := crdClient(t, e).ApiextensionsV1().CustomResourceDefinitions()
	for _, name := range names {
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("deleting %s: %v", name, err)
		}
	}
	if err := crdwait.Gone(ctx, e.Config, names...); err != nil {
		t.Error(err)
	}
}

// readObject reads an example. want is what its first line says the server
// must answer; empty in a good example.
func readObject(t *testing.T, path string) (o *unstructured.Unstructured, want string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := bufio.NewReader(bytes.NewReader(data)).ReadString('\n')
	want, _ = strings.CutPrefix(strings.TrimSpace(first), "# want: ")
	if want == strings.TrimSpace(first) {
		want = ""
	}
	json, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	o = &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(json); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return o, want
}

// plurals are the resources of the kinds in the examples.
var plurals = map[string]string{"HealthCheckPolicy": "healthcheckpolicies", "Icecream": "icecreams"}

func resource(e *testenv.Env, o *unstructured.Unstructured) dynamic.ResourceInterface {
	gvk := o.GroupVersionKind()
	return e.Dynamic.Resource(gvk.GroupVersion().WithResource(plurals[gvk.Kind])).Namespace(e.Namespace)
}

// strict is how kubectl writes: an unknown field is an error.
var strict = metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}

func examples(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	return files
}

func TestGoodExamplesAreAccepted(t *testing.T) {
	e := testenv.New(t)
	install(t, e, readCRD(t, "healthcheckpolicy-crd.yaml"), readCRD(t, "icecream-crd.yaml"))
	for _, path := range examples(t, "examples/good/*.yaml") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			o, want := readObject(t, path)
			if want != "" {
				t.Errorf("a good example wants the error %q", want)
			}
			stored, err := resource(e, o).Create(e.Context(), o, strict)
			if err != nil {
				t.Fatal(err)
			}
			// What was written is stored; what was left out has its default.
			for key, value := range defaults[o.GetKind()] {
				got, _, _ := unstructured.NestedFieldNoCopy(stored.Object, "spec", key)
				asked, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", key)
				if asked == nil {
					asked = value
				}
				if diff := cmp.Diff(asked, got); diff != "" {
					t.Errorf("spec.%s (-want +stored):\n%s", key, diff)
				}
			}
		})
	}
}

var defaults = map[string]map[string]any{
	"HealthCheckPolicy": {"action": "label", "requiredProbes": []any{"liveness", "readiness"}, "selector": map[string]any{}},
	"Icecream":          {"replicas": int64(1)},
}

func TestBadExamplesAreRefused(t *testing.T) {
	e := testenv.New(t)
	install(t, e, readCRD(t, "healthcheckpolicy-crd.yaml"), readCRD(t, "icecream-crd.yaml"))
	kinds := map[string]schema.GroupVersionResource{}
	for _, path := range examples(t, "examples/bad/*.yaml") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			o, want := readObject(t, path)
			if want == "" {
				t.Fatal(`the first line is not "# want: " and what the server must answer`)
			}
			gvk := o.GroupVersionKind()
			kinds[gvk.Kind] = gvk.GroupVersion().WithResource(plurals[gvk.Kind])
			_, err := resource(e, o).Create(e.Context(), o, strict)
			if err == nil {
				t.Fatalf("it was accepted, want the error %q", want)
			}
			if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
				t.Errorf("the answer is %s, want Invalid or BadRequest", apierrors.ReasonForError(err))
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the answer is\n%v\nwant\n%s", err, want)
			}
		})
	}
	for _, gvr := range kinds {
		list, err := e.Dynamic.Resource(gvr).Namespace(e.Namespace).List(e.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			t.Errorf("the cluster holds %s %s", gvr.Resource, o.GetName())
		}
	}
}

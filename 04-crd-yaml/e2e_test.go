package crdyaml

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // most tests wait for the server, not for a core
	testenv.Main(m)
}

func TestREADME(t *testing.T) { testenv.README(t) }

const (
	policyCRD   = "healthcheckpolicy-crd.yaml"
	icecreamCRD = "icecream-crd.yaml"
)

// The object that a CRD's kind and a spec make.
func object(crd *apiextensionsv1.CustomResourceDefinition, name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetAPIVersion(crd.Spec.Group + "/" + crd.Spec.Versions[0].Name)
	o.SetKind(crd.Spec.Names.Kind)
	o.SetName(name)
	return o
}

// resource is the client for the objects of a CRD in the test's
// namespace; version is its first one if empty.
func resource(e *testenv.Env, crd *apiextensionsv1.CustomResourceDefinition, version string) dynamic.ResourceInterface {
	if version == "" {
		version = crd.Spec.Versions[0].Name
	}
	return e.Dynamic.Resource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: version, Resource: crd.Spec.Names.Plural}).Namespace(e.Namespace)
}

// field returns a field of an object, or nil.
func field(o *unstructured.Unstructured, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(o.Object, path...)
	return v
}

// causes returns the single errors of a refusal as "reason field: message".
func causes(t *testing.T, err error) []string {
	t.Helper()
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Details == nil {
		t.Fatalf("error %v, want one with details", err)
	}
	var list []string
	for _, c := range status.ErrStatus.Details.Causes {
		list = append(list, string(c.Type)+" "+c.Field+": "+c.Message)
	}
	return list
}

// wantRefused fails the test unless the server has refused something with one
// reason that contains want.
func wantRefused(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil {
		t.Errorf("it was accepted, want the error %q", want)
	} else if !strings.Contains(err.Error(), want) {
		t.Errorf("the answer is\n%v\nwant\n%s", err, want)
	}
}

// kubectl runs kubectl in the test's namespace, with a cache of its own:
// CRDs come and go here faster than the cache of discovery expires.
func kubectl(t *testing.T, e *testenv.Env, args ...string) testenv.Result {
	t.Helper()
	args = append([]string{"-c", `exec kubectl "$@"`, "bash", "--namespace=" + e.Namespace, "--cache-dir=" + t.TempDir()}, args...)
	return e.Run(testenv.Command{Path: "/bin/bash", Args: args})
}

// readObject reads an example. want is what its first line says that the
// server must answer; it is empty in a good example.
func readObject(t *testing.T, path string) (o *unstructured.Unstructured, want string) {
	t.Helper()
	data, err := os.ReadFile(path)
	fatal.If(t, err)
	first, _ := bufio.NewReader(bytes.NewReader(data)).ReadString('\n')
	if rest, ok := strings.CutPrefix(strings.TrimSpace(first), "# want: "); ok {
		want = rest
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

// TestDefinitions asks what needs the CRDs as they are, which are
// installed once for all of it: each takes the server a second, and holds back
// its first object for two more.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	policy, icecream := own(t, policyCRD, "lesson"), own(t, icecreamCRD, "lesson")
	crdtest.Install(t, e, policy, icecream)
	crds := map[string]*definition{policy.Spec.Names.Kind: policy, icecream.Spec.Names.Kind: icecream}
	for name, test := range map[string]func(*testing.T, *testenv.Env, map[string]*definition){
		"good examples are accepted": goodExamplesAreAccepted,
		"bad examples are refused":   badExamplesAreRefused,
		"rule says what is wrong":    ruleSaysWhatIsWrong,
		"transition rule":            transitionRule,
		"pruning":                    pruning,
		"status subresource":         statusSubresource,
		"status is validated":        statusIsValidated,
		"scale subresource":          scaleSubresource,
		"selectable fields":          selectableFields,
		"two served versions":        twoServedVersions,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, testenv.New(t), crds)
		})
	}
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

func base(path string) string { return strings.TrimSuffix(filepath.Base(path), ".yaml") }

func goodExamplesAreAccepted(t *testing.T, e *testenv.Env, crds map[string]*definition) {
	defaults := map[string]map[string]any{
		"HealthCheckPolicy": {"action": "label", "podLabel": nil, "requiredProbes": []any{"liveness", "readiness"},
			"selector": map[string]any{}, "eviction": map[string]any{"minIntervalSeconds": int64(10)}},
		"Icecream": {"deploymentName": nil, "replicas": int64(1)},
	}
	for _, path := range examples(t, "examples/good/*.yaml") {
		t.Run(base(path), func(t *testing.T) {
			o, want := readObject(t, path)
			if want != "" {
				t.Errorf("a good example wants the error %q", want)
			}
			crd, version := crds[o.GetKind()], o.GroupVersionKind().Version
			o.SetAPIVersion(crd.Spec.Group + "/" + version)
			stored, err := resource(e, crd, version).Create(e.Context(), o, strict)
			fatal.If(t, err)
			// What was written is stored; what was left out or null has its default.
			spec := map[string]any{}
			for key, value := range defaults[o.GetKind()] {
				asked := field(o, "spec", key)
				if fields, ok := asked.(map[string]any); ok && len(fields) == 0 {
					asked = nil // an empty object is filled in like a missing one
				}
				if asked != nil {
					value = asked
				}
				if value != nil {
					spec[key] = value
				}
			}
			if diff := cmp.Diff(spec, field(stored, "spec")); diff != "" {
				t.Errorf("spec (-want +stored):\n%s", diff)
			}
		})
	}
}

func badExamplesAreRefused(t *testing.T, e *testenv.Env, crds map[string]*definition) {
	files := examples(t, "examples/bad/*.yaml")
	if len(files) < 20 {
		t.Errorf("%d bad examples, want at least 20", len(files))
	}
	for _, path := range files {
		t.Run(base(path), func(t *testing.T) {
			o, want := readObject(t, path)
			if want == "" {
				t.Fatal(`the first line is not "# want: " and what the server must answer`)
			}
			// Each version has a schema of its own, and must refuse it.
			crd := crds[o.GetKind()]
			for _, version := range crd.Spec.Versions {
				o.SetAPIVersion(crd.Spec.Group + "/" + version.Name)
				_, err := resource(e, crd, version.Name).Create(e.Context(), o, strict)
				wantRefused(t, err, want)
				if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
					t.Errorf("the answer is %s, want Invalid or BadRequest", apierrors.ReasonForError(err))
				}
			}
		})
	}
	for _, crd := range crds {
		list, err := resource(e, crd, "").List(e.Context(), metav1.ListOptions{})
		fatal.If(t, err)
		for _, o := range list.Items {
			t.Errorf("the cluster holds the bad %s %s", o.GetKind(), o.GetName())
		}
	}
}

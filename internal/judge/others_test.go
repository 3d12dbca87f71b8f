package judge

import (
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/faultproxy"
)

// What a controller has sent is read, in whatever form it was.
func TestSent(t *testing.T) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", OwnerReferences: []metav1.OwnerReference{{UID: "u"}}}}
	d.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	inProtobuf, err := runtime.Encode(scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), appsv1.SchemeGroupVersion), d)
	fatal.If(t, err)
	for name, test := range map[string]struct {
		body string
		want string
	}{
		"JSON":              {`{"metadata":{"name":"d","ownerReferences":[{"uid":"u"}]}}`, "d"},
		"protobuf":          {string(inProtobuf), "d"},
		"YAML":              {"metadata:\n  name: d\n  ownerReferences: [{uid: u}]\n", "d"},
		"a list of changes": {`[{"op":"remove","path":"/spec"}]`, ""},
		"nothing":           {"", ""},
		"nonsense":          {"k8s\x00no", ""},
	} {
		o := sent(faultproxy.Request{Body: []byte(test.body)})
		switch {
		case test.want == "" && o != nil:
			t.Errorf("%s: %v", name, o)
		case test.want != "" && (o == nil || o.GetName() != test.want || !ownedBy(o, "u") || ownedBy(o, "v")):
			t.Errorf("%s: %v", name, o)
		}
	}
}

func TestResourceOfRequest(t *testing.T) {
	for _, test := range []struct{ path, group, resource, want string }{
		{"/api/v1/namespaces/n/pods/p/status", "", "pods/status", "/v1, Resource=pods"},
		{"/apis/apps/v1/namespaces/n/deployments", "apps", "deployments", "apps/v1, Resource=deployments"},
	} {
		if got := gvr(faultproxy.Request{Path: test.path, Group: test.group, Resource: test.resource}).String(); got != test.want {
			t.Errorf("%s: %s, want %s", test.path, got, test.want)
		}
	}
}

// What people make again has nothing of what the API server or a controller gave it.
func TestAgain(t *testing.T) {
	old := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Thing", "spec": map[string]any{"n": int64(1)}, "status": map[string]any{"n": int64(1)},
		"metadata": map[string]any{"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": map[string]any{"l": "1"}, "ownerReferences": []any{}},
	}}
	want := map[string]any{"apiVersion": "v1", "kind": "Thing", "spec": map[string]any{"n": int64(1)}, "metadata": map[string]any{"name": "a", "labels": map[string]any{"l": "1"}}}
	if diff := cmp.Diff(want, again(old).Object); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if old.GetUID() != "u" {
		t.Error("the old one was changed")
	}
}

func TestGuards(t *testing.T) {
	for body, want := range map[string]bool{
		`{"preconditions":{"uid":"u"}}`:             true,
		`{"preconditions":{"resourceVersion":"7"}}`: true,
		`{"propagationPolicy":"Background"}`:        false,
	} {
		if got := guardedDelete(sent(faultproxy.Request{Body: []byte(body)})); got != want {
			t.Errorf("%s: %t", body, got)
		}
	}
}

// What a rival wrote has to be there at the end, wherever it wrote it.
func TestLost(t *testing.T) {
	const theirs = "kind: A, apiVersion: v1, metadata: {name: a, annotations: {judge.test/rival: '2'}}"
	before := objects(t, "{"+theirs+", spec: {template: {metadata: {annotations: {judge.test/rival: '2'}}}}}")[0]
	r := rivalry{object: &before, value: "2", condition: "1"}
	for now, want := range map[string]string{
		"spec: {template: {metadata: {annotations: {judge.test/rival: '2'}}}}, status: {conditions: [{type: judge.test/rival, message: '1'}]}": "",
		"spec: {template: {}}, status: {conditions: [{type: judge.test/rival, message: '1'}]}":                                                 "the template of A a",
		"spec: {template: {metadata: {annotations: {judge.test/rival: '2'}}}}, status: {conditions: [{type: judge.test/rival, message: '0'}]}": "the conditions of A a",
	} {
		if got, _ := r.lost(&objects(t, "{"+theirs+", "+now+"}")[0]); got != want {
			t.Errorf("%s: %q, want %q", now, got, want)
		}
	}
	if got, _ := r.lost(&objects(t, "{kind: A, apiVersion: v1, metadata: {name: a}}")[0]); got != "A a" {
		t.Errorf("no annotation: %q", got)
	}
}

// Conditions are shared where the CRD says that each has its own owner.
func TestSharedConditions(t *testing.T) {
	for list, want := range map[string]bool{"x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [type]": true, "x-kubernetes-list-type: atomic": false} {
		file := filepath.Join(t.TempDir(), "crd.yaml")
		text := "# of two\n---\nspec: {group: h, names: {plural: others}}\n---\nspec: {group: g, names: {plural: things}, versions: [{name: v1, schema: {openAPIV3Schema: {properties: {status: {properties: {conditions: {type: array, " + list + "}}}}}}}]}"
		fatal.If(t, os.WriteFile(file, []byte(text), 0o644))
		s := &scene{lab: &lab{contract: &Contract{CRDs: []string{file}}}}
		if got, err := s.sharedConditions(); err != nil || got[schema.GroupResource{Group: "g", Resource: "things"}] != want {
			t.Errorf("%s: %v, %v", list, got, err)
		}
	}
}

// A contract may be reduced to some of its steps, without a change of its own.
func TestReduced(t *testing.T) {
	c := &Contract{Name: "c", Scenario: []Track{{"a", make([]Step, 3)}, {"b", make([]Step, 2)}, {"c", make([]Step, 1)}}}
	small := c.reduced(map[string]int{"a": 2, "c": 9})
	if len(small.Scenario) != 2 || len(small.Scenario[0].Steps) != 2 || len(small.Scenario[1].Steps) != 1 || len(c.Scenario) != 3 || len(c.Scenario[0].Steps) != 3 {
		t.Errorf("%v of %v", small.Scenario, c.Scenario)
	}
}

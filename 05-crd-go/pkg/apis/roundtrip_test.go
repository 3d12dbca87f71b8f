// Package apis_test checks the types of all groups together.
package apis_test

import (
	"math/rand"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"

	icecreamv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	policyv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
)

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme) error{policyv1alpha1.Install, icecreamv1alpha1.Install} {
		if err := install(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// Random objects are written as JSON and read back: a field that is left out, or
// that two fields' tags share, shows as a difference. DeepCopy is checked too.
func TestRoundTrip(t *testing.T) {
	scheme := newScheme(t)
	codecs := serializer.NewCodecFactory(scheme)
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	f := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(seed), codecs)
	roundtrip.RoundTripExternalTypesWithoutProtobuf(t, scheme, codecs, f, nil)
}

// The same by way of the maps of the dynamic client, as JSON and as CBOR.
func TestRoundTripToUnstructured(t *testing.T) {
	// Without ListOptions and its like, which Install puts into every group.
	ours, kinds := runtime.NewScheme(), sets.New[schema.GroupVersionKind]()
	for gvk, typ := range newScheme(t).AllKnownTypes() {
		if !strings.HasPrefix(typ.PkgPath(), "github.com/k8s-go/workshop/") {
			continue
		}
		object, ok := reflect.New(typ).Interface().(runtime.Object)
		if !ok {
			t.Fatalf("%v is no runtime.Object", typ)
		}
		ours.AddKnownTypeWithName(gvk, object)
		kinds.Insert(gvk)
	}
	if kinds.Len() != 4 {
		t.Errorf("%d kinds are checked, want the two and their lists", kinds.Len())
	}
	roundtrip.RoundtripToUnstructured(t, ours, metafuzzer.Funcs, nil, kinds)
}

// Every kind can be made from its name, which is what a decoder does.
func TestSchemeKnowsTheKinds(t *testing.T) {
	scheme := newScheme(t)
	for _, gvk := range []schema.GroupVersionKind{policyv1alpha1.HealthCheckPolicyKind, icecreamv1alpha1.IcecreamKind} {
		object, err := scheme.New(gvk)
		if err != nil {
			t.Error(err)
			continue
		}
		kinds, _, err := scheme.ObjectKinds(object)
		if err != nil || len(kinds) != 1 || kinds[0] != gvk {
			t.Errorf("%T is %v (%v), want %v", object, kinds, err, gvk)
		}
	}
}

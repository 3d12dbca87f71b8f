package crdgo

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A deletion that waits for a finalizer raises the generation; a change of labels
// does not, so a controller that compares generations misses it.
func TestGenerations(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := crdtest.Read(t, generatedCRDs[0])
	crdtest.Rename(crd, "generations.crd-go.k8s-go.openshift.org")
	crdtest.Install(t, e, crd)
	gvr := policiesResource
	gvr.Group = crd.Spec.Group
	policies := e.Dynamic.Resource(gvr).Namespace(e.Namespace)
	o := policy("x", map[string]any{"action": "kill"})
	o.SetAPIVersion(gvr.GroupVersion().String())
	o.SetFinalizers([]string{"workshop.k8s-go.dev/test"})
	create(t, e, policies, o)
	want := func(what string, generation int64) {
		t.Helper()
		o, err := policies.Get(e.Context(), "x", metav1.GetOptions{})
		fatal.If(t, err)
		if o.GetGeneration() != generation {
			t.Errorf("%s: generation %d, want %d", what, o.GetGeneration(), generation)
		}
	}
	patch := func(patch string) {
		t.Helper()
		if _, err := policies.Patch(e.Context(), "x", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want("created", 1)
	patch(`{"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}}`)
	want("labelled and annotated", 1)
	fatal.If(t, policies.Delete(e.Context(), "x", metav1.DeleteOptions{}))
	want("waiting for its finalizer", 2)
	patch(`{"metadata": {"finalizers": null}}`)
}

// After a create, its manager owns the defaults; after an apply, nobody does.
func TestOwnersOfDefaults(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := crdtest.Read(t, generatedCRDs[0])
	crdtest.Rename(crd, "owners.crd-go.k8s-go.openshift.org")
	crdtest.Install(t, e, crd)
	gvr := policiesResource
	gvr.Group = crd.Spec.Group
	policies := e.Dynamic.Resource(gvr).Namespace(e.Namespace)
	for name, owned := range map[string]bool{"created": true, "applied": false} {
		o := policy(name, map[string]any{"action": "kill"})
		o.SetAPIVersion(gvr.GroupVersion().String())
		stored, err := o, error(nil)
		if owned {
			stored, err = policies.Create(e.Context(), o, metav1.CreateOptions{FieldManager: "anna"})
		} else {
			stored, err = policies.Apply(e.Context(), name, o, metav1.ApplyOptions{FieldManager: "anna"})
		}
		fatal.If(t, err)
		if field(stored, "spec", "requiredProbes") == nil {
			t.Errorf("%s: the default is missing", name)
		}
		if m := stored.GetManagedFields(); len(m) != 1 || strings.Contains(m[0].FieldsV1.GetRawString(), "f:requiredProbes") != owned {
			t.Errorf("%s: managed fields %v; want the default owned: %t", name, m, owned)
		}
	}
}

// The API server merges lists by what controller-gen has made of listType.
func TestListTypeReachesTheDefinition(t *testing.T) {
	crd := crdtest.Read(t, generatedCRDs[0])
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	if probes := schema.Properties["spec"].Properties["requiredProbes"]; ptr.Deref(probes.XListType, "") != "atomic" {
		t.Errorf("requiredProbes: x-kubernetes-list-type %q, want atomic", ptr.Deref(probes.XListType, ""))
	}
	if conditions := schema.Properties["status"].Properties["conditions"]; ptr.Deref(conditions.XListType, "") != "map" || len(conditions.XListMapKeys) != 1 {
		t.Errorf("conditions: x-kubernetes-list-type %q with keys %q, want map by type", ptr.Deref(conditions.XListType, ""), conditions.XListMapKeys)
	}
}

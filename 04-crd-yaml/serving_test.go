package crdyaml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/crdwait"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// must(t)(f()) is what f returns; the test ends if that is an error.
func must(t *testing.T) func(*unstructured.Unstructured, error) *unstructured.Unstructured {
	return func(o *unstructured.Unstructured, err error) *unstructured.Unstructured {
		t.Helper()
		fatal.If(t, err)
		return o
	}
}

func TestDiscoveryListsTheResource(t *testing.T) {
	e := testenv.New(t)
	crdtest.Install(t, e, crdtest.Read(t, policyCRD), crdtest.Read(t, icecreamCRD))
	for gv, want := range map[string][]string{
		"policy.k8s-go.openshift.org/v1alpha1": {"healthcheckpolicies HealthCheckPolicy", "healthcheckpolicies/status HealthCheckPolicy"},
		"policy.k8s-go.openshift.org/v1beta1":  {"healthcheckpolicies HealthCheckPolicy", "healthcheckpolicies/status HealthCheckPolicy"},
		"controller.nicoleh.io/v1alpha1":       {"icecreams Icecream", "icecreams/scale Scale", "icecreams/status Icecream"},
	} {
		list, err := e.Client.Discovery().ServerResourcesForGroupVersion(gv)
		fatal.If(t, err)
		var got []string
		for _, r := range list.APIResources {
			got = append(got, r.Name+" "+r.Kind)
			if r.Name == "healthcheckpolicies" {
				if diff := cmp.Diff(metav1.APIResource{
					Name: r.Name, SingularName: "healthcheckpolicy", Namespaced: true, Kind: r.Kind,
					Verbs:      metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
					ShortNames: []string{"hcp"}, Categories: []string{"policies"}, StorageVersionHash: r.StorageVersionHash,
				}, r); diff != "" {
					t.Errorf("%s in discovery (-want +got):\n%s", gv, diff)
				}
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", gv, diff)
		}
	}
}

// kubectl knows short names, categories and columns from the server alone.
func TestKubectlShowsColumns(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	// kubectl finds a name that two groups have in either of them, and other tests
	// have the names of the lesson.
	crd, plain := variant(t, policyCRD, "columns"), variant(t, policyCRD, "columns")
	crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{
		Kind: "Shown", Plural: "shown", Singular: "showing", ShortNames: []string{"shn"}, Categories: []string{"shows"}}
	plain.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Kind: "Plain", Plural: "plains"}
	crd.Name, plain.Name = "shown."+crd.Spec.Group, "plains."+plain.Spec.Group
	plain.Spec.Versions[0].AdditionalPrinterColumns = nil
	if r := kubectl(t, e, "get", "shn"); r.ExitCode == 0 || !strings.Contains(r.Stderr, `doesn't have a resource type "shn"`) {
		t.Errorf("before there is a CRD: exit code %d, %s", r.ExitCode, r.Stderr)
	}
	crdtest.Install(t, e, crd, plain)
	for _, c := range []*definition{crd, plain} {
		policies := resource(e, c, "")
		o := must(t)(policies.Create(e.Context(), object(c, "shown", map[string]any{"podLabel": "x"}), strict))
		_ = unstructured.SetNestedMap(o.Object, map[string]any{
			"statistics": map[string]any{"pods": map[string]any{"failed": int64(5), "passed": int64(42)}},
			// The column shows the condition of one type among others.
			"conditions": []any{
				map[string]any{"type": "Enforced", "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-11-21T09:13:07Z"},
				map[string]any{"type": "Compliant", "status": "False", "reason": "ProbesMissing", "message": "", "lastTransitionTime": "2026-11-21T09:13:07Z"},
			},
		}, "status")
		must(t)(policies.UpdateStatus(e.Context(), o, metav1.UpdateOptions{}))
	}
	table := func(args ...string) (head, row []string) {
		t.Helper()
		r := kubectl(t, e, append([]string{"get"}, args...)...)
		lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
		if r.ExitCode != 0 || len(lines) != 2 {
			t.Fatalf("kubectl get %s: exit code %d, %d lines\n%s%s", args, r.ExitCode, len(lines), r.Stdout, r.Stderr)
		}
		return strings.Fields(lines[0]), strings.Fields(lines[1])
	}
	for _, name := range []string{"shown", "showing", "shn", "shows", "shown.v1alpha1." + crd.Spec.Group} {
		head, row := table(name)
		if diff := cmp.Diff([]string{"NAME", "ACTION", "COMPLIANT", "FAILED", "PASSED", "AGE"}, head); diff != "" {
			t.Errorf("columns of %s (-want +got):\n%s", name, diff)
		}
		if len(row) != 6 || !slices.Equal(row[1:5], []string{"label", "False", "5", "42"}) {
			t.Errorf("row of %s is %q", name, row)
		}
	}
	if head, _ := table(plain.Name); !slices.Equal(head, []string{"NAME", "AGE"}) {
		t.Errorf("columns without additionalPrinterColumns are %q", head)
	}
}

// With the status subresource each path ignores what belongs to the other, and
// the generation counts what the users wanted, not what the controller saw.
func statusSubresource(t *testing.T, e *testenv.Env, crds map[string]*definition) {
	crd := crds["HealthCheckPolicy"]
	without := variant(t, policyCRD, "without-status")
	without.Spec.Versions[0].Subresources = nil
	crdtest.Install(t, e, without)
	policies := resource(e, crd, "")
	status := func(n int64) map[string]any { return map[string]any{"observedGeneration": n} }

	o := object(crd, "x", map[string]any{"podLabel": "x"})
	o.Object["status"] = status(7)
	o = must(t)(policies.Create(e.Context(), o, strict))
	if field(o, "status") != nil || o.GetGeneration() != 1 {
		t.Errorf("created: status %v, generation %d; want none and 1", field(o, "status"), o.GetGeneration())
	}
	both := func(o *unstructured.Unstructured, action string) *unstructured.Unstructured {
		o = o.DeepCopy()
		o.Object["status"] = status(8)
		_ = unstructured.SetNestedField(o.Object, action, "spec", "action")
		return o
	}
	o = must(t)(policies.Update(e.Context(), both(o, "annotate"), metav1.UpdateOptions{}))
	if field(o, "status") != nil || field(o, "spec", "action") != "annotate" || o.GetGeneration() != 2 {
		t.Errorf("PUT: status %v, action %v, generation %d; want none, annotate, 2", field(o, "status"), field(o, "spec", "action"), o.GetGeneration())
	}
	o = must(t)(policies.UpdateStatus(e.Context(), both(o, "kill"), metav1.UpdateOptions{}))
	if field(o, "status", "observedGeneration") != int64(8) || field(o, "spec", "action") != "annotate" || o.GetGeneration() != 2 {
		t.Errorf("PUT on status: status %v, action %v, generation %d; want 8, annotate, 2", field(o, "status"), field(o, "spec", "action"), o.GetGeneration())
	}

	// Without it a user's write reaches the status, and there is no other path.
	old := object(without, "x", map[string]any{"podLabel": "x"})
	old.Object["status"] = status(7)
	old = must(t)(resource(e, without, "").Create(e.Context(), old, strict))
	if field(old, "status", "observedGeneration") != int64(7) {
		t.Errorf("without the subresource: status %v, want the user's", field(old, "status"))
	}
	old = must(t)(resource(e, without, "").Update(e.Context(), both(old, "label"), metav1.UpdateOptions{}))
	if old.GetGeneration() != 2 {
		t.Errorf("without the subresource: generation %d after a change of the status, want 2", old.GetGeneration())
	}
	if _, err := resource(e, without, "").UpdateStatus(e.Context(), old, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("without the subresource: error %v, want NotFound", err)
	}
}

// The controller's side is validated as well.
func statusIsValidated(t *testing.T, e *testenv.Env, crds map[string]*definition) {
	crd := crds["HealthCheckPolicy"]
	policies := resource(e, crd, "")
	o := must(t)(policies.Create(e.Context(), object(crd, "x", map[string]any{"podLabel": "x"}), strict))
	condition := `{"type": "Compliant", "status": "True", "reason": "AllPassed", "message": "", "lastTransitionTime": "2026-11-21T09:13:07Z"}`
	for _, tc := range []struct{ status, want string }{
		{`{"lastChecked": "yesterday"}`, `status.lastChecked: Invalid value: "yesterday": lastChecked in body must be of type date-time`},
		{`{"lastEvictionTime": "2026-11-21"}`, `status.lastEvictionTime: Invalid value: "2026-11-21": lastEvictionTime in body must be of type date-time`},
		{`{"statistics": {"pods": {"failed": -1, "passed": 0}}}`, `statistics.pods.failed in body should be greater than or equal to 0`},
		{`{"statistics": {"pods": {"failed": 1}}}`, `status.statistics.pods.passed: Required value`},
		{`{"observedGeneration": "1"}`, `observedGeneration in body must be of type integer`},
		{`{"conditions": [` + condition + `, ` + condition + `]}`, `status.conditions[1]: Duplicate value: {"type":"Compliant"}`},
		{`{"conditions": [{"type": "Compliant", "status": "Maybe", "reason": "x", "message": "", "lastTransitionTime": "2026-11-21T09:13:07Z"}]}`, `status.conditions[0].status: Unsupported value: "Maybe"`},
		{`{"conditions": [{"type": "Compliant", "status": "True", "message": "", "lastTransitionTime": "2026-11-21T09:13:07Z"}]}`, `status.conditions[0].reason: Required value`},
		{`{"observedGeneration": 1, "lastChecked": "2026-11-21T09:13:07Z", "lastEvictionTime": "2026-11-21T09:13:00Z", "statistics": {"pods": {"failed": 0, "passed": 42}}, "conditions": [` + condition + `]}`, ""},
	} {
		_, err := policies.Patch(e.Context(), o.GetName(), types.MergePatchType, []byte(`{"status": `+tc.status+`}`), metav1.PatchOptions{}, "status")
		if tc.want == "" && err != nil {
			t.Errorf("a complete status was refused: %v", err)
		} else if tc.want != "" {
			wantRefused(t, err, tc.want)
		}
	}
}

func scaleSubresource(t *testing.T, e *testenv.Env, crds map[string]*definition) {
	crd := crds["Icecream"]
	icecreams := resource(e, crd, "")
	o := must(t)(icecreams.Create(e.Context(), object(crd, "vanilla", map[string]any{"deploymentName": "vanilla"}), strict))
	const selector = "controller.nicoleh.io/uid=1"
	_ = unstructured.SetNestedMap(o.Object, map[string]any{"replicas": int64(2), "availableReplicas": int64(1), "selector": selector}, "status")
	must(t)(icecreams.UpdateStatus(e.Context(), o, metav1.UpdateOptions{}))

	if r := kubectl(t, e, "scale", crd.Name, "vanilla", "--replicas=3"); r.ExitCode != 0 {
		t.Fatalf("exit code %d\n%s", r.ExitCode, r.Stderr)
	}
	if got := field(must(t)(icecreams.Get(e.Context(), "vanilla", metav1.GetOptions{})), "spec", "replicas"); got != int64(3) {
		t.Errorf("spec.replicas is %v after kubectl scale, want 3", got)
	}
	scale := must(t)(icecreams.Get(e.Context(), "vanilla", metav1.GetOptions{}, "scale"))
	// status.replicas are the pods that exist, not those that are available; an
	// autoscaler finds their metrics by the selector.
	got := []any{scale.GetAPIVersion(), scale.GetKind(), field(scale, "spec", "replicas"), field(scale, "status", "replicas"), field(scale, "status", "selector")}
	if diff := cmp.Diff([]any{"autoscaling/v1", "Scale", int64(3), int64(2), selector}, got); diff != "" {
		t.Errorf("the scale subresource (-want +got):\n%s", diff)
	}
	// A precondition, as an autoscaler would set it.
	if r := kubectl(t, e, "scale", crd.Name, "vanilla", "--current-replicas=1", "--replicas=9"); r.ExitCode == 0 {
		t.Error("scaled, though the precondition does not hold")
	}
	if r := kubectl(t, e, "scale", crd.Name, "vanilla", "--replicas=3000000000"); r.ExitCode == 0 {
		t.Error("scaled to more than an int32 holds")
	}
	// A kind without the subresource cannot be scaled.
	if r := kubectl(t, e, "scale", crds["HealthCheckPolicy"].Name, "x", "--replicas=2"); r.ExitCode == 0 {
		t.Errorf("a HealthCheckPolicy was scaled: %s", r.Stdout)
	}
	if got := field(must(t)(icecreams.Get(e.Context(), "vanilla", metav1.GetOptions{})), "spec", "replicas"); got != int64(3) {
		t.Errorf("spec.replicas is %v after refused requests, want 3", got)
	}
}

func selectableFields(t *testing.T, e *testenv.Env, crds map[string]*definition) {
	crd := crds["HealthCheckPolicy"]
	without := variant(t, policyCRD, "without-selectable")
	without.Spec.Versions[0].SelectableFields = nil
	crdtest.Install(t, e, without)
	policies := resource(e, crd, "")
	for name, action := range map[string]string{"a": "label", "b": "kill", "c": "annotate", "d": "kill"} {
		must(t)(policies.Create(e.Context(), object(crd, name, map[string]any{"action": action, "podLabel": "x"}), strict))
	}
	kills := metav1.ListOptions{FieldSelector: "spec.action=kill"}
	names := func(list *unstructured.UnstructuredList, err error) (names []string) {
		t.Helper()
		fatal.If(t, err)
		for _, o := range list.Items {
			names = append(names, o.GetName())
		}
		return names
	}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		if diff := cmp.Diff([]string{"b", "d"}, names(resource(e, crd, version).List(e.Context(), kills))); diff != "" {
			t.Errorf("%s with spec.action=kill (-want +got):\n%s", version, diff)
		}
	}
	if diff := cmp.Diff([]string{"a"}, names(policies.List(e.Context(), metav1.ListOptions{FieldSelector: "spec.action!=kill,spec.action!=annotate"}))); diff != "" {
		t.Errorf("with two conditions (-want +got):\n%s", diff)
	}
	// A watch is filtered as well: an object that begins to match is ADDED to it.
	list, err := policies.List(e.Context(), kills)
	fatal.If(t, err)
	w, err := policies.Watch(e.Context(), metav1.ListOptions{FieldSelector: kills.FieldSelector, ResourceVersion: list.GetResourceVersion()})
	fatal.If(t, err)
	defer w.Stop()
	must(t)(policies.Patch(e.Context(), "a", types.MergePatchType, []byte(`{"spec": {"action": "kill"}}`), metav1.PatchOptions{}))
	select {
	case event := <-w.ResultChan():
		if m, err := meta.Accessor(event.Object); err != nil || m.GetName() != "a" || event.Type != "ADDED" {
			t.Errorf("event %s %v, want ADDED a", event.Type, event.Object)
		}
	case <-time.After(20 * time.Second):
		t.Error("no event though an object began to match")
	}
	for name, list := range map[string]func() error{
		"a field that is not listed": func() error {
			_, err := policies.List(e.Context(), metav1.ListOptions{FieldSelector: "spec.podLabel=x"})
			return err
		},
		"no selectable fields": func() error {
			_, err := resource(e, without, "").List(e.Context(), kills)
			return err
		},
	} {
		if err := list(); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "field label not supported") {
			t.Errorf("%s: error %v, want BadRequest", name, err)
		}
	}
}

// Both versions show the same object.
func twoServedVersions(t *testing.T, e *testenv.Env, crds map[string]*definition) {
	crd := crds["HealthCheckPolicy"]
	alpha, beta := resource(e, crd, "v1alpha1"), resource(e, crd, "v1beta1")
	a := must(t)(alpha.Create(e.Context(), object(crd, "x", map[string]any{"podLabel": "x"}), strict))
	b := must(t)(beta.Get(e.Context(), "x", metav1.GetOptions{}))
	if b.GetAPIVersion() != crd.Spec.Group+"/v1beta1" {
		t.Errorf("apiVersion %s, want the one that was asked for", b.GetAPIVersion())
	}
	b.SetAPIVersion(a.GetAPIVersion())
	a.SetManagedFields(nil)
	b.SetManagedFields(nil)
	if diff := cmp.Diff(a.Object, b.Object); diff != "" {
		t.Errorf("the object in v1alpha1 and v1beta1 differs:\n%s", diff)
	}
	// What is written through one is read, and met by conflicts, through the other.
	must(t)(beta.Patch(e.Context(), "x", types.MergePatchType, []byte(`{"spec": {"action": "kill"}}`), metav1.PatchOptions{}))
	if got := field(must(t)(alpha.Get(e.Context(), "x", metav1.GetOptions{})), "spec", "action"); got != "kill" {
		t.Errorf("v1alpha1 shows action %v, want what v1beta1 wrote", got)
	}
	if _, err := alpha.Update(e.Context(), a, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("error %v, want Conflict: the other version has changed the object", err)
	}
}

// Moving to another storage version: objects stay readable, each is rewritten
// by a write that changes nothing, and only then may the old version go.
func TestStorageVersionMigration(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := own(t, policyCRD, "storage")
	crdtest.Install(t, e, crd)
	client := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions()
	alpha, beta := resource(e, crd, "v1alpha1"), resource(e, crd, "v1beta1")
	var before []*unstructured.Unstructured
	for _, name := range []string{"a", "b"} {
		before = append(before, must(t)(alpha.Create(e.Context(), object(crd, name, map[string]any{"podLabel": "x"}), strict)))
	}
	touch := func(name string) (old, now string) {
		t.Helper()
		o := must(t)(alpha.Get(e.Context(), name, metav1.GetOptions{}))
		return o.GetResourceVersion(), must(t)(alpha.Update(e.Context(), o, metav1.UpdateOptions{})).GetResourceVersion()
	}
	if old, now := touch("a"); old != now {
		t.Errorf("an update that changes nothing was written: resourceVersion %s, then %s", old, now)
	}

	fatal.If(t, update(t, e, crd.Name, func(c *definition) { c.Spec.Versions[0].Storage, c.Spec.Versions[1].Storage = false, true }))
	stored := func(want ...string) {
		t.Helper()
		e.Eventually(time.Minute, func(ctx context.Context) error {
			c, err := client.Get(ctx, crd.Name, metav1.GetOptions{})
			if err == nil && !slices.Equal(c.Status.StoredVersions, want) {
				err = fmt.Errorf("status.storedVersions %v, want %v", c.Status.StoredVersions, want)
			}
			return err
		})
	}
	stored("v1alpha1", "v1beta1")
	for _, o := range before {
		for _, c := range []dynamic.ResourceInterface{alpha, beta} {
			got := must(t)(c.Get(e.Context(), o.GetName(), metav1.GetOptions{}))
			if got.GetResourceVersion() != o.GetResourceVersion() || !cmp.Equal(field(got, "spec"), field(o, "spec")) {
				t.Errorf("after the switch %s reads %v", o.GetName(), got.Object)
			}
		}
	}
	dropAlpha := func() error {
		return update(t, e, crd.Name, func(c *definition) { c.Spec.Versions = c.Spec.Versions[1:] })
	}
	wantRefused(t, dropAlpha(), `status.storedVersions[0]: Invalid value: "v1alpha1"`)

	// The same update as above, and now it is written: in the new version.
	for _, o := range before {
		e.Eventually(time.Minute, func(context.Context) error {
			if old, now := touch(o.GetName()); old == now {
				return errors.New("the update that changes nothing has not rewritten the object")
			}
			return nil
		})
		if old, now := touch(o.GetName()); old != now {
			t.Errorf("%s was rewritten twice", o.GetName())
		}
	}
	if _, err := client.Patch(e.Context(), crd.Name, types.MergePatchType, []byte(`{"status": {"storedVersions": ["v1beta1"]}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	stored("v1beta1")
	fatal.If(t, dropAlpha())
	e.Eventually(time.Minute, func(ctx context.Context) error {
		if _, err := alpha.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("v1alpha1 still answers, or otherwise: %v", err)
		}
		return nil
	})
	for _, o := range before {
		got := must(t)(beta.Get(e.Context(), o.GetName(), metav1.GetOptions{}))
		if got.GetUID() != o.GetUID() || !cmp.Equal(field(got, "spec"), field(o, "spec")) {
			t.Errorf("without v1alpha1 %s reads %v", o.GetName(), got.Object)
		}
	}
}

// The storage version is the CRD's, for all namespaces. An object that
// was forgotten in one of them cannot be read once its version has gone, and
// makes a list of all of them fail.
func TestStorageVersionMigrationOfOneNamespaceIsNotEnough(t *testing.T) {
	t.Parallel()
	e, elsewhere := testenv.New(t), testenv.New(t)
	crd := own(t, policyCRD, "forgotten")
	crdtest.Install(t, e, crd)
	alpha, beta, forgotten := resource(e, crd, "v1alpha1"), resource(e, crd, "v1beta1"), resource(elsewhere, crd, "v1beta1")
	must(t)(alpha.Create(e.Context(), object(crd, "x", map[string]any{"podLabel": "x"}), strict))
	must(t)(resource(elsewhere, crd, "v1alpha1").Create(e.Context(), object(crd, "x", map[string]any{"podLabel": "x"}), strict))
	versions := crd.Spec.Versions
	set := func(change func(*definition)) {
		t.Helper()
		fatal.If(t, update(t, e, crd.Name, change))
	}
	set(func(c *definition) { c.Spec.Versions[0].Storage, c.Spec.Versions[1].Storage = false, true })
	e.Eventually(time.Minute, func(context.Context) error {
		o := must(t)(beta.Get(e.Context(), "x", metav1.GetOptions{}))
		if must(t)(beta.Update(e.Context(), o, metav1.UpdateOptions{})).GetResourceVersion() == o.GetResourceVersion() {
			return errors.New("the update that changes nothing has not rewritten the object")
		}
		return nil
	})
	client := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions()
	if _, err := client.Patch(e.Context(), crd.Name, types.MergePatchType, []byte(`{"status": {"storedVersions": ["v1beta1"]}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	// Objects that nobody can read could not be deleted with their CRD either.
	t.Cleanup(func() {
		set(func(c *definition) {
			c.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{versions[0], versions[1]}
			c.Spec.Versions[0].Storage, c.Spec.Versions[1].Storage = false, true
		})
		e.Eventually(time.Minute, func(ctx context.Context) error {
			_, err := forgotten.Get(ctx, "x", metav1.GetOptions{})
			return err
		})
	})
	set(func(c *definition) { c.Spec.Versions = c.Spec.Versions[1:] })
	e.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := forgotten.Get(ctx, "x", metav1.GetOptions{})
		if err == nil || !strings.Contains(err.Error(), "invalid group/version") {
			return fmt.Errorf("the forgotten object: error %v, want one about its version", err)
		}
		return nil
	})
	must(t)(beta.Get(e.Context(), "x", metav1.GetOptions{}))
}

// A run of retire.sh that was interrupted before it removed the old version is repeated: the objects
// are stored in the new version, so the server will never store them again.
func TestRetireRunsAgain(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := own(t, policyCRD, "again")
	crd.Spec.Versions[0].Storage, crd.Spec.Versions[1].Storage = false, true
	crdtest.Install(t, e, crd)
	must(t)(resource(e, crd, "v1alpha1").Create(e.Context(), object(crd, "x", map[string]any{"podLabel": "x"}), strict))

	r := e.Run(testenv.Command{Path: "04-crd-yaml/retire.sh", Args: []string{crd.Name, "v1alpha1", "v1beta1"}, Timeout: 5 * time.Minute, Env: []string{"KUBECACHEDIR=" + t.TempDir()}})
	if r.ExitCode != 0 {
		t.Fatalf("exit code %d:\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
	now, err := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions().Get(e.Context(), crd.Name, metav1.GetOptions{})
	fatal.If(t, err)
	if len(now.Spec.Versions) != 1 || now.Spec.Versions[0].Name != "v1beta1" {
		t.Errorf("versions %+v, want v1beta1 alone", now.Spec.Versions)
	}
	must(t)(resource(e, crd, "v1beta1").Get(e.Context(), "x", metav1.GetOptions{}))
	// Nobody has written in v1alpha1, as far as the server remembers: once that is gone, an apply would look for it.
	e.Eventually(time.Minute, func(ctx context.Context) error {
		if _, err := resource(e, crd, "v1alpha1").Get(ctx, "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("v1alpha1 still answers, or otherwise: %v", err)
		}
		return nil
	})
	apply := object(crd, "x", map[string]any{"podLabel": "x"})
	apply.SetAPIVersion(crd.Spec.Group + "/v1beta1")
	must(t)(resource(e, crd, "v1beta1").Apply(e.Context(), "x", apply, metav1.ApplyOptions{FieldManager: "somebody"}))
}

// A client of a deprecated version is warned at every request; the other version's is not.
func TestDeprecatedVersion(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := own(t, policyCRD, "deprecated")
	crd.Spec.Versions[0].Deprecated = true
	crd.Spec.Versions[0].DeprecationWarning = ptr("use v1beta1, v1alpha1 will go")
	crdtest.Install(t, e, crd)
	var seen warnings
	config := rest.CopyConfig(e.Config)
	config.WarningHandler = &seen
	client, err := dynamic.NewForConfig(config)
	fatal.If(t, err)
	for version, want := range map[string][]string{"v1alpha1": {"use v1beta1, v1alpha1 will go"}, "v1beta1": nil} {
		seen.list = nil
		gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Version: version, Resource: crd.Spec.Names.Plural}
		if _, err := client.Resource(gvr).Namespace(e.Namespace).List(e.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, seen.list); diff != "" {
			t.Errorf("warnings of %s (-want +got):\n%s", version, diff)
		}
	}
}

// Two CRDs want one name: the second is stored and never served, until
// the first gives the name up.
func TestNamesConflict(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	first := variant(t, policyCRD, "names")
	first.Spec.Names.ShortNames = []string{"taken"}
	second := variant(t, icecreamCRD, "names")
	second.Spec.Names.ShortNames = []string{"taken"}
	crdtest.Install(t, e, first)
	fatal.If(t, crdtest.Create(t, e, second))
	e.Eventually(time.Minute, func(ctx context.Context) error {
		crd, err := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions().Get(ctx, second.Name, metav1.GetOptions{})
		if err == nil && len(crd.Status.Conditions) == 0 {
			err = errors.New("the API server has not looked at it")
		}
		return err
	})
	ctx, cancel := context.WithTimeout(e.Context(), 10*time.Second)
	defer cancel()
	err := crdwait.Established(ctx, e.Config, second.Name)
	if err == nil || !strings.Contains(err.Error(), `its names are not accepted: ShortNamesConflict: "taken" is already in use`) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want one that says whose name is taken", err)
	}
	crd, err := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions().Get(e.Context(), second.Name, metav1.GetOptions{})
	fatal.If(t, err)
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
			t.Error("it is established though its names are not accepted")
		}
	}
	if _, err := resource(e, second, "").List(e.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("error %v, want NotFound", err)
	}
	crdtest.Remove(t, e, first.Name)
	if err := crdwait.Established(e.Context(), e.Config, second.Name); err != nil {
		t.Errorf("the name is free again: %v", err)
	}
}

// What crdwait.Established promises: right after it every kind of client works.
func TestUsableRightAfterTheWait(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	for i := range 3 {
		crd := own(t, policyCRD, fmt.Sprintf("wait%d", i))
		crdtest.Install(t, e, crd)
		for _, version := range []string{"v1alpha1", "v1beta1"} {
			if _, err := resource(e, crd, version).List(e.Context(), metav1.ListOptions{}); err != nil {
				t.Errorf("list of %s: %v", version, err)
			}
		}
		if r := kubectl(t, e, "get", crd.Name); r.ExitCode != 0 {
			t.Errorf("kubectl get: %s", r.Stderr)
		}
	}
}

// Deleting a CRD deletes its objects, once their finalizers are gone.
func TestDeletingTheDefinitionDeletesObjects(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := variant(t, policyCRD, "deleted")
	crdtest.Install(t, e, crd)
	policies := resource(e, crd, "")
	o := object(crd, "held", map[string]any{"podLabel": "x"})
	o.SetFinalizers([]string{"crd-yaml.k8s-go.openshift.org/held"})
	must(t)(policies.Create(e.Context(), o, strict))
	client := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions()
	release := func(ctx context.Context) error {
		_, err := policies.Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	}
	e.AtEnd(release)
	fatal.If(t, client.Delete(e.Context(), crd.Name, metav1.DeleteOptions{}))
	e.Eventually(time.Minute, func(ctx context.Context) error {
		o, err := policies.Get(ctx, "held", metav1.GetOptions{})
		if err == nil && o.GetDeletionTimestamp() == nil {
			err = errors.New("the object is not being deleted")
		}
		return err
	})
	_, err := policies.Create(e.Context(), object(crd, "late", map[string]any{"podLabel": "x"}), strict)
	wantRefused(t, err, "create not allowed while custom resource definition is terminating")
	fatal.If(t, release(e.Context()))
	if err := crdwait.Gone(e.Context(), e.Config, crd.Name); err != nil {
		t.Error(err)
	}
}

package webhooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// TestConversionDown is the table of the lesson: what still works while nobody converts, for objects that are
// stored in the version asked for and for others. The same was seen with Kubernetes 1.34.4, 1.35.4 and 1.36.3, but the deletion
// without a cache only with 1.36.3.
func TestConversionDown(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	ctx := e.Context()
	ending, empty := testenv.New(t).Namespace, testenv.New(t).Namespace
	crd := crdtest.Read(t, icecreamCRD)
	group := e.Namespace + ".k8s-go.openshift.org"
	crdtest.Rename(crd, group)
	crdtest.Install(t, e, crd)
	in := func(namespace, version string) dynamic.ResourceInterface {
		return e.Dynamic.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: "icecreams"}).Namespace(namespace)
	}
	object := func(version, name string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/" + version, "kind": "Icecream", "metadata": map[string]any{"name": name}, "spec": map[string]any{"deploymentName": name}}}
	}
	for _, old := range []struct{ namespace, name string }{{e.Namespace, "old"}, {e.Namespace, "forgotten"}, {ending, "old"}} {
		_, err := in(old.namespace, "v1alpha1").Create(ctx, object("v1alpha1", old.name), metav1.CreateOptions{})
		fatal.If(t, err)
	}

	// Now v1 is stored, with the same schema, and the converter is away.
	definitions := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions()
	now, err := definitions.Get(ctx, crd.Name, metav1.GetOptions{})
	fatal.If(t, err)
	v1 := *now.Spec.Versions[0].DeepCopy()
	v1.Name = "v1"
	now.Spec.Versions[0].Storage = false
	now.Spec.Versions = append(now.Spec.Versions, v1)
	now.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ConversionReviewVersions: []string{"v1"}, ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: new("https://127.0.0.1:1/convert")}}}
	_, err = definitions.Update(ctx, now, metav1.UpdateOptions{})
	fatal.If(t, err)
	none := func(ctx context.Context) error { // the way out
		_, err := definitions.Patch(ctx, crd.Name, types.JSONPatchType, []byte(`[{"op": "replace", "path": "/spec/conversion", "value": {"strategy": "None"}}]`), metav1.PatchOptions{})
		return err
	}
	e.AtEnd(none)
	// The server's cache of v1alpha1 has to be there before an object of v1 is, with which it can never be filled. It is
	// by the cache that a deletion needs a conversion: what it holds is encoded as it would be stored, while bytes from etcd are
	// compared as they are (CacheDelegator.Delete and store.getStateFromObject in k8s.io/apiserver).
	e.Eventually(time.Minute, func(ctx context.Context) error {
		if _, err := in(e.Namespace, "v1").Get(ctx, "old", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "conversion webhook for") {
			return fmt.Errorf("v1 is not served yet: %v", err)
		}
		_, err := in(e.Namespace, "v1alpha1").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		return err
	})
	e.Eventually(time.Minute, func(ctx context.Context) error { // an object of v1 is there, and nobody converts it
		if _, err := in(e.Namespace, "v1").Create(ctx, object("v1", "new"), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		_, err := in(e.Namespace, "v1alpha1").Get(ctx, "new", metav1.GetOptions{})
		if err == nil {
			err = errors.New("somebody converts")
		} else if strings.Contains(err.Error(), "conversion webhook for") {
			err = nil
		}
		return err
	})

	namespaces := e.Client.CoreV1().Namespaces()
	for _, name := range []string{ending, empty} { // which takes time, so they are looked at later
		fatal.If(t, namespaces.Delete(ctx, name, metav1.DeleteOptions{}))
	}

	fails := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "conversion webhook for") && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the error of the conversion", what, err)
		}
	}
	works := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	get := func(name, version string) error {
		_, err := in(e.Namespace, version).Get(ctx, name, metav1.GetOptions{})
		return err
	}
	label := func(name, version string) error {
		_, err := in(e.Namespace, version).Patch(ctx, name, types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`), metav1.PatchOptions{})
		return err
	}
	works("get what is stored in v1, in v1", get("new", "v1"))
	works("get what is stored in v1alpha1, in v1alpha1", get("old", "v1alpha1"))
	fails("get what is stored in v1alpha1, in v1", get("old", "v1"))
	fails("get what is stored in v1, in v1alpha1", get("new", "v1alpha1"))
	works("change what is stored in v1", label("new", "v1"))
	_, err = in(e.Namespace, "v1").Patch(ctx, "new", types.ApplyPatchType, fmt.Appendf(nil, `{"apiVersion": "%s/v1", "kind": "Icecream", "metadata": {"name": "new", "labels": {"c": "d"}}}`, group), metav1.PatchOptions{FieldManager: "test"})
	works("apply what is stored in v1", err)
	for _, version := range []string{"v1", "v1alpha1"} { // each write stores v1
		fails("change what is stored in v1alpha1, in "+version, label("old", version))
		fails("delete what is stored in v1alpha1, in "+version, in(e.Namespace, version).Delete(ctx, "old", metav1.DeleteOptions{}))
	}
	listing, cancel := context.WithTimeout(ctx, 5*time.Second) // the answer is 429, which client-go tries ten times
	_, err = in(e.Namespace, "v1").List(listing, metav1.ListOptions{})
	cancel()
	fails("list v1, with an object that is stored in v1alpha1", err)
	watching, cancel := context.WithTimeout(ctx, 5*time.Second)
	_, err = in(e.Namespace, "v1").Watch(watching, metav1.ListOptions{})
	cancel()
	fails("watch v1", err)

	// The garbage collector goes on with everything else.
	maps := e.Client.CoreV1().ConfigMaps(e.Namespace)
	owner, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	fatal.If(t, err)
	_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID}}}}, metav1.CreateOptions{})
	fatal.If(t, err)
	fatal.If(t, maps.Delete(ctx, "owner", metav1.DeleteOptions{}))
	e.Eventually(time.Minute, func(ctx context.Context) error {
		if _, err := maps.Get(ctx, "owned", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the garbage collector has not taken what has no owner any more (%v)", err)
		}
		return nil
	})

	// A change of the definition makes the server forget its cache of v1alpha1, which it cannot fill again.
	const another = "https://127.0.0.1:1/another"
	_, err = definitions.Patch(ctx, crd.Name, types.JSONPatchType, []byte(`[{"op": "replace", "path": "/spec/conversion/webhook/clientConfig/url", "value": "`+another+`"}]`), metav1.PatchOptions{})
	fatal.If(t, err)
	e.Eventually(time.Minute, func(context.Context) error {
		if err := get("old", "v1"); err == nil || !strings.Contains(err.Error(), another) {
			return fmt.Errorf("the change is not in force yet: %v", err)
		}
		return nil
	})
	works("delete what is stored in v1alpha1 and in no cache, in v1alpha1", in(e.Namespace, "v1alpha1").Delete(ctx, "forgotten", metav1.DeleteOptions{}))
	works("delete what is stored in v1, in v1", in(e.Namespace, "v1").Delete(ctx, "new", metav1.DeleteOptions{}))

	// No namespace ends, with such an object or without, and says why; without a converter they do. The namespace
	// controller tries each for long, and ten at a time, so that of another test may come before.
	for _, name := range []string{ending, empty} {
		e.Eventually(3*time.Minute, func(ctx context.Context) error {
			namespace, err := namespaces.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range namespace.Status.Conditions {
				if c.Type == corev1.NamespaceDeletionContentFailure && c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "conversion webhook for") {
					return nil
				}
			}
			return fmt.Errorf("the conditions of %s are %v", name, namespace.Status.Conditions)
		})
	}
	fatal.If(t, none(ctx))
	for _, name := range []string{ending, empty} {
		e.Eventually(3*time.Minute, func(ctx context.Context) error {
			if _, err := namespaces.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("the namespace %s is still there (%v)", name, err)
			}
			return nil
		})
	}
	works("get what is stored in v1alpha1, in v1, with strategy None", get("old", "v1"))
}

// TestManagedFieldsOfVersions is what the lesson says of field managers: each entry has the version in which it was
// written, and a version that the definition no longer has stops every apply until some other write has dropped all
// entries (https://github.com/kubernetes/kubernetes/issues/111937).
func TestManagedFieldsOfVersions(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	ctx := e.Context()
	crd := crdtest.Read(t, icecreamCRD)
	group := e.Namespace + ".k8s-go.openshift.org"
	crdtest.Rename(crd, group)
	v1 := *crd.Spec.Versions[0].DeepCopy()
	v1.Name, v1.Storage = "v1", false
	crd.Spec.Versions = append(crd.Spec.Versions, v1)
	crdtest.Install(t, e, crd)
	client := func(version string) dynamic.ResourceInterface {
		return e.Dynamic.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: "icecreams"}).Namespace(e.Namespace)
	}
	apply := func(name, version, manager, spec string) error {
		_, err := client(version).Patch(ctx, name, types.ApplyPatchType, fmt.Appendf(nil, `{"apiVersion": "%s/%s", "kind": "Icecream", "metadata": {"name": "%s"}, "spec": %s}`, group, version, name, spec), metav1.PatchOptions{FieldManager: manager})
		return err
	}
	// entries are the managers with the versions of their entries, in order.
	entries := func(name string) string {
		t.Helper()
		o, err := client("v1").Get(ctx, name, metav1.GetOptions{})
		fatal.If(t, err)
		var all []string
		for _, f := range o.GetManagedFields() {
			all = append(all, f.Manager+" "+strings.TrimPrefix(f.APIVersion, group+"/"))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	want := func(name, text string) {
		t.Helper()
		if got := entries(name); got != text {
			t.Errorf("managedFields of %s: %s, want %s", name, got, text)
		}
	}
	fatal.If(t, apply("vanilla", "v1alpha1", "first", `{"deploymentName": "vanilla", "replicas": 3}`))
	want("vanilla", "first v1alpha1")
	// A conflict is one, whichever version somebody writes in.
	if err := apply("vanilla", "v1", "second", `{"replicas": 2}`); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "first": .spec.replicas`) {
		t.Errorf("applying somebody else's field in the other version: %v, want 409 with first and its field", err)
	}
	fatal.If(t, apply("vanilla", "v1", "second", `{"deploymentName": "vanilla"}`))
	want("vanilla", "first v1alpha1, second v1")

	// Whoever applies takes its entry along to the version of the last time.
	fatal.If(t, apply("lemon", "v1alpha1", "first", `{"deploymentName": "lemon", "replicas": 3}`))
	fatal.If(t, apply("lemon", "v1", "first", `{"deploymentName": "lemon", "replicas": 3}`))
	want("lemon", "first v1")

	// v1 is stored, v1alpha1 is served no more, and then it is gone.
	definitions := crdtest.Client(t, e).ApiextensionsV1().CustomResourceDefinitions()
	change := func(f func(crd *apiextensionsv1.CustomResourceDefinition)) {
		t.Helper()
		now, err := definitions.Get(ctx, crd.Name, metav1.GetOptions{})
		fatal.If(t, err)
		f(now)
		_, err = definitions.Update(ctx, now, metav1.UpdateOptions{})
		fatal.If(t, err)
	}
	label := func(name, value string) {
		t.Helper()
		_, err := client("v1").Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"metadata": {"labels": {"n": "%s"}}}`, value), metav1.PatchOptions{FieldManager: "third"})
		fatal.If(t, err)
	}
	change(func(now *apiextensionsv1.CustomResourceDefinition) {
		now.Spec.Versions[0].Storage, now.Spec.Versions[0].Served, now.Spec.Versions[1].Storage = false, false, true
	})
	e.Eventually(time.Minute, func(ctx context.Context) error {
		if _, err := client("v1alpha1").Get(ctx, "vanilla", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("v1alpha1 is still served: %v", err)
		}
		return nil
	})
	// Each write stores v1; but an API server serves by a new definition a moment before it stores by it, and nothing
	// says when that moment is over. What it stores in v1alpha1 now could never be read again.
	for _, value := range []string{"1", "2"} {
		label("vanilla", value)
		label("lemon", value)
		time.Sleep(3 * time.Second)
	}
	want("vanilla", "first v1alpha1, second v1, third v1") // it need not be served
	_, err := definitions.Patch(ctx, crd.Name, types.MergePatchType, []byte(`{"status": {"storedVersions": ["v1"]}}`), metav1.PatchOptions{}, "status")
	fatal.If(t, err)
	change(func(now *apiextensionsv1.CustomResourceDefinition) { now.Spec.Versions = now.Spec.Versions[1:] })
	e.Eventually(time.Minute, func(ctx context.Context) error {
		if err := apply("vanilla", "v1", "second", `{"deploymentName": "vanilla"}`); err == nil || !strings.Contains(err.Error(), "invalid group/version: "+group+"/v1alpha1") {
			return fmt.Errorf("applying: %v, want the error of a version that is gone", err)
		}
		return nil
	})
	label("vanilla", "3")
	want("vanilla", "") // nobody owns anything any more
	fatal.If(t, apply("vanilla", "v1", "first", `{"deploymentName": "vanilla"}`))
	want("vanilla", "before-first-apply v1, first v1")
	fatal.If(t, apply("lemon", "v1", "first", `{"deploymentName": "lemon"}`))
	// What first has left out goes, and the default comes, only where it is known to have been first's.
	for name, replicas := range map[string]int64{"vanilla": 3, "lemon": 1} {
		o, err := client("v1").Get(ctx, name, metav1.GetOptions{})
		fatal.If(t, err)
		if got, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); got != replicas {
			t.Errorf("the spec of %s is %v, want %d replicas", name, o.Object["spec"], replicas)
		}
	}
}

package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
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

// TestSecondVersion takes a cluster with Icecreams and their controller from v1alpha1 to v1: both
// are served, objects are read in the version that they were not written in, the stored ones
// are migrated, and the converter is taken away before and after that. The definition is
// everybody's, so no other test runs beside this one.
func TestSecondVersion(t *testing.T) {
	s := newSetup(t)
	s.all("-keep-alive=false")
	ctx := s.Context()
	definitions := crdtest.Client(t, s.Env).ApiextensionsV1().CustomResourceDefinitions()
	const definition = "icecreams.controller.nicoleh.io"
	in := func(version string) func(object string) *unstructured.Unstructured {
		return func(object string) *unstructured.Unstructured {
			o := &unstructured.Unstructured{}
			fatal.If(t, json.Unmarshal([]byte(object), &o.Object))
			o.SetAPIVersion("controller.nicoleh.io/" + version)
			o.SetKind("Icecream")
			return o
		}
	}
	client := func(version string) dynamic.ResourceInterface {
		return s.Dynamic.Resource(schema.GroupVersionResource{Group: "controller.nicoleh.io", Version: version, Resource: "icecreams"}).Namespace(s.Namespace)
	}
	hub, old := client("v1"), client("v1alpha1")
	ok := func(err error) {
		t.Helper()
		fatal.If(t, err)
	}
	must := func(o *unstructured.Unstructured, err error) *unstructured.Unstructured {
		t.Helper()
		fatal.If(t, err)
		return o
	}
	spec := func(o *unstructured.Unstructured, want string) {
		t.Helper()
		got, err := json.Marshal(o.Object["spec"])
		if err != nil || string(got) != want {
			t.Errorf("%s in %s: %s (%v), want %s", o.GetName(), o.GetAPIVersion(), got, err, want)
		}
	}
	pods := func(deployment string, want int32) {
		t.Helper()
		s.Eventually(2*time.Minute, func(ctx context.Context) error {
			d, err := s.Client.AppsV1().Deployments(s.Namespace).Get(ctx, deployment, metav1.GetOptions{})
			if err == nil && (d.Spec.Replicas == nil || *d.Spec.Replicas != want) {
				err = fmt.Errorf("%s has not %d pods", deployment, want)
			}
			return err
		})
	}

	// The controller knows nothing of v1, from the beginning to the end.
	s.Start(testenv.Command{Path: s.Program("./06-controller/icecream"), Timeout: 5 * time.Minute, Args: []string{"-namespace", s.Namespace}})
	must(old.Create(ctx, in("v1alpha1")(`{"metadata": {"name": "vanilla"}, "spec": {"deploymentName": "vanilla", "replicas": 3}}`), metav1.CreateOptions{}))
	pods("vanilla", 3)
	taken := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "taken"}}
	taken.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "taken"}}
	taken.Spec.Template.Labels, taken.Spec.Template.Spec.Containers = taken.Spec.Selector.MatchLabels, []corev1.Container{{Name: "main", Image: "workshop/pause:1"}}
	taken.Spec.Replicas = new(int32)
	_, err := s.Client.AppsV1().Deployments(s.Namespace).Create(ctx, taken, metav1.CreateOptions{})
	ok(err)
	// One that nobody writes again, so that it stays as it was stored.
	kept := in("v1alpha1")(`{"metadata": {"name": "kept"}, "spec": {"deploymentName": "kept", "replicas": 0}}`)
	must(old.Create(ctx, kept, metav1.CreateOptions{}))
	s.Eventually(time.Minute, func(ctx context.Context) error {
		o, err := old.Get(ctx, "kept", metav1.GetOptions{})
		if available, ok, _ := unstructured.NestedInt64(o.Object, "status", "availableReplicas"); err == nil && (!ok || available != 0) {
			err = fmt.Errorf("kept has no status yet")
		}
		return err
	})

	// Both versions.
	crd := twoVersions(t, s)
	t.Cleanup(func() { // when nobody converts any more; otherwise what is in the old version could not even be deleted
		if _, err := definitions.Patch(context.WithoutCancel(ctx), definition, types.JSONPatchType, []byte(`[{"op": "replace", "path": "/spec/conversion", "value": {"strategy": "None"}}]`), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	})
	data, err := json.Marshal(crd)
	fatal.If(t, err)
	if _, err := definitions.Patch(ctx, definition, types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: "test", Force: new(true)}); err != nil {
		t.Fatal(err)
	}
	s.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := hub.Get(ctx, "vanilla", metav1.GetOptions{})
		return err
	})

	// Each version in the other.
	spec(must(hub.Get(ctx, "vanilla", metav1.GetOptions{})), `{"deployment":{"name":"vanilla","portions":300}}`)
	// The rules of v1alpha1 are asked about v1, too.
	if _, err := hub.Create(ctx, in("v1")(`{"metadata": {"name": "mine"}, "spec": {"deployment": {"name": "taken"}}}`), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a name that is taken, in v1: %v, want 403", err)
	}
	made := must(hub.Create(ctx, in("v1")(`{"metadata": {"name": "lemon"}, "spec": {"deployment": {"name": "lemon", "portions": 250}, "toppings": ["nuts"]}}`), metav1.CreateOptions{}))
	spec(made, `{"deployment":{"name":"lemon","portions":250},"toppings":["nuts"]}`)
	spec(must(old.Get(ctx, "lemon", metav1.GetOptions{})), `{"deploymentName":"lemon","replicas":3}`)
	pods("lemon", 3)
	// A status of v1alpha1 is one of v1, and takes nothing away.
	s.Eventually(time.Minute, func(ctx context.Context) error {
		o, err := hub.Get(ctx, "lemon", metav1.GetOptions{})
		if seen, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); err == nil && seen != o.GetGeneration() {
			err = fmt.Errorf("the controller has not seen generation %d", o.GetGeneration())
		}
		return err
	})
	spec(must(hub.Get(ctx, "lemon", metav1.GetOptions{})), `{"deployment":{"name":"lemon","portions":250},"toppings":["nuts"]}`)
	if annotations := must(hub.Get(ctx, "lemon", metav1.GetOptions{})).GetAnnotations(); len(annotations) > 0 {
		t.Errorf("v1 shows %v", annotations)
	}
	must(old.Patch(ctx, "lemon", types.MergePatchType, []byte(`{"spec": {"replicas": 5}}`), metav1.PatchOptions{}))
	spec(must(hub.Get(ctx, "lemon", metav1.GetOptions{})), `{"deployment":{"name":"lemon","portions":500},"toppings":["nuts"]}`)
	must(hub.Patch(ctx, "lemon", types.MergePatchType, []byte(`{"spec": {"deployment": {"portions": 601}}}`), metav1.PatchOptions{}))
	pods("lemon", 7)

	// The third webhook in a rotation: each write of v1alpha1 is converted, there and back.
	var objects []string // many, because two changes of the same object would wait for each other
	for n := range 10 {
		name := fmt.Sprintf("load-%d", n)
		must(hub.Create(ctx, in("v1")(`{"metadata": {"name": "`+name+`"}, "spec": {"deployment": {"name": "`+name+`", "portions": 0}}}`), metav1.CreateOptions{}))
		objects = append(objects, "icecreams.v1alpha1.controller.nicoleh.io/"+name)
	}
	load := s.Start(testenv.Command{Path: s.Program("./08-webhooks/load"), Timeout: 5 * time.Minute,
		Args: []string{"-namespace", s.Namespace, "-rate", rate(), "-objects", strings.Join(objects, ",")}})
	s.rotate()
	fatal.If(t, load.Signal(os.Interrupt))
	r := load.Wait()
	t.Logf("in a rotation: %s", r.Stdout)
	if !strings.Contains(r.Stdout, ", 0 refused") || strings.Contains(r.Stdout, "\n0 changes") {
		t.Errorf("in a rotation:\n%s%s", r.Stdout, r.Stderr)
	}

	// Nobody converts: what is stored in v1 can be read in v1, and nothing else.
	stored := func() []string {
		t.Helper()
		found, err := definitions.Get(ctx, definition, metav1.GetOptions{})
		fatal.If(t, err)
		return found.Status.StoredVersions
	}
	if got := stored(); !slices.Equal(got, []string{"v1alpha1", "v1"}) {
		t.Errorf("stored versions: %q", got)
	}
	ok(s.webhook.Signal(os.Interrupt))
	s.webhook.Wait()
	must(hub.Get(ctx, "lemon", metav1.GetOptions{}))
	unreadable := func(c dynamic.ResourceInterface, name, want string) {
		t.Helper()
		if _, err := c.Get(ctx, name, metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "conversion webhook for ") || !strings.Contains(err.Error(), want) {
			t.Errorf("reading %s: %v, want an error of the conversion with %q", name, err, want)
		}
	}
	unreadable(hub, "kept", "connection refused")
	unreadable(old, "lemon", "connection refused")

	// The wrong CA: the same, for another reason.
	ok(s.keeper.Signal(os.Interrupt))
	s.keeper.Wait()
	s.serve("-keep-alive=false")
	before, err := definitions.Get(ctx, definition, metav1.GetOptions{})
	ok(err)
	_, err = definitions.Patch(ctx, definition, types.JSONPatchType, []byte(`[{"op": "remove", "path": "/spec/conversion/webhook/clientConfig/caBundle"}]`), metav1.PatchOptions{})
	ok(err)
	s.Eventually(time.Minute, func(ctx context.Context) error {
		if _, err := hub.Get(ctx, "kept", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "x509: certificate signed by unknown authority") {
			return fmt.Errorf("without a caBundle: %w", err)
		}
		return nil
	})
	bundle, err := json.Marshal([]map[string]any{{"op": "add", "path": "/spec/conversion/webhook/clientConfig/caBundle", "value": before.Spec.Conversion.Webhook.ClientConfig.CABundle}})
	ok(err)
	_, err = definitions.Patch(ctx, definition, types.JSONPatchType, bundle, metav1.PatchOptions{})
	ok(err)
	s.inForce()

	// The migration: who writes an object stores it in the version that is stored now.
	s.Eventually(time.Minute, func(ctx context.Context) error {
		all, err := hub.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, o := range all.Items {
			if _, err := hub.Update(ctx, &o, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	_, err = definitions.Patch(ctx, definition, types.MergePatchType, []byte(`{"status": {"storedVersions": ["v1"]}}`), metav1.PatchOptions{}, "status")
	ok(err)
	ok(s.webhook.Signal(os.Interrupt))
	s.webhook.Wait()
	for _, name := range []string{"kept", "lemon", "vanilla"} {
		must(hub.Get(ctx, name, metav1.GetOptions{}))
		unreadable(old, name, "connection refused")
	}
	s.serve()
	must(hub.Patch(ctx, "vanilla", types.MergePatchType, []byte(`{"spec": {"deployment": {"portions": 100}}}`), metav1.PatchOptions{}))
	pods("vanilla", 1)
}

// twoVersions is the definition that the lesson makes of step 05's.
func twoVersions(t *testing.T, s *setup) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	definition, err := json.Marshal(crdtest.Read(t, icecreamCRD))
	fatal.If(t, err)
	command := exec.CommandContext(s.Context(), "jq", "--arg", "url", "https://"+s.listens, "--arg", "secret", s.Namespace+"/"+ca, "--from-file", "two-versions.jq")
	command.Stdin = bytes.NewReader(definition)
	output, err := command.Output()
	fatal.If(t, err)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	fatal.If(t, json.Unmarshal(output, crd))
	crd.TypeMeta = metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}
	return crd
}

package incluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	icecreamv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/icecream/v1alpha1"
	"github.com/k8s-go/workshop/internal/crdtest"
	"github.com/k8s-go/workshop/internal/fatal"
	"github.com/k8s-go/workshop/internal/testenv"
)

// A program whose Go types are older than the definition deletes the fields that it does
// not know when it updates the object, and keeps them when it updates the status.
func TestOldTypesLoseNewFields(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	crd := crdtest.Read(t, icecreams)
	crdtest.Rename(crd, "facts.k8s-go.openshift.org")
	version := crd.Spec.Versions[0]
	version.Schema.OpenAPIV3Schema.Properties["spec"].Properties["flavor"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	crdtest.Install(t, e, crd)
	client := e.Dynamic.Resource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: version.Name, Resource: crd.Spec.Names.Plural}).Namespace(e.Namespace)
	object, err := client.Create(e.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": crd.Spec.Group + "/" + version.Name, "kind": crd.Spec.Names.Kind, "metadata": map[string]any{"name": "new"},
		"spec": map[string]any{"deploymentName": "cone", "flavor": "mint"}}}, metav1.CreateOptions{})
	fatal.If(t, err)
	// throughOldTypes is what a typed client makes of an object between a read and a write.
	throughOldTypes := func() *unstructured.Unstructured {
		t.Helper()
		data, err := object.MarshalJSON()
		fatal.If(t, err)
		var typed icecreamv1alpha1.Icecream
		fatal.If(t, json.Unmarshal(data, &typed))
		typed.Status.ObservedGeneration = typed.Generation
		if data, err = json.Marshal(typed); err != nil {
			t.Fatal(err)
		}
		written := &unstructured.Unstructured{}
		fatal.If(t, written.UnmarshalJSON(data))
		return written
	}
	flavor := func() string {
		value, _, _ := unstructured.NestedString(object.Object, "spec", "flavor")
		return value
	}
	if object, err = client.UpdateStatus(e.Context(), throughOldTypes(), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := flavor(); got != "mint" {
		t.Errorf("after the status was updated, the flavor is %q", got)
	}
	if object, err = client.Update(e.Context(), throughOldTypes(), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := flavor(); got != "" {
		t.Errorf("after the object was updated, the flavor is %q, but the old types do not know it", got)
	}
}

// The lesson's manifest is what Pod Security "restricted" allows, and its parts fit together.
func TestOwnManifestIsRestricted(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	if _, err := e.Client.CoreV1().Namespaces().Patch(e.Context(), e.Namespace, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/warn":"restricted"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join("own", "icecream.yaml"))
	fatal.If(t, err)
	file := filepath.Join(t.TempDir(), "icecream.yaml")
	fatal.If(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(data), "workshop-07", e.Namespace)), 0o644))
	r := e.Run(testenv.Command{Path: e.Workspace().Bin("kubectl"), Args: []string{"apply", "--dry-run=server", "-f", file}})
	if r.ExitCode != 0 || strings.Contains(r.Stderr, "Warning") || strings.Count(r.Stdout, "created (server dry run)") != 4 {
		t.Errorf("exit code %d\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
}

// A pod that names no service account gets the account default, and what admission
// refuses is Forbidden, too, but with another text than that of RBAC.
func TestPodsAndAdmission(t *testing.T) {
	t.Parallel()
	e := testenv.New(t)
	pods := e.Client.CoreV1().Pods(e.Namespace)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Spec: unscheduled}
	e.Eventually(time.Minute, func(ctx context.Context) error { // the account of a new namespace takes a moment
		created, err := pods.Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && created.Spec.ServiceAccountName != "default" {
			t.Errorf("the pod's account is %q", created.Spec.ServiceAccountName)
		}
		return err
	})
	if _, err := e.Client.CoreV1().ResourceQuotas(e.Namespace).Create(e.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.Eventually(time.Minute, func(ctx context.Context) error {
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") || strings.Contains(err.Error(), "cannot") {
			return fmt.Errorf("a pod beyond the quota: %v", err)
		}
		return nil
	})
}

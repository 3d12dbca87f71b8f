// Command dynamic reads and writes one HealthCheckPolicy typed and untyped, and
// shows what each of the two notices.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dynamic:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "workshop-05", "where to work")
	flag.Parse()

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	config.WarningHandlerWithContext = rest.NoWarnings{} // the lesson provokes one
	typed, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a typed client: %w", err)
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a dynamic client: %w", err)
	}
	structs := typed.PolicyV1alpha1().HealthCheckPolicies(*namespace)
	maps := untyped.Resource(v1alpha1.HealthCheckPolicyResource).Namespace(*namespace)

	if err := maps.Delete(ctx, "dynamic", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the policy of an earlier run: %w", err)
	}
	// A misspelt field in a struct does not compile. In a map it is sent, and
	// the server drops what the schema does not know, unless told to refuse it.
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"actoin": "annotate", "podLabel": "health-check-missing"}}}
	object.SetGroupVersionKind(v1alpha1.HealthCheckPolicyKind)
	object.SetName("dynamic")
	_, err = maps.Create(ctx, object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if !apierrors.IsBadRequest(err) {
		return fmt.Errorf("wanted BadRequest for an unknown field, got %w", err)
	}
	fmt.Printf("untyped, strict: %v\n", apierrors.ReasonForError(err))
	if object, err = maps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating: %w", err)
	}
	action, found, err := unstructured.NestedString(object.Object, "spec", "action")
	fmt.Printf("untyped: spec.action is %q, found %t, error %v\n", action, found, err)
	// Asking for the wrong field or type is a matter of run time too.
	_, found, _ = unstructured.NestedString(object.Object, "spec", "actoin")
	fmt.Printf("untyped: spec.actoin found %t\n", found)
	_, _, err = unstructured.NestedString(object.Object, "metadata", "generation")
	fmt.Printf("untyped: generation as a string: error %t\n", err != nil)

	// The same object, typed.
	policy, err := structs.Get(ctx, "dynamic", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading: %w", err)
	}
	fmt.Printf("typed: Spec.Action is %q\n", policy.Spec.Action)

	// From one to the other without the server.
	var converted v1alpha1.HealthCheckPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &converted); err != nil {
		return fmt.Errorf("converting: %w", err)
	}
	fmt.Printf("converted: Spec.RequiredProbes is %v\n", converted.Spec.RequiredProbes)

	// A struct has no place for a field of a newer version of the CRD. A typed
	// read-change-update would delete it; a map keeps it, a patch leaves it alone.
	newer := object.DeepCopy()
	if err := unstructured.SetNestedField(newer.Object, "5m", "spec", "gracePeriod"); err != nil {
		return fmt.Errorf("adding a field: %w", err)
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(newer.Object, &converted, true)
	fmt.Printf("a newer field, converted strictly: %v\n", err)
	back, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&converted)
	if err != nil {
		return fmt.Errorf("converting back: %w", err)
	}
	_, found, _ = unstructured.NestedFieldNoCopy(back, "spec", "gracePeriod")
	fmt.Printf("a newer field, there and back: found %t\n", found)

	if err := maps.Delete(ctx, "dynamic", metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting: %w", err)
	}
	return nil
}

// Command patch sends the same Deployment patches of all four types and shows
// what each does to a list and to a null.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "patch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	kubeContext := flag.String("context", "", "context in it (default: the current one)")
	namespace := flag.String("namespace", os.Getenv("WORKSHOP_PREFIX")+"workshop-02", "where to work")
	flag.Parse()

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: *kubeContext}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	deployments := client.AppsV1().Deployments(*namespace)

	for _, p := range []struct {
		name  string
		kind  types.PatchType
		force *bool
		body  string
	}{
		// Operations on paths: a list by index, a key by remove. The test makes
		// it fail rather than hit another container.
		{"json", types.JSONPatchType, nil, `[
			{"op": "test", "path": "/spec/template/spec/containers/1/name", "value": "log"},
			{"op": "replace", "path": "/spec/template/spec/containers/1/image", "value": "example/log:2"},
			{"op": "remove", "path": "/metadata/annotations/b"}]`},
		// A list is one value and replaced; null removes a key.
		{"merge", types.MergePatchType, nil, `{
			"metadata": {"annotations": {"b": null}},
			"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "example/web:2"}]}}}}`},
		// The Go type says that containers merge by name; removing one needs a
		// directive. Built-in kinds only: others answer 415.
		{"strategic", types.StrategicMergePatchType, nil, `{
			"metadata": {"annotations": {"b": null}},
			"spec": {"template": {"spec": {"containers": [
				{"name": "web", "image": "example/web:2"}, {"name": "log", "$patch": "delete"}, {"name": "new", "image": "example/new:1"}]}}}}`},
		// No directive, no null: what we want, and who we are. Force takes web's image
		// from the manager that created it; what is not named stays with its owner.
		{"apply", types.ApplyPatchType, new(true), `{
			"apiVersion": "apps/v1", "kind": "Deployment",
			"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "example/web:2"}]}}}}`},
	} {
		if err := deployments.Delete(ctx, "patch-"+p.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting the Deployment of an earlier run: %w", err)
		}
		d, err := deployments.Create(ctx, deployment("patch-"+p.name), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating a Deployment: %w", err)
		}
		if p.name == "json" {
			fmt.Printf("%-10s %s\n", "before:", summary(d))
		}
		d, err = deployments.Patch(ctx, d.Name, p.kind, []byte(p.body), metav1.PatchOptions{FieldManager: "patch", Force: p.force})
		if err != nil {
			return fmt.Errorf("patching with type %s: %w", p.name, err)
		}
		fmt.Printf("%-10s %s\n", p.name+":", summary(d))
	}
	return nil
}

func summary(d *appsv1.Deployment) string {
	var parts []string
	for _, c := range d.Spec.Template.Spec.Containers {
		parts = append(parts, c.Name+"="+strings.TrimPrefix(c.Image, "example/"))
	}
	return fmt.Sprintf("containers %s, annotations %v", strings.Join(parts, " "), d.Annotations)
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"a": "1", "b": "1"}},
		Spec: appsv1.DeploymentSpec{
			// No pods, and no controller that adds annotations of its own while we look.
			Replicas: new(int32(0)),
			Paused:   true,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{
					{Name: "web", Image: "example/web:1"},
					{Name: "log", Image: "example/log:1"},
				}},
			},
		},
	}
}

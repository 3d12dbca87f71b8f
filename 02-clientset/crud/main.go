// Command crud creates, reads, updates, scales, lists and deletes Deployments.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
)

const image = "workshop/pause:1"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "crud:", err)
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
	// In 2018 these methods took no context and only some took options; today all take both.
	deployments := client.AppsV1().Deployments(*namespace)

	mine := metav1.ListOptions{LabelSelector: "lesson=crud"}
	// Only a run that was interrupted has left any. Background: gone at once.
	background := metav1.DeletePropagationBackground
	if err := deployments.DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, mine); err != nil {
		return fmt.Errorf("deleting the Deployments of an earlier run: %w", err)
	}
	uids := map[string]string{}
	for _, name := range []string{"crud-a", "crud-b"} {
		created, err := deployments.Create(ctx, deployment(name), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating %s: %w", name, err)
		}
		uids[name] = string(created.UID)
		// Create returns the object as stored: with uid, version and defaults.
		fmt.Printf("created %s: generation %d, replicas %d, strategy %s\n",
			name, created.Generation, *created.Spec.Replicas, created.Spec.Strategy.Type)
	}

	// The Deployment's controller writes its status meanwhile, so an update of
	// what was read a moment ago may be refused. Folder conflict has the details.
	// DefaultBackoff is for objects that a controller writes too: its pauses grow
	// (10, 50, 250 ms). DefaultRetry, always 10 ms, is for objects of your own.
	backoff := retry.DefaultBackoff
	backoff.Steps++ // a last pause, of 1.25 s: on a slow machine the controller takes as long
	// If ctx ends the first attempt, RetryOnConflict returns nil: err is that of the last one.
	_ = retry.RetryOnConflict(backoff, func() error {
		var a *appsv1.Deployment
		if a, err = deployments.Get(ctx, "crud-a", metav1.GetOptions{}); err != nil {
			return err
		}
		a.Spec.Template.Labels["release"] = "2"
		a, err = deployments.Update(ctx, a, metav1.UpdateOptions{})
		if err == nil {
			fmt.Printf("updated crud-a: generation %d\n", a.Generation)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("updating crud-a: %w", err)
	}

	// The scale subresource needs no knowledge of Deployments: autoscalers use it.
	scale, err := deployments.GetScale(ctx, "crud-a", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the scale of crud-a: %w", err)
	}
	scale.Spec.Replicas = 3
	scale.ResourceVersion = "" // whatever happened since: this is the wanted number
	if scale, err = deployments.UpdateScale(ctx, "crud-a", scale, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("scaling crud-a: %w", err)
	}
	fmt.Printf("scaled crud-a: replicas %d\n", scale.Spec.Replicas)

	list, err := deployments.List(ctx, mine)
	if err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	for _, d := range list.Items {
		fmt.Printf("listed %s: replicas %d\n", d.Name, *d.Spec.Replicas)
	}

	// The uid makes sure that it is this one, not a new one of the same name.
	// Foreground: it goes last, after its ReplicaSets and pods.
	foreground := metav1.DeletePropagationForeground
	err = deployments.Delete(ctx, "crud-a", metav1.DeleteOptions{
		Preconditions:     metav1.NewUIDPreconditions(uids["crud-a"]),
		PropagationPolicy: &foreground,
	})
	if err != nil {
		return fmt.Errorf("deleting crud-a: %w", err)
	}
	if err := deployments.DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &foreground}, mine); err != nil {
		return fmt.Errorf("deleting the others: %w", err)
	}
	// Delete returns when the deletion is noted down, not when it is done.
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		left, err := deployments.List(ctx, mine)
		return err == nil && len(left.Items) == 0, err
	})
	if err != nil {
		return fmt.Errorf("waiting until they are gone: %w", err)
	}
	fmt.Println("deleted")
	return nil
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"lesson": "crud", "app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			// A pointer, because 0 and "not said" are different.
			Replicas: new(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{
					{Name: "main", Image: image, ImagePullPolicy: corev1.PullIfNotPresent},
				}},
			},
		},
	}
}

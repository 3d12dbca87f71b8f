// Command roll-call prints who is here, signs itself in with a Lease, and prints who comes
// and who leaves until somebody deletes that Lease.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	namespace := flag.String("namespace", os.Getenv("WORKSHOP_PREFIX")+"workshop-02", "where to work")
	name := flag.String("name", "me", "the name to sign in with")
	flag.Parse()
	if err := run(context.Background(), *namespace, *name); err != nil {
		fmt.Fprintln(os.Stderr, "roll-call:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, namespace, name string) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	leases := client.CoordinationV1().Leases(namespace)

	options := metav1.ListOptions{LabelSelector: "lesson=roll-call"}
	list, err := leases.List(ctx, options)
	if err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	for _, lease := range list.Items {
		fmt.Println("here", lease.Name)
	}
	own := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"lesson": "roll-call"}}}
	if _, err := leases.Create(ctx, own, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("signing in: %w", err)
	}
	options.ResourceVersion = list.ResourceVersion
	w, err := leases.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watching: %w", err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		lease, ok := event.Object.(*coordinationv1.Lease)
		if !ok {
			return fmt.Errorf("watching: %w", apierrors.FromObject(event.Object))
		}
		switch event.Type {
		case watch.Added:
			fmt.Println("came", lease.Name)
		case watch.Deleted:
			fmt.Println("left", lease.Name)
			if lease.Name == name {
				return nil
			}
		}
	}
	return errors.New("the watch has ended")
}

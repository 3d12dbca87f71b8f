// Command hello is a whole client: it lists the ConfigMaps of a namespace, creates one,
// and watches until it sees its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	namespace := flag.String("namespace", os.Getenv("WORKSHOP_PREFIX")+"workshop-02", "where to work")
	flag.Parse()
	if err := run(context.Background(), *namespace); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, namespace string) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	configMaps := client.CoreV1().ConfigMaps(namespace)

	list, err := configMaps.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	for _, cm := range list.Items {
		fmt.Println("listed", cm.Name)
	}
	hello := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "hello"}}
	if _, err := configMaps.Create(ctx, hello, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating: %w", err)
	}
	w, err := configMaps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return fmt.Errorf("watching: %w", err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		cm, ok := event.Object.(*corev1.ConfigMap)
		if !ok { // the object of an ERROR event is a Status
			return fmt.Errorf("watching: %w", apierrors.FromObject(event.Object))
		}
		fmt.Println(event.Type, cm.Name)
		if cm.Name == hello.Name {
			return configMaps.Delete(ctx, hello.Name, metav1.DeleteOptions{})
		}
	}
	return errors.New("the watch has ended")
}

// metadata watches only the metadata of objects: names, labels, owners,
// finalizers. That is all that many controllers need, of any kind of object,
// and the server does not even send the rest.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	metadataclient "k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "metadata:", err)
		os.Exit(1)
	}
}

const selector = "lesson=metadata"

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	flag.Parse()

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	for i := range 10 {
		name := fmt.Sprintf("metadata-%d", i)
		_, err := client.CoreV1().ConfigMaps(*namespace).Apply(ctx, applycorev1.ConfigMap(name, *namespace).
			WithLabels(map[string]string{"lesson": "metadata"}).WithData(map[string]string{"page": strings.Repeat("text ", 2000)}),
			metav1.ApplyOptions{FieldManager: "metadata", Force: true})
		if err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	metadata, err := metadataclient.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the metadata client: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	selected := func(o *metav1.ListOptions) { o.LabelSelector = selector }

	full := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace), informers.WithTweakListOptions(selected))
	fullConfigMaps := full.Core().V1().ConfigMaps().Informer()
	full.StartWithContext(ctx)
	defer full.Shutdown()

	partial := metadatainformer.NewFilteredSharedInformerFactory(metadata, 0, *namespace, selected)
	partialConfigMaps := partial.ForResource(corev1.SchemeGroupVersion.WithResource("configmaps"))
	partialConfigMaps.Informer() // asking for it is what makes the factory start it
	partial.Start(ctx.Done())
	defer partial.Shutdown()
	defer cancel()

	if err := full.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		return err
	}
	for resource, synced := range partial.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("%s has not synced: %w", resource.Resource, context.Cause(ctx))
		}
	}

	objects, err := partialConfigMaps.Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
	}
	whole, err := size(fullConfigMaps.GetStore().List())
	if err != nil {
		return err
	}
	parts, err := size(partialConfigMaps.Informer().GetStore().List())
	if err != nil {
		return err
	}
	fmt.Printf("%d objects of type %T\n", len(objects), objects[0])
	fmt.Printf("whole objects: %d bytes each\nmetadata only: %d bytes each\n", whole, parts)
	return nil
}

// size returns the average size of the objects as bytes of JSON.
func size(objects []any) (int, error) {
	if len(objects) == 0 {
		return 0, fmt.Errorf("no object with %s", selector)
	}
	text, err := json.Marshal(objects)
	if err != nil {
		return 0, fmt.Errorf("measuring: %w", err)
	}
	return len(text) / len(objects), nil
}

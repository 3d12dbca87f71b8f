// indexers looks pods up by node and by a pair of labels, without a request and
// without going through all pods. An index function maps an object to the keys
// under which you find it; the cache keeps the index up to date.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "indexers:", err)
		os.Exit(1)
	}
}

const byNode, byAppAndTier = "node", "app and tier"

var indexers = cache.Indexers{byNode: nodeOf, byAppAndTier: appAndTierOf}

// nodeOf and appAndTierOf return the keys under which an index lists an object.
func nodeOf(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil, nil // the index does not list it
	}
	return []string{pod.Spec.NodeName}, nil
}

func appAndTierOf(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	return []string{pod.Labels["app"] + "/" + pod.Labels["tier"]}, nil
}

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
	if err := createPods(ctx, client, *namespace); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace))
	informer := factory.Core().V1().Pods().Informer()
	if err := informer.AddIndexers(indexers); err != nil {
		return fmt.Errorf("adding the indexers: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer factory.Shutdown()
	defer cancel()
	factory.StartWithContext(ctx)
	if err := factory.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		return err
	}
	for _, index := range []string{byNode, byAppAndTier} {
		keys := informer.GetIndexer().ListIndexFuncValues(index)
		slices.Sort(keys)
		fmt.Printf("keys of %s: %q\n", index, keys)
	}
	for _, lookup := range []struct{ index, key string }{
		{byNode, "node-a." + *namespace}, {byNode, "node-b." + *namespace}, {byAppAndTier, "shop/web"}, {byAppAndTier, "shop/db"}, {byAppAndTier, "blog/db"},
	} {
		found, err := informer.GetIndexer().ByIndex(lookup.index, lookup.key)
		if err != nil {
			return fmt.Errorf("looking up %s: %w", lookup.key, err)
		}
		var names []string
		for _, obj := range found {
			names = append(names, obj.(*corev1.Pod).Name)
		}
		slices.Sort(names)
		fmt.Printf("%s %s: %s\n", lookup.index, lookup.key, strings.Join(names, " "))
	}
	return nil
}

// createPods makes six pods, bound to nodes that do not exist: nobody runs them. The
// cluster deletes pods of a node that is missing for 40 seconds (its pod garbage
// collector), so each namespace has missing nodes of its own.
func createPods(ctx context.Context, client kubernetes.Interface, namespace string) error {
	for i, pod := range []struct{ node, app, tier string }{
		{"node-a", "shop", "web"}, {"node-a", "shop", "web"}, {"node-a", "shop", "db"},
		{"node-b", "shop", "web"}, {"node-b", "blog", "web"}, {"", "blog", "db"},
	} {
		spec := applycorev1.PodSpec().WithTerminationGracePeriodSeconds(0).
			WithContainers(applycorev1.Container().WithName("main").WithImage("workshop/pause:1"))
		if pod.node != "" {
			spec.WithNodeName(pod.node + "." + namespace)
		} else {
			spec.WithSchedulingGates(applycorev1.PodSchedulingGate().WithName("example.com/never"))
		}
		name := fmt.Sprintf("pod-%d", i+1)
		_, err := client.CoreV1().Pods(namespace).Apply(ctx, applycorev1.Pod(name, namespace).
			WithLabels(map[string]string{"app": pod.app, "tier": pod.tier}).WithSpec(spec),
			metav1.ApplyOptions{FieldManager: "indexers", Force: true})
		if err != nil {
			return fmt.Errorf("creating %s: %w", name, err)
		}
	}
	return nil
}

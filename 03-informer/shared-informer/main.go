// shared-informer mirrors the ConfigMaps of a namespace with an informer. The
// cache is the mirror: the informer keeps it right, and two handlers learn of
// changes through the same watch.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	xray "github.com/k8s-go/workshop/internal/xray/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "shared-informer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	until := flag.String("until", "", "stop when a ConfigMap of this name appears (default: run until interrupted)")
	flag.Parse()

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	return mirror(ctx, client, *namespace, *until)
}

// mirror fills a cache, follows the changes until a ConfigMap named until has
// appeared, and prints what the cache holds.
func mirror(ctx context.Context, client kubernetes.Interface, namespace, until string) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, // 0: no resync
		informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name!=kube-root-ca.crt" }))
	// The factory starts only informers that it was asked for. If you ask again,
	// you get the same informer: the same cache, the same watch.
	configMaps := factory.Core().V1().ConfigMaps()
	informer := configMaps.Informer()
	xray.Informer(informer) // for the X-ray of make web

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen, found := context.WithCancel(ctx) // ends too when found is called, which never blocks
	defer found()
	first, err := informer.AddEventHandler(printer(until, found))
	if err != nil {
		return fmt.Errorf("adding a handler: %w", err)
	}
	var changes atomic.Int64
	second, err := informer.AddEventHandler(counter(&changes))
	if err != nil {
		return fmt.Errorf("adding the second handler: %w", err)
	}

	factory.StartWithContext(ctx) // does not block
	// Until the cache is filled, an object that is not in it may well exist.
	// WaitForCacheSync waits for the cache alone. A handler's own registration
	// waits until that handler has heard of everything in the first list, too.
	if !cache.WaitFor(ctx, "", first.HasSyncedChecker(), second.HasSyncedChecker()) {
		return nil // it was told to stop
	}
	fmt.Println("watching")
	<-seen.Done()
	cancel()
	// Waits until handlers have returned and the informers' goroutines have ended.
	factory.Shutdown()

	all, err := configMaps.Lister().ConfigMaps(namespace).List(labels.Everything())
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
	}
	report(all, changes.Load(), informer.IsStopped())
	return nil
}

// printer is a handler that prints changes, and calls found when a ConfigMap named
// until has appeared.
func printer(until string, found func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, isInInitialList bool) {
			cm := obj.(*corev1.ConfigMap)
			kind := "ADDED"
			if isInInitialList {
				kind = "LISTED"
			}
			fmt.Printf("%s %s=%s\n", kind, cm.Name, cm.Data["v"])
			if cm.Name == until {
				found()
			}
		},
		UpdateFunc: func(_, obj any) {
			cm := obj.(*corev1.ConfigMap)
			fmt.Printf("MODIFIED %s=%s\n", cm.Name, cm.Data["v"])
		},
		DeleteFunc: printDeleted,
	}
}

// printDeleted gets a ConfigMap, or a tombstone; see ../tombstones.
func printDeleted(obj any) {
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err == nil {
		fmt.Printf("DELETED %s\n", name.Name)
	}
}

// counter is a handler that counts changes.
func counter(changes *atomic.Int64) cache.ResourceEventHandler {
	count := func(any) { changes.Add(1) }
	return cache.ResourceEventHandlerFuncs{AddFunc: count, UpdateFunc: func(any, any) { changes.Add(1) }, DeleteFunc: count}
}

func report(all []*corev1.ConfigMap, changes int64, stopped bool) {
	var mirror []string
	for _, cm := range all {
		mirror = append(mirror, cm.Name+"="+cm.Data["v"])
	}
	slices.Sort(mirror) // a cache has no order
	fmt.Println("mirror:", strings.Join(mirror, " "))
	fmt.Printf("second handler: %d changes, informer stopped: %t\n", changes, stopped)
}

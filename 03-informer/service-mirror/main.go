// service-mirror mirrors the Services of a namespace that have the label mirror=true,
// with one informer and two handlers. It is what the exercise informer asks for.
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
)

func main() {
	namespace := flag.String("namespace", "default", "where to work")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx, *namespace)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "service-mirror:", err)
		os.Exit(1)
	}
}

// run mirrors until a Service called end has appeared, prints what the cache holds, and
// returns when ctx ends.
func run(ctx context.Context, namespace string) error {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, // 0: no resync
		informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "mirror=true" }))
	services := factory.Core().V1().Services()
	informer := services.Informer()

	informing, cancel := context.WithCancel(ctx)
	defer cancel()
	seen, found := context.WithCancel(ctx) // ends too when found is called
	defer found()
	first, err := informer.AddEventHandler(printer(found))
	if err != nil {
		return fmt.Errorf("adding a handler: %w", err)
	}
	var changes atomic.Int64
	second, err := informer.AddEventHandler(counter(&changes))
	if err != nil {
		return fmt.Errorf("adding the second handler: %w", err)
	}

	factory.StartWithContext(informing)
	if !cache.WaitFor(ctx, "", first.HasSyncedChecker(), second.HasSyncedChecker()) {
		return nil // it was told to end
	}
	fmt.Println("watching")
	<-seen.Done()
	cancel()
	factory.Shutdown() // waits until nothing of the informer runs

	all, err := services.Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	slices.Sort(names) // a cache has no order
	fmt.Println("mirror:", strings.Join(names, " "))
	fmt.Println("changes:", changes.Load())
	<-ctx.Done()
	return nil
}

// printer is a handler that prints changes, and calls found when the Service end appears.
func printer(found func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			s := obj.(*corev1.Service)
			fmt.Println("ADDED", s.Name)
			if s.Name == "end" {
				found()
			}
		},
		UpdateFunc: func(_, obj any) { fmt.Println("MODIFIED", obj.(*corev1.Service).Name) },
		DeleteFunc: printDeleted,
	}
}

// printDeleted gets a Service, or a tombstone.
func printDeleted(obj any) {
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err == nil {
		fmt.Println("DELETED", name.Name)
	}
}

// counter is a handler that counts changes.
func counter(changes *atomic.Int64) cache.ResourceEventHandler {
	count := func(any) { changes.Add(1) }
	return cache.ResourceEventHandlerFuncs{AddFunc: count, UpdateFunc: func(any, any) { changes.Add(1) }, DeleteFunc: count}
}

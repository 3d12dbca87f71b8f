// dynamic-informer watches a resource that it knows by name only, such as one
// that a CRD has defined after the program was compiled.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dynamic-informer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	resource := flag.String("resource", "configmaps.v1.", "what to watch, as resource.version.group")
	until := flag.String("until", "", "stop when an object of this name appears (default: run until interrupted)")
	flag.Parse()

	gvr, _ := schema.ParseResourceArg(*resource)
	if gvr == nil {
		return fmt.Errorf("-resource %q is not resource.version.group, such as deployments.v1.apps", *resource)
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, *namespace,
		func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name!=kube-root-ca.crt" })
	informer := factory.ForResource(*gvr).Informer()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen, found := context.WithCancel(ctx) // ends too when found is called, which never blocks
	defer found()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			// Everything is an *unstructured.Unstructured: maps, slices and
			// scalars, and accessors for what all objects have.
			u := obj.(*unstructured.Unstructured)
			fmt.Printf("ADDED %s %s\n", u.GetKind(), u.GetName())
			if u.GetName() == *until {
				found()
			}
		},
		UpdateFunc: func(_, obj any) {
			u := obj.(*unstructured.Unstructured)
			fmt.Printf("MODIFIED %s %s\n", u.GetKind(), u.GetName())
		},
		DeleteFunc: func(obj any) {
			name, err := cache.DeletionHandlingObjectToName(obj)
			if err == nil {
				fmt.Printf("DELETED %s\n", name.Name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("adding a handler: %w", err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return nil // it was told to stop
	}
	fmt.Println("watching", gvr.Resource)
	<-seen.Done()
	cancel()
	factory.Shutdown() // waits until handlers have returned and the informers' goroutines have ended
	return nil
}

// Command informer keeps a cache of HealthCheckPolicies with the generated
// informer, reads it with the generated lister, and prints what changes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/informers/externalversions"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "informer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	changes := flag.Int("changes", 0, "how many changes to print before it ends; 0: until Ctrl-C")
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "workshop-05", "where to work")
	flag.Parse()

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}

	factory := externalversions.NewSharedInformerFactoryWithOptions(client, 0, externalversions.WithNamespace(*namespace))
	policies := factory.Policy().V1alpha1().HealthCheckPolicies()
	ctx, stop := context.WithCancel(ctx)
	// LIFO: first end the informer, then wait for its goroutines.
	defer factory.Shutdown()
	defer stop()

	lines := make(chan string)
	say := func(format string, args ...any) {
		select {
		case lines <- fmt.Sprintf(format, args...):
		case <-ctx.Done():
		}
	}
	registration, err := policies.Informer().AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, isInInitialList bool) {
			if p, ok := obj.(*v1alpha1.HealthCheckPolicy); ok && !isInInitialList {
				say("added %s: %s", p.Name, p.Spec.Action)
			}
		},
		UpdateFunc: func(before, after any) {
			old, ok1 := before.(*v1alpha1.HealthCheckPolicy)
			p, ok2 := after.(*v1alpha1.HealthCheckPolicy)
			switch {
			case !ok1 || !ok2 || old.ResourceVersion == p.ResourceVersion: // read anew, not changed
			case old.Generation != p.Generation:
				say("spec of %s, generation %d: %s %v", p.Name, p.Generation, p.Spec.Action, p.Spec.RequiredProbes)
			case p.Status.Statistics != nil: // the server counts a generation only when the spec changes
				say("status or metadata of %s: failed %d", p.Name, p.Status.Statistics.Pods.Failed)
			default:
				say("status or metadata of %s: not counted yet", p.Name)
			}
		},
		DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
				say("deleted %s", key.Name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("adding the handler: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("filling the cache: %w", ctx.Err())
	}

	// The lister asks nobody: it reads the informer's memory.
	list, err := policies.Lister().HealthCheckPolicies(*namespace).List(labels.Everything())
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
	}
	slices.SortFunc(list, func(a, b *v1alpha1.HealthCheckPolicy) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range list {
		fmt.Printf("in the cache: %s\n", p.Name)
	}
	fmt.Println("watching")

	for n := 0; *changes == 0 || n < *changes; n++ {
		select {
		case line := <-lines:
			fmt.Println(line)
		case <-ctx.Done():
			if *changes == 0 && errors.Is(ctx.Err(), context.Canceled) {
				return nil // Ctrl-C is the way to end it
			}
			return fmt.Errorf("waiting for change %d of %d: %w", n+1, *changes, ctx.Err())
		}
	}
	return nil
}

// tombstones prints how it learns of deletions. If the object was deleted while
// the watch was down and history is gone, the informer finds out by listing; it
// has no event, and passes a DeletedFinalStateUnknown with the last state it knew.
// With -careless the handler does not expect that.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/internal/xray/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tombstones:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	until := flag.String("until", "", "stop when a ConfigMap of this name appears (default: run until interrupted)")
	careless := flag.Bool("careless", false, "take it that what was deleted is a ConfigMap")
	flag.Parse()

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name!=kube-root-ca.crt" }))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen, found := context.WithCancel(ctx) // ends too when found is called, which never blocks
	defer found()
	onDelete := printDeleted
	if *careless {
		onDelete = func(obj any) {
			deleted := obj.(*corev1.ConfigMap)
			fmt.Printf("%s deleted, last state v=%s\n", deleted.Name, deleted.Data["v"])
		}
	}
	informer := factory.Core().V1().ConfigMaps().Informer()
	report.Informer(informer) // for the X-ray of make web
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			name := obj.(*corev1.ConfigMap).Name
			fmt.Println(name, "added")
			if name == *until {
				found()
			}
		},
		DeleteFunc: onDelete,
	})
	if err != nil {
		return fmt.Errorf("adding a handler: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return nil // it was told to stop
	}
	fmt.Println("watching")
	<-seen.Done()
	cancel()
	factory.Shutdown() // waits until handlers have returned and the informers' goroutines have ended
	return nil
}

// printDeleted prints what a deletion says of the object: its last state, or the last that the cache knew.
func printDeleted(obj any) {
	switch deleted := obj.(type) {
	case *corev1.ConfigMap:
		fmt.Printf("%s deleted, last state v=%s\n", deleted.Name, deleted.Data["v"])
	case cache.DeletedFinalStateUnknown:
		// Good enough to clean up after the object; its state may be old.
		last, ok := deleted.Obj.(*corev1.ConfigMap)
		if !ok {
			fmt.Printf("%s is gone\n", deleted.Key)
			return
		}
		fmt.Printf("%s is gone, last seen with v=%s\n", deleted.Key, last.Data["v"])
	}
}

// filtered gives a factory a namespace and a label selector. The server sends
// nothing else. When an object stops matching, the handler sees a deletion, though
// the object still exists.
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
	"k8s.io/apimachinery/pkg/labels"
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
		fmt.Fprintln(os.Stderr, "filtered:", err)
		os.Exit(1)
	}
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
	paint := func(name, color string) error {
		_, err := client.CoreV1().ConfigMaps(*namespace).Apply(ctx,
			applycorev1.ConfigMap(name, *namespace).WithLabels(map[string]string{"color": color}),
			metav1.ApplyOptions{FieldManager: "filtered", Force: true})
		if err != nil {
			return fmt.Errorf("painting %s %s: %w", name, color, err)
		}
		return nil
	}
	for name, color := range map[string]string{"car": "blue", "sky": "blue", "rose": "red"} {
		if err := paint(name, color); err != nil {
			return err
		}
	}

	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithNamespace(*namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "color=blue" }))
	lister := factory.Core().V1().ConfigMaps().Lister().ConfigMaps(*namespace)
	ctx, cancel := context.WithCancel(ctx)
	deleted := make(chan string, 1)
	registration, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(obj any) {
			if cm, ok := obj.(*corev1.ConfigMap); ok {
				select {
				case deleted <- cm.Name:
				default: // a handler must not block, and one deletion is enough here
				}
			}
		},
	})
	if err != nil {
		cancel()
		return fmt.Errorf("adding a handler: %w", err)
	}
	defer factory.Shutdown()
	defer cancel()
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return fmt.Errorf("filling the cache: %w", context.Cause(ctx))
	}

	all, err := lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
	}
	var names []string
	for _, cm := range all {
		names = append(names, cm.Name)
	}
	slices.Sort(names)
	fmt.Println("in the cache:", strings.Join(names, " "))

	if err := paint("sky", "grey"); err != nil {
		return err
	}
	select {
	case name := <-deleted:
		fmt.Printf("the informer says that %s is deleted\n", name)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	live, err := client.CoreV1().ConfigMaps(*namespace).Get(ctx, "sky", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading from the server: %w", err)
	}
	fmt.Printf("the server says that %s is %s\n", live.Name, live.Labels["color"])
	return nil
}

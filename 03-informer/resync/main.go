// resync shows what a resync period does: the informer passes every object of
// the cache to the handler again, as an update that changes nothing, and sends no
// request. This helps controllers that mirror their objects to something outside
// of the cluster and want to look there from time to time.
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
	"time"

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
		fmt.Fprintln(os.Stderr, "resync:", err)
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
	objects := []string{"resync-a", "resync-b", "resync-c"}
	for _, name := range objects {
		_, err := client.CoreV1().ConfigMaps(*namespace).Apply(ctx,
			applycorev1.ConfigMap(name, *namespace).WithLabels(map[string]string{"lesson": "resync"}),
			metav1.ApplyOptions{FieldManager: "resync", Force: true})
		if err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}

	// One second is the shortest that client-go allows; hours are usual.
	factory := informers.NewSharedInformerFactoryWithOptions(client, time.Second, informers.WithNamespace(*namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "lesson=resync" }))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type update struct{ old, new *corev1.ConfigMap }
	updates := make(chan update, 2*len(objects)) // room for two rounds: a handler must not block
	registration, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, new any) {
			select {
			case updates <- update{old.(*corev1.ConfigMap), new.(*corev1.ConfigMap)}:
			case <-ctx.Done():
			}
		},
	})
	if err != nil {
		return fmt.Errorf("adding a handler: %w", err)
	}
	defer factory.Shutdown()
	defer cancel() // before Shutdown, which waits for it
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return fmt.Errorf("filling the cache: %w", context.Cause(ctx))
	}

	for round := 1; round <= 3; round++ {
		var names []string
		changed := 0
		for len(names) < len(objects) {
			select {
			case u := <-updates:
				names = append(names, u.new.Name)
				// The test with which handlers tell a resync from a change.
				if u.old.ResourceVersion != u.new.ResourceVersion {
					changed++
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		slices.Sort(names)
		fmt.Printf("resync %d: %s, %d changed\n", round, strings.Join(names, " "), changed)
	}
	return nil
}

// lister reads from an informer's cache and from the server, and catches the
// cache being behind. A lister is fast and costs the server nothing; it answers
// with what the watch has brought so far.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
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
		fmt.Fprintln(os.Stderr, "lister:", err)
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
	configMaps := client.CoreV1().ConfigMaps(*namespace)
	write := func(v string) error {
		_, err := configMaps.Apply(ctx, applycorev1.ConfigMap("counter", *namespace).WithData(map[string]string{"v": v}),
			metav1.ApplyOptions{FieldManager: "lister", Force: true})
		if err != nil {
			return fmt.Errorf("writing v=%s: %w", v, err)
		}
		return nil
	}
	if err := write("0"); err != nil {
		return err
	}

	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace))
	lister := factory.Core().V1().ConfigMaps().Lister().ConfigMaps(*namespace)
	arrived := make(chan struct{}, 1)
	registration, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) {
			if obj.(*corev1.ConfigMap).Name == "counter" {
				select {
				case arrived <- struct{}{}:
				default: // a handler must not block, and one update is enough here
				}
			}
		},
	})
	if err != nil {
		return fmt.Errorf("adding a handler: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer factory.Shutdown()
	defer cancel()
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return fmt.Errorf("filling the cache: %w", context.Cause(ctx))
	}

	const reads = 100_000
	started := time.Now()
	var first, cached *corev1.ConfigMap
	for range reads {
		if cached, err = lister.Get("counter"); err != nil {
			return fmt.Errorf("reading the cache: %w", err)
		}
		if first == nil {
			first = cached
		}
	}
	fmt.Printf("%d reads from the cache in %s, the same pointer each time: %t\n", reads, time.Since(started).Round(time.Microsecond), first == cached)

	if err := write("1"); err != nil {
		return err
	}
	// The server has confirmed the write. That says nothing about the cache.
	cached, err = lister.Get("counter")
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
	}
	fmt.Println("written: v=1")
	fmt.Printf("  cache: v=%s\n", cached.Data["v"])
	live, err := configMaps.Get(ctx, "counter", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading from the server: %w", err)
	}
	fmt.Printf("  server: v=%s\n", live.Data["v"])

	select {
	case <-arrived:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if cached, err = lister.Get("counter"); err != nil {
		return fmt.Errorf("reading the cache: %w", err)
	}
	fmt.Printf("the event has arrived\n  cache: v=%s\n", cached.Data["v"])
	return nil
}

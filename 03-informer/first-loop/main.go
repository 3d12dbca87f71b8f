// first-loop is a small but complete controller. It keeps a copy of each ConfigMap that is
// labelled mirror=true: the copy of "a" is "a-copy", and "a" is its owner. The controller is
// in controller.go; this file connects it, starts it and stops it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/k8s-go/workshop/internal/xray/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := connect(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "first-loop:", err)
		os.Exit(1)
	}
}

func connect(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	flag.Parse()

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1 // the queue slows retries down, and the API server has limits of its own
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace))
	configMaps := factory.Core().V1().ConfigMaps()
	c := &controller{client: client, lister: configMaps.Lister(), queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](5*time.Millisecond, 10*time.Second))}
	report.LoopUpTo(10*time.Second, &c.queue, configMaps.Informer()) // for the X-ray of make web
	return c.run(ctx, factory)
}

// run works until ctx ends, and finishes what it has begun.
func (c *controller) run(ctx context.Context, factory informers.SharedInformerFactory) error {
	registration, err := c.listen(ctx, factory.Core().V1().ConfigMaps().Informer())
	if err != nil {
		return fmt.Errorf("adding the handler: %w", err)
	}

	// The cache stays up to date until the workers have ended.
	informing, stopInforming := context.WithCancel(context.WithoutCancel(ctx))
	defer stopInforming()
	defer c.queue.ShutDown()
	factory.StartWithContext(informing)
	// A worker that began earlier would act on a cache that is not filled yet.
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return nil // it was told to stop; while the API server refuses connections, Shutdown may wait for a minute
	}
	klog.FromContext(ctx).Info("Working")
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() { c.work(context.WithoutCancel(ctx)) }) // an interrupt cuts off no write
	}
	<-ctx.Done()
	c.queue.ShutDown() // Get still hands out the queued keys, and then ends the workers
	workers.Wait()
	stopInforming()
	factory.Shutdown() // waits until nothing of the informer runs
	return nil
}

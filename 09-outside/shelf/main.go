// shelf rents a room in the cold store for each ConfigMap that has the label shelf. Where naive
// and coldroom have a status to write into, a ConfigMap has annotations.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/06-controller/loop"
	"github.com/k8s-go/workshop/06-controller/loop/loopreport"
	"github.com/k8s-go/workshop/09-outside/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "shelf:", err)
		os.Exit(1)
	}
}

// run calls reconcile for each ConfigMap with the label, after each of its events.
func run(ctx context.Context) error {
	namespace := flag.String("namespace", "default", "where to work")
	address := flag.String("store", "", "the address of the store, such as http://127.0.0.1:8080 (required)")
	flag.Parse()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	loop.WaitForServer(config)
	kube, err := kubernetes.NewForConfig(config)
	// A call that nobody answers must not keep a worker for ever.
	store, failed := client.NewClientWithResponses(*address, client.WithHTTPClient(&http.Client{Timeout: 10 * time.Second}))
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	// Also those without the label: one that has lost it may still have the finalizer.
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(*namespace))
	maps := factory.Core().V1().ConfigMaps()
	s := &shelf{kube: kube.CoreV1(), cached: maps.Lister(), store: store}
	l := loop.New("shelf", s.reconcile, loop.Options{Workers: 4, Observer: loopreport.Observer()})
	if err := l.Watch(maps.Informer(), loop.Each(func(name cache.ObjectName) { l.Add(name, "ConfigMap changed") })); err != nil {
		return err
	}
	return l.Run(ctx, factory)
}

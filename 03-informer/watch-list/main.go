// watch-list prints the requests by which an informer fills its cache. Since
// client-go 1.35 it asks for a watch that begins with the present state and
// tells by a bookmark where that ends. Before, and where the server refuses, it
// lists and then watches; KUBE_FEATURE_WatchListClient=false shows that.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

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
		fmt.Fprintln(os.Stderr, "watch-list:", err)
		os.Exit(1)
	}
}

// requests remembers by which requests the informer reads.
type requests struct {
	next http.RoundTripper
	mu   sync.Mutex
	seen []string
}

func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	query := req.URL.Query()
	switch {
	case query.Get("sendInitialEvents") == "true":
		r.seen = append(r.seen, "watch with the initial state")
	case query.Get("watch") == "true":
		r.seen = append(r.seen, "watch")
	case req.Method == http.MethodGet:
		r.seen = append(r.seen, "list")
	}
	r.mu.Unlock()
	return r.next.RoundTrip(req)
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
	reads := &requests{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		reads.next = next
		return reads
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	write := func(v string) (resourceVersion string, err error) {
		written, err := client.CoreV1().ConfigMaps(*namespace).Apply(ctx,
			applycorev1.ConfigMap("watch-list", *namespace).WithLabels(map[string]string{"lesson": "watch-list"}).WithData(map[string]string{"v": v}),
			metav1.ApplyOptions{FieldManager: "watch-list", Force: true})
		if err != nil {
			return "", fmt.Errorf("writing v=%s: %w", v, err)
		}
		return written.ResourceVersion, nil
	}
	written, err := write("0")
	if err != nil {
		return err
	}

	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = "lesson=watch-list"
			// Version 0 asks for whatever the API server has in its cache, and that may
			// be older than our own write. A version means: not older than this.
			if o.ResourceVersion == "0" {
				o.ResourceVersion = written
			}
		}))
	ctx, cancel := context.WithCancel(ctx)
	changed := make(chan string, 1)
	registration, err := factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, isInInitialList bool) {
			fmt.Printf("got v=%s, in the initial list: %t\n", obj.(*corev1.ConfigMap).Data["v"], isInInitialList)
		},
		UpdateFunc: func(_, obj any) {
			select {
			case changed <- obj.(*corev1.ConfigMap).Data["v"]:
			default: // a handler must not block, and one update is enough here
			}
		},
	})
	if err != nil {
		cancel()
		return fmt.Errorf("adding a handler: %w", err)
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	defer cancel()
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) {
		return fmt.Errorf("filling the cache: %w", context.Cause(ctx))
	}
	if _, err := write("1"); err != nil {
		return err
	}
	select {
	case v := <-changed:
		fmt.Printf("got v=%s\n", v)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	reads.mu.Lock()
	defer reads.mu.Unlock()
	fmt.Printf("requests: %s\n", strings.Join(reads.seen, ", "))
	return nil
}

// retry-watch mirrors the ConfigMaps of a namespace with client-go's
// RetryWatcher, which resumes a broken watch after the last event that it has seen.
// If the API server no longer has the history since then, it answers 410 Gone, and
// the RetryWatcher ends.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "retry-watch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	flag.StringVar(&rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "default", "where to work")
	until := flag.String("until", "", "stop when a ConfigMap of this name appears (default: run until interrupted)")
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
	options := metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"}

	list, err := configMaps.List(ctx, options)
	if err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	mirror := map[string]string{}
	for _, cm := range list.Items {
		fmt.Printf("LISTED %s=%s\n", cm.Name, cm.Data["v"])
		mirror[cm.Name] = cm.Data["v"]
	}
	defer func() { fmt.Println("mirror:", content(mirror)) }()
	if _, ok := mirror[*until]; ok {
		return nil
	}

	// The watch begins at the resourceVersion of the list. To resume, the watcher
	// calls this function again with the resourceVersion of the last event.
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = options.FieldSelector
			return configMaps.Watch(ctx, o)
		},
	})
	if err != nil {
		return fmt.Errorf("starting the watch: %w", err)
	}
	// Stop only asks; Done says when its goroutine has ended.
	defer func() { w.Stop(); <-w.Done() }()
	fmt.Println("watching")
	for event := range w.ResultChan() {
		cm, ok := event.Object.(*corev1.ConfigMap)
		if !ok {
			err := apierrors.FromObject(event.Object)
			return fmt.Errorf("the watch has ended for good, %s: %w", apierrors.ReasonForError(err), err)
		}
		fmt.Printf("%s %s=%s\n", event.Type, cm.Name, cm.Data["v"])
		if event.Type == watch.Deleted {
			delete(mirror, cm.Name)
		} else {
			mirror[cm.Name] = cm.Data["v"]
		}
		if cm.Name == *until {
			return nil
		}
	}
	return nil
}

// content returns what a mirror holds, in the order of names.
func content(mirror map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(mirror)) {
		all = append(all, name+"="+mirror[name])
	}
	return strings.Join(all, " ")
}

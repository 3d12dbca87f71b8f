// Command paging reads a long list in pages: by hand, and with a pager.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "paging:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	kubeContext := flag.String("context", "", "context in it (default: the current one)")
	namespace := flag.String("namespace", os.Getenv("WORKSHOP_PREFIX")+"workshop-02", "where to work")
	objects := flag.Int("objects", 25, "how many ConfigMaps to make first")
	limit := flag.Int64("limit", 10, "how many of them a page holds at most")
	flag.Parse()
	if *limit < 1 {
		return fmt.Errorf("-limit %d: want at least 1", *limit) // 0 is no limit: one page
	}

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: *kubeContext}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	configMaps := client.CoreV1().ConfigMaps(*namespace)
	// An earlier run may have made more.
	if err := configMaps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "lesson=paging"}); err != nil {
		return fmt.Errorf("deleting the ConfigMaps of an earlier run: %w", err)
	}
	for i := range *objects {
		cm := corev1ac.ConfigMap(fmt.Sprintf("page-%03d", i), *namespace).WithLabels(map[string]string{"lesson": "paging"})
		if _, err := configMaps.Apply(ctx, cm, metav1.ApplyOptions{FieldManager: "paging"}); err != nil {
			return fmt.Errorf("making ConfigMap %d: %w", i, err)
		}
	}

	total, err := pages(ctx, configMaps, *limit)
	if err != nil {
		return err
	}
	fmt.Println("by hand:", total)

	// The pager fetches the next page while we work on this one. EachListItem
	// returns a 410 as it is, because this function has seen the first items
	// already. Only the pager's List begins again by itself, without a limit.
	p := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return configMaps.List(ctx, options)
	})
	p.PageSize = *limit
	total = 0
	err = p.EachListItem(ctx, metav1.ListOptions{LabelSelector: "lesson=paging"}, func(runtime.Object) error {
		total++
		return nil
	})
	if err != nil {
		return fmt.Errorf("paging: %w", err)
	}
	fmt.Println("pager:", total)
	return nil
}

// pages lists page by page, with at most limit objects in each, and returns how
// many there were in all.
func pages(ctx context.Context, configMaps corev1client.ConfigMapInterface, limit int64) (int, error) {
	total, version := 0, ""
	options := metav1.ListOptions{LabelSelector: "lesson=paging", Limit: limit}
	for page := 1; ; page++ {
		list, err := configMaps.List(ctx, options)
		if err != nil {
			// 410 after some minutes: the token has a version in it, which the server
			// has forgotten by then. Begin again, or go on with the token in the
			// error's ListMeta, which continues from here as of now.
			return total, fmt.Errorf("reading page %d: %w", page, err)
		}
		if page == 1 {
			version = list.ResourceVersion
		}
		total += len(list.Items)
		fmt.Printf("page %d: %d objects, as of the first page: %t\n", page, len(list.Items), list.ResourceVersion == version)
		if options.Continue = list.Continue; options.Continue == "" {
			return total, nil
		}
	}
}

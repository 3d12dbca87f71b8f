// Command watch watches ConfigMaps until the server ends the connection, and
// shows what a watch that simply starts again has missed.
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "watch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	kubeContext := flag.String("context", "", "context in it (default: the current one)")
	namespace := flag.String("namespace", os.Getenv("WORKSHOP_PREFIX")+"workshop-02", "where to work")
	flag.Parse()

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: *kubeContext}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	configMaps := client.CoreV1().ConfigMaps(*namespace)
	earlier := metav1.ListOptions{LabelSelector: "lesson=watch"} // what an earlier run has left
	if err := configMaps.DeleteCollection(ctx, metav1.DeleteOptions{}, earlier); err != nil {
		return fmt.Errorf("deleting the ConfigMaps of an earlier run: %w", err)
	}
	if err := create(ctx, configMaps, "early"); err != nil {
		return err
	}
	// List, then watch from the list's version on: without a gap in between.
	list, err := configMaps.List(ctx, metav1.ListOptions{LabelSelector: "lesson=watch"})
	if err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	for _, cm := range list.Items {
		fmt.Println("listed", cm.Name)
	}

	// The server ends every watch, after some 30 to 60 minutes if we do not say when.
	fmt.Println("watch:")
	if err := create(ctx, configMaps, "live"); err != nil {
		return err
	}
	last, err := follow(ctx, configMaps, list.ResourceVersion)
	if err != nil {
		return err
	}

	// Nobody is watching now.
	if err := create(ctx, configMaps, "brief"); err != nil {
		return err
	}
	for _, name := range []string{"brief", "early"} {
		if err := configMaps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("deleting %s: %w", name, err)
		}
	}

	// Without a version the server sends what its watch cache holds as ADDED.
	// The cache follows etcd and may be a moment behind, so that "early" would
	// still be in it. A read with resourceVersion "0" is answered from the same
	// cache: it says when the deletion has arrived there.
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := configMaps.Get(ctx, "early", metav1.GetOptions{ResourceVersion: "0"})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("waiting for the watch cache: %w", err)
	}
	// That "brief" was here is lost, and no event says that "early" is gone.
	fmt.Println("watch again from now:")
	if _, err := follow(ctx, configMaps, ""); err != nil {
		return err
	}
	// From the last version that we saw, nothing is missing, as long as the
	// server remembers: usually 75 seconds at least, counted from that version. So a watch that
	// has seen no event for long asks for bookmarks (AllowWatchBookmarks), which move the version
	// on. After that it answers 410, and the way out is to list and compare. All that is what an informer does: step 03.
	fmt.Println("watch again from the last version:")
	_, err = follow(ctx, configMaps, last)
	return err
}

// follow prints events until the connection ends and returns the version of
// the last one.
func follow(ctx context.Context, configMaps corev1client.ConfigMapInterface, version string) (string, error) {
	w, err := configMaps.Watch(ctx, metav1.ListOptions{
		LabelSelector: "lesson=watch", ResourceVersion: version, TimeoutSeconds: new(int64(2)),
	})
	if err != nil {
		return version, fmt.Errorf("watching: %w", err)
	}
	defer w.Stop()
	// range ends when the channel is closed. A receive without looking whether
	// it is closed spins on empty events.
	for event := range w.ResultChan() {
		if event.Type == apiwatch.Error {
			return version, fmt.Errorf("watching: %w", apierrors.FromObject(event.Object))
		}
		cm, ok := event.Object.(*corev1.ConfigMap)
		if !ok {
			return version, fmt.Errorf("watching: unexpected %T", event.Object)
		}
		fmt.Println(" ", event.Type, cm.Name)
		version = cm.ResourceVersion
	}
	if ctx.Err() == nil {
		fmt.Println("  the connection ended")
	}
	return version, ctx.Err()
}

func create(ctx context.Context, configMaps corev1client.ConfigMapInterface, name string) error {
	_, err := configMaps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"lesson": "watch"}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating %s: %w", name, err)
	}
	return nil
}

// Command conflict shows what to do about a 409: read again, change again,
// write again. First with one provoked conflict, in one.go, then with many writers
// that count on one object, which nobody has made for them, and lose no update.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "conflict:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	kubeContext := flag.String("context", "", "context in it (default: the current one)")
	namespace := flag.String("namespace", os.Getenv("WORKSHOP_PREFIX")+"workshop-02", "where to work")
	writers := flag.Int("writers", 8, "how many count at the same time")
	rounds := flag.Int("rounds", 10, "how often each of them adds one")
	flag.Parse()
	if *writers < 1 || *rounds < 1 {
		return fmt.Errorf("-writers %d, -rounds %d: want at least 1 of each", *writers, *rounds)
	}

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: *kubeContext}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	config.QPS = -1 // the writers should meet, not wait; see folder rate-limit
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	configMaps := client.CoreV1().ConfigMaps(*namespace)
	for _, name := range []string{"conflict", "counter"} {
		if err := configMaps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting the ConfigMaps of an earlier run: %w", err)
		}
	}
	_, err = configMaps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "conflict"},
		Data:       map[string]string{"before": "kept"},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating the ConfigMap: %w", err)
	}
	if err := oneConflict(ctx, configMaps); err != nil {
		return fmt.Errorf("updating against one other writer: %w", err)
	}
	return count(ctx, configMaps, *writers, *rounds)
}

// backoff is for many writers, among whom the five attempts of retry.DefaultRetry
// are soon used up. Random pauses keep them from meeting again and again.
var backoff = wait.Backoff{Steps: 1000, Duration: 5 * time.Millisecond, Factor: 1, Jitter: 5}

// addOne adds one to the count of the ConfigMap "counter", whoever else writes it. The
// first one creates it. refusals counts the answers with 409 that it met.
func addOne(ctx context.Context, configMaps corev1client.ConfigMapInterface, refusals *atomic.Int64) error {
	refused := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	var err error // of the last attempt: if ctx ends the first one, OnError returns nil
	_ = retry.OnError(backoff, refused, func() error {
		var cm *corev1.ConfigMap
		cm, err = configMaps.Get(ctx, "counter", metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			first := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "counter"}, Data: map[string]string{"count": "1"}}
			_, err = configMaps.Create(ctx, first, metav1.CreateOptions{})
		case err == nil:
			n := 0
			if n, err = strconv.Atoi(cm.Data["count"]); err != nil {
				return err
			}
			cm.Data["count"] = strconv.Itoa(n + 1)
			_, err = configMaps.Update(ctx, cm, metav1.UpdateOptions{})
		}
		if refused(err) {
			refusals.Add(1)
		}
		return err
	})
	return err
}

func count(ctx context.Context, configMaps corev1client.ConfigMapInterface, writers, rounds int) error {
	var refusals atomic.Int64
	failed := make([]error, writers)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for range rounds {
				if err := addOne(ctx, configMaps, &refusals); err != nil {
					failed[i] = fmt.Errorf("writer %d: %w", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	cm, err := configMaps.Get(ctx, "counter", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the count: %w", err)
	}
	fmt.Printf("%d writers, %d rounds: count %s after %d refusals\n", writers, rounds, cm.Data["count"], refusals.Load())
	return nil
}

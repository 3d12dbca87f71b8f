// Command rate-limit makes the same requests with client-go's default rate
// limit, with a limit that is set, and with none.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rate-limit:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	kubeContext := flag.String("context", "", "context in it (default: the current one)")
	namespace := flag.String("namespace", os.Getenv("WORKSHOP_PREFIX")+"workshop-02", "where to work")
	requests := flag.Int("requests", 30, "how many requests each time; at 5 a second 30 take 4 s, and 200 would take 38 s")
	flag.Parse()
	if *requests < 1 {
		return fmt.Errorf("-requests %d: want at least 1", *requests)
	}

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: *kubeContext}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	for _, m := range []struct {
		name   string
		qps    float32
		burst  int
		groups int
	}{
		// QPS 0 means the default: a bucket of 10 tokens that fills with 5 a
		// second. Each group and version of the clientset has its own bucket.
		{"default, one group", 0, 0, 1},
		{"default, two groups", 0, 0, 2},
		// If QPS is set, all groups of the clientset share one bucket. A second
		// clientset, even from the same config, has a second one.
		{"QPS 5 and burst 10 set, two groups", rest.DefaultQPS, rest.DefaultBurst, 2},
		// Negative means none. The server protects itself nowadays (API priority
		// and fairness), and answers a client that is too fast with 429.
		{"QPS -1, two groups", -1, 0, 2},
	} {
		config := rest.CopyConfig(config)
		config.QPS, config.Burst = m.qps, m.burst
		took, err := measure(ctx, config, *namespace, *requests, m.groups)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Printf("%s: %d requests in %s\n", m.name, *requests, took.Round(time.Millisecond))
	}
	return nil
}

// measure sends requests one after the other, to one group or to two in turn.
func measure(ctx context.Context, config *rest.Config, namespace string, requests, groups int) (time.Duration, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for i := range requests {
		if i%groups == 0 {
			_, err = client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		} else {
			_, err = client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		}
		if err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// Command rate-limit makes the same requests with client-go's default rate
// limit and without one.
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
	namespace := flag.String("namespace", "workshop-02", "where to work")
	gets := flag.Int("gets", 200, "how many requests; 200 take 38 s at the default rate")
	flag.Parse()
	if *gets < 1 {
		return fmt.Errorf("-gets %d: want at least 1", *gets)
	}

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: *kubeContext}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	// 0 means the default: a bucket of 10 tokens that fills with 5 a second.
	// A clientset is one bucket for all its groups; a second clientset, even
	// from the same config, is a second bucket.
	limited := rest.CopyConfig(config)
	limited.QPS, limited.Burst = 0, 0
	byDefault, err := measure(ctx, limited, *namespace, *gets)
	if err != nil {
		return fmt.Errorf("with the default limit: %w", err)
	}
	fmt.Printf("default (QPS %.0f, burst %d): %d gets in %s\n", rest.DefaultQPS, rest.DefaultBurst, *gets, byDefault.Round(time.Millisecond))

	// Negative means none. The server protects itself nowadays (API priority
	// and fairness), and tells a client that is too fast with a 429.
	unlimited := rest.CopyConfig(config)
	unlimited.QPS = -1
	without, err := measure(ctx, unlimited, *namespace, *gets)
	if err != nil {
		return fmt.Errorf("without a limit: %w", err)
	}
	fmt.Printf("none (QPS -1): %d gets in %s\n", *gets, without.Round(time.Millisecond))
	fmt.Printf("ratio %.0f\n", byDefault.Seconds()/without.Seconds())
	return nil
}

func measure(ctx context.Context, config *rest.Config, namespace string, gets int) (time.Duration, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for range gets {
		if _, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// Command list prints the HealthCheckPolicies of a namespace with the generated
// client, which is used like the one for pods.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	policyv1alpha1 "github.com/k8s-go/workshop/05-crd-go/pkg/apis/policy/v1alpha1"
	"github.com/k8s-go/workshop/05-crd-go/pkg/generated/clientset/versioned"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "list:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	namespace := flag.String("namespace", "workshop-05", "where to look; empty for everywhere")
	flag.Parse()

	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = *kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}

	// PolicyV1alpha1: the first word of the API group, and the version.
	policies, err := client.PolicyV1alpha1().HealthCheckPolicies(*namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing policies: %w", err)
	}
	for _, p := range policies.Items {
		fmt.Printf("%s/%s: %s", p.Namespace, p.Name, p.Spec.Action)
		if p.Spec.PodLabel != "" {
			fmt.Printf(" with %s", p.Spec.PodLabel)
		}
		fmt.Printf(" pods without %v", p.Spec.RequiredProbes)
		// The schema says what a selector looks like, not that its keys and values
		// can be those of labels. One bad policy must not hide the others.
		switch selector, err := metav1.LabelSelectorAsSelector(&p.Spec.Selector); {
		case err != nil:
			fmt.Printf(" (%s: %v)", policyv1alpha1.ReasonInvalidSelector, err)
		case !selector.Empty():
			fmt.Printf(" among those with %s", selector)
		}
		fmt.Println()
	}
	fmt.Printf("policies: %d\n", len(policies.Items))
	return nil
}

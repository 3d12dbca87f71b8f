// Command nodes lists the cluster's nodes and the pods on them: the smallest
// program that does something useful with a clientset.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nodes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
	kubeContext := flag.String("context", "", "context in it (default: the current one)")
	namespace := flag.String("namespace", metav1.NamespaceAll, "only pods of this namespace")
	selector := flag.String("selector", "", "only pods with these labels, such as app=web")
	flag.Parse()

	// Three steps in every program of this lesson: a configuration, a client
	// made from it, a call. The other folders repeat them unchanged.
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

	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	for _, node := range nodes.Items {
		fmt.Printf("node %s ready=%t kubelet=%s\n", node.Name, ready(node), node.Status.NodeInfo.KubeletVersion)
	}

	// Selectors are the server's work: what does not match never travels.
	pods, err := client.CoreV1().Pods(*namespace).List(ctx, metav1.ListOptions{
		LabelSelector: *selector,
		FieldSelector: "spec.nodeName!=", // scheduled
	})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	for _, pod := range pods.Items {
		fmt.Printf("pod %s/%s on %s\n", pod.Namespace, pod.Name, pod.Spec.NodeName)
	}

	// The list of a namespace that does not exist is empty and no error: ask.
	if len(pods.Items) == 0 && *namespace != metav1.NamespaceAll {
		if _, err := client.CoreV1().Namespaces().Get(ctx, *namespace, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("no pods: %w", err)
		}
	}
	fmt.Printf("nodes: %d, pods: %d\n", len(nodes.Items), len(pods.Items))
	return nil
}

func ready(node corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

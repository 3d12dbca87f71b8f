// Command whoami reads one namespace: the least a lesson's program does.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	namespace := flag.String("n", "default", "the namespace to read")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ns, err := client.CoreV1().Namespaces().Get(ctx, *namespace, metav1.GetOptions{})
	if err != nil {
		return err
	}
	fmt.Printf("namespace %s\n", ns.Name)
	return nil
}

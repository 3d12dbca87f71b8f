package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// connect finds the API server, and says in words where it has looked. A file that
// was asked for wins. In a pod the cluster's own address and the token of the pod's
// service account are used; client-go reads the token again when it is renewed.
func connect(kubeconfig string) (config *rest.Config, source string, err error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err == nil {
			return config, "the service account of the pod", nil
		}
		if !errors.Is(err, rest.ErrNotInCluster) {
			return nil, "", fmt.Errorf("using the service account of the pod (is automountServiceAccountToken false?): %w", err)
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("not in a pod, and no usable kubeconfig (-kubeconfig, KUBECONFIG or ~/.kube/config): %w", err)
	}
	return config, "kubeconfig " + strings.Join(rules.GetLoadingPrecedence(), ", "), nil
}

// podNamespace is where the lease lies by default: beside the pod.
func podNamespace() string {
	data, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return "default"
	}
	return strings.TrimSpace(string(data))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

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

// dial makes a connection that takes what it has not sent with it when it is closed.
// By default the kernel goes on to send that, even for minutes after the end of the
// process. The last requests of a leader that was cut off could then arrive in the
// time of the next one.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second} // as in client-go
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = tcp.SetLinger(0)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("setting up the connection to %s: %w", address, err)
	}
	return conn, nil
}

// podNamespace is where the lease lies by default: beside the pod.
func podNamespace() string {
	data, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return "default"
	}
	return strings.TrimSpace(string(data))
}

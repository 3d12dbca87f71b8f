// address prints the address of this machine at which the API server can reach it: that of
// the route to the machine that the API server runs on.
package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"runtime"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "address:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	server, err := machine(ctx, config)
	if err != nil {
		return err
	}
	// Nothing is sent: connecting a UDP socket only looks up the route.
	conn, err := net.Dial("udp", net.JoinHostPort(server, "443"))
	if err != nil {
		return fmt.Errorf("looking for a route to %s: %w", server, err)
	}
	defer conn.Close()
	own := conn.LocalAddr().(*net.UDPAddr).IP
	if runtime.GOOS == "darwin" && !isNeighbour(own, server) {
		fmt.Fprintf(os.Stderr, "address: the cluster's nodes run in a virtual machine. If nothing there reaches this machine at %s, use CLUSTER=kwok for this step.\n", own)
	}
	fmt.Println(own)
	return nil
}

// isNeighbour says whether a machine is in the network of one of this machine's own addresses, and so not behind a
// gateway, as the containers of Docker Desktop are.
func isNeighbour(own net.IP, server string) bool {
	networks, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(networks, func(a net.Addr) bool {
		network, ok := a.(*net.IPNet)
		return ok && network.IP.Equal(own) && network.Contains(net.ParseIP(server))
	})
}

// machine returns where the API server runs: a node in kind's container, whose port is only
// forwarded to this machine, and else the host in the kubeconfig.
func machine(ctx context.Context, config *rest.Config) (string, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", fmt.Errorf("creating the client: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane"})
	if err != nil {
		return "", fmt.Errorf("listing nodes: %w", err)
	}
	for _, node := range nodes.Items {
		for _, a := range node.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				return a.Address, nil
			}
		}
	}
	u, err := url.Parse(config.Host)
	if err != nil {
		return "", fmt.Errorf("reading the server's address: %w", err)
	}
	return u.Hostname(), nil
}

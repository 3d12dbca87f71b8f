package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/internal/poll"
)

// Config returns a client configuration without a request rate limit of the
// client's own, which would only slow a test down.
func Config(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	config.QPS = -1
	return config, nil
}

func client(kubeconfig string) (kubernetes.Interface, error) {
	config, err := Config(kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// Healthy asks the API server whether it is ready. It is patient: a server that
// is only slow, on a busy machine, must not be taken for one that has died.
func Healthy(ctx context.Context, kubeconfig string) error {
	config, err := Config(kubeconfig)
	if err != nil {
		return err
	}
	config.Timeout = 10 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return fmt.Errorf("%s does not answer: %w", config.Host, err)
	}
	return nil
}

// waitReady waits until n nodes are Ready and the default namespace has its
// service account, without which no pod can be created.
func waitReady(ctx context.Context, kubeconfig string, n int, timeout time.Duration) error {
	client, err := client(kubeconfig)
	if err != nil {
		return err
	}
	err = poll.Until(ctx, 100*time.Millisecond, timeout, func(ctx context.Context) error {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for _, node := range nodes.Items {
			if slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) {
				ready++
			}
		}
		if ready < n {
			return fmt.Errorf("%d of %d nodes are ready", ready, n)
		}
		_, err = client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("waiting for the cluster's nodes: %w", err)
	}
	return nil
}

// waitSystemPods waits until every pod of kube-system is ready.
func waitSystemPods(ctx context.Context, kubeconfig string, timeout time.Duration) error {
	client, err := client(kubeconfig)
	if err != nil {
		return err
	}
	err = poll.Until(ctx, 250*time.Millisecond, timeout, func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items) == 0 {
			return errors.New("there is none yet")
		}
		for _, pod := range pods.Items {
			if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				return fmt.Errorf("%s is %s", pod.Name, pod.Status.Phase)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the pods of kube-system: %w", err)
	}
	return nil
}

// skew says when the server and this module's client-go are further apart than
// one minor version, which is what Kubernetes tests; see
// https://github.com/kubernetes/client-go#compatibility-matrix and
// https://kubernetes.io/releases/version-skew-policy.
func (c *Cluster) skew() (note string, err error) {
	client, err := c.Client()
	if err != nil {
		return "", err
	}
	server, err := client.Discovery().ServerVersion()
	if err != nil {
		return "", fmt.Errorf("asking the server for its version: %w", err)
	}
	clientGo, err := c.ws.ModuleVersion("go.mod", "k8s.io/client-go")
	if err != nil {
		return "", err
	}
	return skew(server.GitVersion, clientGo), nil
}

// skew compares a server's version, "v1.36.3", with client-go's, "v0.36.3".
func skew(server, clientGo string) string {
	var serverMinor, clientMinor int
	if _, err := fmt.Sscanf(server, "v1.%d", &serverMinor); err != nil {
		return fmt.Sprintf("Note: the server's version %q is not understood; version skew was not checked", server)
	}
	if _, err := fmt.Sscanf(clientGo, "v0.%d", &clientMinor); err != nil {
		return fmt.Sprintf("Note: client-go's version %q is not understood; version skew was not checked", clientGo)
	}
	if d := serverMinor - clientMinor; d < -1 || d > 1 {
		return fmt.Sprintf("Note: version skew: the server is 1.%d, client-go and kubectl are for 1.%d; more than one minor version apart is not supported", serverMinor, clientMinor)
	}
	return ""
}

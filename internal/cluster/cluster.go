// Package cluster starts, finds and removes the clusters that lessons and
// tests run on. Each kind of cluster is one file with one Provider.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-go/workshop/internal/build"
	"github.com/k8s-go/workshop/internal/engine"
	"github.com/k8s-go/workshop/internal/workspace"
)

// State is what there is of a cluster.
type State string

const (
	Absent State = "absent"
	Broken State = "broken" // half-made, or a part of it is gone: Up repairs it
	Ready  State = "ready"
)

// A Provider is one kind of cluster.
type Provider interface {
	// Name is the value of CLUSTER that chooses this provider.
	Name() string
	// Kubeconfig is the file that reaches the cluster once it is up.
	Kubeconfig() string
	// Containers reports whether pods run as real containers there.
	Containers() bool
	// State looks at the cluster without changing it. The string says more,
	// such as the address or what is missing.
	State(ctx context.Context) (State, string)

	// ExportLogs writes the logs of the cluster's parts below dir.
	ExportLogs(ctx context.Context, dir string) error

	// binaries names what up needs of build.ControlPlane.
	binaries() []string
	up(ctx context.Context, out io.Writer) error
	down(ctx context.Context, out io.Writer) error
}

// All returns every provider in the order in which they are documented.
func All(ws workspace.Workspace) []Provider {
	return []Provider{&kind{ws}, &kwok{ws}, &existing{ws}}
}

// Select returns the provider named want and why. With want empty that is the
// cluster of this clone that is up, else the best that this machine can run.
func Select(ctx context.Context, ws workspace.Workspace, want string) (Provider, string, error) {
	all := All(ws)
	var names []string
	for _, p := range all {
		if p.Name() == want {
			return p, "CLUSTER=" + want, nil
		}
		names = append(names, p.Name())
	}
	if want != "" {
		return nil, "", fmt.Errorf("CLUSTER=%s is not known: use one of %s", want, strings.Join(names, ", "))
	}
	for _, p := range all {
		// Somebody's own cluster is used only when asked for.
		if _, theirs := p.(*existing); theirs {
			continue
		}
		if state, _ := p.State(ctx); state == Ready {
			return p, "it is up", nil
		}
	}
	e, err := engine.Find(ctx)
	if err != nil {
		return &kwok{ws}, err.Error(), nil
	}
	return &kind{ws}, fmt.Sprintf("%s %s answers", e.Name, e.Version), nil
}

// Up makes the cluster ready: it starts one, repairs one, or finds that nothing
// is to be done. What a failed or cancelled Up began is taken back.
func Up(ctx context.Context, ws workspace.Workspace, p Provider, out io.Writer) (err error) {
	unlock, err := lock(ctx, ws, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	// Every cluster is used with the kubectl of the pinned version.
	if err := build.ControlPlane.Build(ctx, ws, out, append(p.binaries(), "kubectl")...); err != nil {
		return err
	}
	if state, _ := p.State(ctx); state == Ready {
		return nil
	}
	if err := p.up(ctx, out); err != nil {
		return err
	}
	return reportSkew(ctx, ws, p.Kubeconfig(), out)
}

// Down removes the cluster with everything that Up made. A cluster that is not
// there is no error.
func Down(ctx context.Context, ws workspace.Workspace, p Provider, out io.Writer) (err error) {
	unlock, err := lock(ctx, ws, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return p.down(ctx, out)
}

// lock keeps two commands of one clone from changing its clusters at the same time.
func lock(ctx context.Context, ws workspace.Workspace, out io.Writer) (unlock func() error, err error) {
	if err := os.MkdirAll(ws.State(), 0o755); err != nil {
		return nil, err
	}
	l := flock.New(ws.State("lock"))
	ok, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", l.Path(), err)
	}
	if !ok {
		fmt.Fprintln(out, "Another command of this clone is changing its cluster; waiting for it to end")
		if _, err := l.TryLockContext(ctx, 200*time.Millisecond); err != nil {
			return nil, fmt.Errorf("waiting for %s: %w", l.Path(), err)
		}
	}
	return l.Unlock, nil
}

// Environ returns this process's environment changed so that programs and
// kubectl reach the cluster of p, and so that nothing is written to ~/.kube.
func Environ(ws workspace.Workspace, p Provider) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"KUBECONFIG", "KUBECACHEDIR", "PATH", "CLUSTER"}, name)
	})
	return append(env,
		"CLUSTER="+p.Name(),
		"KUBECONFIG="+p.Kubeconfig(),
		"KUBECACHEDIR="+filepath.Join(filepath.Dir(p.Kubeconfig()), "kubectl-cache"),
		"PATH="+ws.Bin("")+string(filepath.ListSeparator)+os.Getenv("PATH"),
	)
}

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

// Client returns a clientset made from Config.
func Client(kubeconfig string) (kubernetes.Interface, error) {
	config, err := Config(kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// healthy asks the API server whether it is ready. It is patient: a server that
// is only slow, on a busy machine, must not be taken for one that has died.
func healthy(ctx context.Context, kubeconfig string) error {
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
	client, err := Client(kubeconfig)
	if err != nil {
		return err
	}
	missing := errors.New("no answer yet")
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			missing = err
			return false, nil
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
			missing = fmt.Errorf("%d of %d nodes are ready", ready, n)
			return false, nil
		}
		if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
			missing = err
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("the cluster is not ready: %w (%w)", missing, err)
	}
	return nil
}

// waitSystemPods waits until every Deployment and DaemonSet of kube-system is up.
func waitSystemPods(ctx context.Context, kubeconfig string, timeout time.Duration) error {
	client, err := Client(kubeconfig)
	if err != nil {
		return err
	}
	missing := ""
	err = wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		pods, err := client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) == 0 {
			missing = fmt.Sprintf("no pods yet (%v)", err)
			return false, nil
		}
		for _, pod := range pods.Items {
			if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				missing = fmt.Sprintf("%s is %s", pod.Name, pod.Status.Phase)
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("the system's pods are not ready: %s: %w", missing, err)
	}
	return nil
}

// reportSkew says when the server and this module's client-go are further apart
// than one minor version, which is what Kubernetes tests; see
// https://github.com/kubernetes/client-go#compatibility-matrix and
// https://kubernetes.io/releases/version-skew-policy.
func reportSkew(ctx context.Context, ws workspace.Workspace, kubeconfig string, out io.Writer) error {
	client, err := Client(kubeconfig)
	if err != nil {
		return err
	}
	server, err := client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("asking the server for its version: %w", err)
	}
	clientGo, err := ws.ModuleVersion("go.mod", "k8s.io/client-go")
	if err != nil {
		return err
	}
	if note := skew(server.GitVersion, clientGo); note != "" {
		fmt.Fprintln(out, note)
	}
	return nil
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

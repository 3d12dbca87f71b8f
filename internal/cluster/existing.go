package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/k8s-go/workshop/internal/workspace"
)

// existing is a cluster that somebody else made. It is reached through a copy
// of the chosen context, so that a change of the current context in the
// original does not move a run to another cluster halfway.
type existing struct {
	further
	ws workspace.Workspace
}

func (e *existing) name() string       { return "existing" }
func (e *existing) kubeconfig() string { return e.ws.Path("existing", "kubeconfig") }
func (e *existing) binaries() []string { return nil }

// containers asks the cluster: nodes of somebody's kwok cluster are simulated.
func (e *existing) containers(ctx context.Context) (bool, error) {
	client, err := client(e.kubeconfig())
	if err != nil {
		return false, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("asking the nodes whether they run containers: %w", err)
	}
	return runContainers(nodes.Items), nil
}

// runContainers reports whether all of the nodes run containers: one that does
// not may get any pod. A kubelet names its container runtime as "containerd://2.1".
func runContainers(nodes []corev1.Node) bool {
	for _, n := range nodes {
		_, simulated := n.Annotations["kwok.x-k8s.io/node"]
		if simulated || !strings.Contains(n.Status.NodeInfo.ContainerRuntimeVersion, "://") {
			return false
		}
	}
	return len(nodes) > 0
}

func (e *existing) loadImages(_ context.Context, _ io.Writer, images []string) error {
	return fmt.Errorf("CLUSTER=existing: images cannot be put into the nodes of a cluster that is not ours: push %s to a registry that it can pull from, or use CLUSTER=kind", strings.Join(images, ", "))
}

// exportLogs has nothing to export: the cluster's logs are its owner's.
func (e *existing) exportLogs(context.Context, string) error { return nil }

func (e *existing) status(ctx context.Context) Status {
	have, err := os.ReadFile(e.kubeconfig())
	if errors.Is(err, os.ErrNotExist) {
		return Status{State: Absent, Detail: "not connected"}
	}
	if err != nil {
		return Status{State: Broken, Detail: err.Error()}
	}
	want, name, err := e.chosenContext()
	if err != nil {
		return Status{State: Broken, Detail: err.Error()}
	}
	if !bytes.Equal(have, want) {
		return Status{State: Broken, Detail: "KUBECONFIG has changed since"}
	}
	if err := Healthy(ctx, e.kubeconfig()); err != nil {
		return Status{State: Broken, Detail: err.Error()}
	}
	return Status{State: Ready, Detail: "context " + name}
}

// chosenContext returns a kubeconfig with nothing but the current context of
// the one that kubectl would use, and that context's name. In a terminal of make web,
// that one is for a proxy, which ends before the cluster does: the copy stays chosen.
func (e *existing) chosenContext() ([]byte, string, error) {
	config, err := clientcmd.NewDefaultClientConfigLoadingRules().Load()
	if err != nil {
		return nil, "", fmt.Errorf("CLUSTER=existing: loading the kubeconfig: %w", err)
	}
	if config.CurrentContext == "" {
		return nil, "", errors.New("CLUSTER=existing: no kubeconfig with a current context was found: set KUBECONFIG to one, or run kubectl config use-context")
	}
	if config.CurrentContext == workspace.ProxyContext {
		if have, err := clientcmd.LoadFromFile(e.kubeconfig()); err == nil && have.CurrentContext != workspace.ProxyContext {
			config = have
		}
	}
	if err := clientcmdapi.MinifyConfig(config); err != nil {
		return nil, "", fmt.Errorf("CLUSTER=existing: %w", err)
	}
	if err := clientcmdapi.FlattenConfig(config); err != nil {
		return nil, "", fmt.Errorf("CLUSTER=existing: %w", err)
	}
	data, err := clientcmd.Write(*config)
	return data, config.CurrentContext, err
}

// leaves returns the context that this clone is connected to, if another one, or one of another server, is
// chosen now; else "".
func (e *existing) leaves() string {
	have, err := clientcmd.LoadFromFile(e.kubeconfig())
	if err != nil {
		return ""
	}
	data, name, err := e.chosenContext()
	if err != nil {
		return ""
	}
	chosen, err := clientcmd.Load(data)
	if err != nil || name == have.CurrentContext && server(chosen) == server(have) {
		return ""
	}
	return have.CurrentContext
}

// server returns the address in a kubeconfig that has one cluster.
func server(config *clientcmdapi.Config) string {
	for _, c := range config.Clusters {
		return c.Server
	}
	return ""
}

func (e *existing) up(ctx context.Context, _ Status, out io.Writer) error {
	data, name, err := e.chosenContext()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(e.ws.Path("existing"), 0o700); err != nil {
		return err
	}
	// Another shell of this clone may use what is there: it goes on as soon as the cluster answers again.
	fresh := e.kubeconfig() + ".new"
	if err := os.WriteFile(fresh, data, 0o600); err != nil {
		return err
	}
	if err := Healthy(ctx, fresh); err != nil {
		err = errors.Join(fmt.Errorf("CLUSTER=existing: context %s: %w", name, err), os.Remove(fresh))
		if _, noFile := os.Stat(e.kubeconfig()); errors.Is(noFile, os.ErrNotExist) {
			err = errors.Join(err, e.down(ctx, io.Discard))
		}
		return err
	}
	if err := os.Rename(fresh, e.kubeconfig()); err != nil {
		return err
	}
	fmt.Fprintf(out, "Connected to context %s\n", name)
	return nil
}

func (e *existing) down(_ context.Context, out io.Writer) error {
	if _, err := os.Stat(e.ws.Path("existing")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	fmt.Fprintln(out, "Disconnected from the existing cluster, which stays as it is")
	return os.RemoveAll(e.ws.Path("existing"))
}

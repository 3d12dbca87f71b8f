package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/k8s-go/workshop/internal/workspace"
)

// existing is a cluster that somebody else made. It is reached through a copy
// of the chosen context, so that a change of the current context in the
// original does not move a run to another cluster halfway.
type existing struct{ ws workspace.Workspace }

func (e *existing) Name() string       { return "existing" }
func (e *existing) Containers() bool   { return true }
func (e *existing) Kubeconfig() string { return e.ws.State("existing", "kubeconfig") }

func (e *existing) binaries() []string { return nil }

// ExportLogs has nothing to export: the cluster's logs are its owner's.
func (e *existing) ExportLogs(context.Context, string) error { return nil }

func (e *existing) State(ctx context.Context) (State, string) {
	have, err := os.ReadFile(e.Kubeconfig())
	if errors.Is(err, os.ErrNotExist) {
		return Absent, "not connected"
	}
	if err != nil {
		return Broken, err.Error()
	}
	want, name, err := chosenContext()
	if err != nil {
		return Broken, err.Error()
	}
	if !bytes.Equal(have, want) {
		return Broken, "KUBECONFIG has changed since"
	}
	if err := healthy(ctx, e.Kubeconfig()); err != nil {
		return Broken, err.Error()
	}
	return Ready, "context " + name
}

// chosenContext returns a kubeconfig with nothing but the current context of
// the one that kubectl would use, and that context's name.
func chosenContext() ([]byte, string, error) {
	config, err := clientcmd.NewDefaultClientConfigLoadingRules().Load()
	if err != nil {
		return nil, "", fmt.Errorf("CLUSTER=existing: loading the kubeconfig: %w", err)
	}
	if config.CurrentContext == "" {
		return nil, "", errors.New("CLUSTER=existing: no kubeconfig with a current context was found: set KUBECONFIG to one, or run kubectl config use-context")
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

func (e *existing) up(ctx context.Context, out io.Writer) error {
	data, name, err := chosenContext()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(e.ws.State("existing"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(e.Kubeconfig(), data, 0o600); err != nil {
		return err
	}
	if err := healthy(ctx, e.Kubeconfig()); err != nil {
		return errors.Join(fmt.Errorf("CLUSTER=existing: context %s: %w", name, err), e.down(ctx, io.Discard))
	}
	fmt.Fprintf(out, "Connected to context %s\n", name)
	return nil
}

func (e *existing) down(_ context.Context, out io.Writer) error {
	if _, err := os.Stat(e.ws.State("existing")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	fmt.Fprintln(out, "Disconnected from the existing cluster; nothing in it was changed")
	return os.RemoveAll(e.ws.State("existing"))
}
